"""One HTTP/2 connection: grpclib's protocol with one write per tick, keepalive and limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from grpclib import protocol
from grpclib.config import Configuration
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    RequestReceived,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from turnwire_server.runtime.reports import log_bug
from turnwire_server.transports.grpclib.abuse import Abuse
from turnwire_server.transports.grpclib.lean_h2 import LeanH2
from turnwire_server.transports.grpclib.writer import TickWriter

__all__ = ["LINGER_S", "Connection", "ConnectionSettings", "Connections", "WireProtocol"]

logger = logging.getLogger("turnwire.transports")

_MAX_HEADER_BYTES: Final = 65_536
"""Most of a header block; above it the connection ends, below it `max_metadata_bytes` decides."""
_LAST_STREAM: Final = 2**31 - 1
LINGER_S: Final = 1.0
"""How long a connection that was said good-bye to may take to close."""
_MAX_BACKLOG_BYTES: Final = 1_048_576
"""Answers to frames that a peer may leave unread; DATA stops long before."""

_H2_CONFIG: Final = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_inbound_headers=False,
    normalize_outbound_headers=False,
)


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How connections behave; see `GrpcSettings`."""

    max_concurrent_streams: int
    max_metadata_bytes: int
    ping_interval_s: float
    ping_timeout_s: float
    min_client_ping_interval_s: float
    max_ping_strikes: int
    is_fast: bool = True
    """Whether h2 is the one that the shortcuts were made for."""
    stream_window_bytes: int = 1_048_576
    """What a client may send on one stream before we have read it."""
    connection_window_bytes: int = 16_777_216
    """The same for all streams of a connection together."""


class Connection(protocol.Connection):
    """What streams share: h2, the writer, the pings of both sides, the good-bye."""

    def __init__(self, h2: H2Connection, writer: TickWriter, settings: ConnectionSettings) -> None:
        """Begin; the keepalive ends with `close`."""
        super().__init__(h2, cast(asyncio.Transport, writer), config=Configuration())
        self.h2 = h2
        self.writer = writer
        self.settings = settings
        self.is_leaving = False
        """Whether one side said good-bye; when the last call ends, the connection does."""
        self.is_deaf = False
        """Whether what arrives is dropped: the connection only waits for the peer to close it."""
        self._loop = asyncio.get_running_loop()
        self.abuse = Abuse(
            min_ping_interval_s=settings.min_client_ping_interval_s,
            max_ping_strikes=settings.max_ping_strikes,
        )
        self.last_heard_at = self._loop.time()
        self._timer = self._loop.call_later(settings.ping_interval_s, self._keep_alive)

    def flush(self) -> None:
        """Write what h2 has to say."""
        data = self.h2.data_to_send()
        if data:
            self.writer.write(data)

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        super().pause_writing()
        self.writer.is_writable = False

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        super().resume_writing()
        self.writer.is_writable = True

    def is_closing(self) -> bool:
        """Return whether nothing can be written any more."""
        return self.writer.is_closing()

    def close(self) -> None:
        """End it now."""
        self._timer.cancel()
        self.is_deaf = True
        self.writer.close()
        # The table's bound methods are a cycle.
        self.h2._frame_dispatch_table.clear()

    def _keep_alive(self) -> None:
        """Ping a peer that is silent; drop one that does not answer."""
        settings = self.settings
        silent = self._loop.time() - self.last_heard_at
        if silent < settings.ping_interval_s:
            delay = settings.ping_interval_s - silent
            self._timer = self._loop.call_later(delay, self._keep_alive)
            return
        if not self.is_deaf:
            self.h2.ping(b"turnwire")
            self.flush()
        self._timer = self._loop.call_later(
            settings.ping_timeout_s, self._give_up, self.last_heard_at
        )

    def _give_up(self, heard_at: float) -> None:
        if self.last_heard_at == heard_at:
            self.writer.abort()
        else:
            self._keep_alive()

    def check_backlog(self) -> None:
        """Drop a peer that makes us answer and does not read the answers."""
        if not self.writer.is_writable and self.writer.backlog_bytes() > _MAX_BACKLOG_BYTES:
            self.writer.abort()

    def go_away(self) -> None:
        """Ask the peer to open no more streams; those that are open go on."""
        if not self.is_leaving:
            self.is_leaving = True
            self._say_goodbye(_LAST_STREAM)

    def leave(self) -> None:
        """Say good-bye and close, as soon as the peer has read it."""
        if self.is_deaf:
            return
        self._say_goodbye(self.h2.highest_inbound_stream_id)
        self.linger()

    def _say_goodbye(self, last_stream_id: int) -> None:
        self.flush()
        # h2 would take this for the end of everything.
        goodbye = GoAwayFrame(last_stream_id=last_stream_id, additional_data=b"Server shutdown")
        self.writer.write(goodbye.serialize())

    def linger(self) -> None:
        """Close when the peer does, or after a moment: a reset would take away what it reads."""
        self.is_deaf = True
        self.writer.write_eof()
        self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self.writer.abort)


class Processor(protocol.EventsProcessor):
    """Turns h2's events into calls of grpclib's handler, within limits."""

    def __init__(self, handler: protocol.AbstractHandler, connection: Connection) -> None:
        """Process the events of `connection`."""
        super().__init__(handler, connection)
        self._wire = connection
        self._abuse = connection.abuse
        self._now = asyncio.get_running_loop().time

    def process(self, event: Event) -> None:
        """Process one event; one of a kind that we do not know changes nothing."""
        if self._wire.is_deaf:
            return
        processor: Any = self.processors.get(type(event))
        if processor is None:
            self._bear(self._abuse.idle_frame(self._now()))
        else:
            processor(event)

    def _bear(self, is_bearable: bool, why: bytes = b"") -> bool:
        """Send away a peer that is not bearable any more."""
        if not is_bearable and not self._wire.is_deaf:
            logger.info("connection closed: too many frames that ask for nothing")
            self._wire.h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM, why or None)
            self._wire.flush()
            self._wire.linger()
            self.end_calls()
        return is_bearable

    def end_calls(self) -> None:
        """Tell all calls that the connection is lost."""
        self.handler.close()

    def process_request_received(self, event: RequestReceived) -> None:
        """Hand over a new call, if there may be one more."""
        opened = self._wire.h2.streams.get(event.stream_id)
        if opened is None or opened.closed:
            return  # It was given up in the same packet: no work begins.
        # Those that were cancelled count until they are gone: their work may still go on.
        if len(self.streams) >= self._wire.settings.max_concurrent_streams:
            if self._bear(self._abuse.idle_frame(self._now())):
                self._wire.h2.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
            return
        super().process_request_received(event)

    def process_data_received(self, event: DataReceived) -> None:
        """Hand over data; padding and nothing are not data."""
        if not event.data and event.stream_ended is None:
            self._bear(self._abuse.idle_frame(self._now()))
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.buffer.add(event.data, event.flow_controlled_length)
        else:
            self.connection.ack(event.stream_id, event.flow_controlled_length)

    def process_stream_reset(self, event: StreamReset) -> None:
        """Cancel a call in this very iteration of the loop."""
        super().process_stream_reset(event)
        self._bear(self._abuse.reset(self._now()))

    def process_remote_settings_changed(self, event: RemoteSettingsChanged) -> None:
        """Let streams see their new windows."""
        super().process_remote_settings_changed(event)
        self._bear(self._abuse.idle_frame(self._now()))

    def process_window_updated(self, event: WindowUpdated) -> None:
        """Let streams see their new windows."""
        if event.stream_id == 0:
            self.wake_writers()
        elif (stream := self.streams.get(event.stream_id)) is not None:
            stream.window_updated.set()
        if not self._abuse.window_update(self._wire.writer.frames_sent):
            self._bear(False)

    def process_priority_updated(self, event: PriorityUpdated) -> None:
        """Ignore it, but not for ever."""
        self._bear(self._abuse.idle_frame(self._now()))

    def process_ping_received(self, event: PingReceived) -> None:
        """Count it; h2 has answered."""
        is_bearable = self._abuse.ping(self._now(), self._wire.writer.frames_sent)
        self._bear(is_bearable, b"too_many_pings")

    def process_connection_terminated(self, event: ConnectionTerminated) -> None:
        """Finish what is open, then close; close at once when the peer says why."""
        if event.error_code != ErrorCodes.NO_ERROR or not self._wire.settings.is_fast:
            self.close("The peer closed the connection")
            return
        self._wire.is_leaving = True
        if not self.streams:
            self._wire.leave()

    def wake_writers(self) -> None:
        """Let all calls look again whether they can write."""
        for stream in self.streams.values():
            stream.window_updated.set()

    def close(self, reason: str = "") -> None:
        """End the connection and all its calls."""
        self._wire.close()
        self.end_calls()
        self.processors.clear()  # bound methods: a cycle


class Connections:
    """The open connections of a server."""

    def __init__(self) -> None:
        self._open: set[WireProtocol] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def add(self, wire: WireProtocol) -> None:
        """Remember an open one."""
        self._open.add(wire)
        self._is_empty.clear()

    def remove(self, wire: WireProtocol) -> None:
        """Forget one that is closed."""
        self._open.discard(wire)
        if not self._open:
            self._is_empty.set()

    def all(self) -> list[WireProtocol]:
        """Return those that are open."""
        return list(self._open)

    async def until_empty(self) -> None:
        """Wait until none is open."""
        await self._is_empty.wait()


class WireProtocol(protocol.H2Protocol):
    """The asyncio protocol of one connection."""

    connection: Connection
    processor: Processor

    def __init__(
        self,
        make_handler: Callable[[Connection], protocol.AbstractHandler],
        settings: ConnectionSettings,
        connections: Connections,
    ) -> None:
        """Wait for the connection.

        Args:
            make_handler: Makes what takes the connection's calls.
            settings: How it behaves.
            connections: Where it is while it is open.
        """
        self._make_handler = make_handler
        self._settings = settings
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with our settings."""
        ssl_object = transport.get_extra_info("ssl_object")
        settings = self._settings
        h2 = (LeanH2 if settings.is_fast else H2Connection)(_H2_CONFIG)
        h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: settings.max_concurrent_streams,
                SettingCodes.MAX_HEADER_LIST_SIZE: settings.max_metadata_bytes,
                SettingCodes.INITIAL_WINDOW_SIZE: settings.stream_window_bytes,
            },
        )
        h2.decoder.max_header_list_size = _MAX_HEADER_BYTES
        h2.initiate_connection()
        h2.increment_flow_control_window(settings.connection_window_bytes - 65_535)
        writer = TickWriter(cast(asyncio.Transport, transport))
        self.connection = Connection(h2, writer, settings)
        self.processor = Processor(self._make_handler(self.connection), self.connection)
        self._connections.add(self)
        if ssl_object is not None and ssl_object.selected_alpn_protocol() != "h2":
            self.processor.close("No HTTP/2 was agreed on")
            return
        self.connection.flush()

    def data_received(self, data: bytes) -> None:
        """Process what arrived."""
        connection = self.connection
        connection.last_heard_at = connection._loop.time()
        if connection.is_deaf:
            return
        try:
            events = connection.feed(data)
            for event in events:
                self.processor.process(event)
        except ProtocolError:
            connection.flush()  # the GOAWAY with the reason
            connection.linger()
            self.processor.end_calls()
        except Exception as bug:  # The outermost frame: a bug must not be quoted by the loop.
            log_bug(logger, "connection failed", bug)
            self.processor.close("internal")
        else:
            connection.flush()
            connection.check_backlog()

    def resume_writing(self) -> None:
        """Let all calls write again."""
        super().resume_writing()
        self.processor.wake_writers()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End everything."""
        self._connections.remove(self)
        super().connection_lost(exc)
