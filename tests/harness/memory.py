"""A peer without a wire: client events in, server events out, through the real connection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from turnwire.v1 import client_event_pb2, server_event_pb2
from turnwire_server.runtime.connection import Connection, Ending, KeepaliveMode
from turnwire_server.runtime.services import DEFAULT_TENANT, Services
from turnwire_server.session.events import Delta, Outgoing

__all__ = ["MemoryPeer", "MemorySink", "delta_message"]

ServerEvent = server_event_pb2.ServerEvent


def delta_message(delta: Delta) -> ServerEvent:
    """Return a delta as the message that every transport must make of it."""
    part = delta.part
    event = ServerEvent(sequence_number=delta.sequence_number, stream_id=part.stream_id)
    body = getattr(event, part.kind)
    body.item_id, body.output_index, body.delta = part.item_id, part.output_index, delta.text
    if part.kind == "response_reasoning_summary_text_delta":
        body.summary_index = part.index
    elif part.kind in ("response_output_text_delta", "response_reasoning_text_delta"):
        body.content_index = part.index
    return event


class MemorySink:
    """A sink that keeps what it is given, and can hold back its reader."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[ServerEvent] = asyncio.Queue()
        self.batches: list[int] = []
        """How many events each write had."""
        self.readable = asyncio.Event()
        """Cleared to act a peer that does not read."""
        self.readable.set()

    def encode(self, event: Outgoing) -> bytes:
        """Encode as gRPC does."""
        message = delta_message(event) if isinstance(event, Delta) else event
        return message.SerializeToString()

    async def write(self, batch: Sequence[bytes]) -> None:
        """Hand the events over, once the reader reads."""
        await self.readable.wait()
        self.batches.append(len(batch))
        for encoded in batch:
            self.events.put_nowait(ServerEvent.FromString(encoded))

    def heartbeat(self) -> bytes | None:
        """There is none."""
        return None


class MemoryPeer:
    """A client of one connection."""

    def __init__(
        self,
        services: Services,
        *,
        is_persistent: bool = True,
        keepalive: KeepaliveMode | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> None:
        self.sink = MemorySink()
        self.connection: Connection = services.connect(
            self.sink,
            wire="memory",
            tenant=tenant,
            keepalive=keepalive,
            persistent=is_persistent,
        )
        self._run = asyncio.create_task(self.connection.run())

    async def send(self, event: client_event_pb2.ClientEvent) -> None:
        """Send a client event."""
        copy = client_event_pb2.ClientEvent.FromString(event.SerializeToString())
        self.connection.receive(copy, event.ByteSize())

    async def receive(self) -> ServerEvent:
        """Return the next server event."""
        return await self.sink.events.get()

    def disconnect(self) -> None:
        """Go away without a word."""
        self.connection.disconnect()

    def half_close(self) -> None:
        """Say that there is nothing more to send."""
        self.connection.half_close()

    async def ended(self) -> Ending:
        """Wait for the end of the connection. Cancelling is safe."""
        return await asyncio.shield(self._run)

    async def close(self) -> None:
        """Disconnect and wait for the end."""
        self.disconnect()
        if not self._run.cancelled():
            await self._run
