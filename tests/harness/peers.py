"""One client per wire, all with the same face; every event that arrives is checked.

A peer sends what a test wrote as public JSON: over WebSocket and HTTP byte for byte, over gRPC
and in memory as the message that it stands for.
"""

from __future__ import annotations

import asyncio
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import aiohttp
import grpc
import orjson

from harness.checker import StreamChecker
from harness.memory import MemoryPeer
from harness.tcp_proxy import TcpProxy
from turnwire import _codec
from turnwire.v1 import error_pb2, session_pb2_grpc
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ServerEvent, SessionError
from turnwire_server.runtime.connection import KeepaliveMode
from turnwire_server.runtime.services import DEFAULT_TENANT, Services

__all__ = [
    "ClosedError",
    "GrpcPeer",
    "HttpPeer",
    "MemoryWirePeer",
    "Peer",
    "WebSocketPeer",
    "Wire",
    "create_of",
    "ends_turn",
    "lane_of",
    "message_of",
]

Wire = Literal["memory", "grpc", "websocket", "http"]
Json = Mapping[str, Any]

WAIT_S = 20.0
"""Bound on every wait of a peer, in seconds."""

_TERMINAL = {"response_completed", "response_failed", "response_incomplete", "error"}


class ClosedError(Exception):
    """The connection is over; `how` says it in the wire's own words."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


def ends_turn(event: ServerEvent) -> bool:
    """Return whether the event ends a turn."""
    return event.WhichOneof("event") in _TERMINAL


def lane_of(event: ServerEvent) -> str | None:
    """Return the lane that the event names."""
    return event.stream_id if event.HasField("stream_id") else None


def create_of(members: Json) -> dict[str, Any]:
    """Return the JSON of a create with the given members, `model` filled in."""
    return {"type": "response.create", "model": "sim", **members}


class Peer(ABC):
    """A client of one connection."""

    wire: Wire
    proxy: TcpProxy | None = None
    """The relay that it goes through, if any."""

    def __init__(self) -> None:
        self.checker = StreamChecker()
        self.is_checked = True
        """Cleared by the tests that break the rules on purpose."""
        self._aside: list[ServerEvent] = []
        """Events that were read while another lane's were wanted, in order."""

    async def open(self) -> None:  # noqa: B027  # most wires open with their first event
        """Connect."""

    # What a test does.

    async def send(self, event: ClientEvent | Json) -> None:
        """Send a client event, given as a message or as its public JSON."""
        async with asyncio.timeout(WAIT_S):
            await self._send(event)

    async def receive(self) -> ServerEvent:
        """Return the next server event.

        Raises:
            ClosedError: The connection is over.
        """
        if self._aside:
            return self._aside.pop(0)
        return await self._checked()

    async def create(self, members: Json | None = None, /, **more: Any) -> None:
        """Send a create."""
        await self.send(create_of({**(members or {}), **more}))

    async def turn(self, members: Json | None = None, /, **more: Any) -> list[ServerEvent]:
        """Send a create and return its events, the terminal one last."""
        create = create_of({**(members or {}), **more})
        await self.send(create)
        return await self.finish(create.get("stream_id"))

    async def finish(self, lane: str | None = None) -> list[ServerEvent]:
        """Return a lane's events up to the next one that ends a turn."""
        events: list[ServerEvent] = []
        while not events or not ends_turn(events[-1]):
            events.append(await self._next_on(lane))
        return events

    async def until(self, arm: str, lane: str | None = None) -> ServerEvent:
        """Return a lane's next event with this arm; the ones before it are dropped."""
        while True:
            event = await self._next_on(lane)
            if event.WhichOneof("event") == arm:
                return event

    async def ended(self) -> str:
        """Wait for the end of the connection; what still arrives can be received afterwards."""
        arrived: list[ServerEvent] = []
        try:
            while True:
                arrived.append(await self._checked())
        except ClosedError as closed:
            return closed.how
        finally:
            self._aside += arrived

    def rest(self) -> list[ServerEvent]:
        """Return what arrived and was not received yet."""
        rest, self._aside = self._aside, []
        return rest

    # What a wire does.

    @abstractmethod
    async def _send(self, event: ClientEvent | Json) -> None: ...

    @abstractmethod
    async def _receive(self) -> ServerEvent: ...

    @abstractmethod
    async def disconnect(self) -> None:
        """Go away without a word."""

    async def lose(self) -> None:
        """Lose the connection: neither side is told anything."""
        await self.disconnect()

    @abstractmethod
    async def half_close(self) -> None:
        """Say that nothing more will be sent, where the wire can."""

    @abstractmethod
    async def close(self) -> None:
        """Give everything back. Idempotent."""

    # Private.

    async def _checked(self) -> ServerEvent:
        async with asyncio.timeout(WAIT_S):
            event = await self._receive()
        if self.is_checked:
            self.checker.feed(event)
        return event

    async def _next_on(self, lane: str | None) -> ServerEvent:
        for index, event in enumerate(self._aside):
            if lane_of(event) == lane:
                return self._aside.pop(index)
        while True:
            event = await self._checked()
            if lane_of(event) == lane:
                return event
            self._aside.append(event)


def message_of(event: ClientEvent | Json) -> ClientEvent:
    """Return a client event as the message."""
    return event if isinstance(event, ClientEvent) else _codec.parse(ClientEvent, dict(event))


def json_of(event: ClientEvent | Json) -> bytes:
    """Return a client event as public JSON."""
    return _codec.dumps(event) if isinstance(event, ClientEvent) else orjson.dumps(event)


class MemoryWirePeer(Peer):
    """No wire at all."""

    wire: Wire = "memory"

    def __init__(
        self,
        services: Services,
        *,
        keepalive: KeepaliveMode | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> None:
        super().__init__()
        self.inner = MemoryPeer(services, keepalive=keepalive, tenant=tenant)

    async def _send(self, event: ClientEvent | Json) -> None:
        await self.inner.send(message_of(event))

    async def _receive(self) -> ServerEvent:
        if not self.inner.sink.events.empty():
            return self.inner.sink.events.get_nowait()
        arrival = asyncio.ensure_future(self.inner.receive())
        over = asyncio.ensure_future(self.inner.ended())
        try:
            await asyncio.wait((arrival, over), return_when=asyncio.FIRST_COMPLETED)
            if arrival.done():
                return arrival.result()
            if not self.inner.sink.events.empty():
                return self.inner.sink.events.get_nowait()
            ending = over.result()
            raise ClosedError(ending.reason + (" cut" if ending.turns_cut else ""))
        finally:
            arrival.cancel()
            over.cancel()

    async def disconnect(self) -> None:
        self.inner.disconnect()

    async def lose(self) -> None:
        self.inner.connection.lose()

    async def half_close(self) -> None:
        self.inner.half_close()

    async def close(self) -> None:
        self.inner.sink.readable.set()
        await self.inner.close()


class GrpcPeer(Peer):
    """`SessionService.Connect` through the generated stub."""

    wire: Wire = "grpc"

    def __init__(
        self,
        target: str,
        *,
        proxy: TcpProxy | None = None,
        metadata: tuple[tuple[str, str], ...] = (),
        timeout_s: float | None = None,
    ) -> None:
        """Make a peer.

        Args:
            target: The server.
            proxy: A relay in front of it, through which the peer goes, to lose the connection.
            metadata: Of the call.
            timeout_s: Its deadline.
        """
        super().__init__()
        self.proxy = proxy
        options = () if proxy is None else (("grpc.use_local_subchannel_pool", 1),)
        target = target if proxy is None else f"127.0.0.1:{proxy.port}"
        self._channel = grpc.aio.insecure_channel(target, options=options)
        stub = session_pb2_grpc.SessionServiceStub(self._channel)
        self.call: Any = stub.Connect(metadata=metadata, timeout=timeout_s)
        self.frames: list[int] = []
        """How many events each frame had."""
        self._arrived: list[ServerEvent] = []

    async def _send(self, event: ClientEvent | Json) -> None:
        await self.call.write(message_of(event))

    async def _receive(self) -> ServerEvent:
        while not self._arrived:
            try:
                frame = await self.call.read()
            except grpc.aio.AioRpcError as error:
                raise ClosedError(error.code().name) from None
            except asyncio.CancelledError:
                if not self.call.cancelled():
                    raise
                raise ClosedError("CANCELLED") from None
            if frame is grpc.aio.EOF:
                raise ClosedError((await self.call.code()).name)
            self.frames.append(len(frame.events))
            self._arrived += frame.events
        return self._arrived.pop(0)

    async def disconnect(self) -> None:
        self.call.cancel()

    async def lose(self) -> None:
        assert self.proxy is not None, "only through a relay can a call be lost"
        self.proxy.cut()

    async def half_close(self) -> None:
        await self.call.done_writing()

    async def close(self) -> None:
        self.call.cancel()
        await self._channel.close()


class WebSocketPeer(Peer):
    """The public JSON over a plain WebSocket client."""

    wire: Wire = "websocket"

    def __init__(
        self,
        url: str,
        *,
        keepalive: KeepaliveMode | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._url = url if keepalive is None else f"{url}?keepalive={keepalive}"
        self._headers = headers
        self._http = aiohttp.ClientSession()
        self._socket: aiohttp.ClientWebSocketResponse[bool] | None = None
        self.raw: list[Any] = []
        """Every event as JSON."""

    async def open(self) -> None:
        self._socket = await self._http.ws_connect(self._url, max_msg_size=0, headers=self._headers)

    @property
    def socket(self) -> aiohttp.ClientWebSocketResponse[bool]:
        """The socket."""
        assert self._socket is not None
        return self._socket

    async def _send(self, event: ClientEvent | Json) -> None:
        await self.socket.send_frame(json_of(event), aiohttp.WSMsgType.TEXT)

    async def send_raw(self, data: bytes, *, binary: bool = False) -> None:
        """Send any bytes as one frame."""
        kind = aiohttp.WSMsgType.BINARY if binary else aiohttp.WSMsgType.TEXT
        await self.socket.send_frame(data, kind)

    async def _receive(self) -> ServerEvent:
        message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise ClosedError(str(self.socket.close_code))
        self.raw.append(orjson.loads(message.data))
        return _codec.loads(ServerEvent, message.data)

    async def disconnect(self) -> None:
        connection = self.socket._conn
        assert connection is not None and connection.transport is not None
        connection.transport.abort()

    async def half_close(self) -> None:
        raise NotImplementedError("a WebSocket is closed both ways or not at all")

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()
        await self._http.close()


class HttpPeer(Peer):
    """Each create is one POST with `stream: true`; an error body becomes the `error` event."""

    wire: Wire = "http"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url + "/responses"
        self._http = aiohttp.ClientSession()
        self._events: asyncio.Queue[ServerEvent | BaseException] = asyncio.Queue()
        self._posts: set[asyncio.Task[None]] = set()
        self.raw: list[Any] = []
        """Every event of a stream as JSON."""

    async def _send(self, event: ClientEvent | Json) -> None:
        body = orjson.loads(json_of(event))
        if body.pop("type", None) != "response.create":
            raise NotImplementedError("HTTP carries creates only")
        await self.post(orjson.dumps({**body, "stream": True}))

    async def post(self, body: bytes) -> None:
        """Post any bytes."""
        task = asyncio.create_task(self._post(body))
        self._posts.add(task)
        task.add_done_callback(self._posted)

    def _posted(self, task: asyncio.Task[None]) -> None:
        self._posts.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.put_nowait(error)

    async def _post(self, body: bytes) -> None:
        headers = {"content-type": "application/json"}
        data = io.BytesIO(body)
        async with self._http.post(self._url, data=data, headers=headers) as answer:
            if answer.status != 200:
                self._events.put_nowait(await _error_event(answer))
                return
            assert answer.content_type == "text/event-stream"
            await self._read_stream(answer)

    async def _read_stream(self, answer: aiohttp.ClientResponse) -> None:
        name, has_ended = "", False
        async for line in answer.content:
            text = line.rstrip(b"\n")
            assert not has_ended or not text, "something follows [DONE]"
            if text.startswith(b"event: "):
                name = text[7:].decode()
            elif text == b"data: [DONE]":
                has_ended = True
            elif text.startswith(b"data: "):
                value = orjson.loads(text[6:])
                assert value["type"] == name, "`event` and `type` differ"
                self.raw.append(value)
                self._events.put_nowait(_codec.loads(ServerEvent, text[6:]))
            else:
                assert not text or text.startswith(b":"), "a line that is no server-sent event"
        if not has_ended:
            self._events.put_nowait(ClosedError("cut"))

    async def _receive(self) -> ServerEvent:
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    async def disconnect(self) -> None:
        posts = list(self._posts)
        for post in posts:
            post.cancel()
        if posts:
            await asyncio.wait(posts)
        self._events.put_nowait(ClosedError("disconnected"))

    async def half_close(self) -> None:
        """Do nothing: every request is one already."""

    async def close(self) -> None:
        await self.disconnect()
        await self._http.close()


async def _error_event(answer: aiohttp.ClientResponse) -> ServerEvent:
    value = orjson.loads(await answer.read())
    assert list(value) == ["error"], "an error body has one member"
    error = _codec.parse(error_pb2.ErrorBody, value["error"])
    return ServerEvent(error=SessionError(status=answer.status, error=error))
