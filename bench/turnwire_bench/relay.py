"""The relay: a process between client and server that behaves like a network.

It delays both directions, limits the rate of each, and charges a round trip for each TCP connect;
TLS handshakes cross it for real. It does not model slow start, loss or jitter.

Lines in, one line of answer each: `{"open": {"port", "round_trip_s", "bits_per_second"}}` gives
`{"link", "port"}`, `{"counts": link}` gives `{"bytes_up", "bytes_down", "connections"}`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from typing import Any, Final, cast

import orjson

from turnwire_bench.loops import new_exact_loop
from turnwire_bench.network import Direction, Passage, Profile
from turnwire_bench.processes import say

__all__ = ["Link", "main"]

_HOST: Final = "127.0.0.1"
_MOST_UNDER_WAY: Final = 4 << 20
"""Bytes of one direction of one connection that may be under way; then its sender has to wait."""


class Link:
    """A listening port, the server behind it, and the network between them."""

    def __init__(self, port: int, profile: Profile) -> None:
        """Lead to `port` of this machine."""
        self.up = Direction(profile)
        self.down = Direction(profile)
        self.bytes_up = 0
        self.bytes_down = 0
        self.connections = 0
        self._port = port
        self._connecting: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        """Listen, and return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _End(self), _HOST, 0)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Take no more connections; those that are open go on."""
        if self._server is not None:
            self._server.close()

    def accepted(self, client: _End) -> None:
        """Connect a client with the server."""
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._connect(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: _End) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, server = await loop.create_connection(lambda: _End(None), _HOST, self._port)
        except OSError:
            client.transport.abort()
            return
        now = loop.time()
        client.way = _Way(self, Passage(self.up, opened_at=client.opened_at), client, server)
        # The handshake is charged once, to the side that asked for it.
        passage = Passage(self.down, opened_at=now - self.down.profile.round_trip_s)
        server.way = _Way(self, passage, server, client, is_up=False)
        client.transport.resume_reading()


class _End(asyncio.Protocol):
    """One side of a connection."""

    transport: asyncio.Transport

    def __init__(self, link: Link | None) -> None:
        self._link = link
        self.opened_at = 0.0
        self.way: _Way | None = None
        """Where what it receives goes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.opened_at = asyncio.get_running_loop().time()
        if self._link is not None:
            self.transport.pause_reading()
            self._link.accepted(self)

    def data_received(self, data: bytes) -> None:
        assert self.way is not None  # nothing is read before there is one
        self.way.take(data)

    def eof_received(self) -> bool:
        if self.way is not None:
            self.way.take(b"")
        return True  # the other direction goes on

    def connection_lost(self, exc: Exception | None) -> None:
        if self.way is not None:
            self.way.lost()


class _Way:
    """What is under way from one side to the other."""

    def __init__(
        self, link: Link, passage: Passage, source: _End, target: _End, *, is_up: bool = True
    ) -> None:
        self._link = link
        self._passage = passage
        self._source = source
        self._target = target
        self._is_up = is_up
        self._queue: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_lost = False
        self.is_over = False
        """Whether the end has arrived."""

    def take(self, data: bytes) -> None:
        """Send bytes on their way; no bytes are the end."""
        if self._is_up:
            self._link.bytes_up += len(data)
        else:
            self._link.bytes_down += len(data)
        loop = asyncio.get_running_loop()
        due = self._passage.arrives_at(loop.time(), len(data))
        self._queue.append((due, data))
        self._size += len(data)
        if self._size > _MOST_UNDER_WAY:
            self._source.transport.pause_reading()
        if self._timer is None:
            self._timer = loop.call_at(due, self._deliver)

    def lost(self) -> None:
        """Cut the other side, once all that is under way has arrived."""
        self._is_lost = True
        if self._timer is None:
            self._target.transport.close()

    def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        while self._queue and self._queue[0][0] <= now:
            _, data = self._queue.popleft()
            self._size -= len(data)
            if self._target.transport.is_closing():
                continue
            if data:
                self._target.transport.write(data)
            else:
                self._finish()
        if self._size <= _MOST_UNDER_WAY and not self._is_lost:
            self._source.transport.resume_reading()
        if self._queue:
            self._timer = loop.call_at(self._queue[0][0], self._deliver)
        elif self._is_lost:
            self._target.transport.close()

    def _finish(self) -> None:
        self.is_over = True
        self._target.transport.write_eof()
        back = self._target.way
        if back is not None and back.is_over:
            self._target.transport.close()
            self._source.transport.close()


class _Relay:
    """All links, and the lines that ask for them."""

    def __init__(self) -> None:
        self._links: list[Link] = []
        self.ended = asyncio.Event()
        self._text = b""
        self._answers: set[asyncio.Task[None]] = set()

    def read(self) -> None:
        """Take what came on the standard input."""
        data = os.read(sys.stdin.fileno(), 1 << 16)
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.ended.set()
            return
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            task = asyncio.get_running_loop().create_task(self._answer(orjson.loads(line)))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _answer(self, question: dict[str, Any]) -> None:
        if "open" in question:
            wanted = question["open"]
            profile = Profile("", wanted["round_trip_s"], wanted["bits_per_second"])
            link = Link(wanted["port"], profile)
            self._links.append(link)
            say({"link": len(self._links) - 1, "port": await link.open()})
        else:
            link = self._links[question["counts"]]
            say(
                {
                    "bytes_up": link.bytes_up,
                    "bytes_down": link.bytes_down,
                    "connections": link.connections,
                }
            )


async def _serve() -> None:
    relay = _Relay()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), relay.read)
    say({"pid": os.getpid()})
    await relay.ended.wait()


def main() -> None:
    """Relay until the standard input closes."""
    with asyncio.Runner(loop_factory=new_exact_loop) as runner:
        runner.run(_serve())


if __name__ == "__main__":
    main()
