"""The loop of an engine's child process: read what is there, run one step, send what it gave.

A child serves one connection, or, for a host (`engine_host`), several that share its model. Which
of them, the first message on the socket it was born with says: `start` makes that socket its only
connection; `host` makes it the host's, through which connections come, each with one byte.

On a connection, from the parent: `start` (options, once), `generate` (key, prompt ids, options),
`cancel` (key). To the parent: `ready` (facts), `failed` (why), `steps` (list of key, ids, finish,
cached tokens), `refused` (key, why), `broken` (why, then the process ends). Keys are a
connection's own.

To the host: `ready`, `failed`, and `idle` (how many connections came so far) when none is left.
"""

from __future__ import annotations

import os
import select
import socket
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from turnwire_server.adapters.engines.child_frames import FrameReader, pack_frame

__all__ = ["ChildLoop", "Key", "Pipeline", "Ready", "Refusal"]

_RECEIVE_BYTES: Final = 1 << 20
_LONGEST_REASON: Final = 300
_MOST_UNSENT_BYTES: Final = 16 << 20
"""A connection that leaves so much unread is closed: others wait for the same model."""

Key = tuple[int, int]
"""The number of a connection, and what it calls one of its generations."""
Ready = tuple[Key, list[int], str | None, int | None]
"""Generation, ids, finish, cached tokens."""


class Refusal(Exception):
    """One request cannot be served; the others go on."""


class Pipeline(Protocol):
    """What runs the model."""

    capacity: int
    """Tokens that fit into the cache of keys and values."""

    @property
    def is_busy(self) -> bool:
        """Whether a step has something to do."""

    def add(self, key: Key, ids: bytes, options: Mapping[str, Any]) -> None:
        """Begin a request, or raise `Refusal`."""

    def cancel(self, key: Key) -> None:
        """Stop a request, if it runs."""

    def step(self) -> list[Ready]:
        """Run one step; return what became ready. What it raises ends the process."""


class _Connection:
    """One engine in some server process."""

    def __init__(self, number: int, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.number = number
        self.channel = channel
        self.frames = FrameReader()
        self.unsent = bytearray()
        self.running: set[int] = set()
        self.is_over = False

    def send(self, *message: object) -> None:
        self.unsent += pack_frame(*message)
        self.flush()

    def flush(self) -> None:
        try:
            while self.unsent:
                del self.unsent[: self.channel.send(self.unsent)]
        except BlockingIOError:
            self.is_over = self.is_over or len(self.unsent) > _MOST_UNSENT_BYTES
        except OSError:
            self.is_over = True

    def receive(self) -> bytes:
        """Return what is there; nothing at the end."""
        try:
            return self.channel.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            self.is_over = True
            return b""


class ChildLoop:
    """Serves connections with one pipeline."""

    def __init__(
        self, channel: socket.socket, make_pipeline: Callable[[Mapping[str, Any]], Pipeline]
    ) -> None:
        """Make it for the socket the process was born with; `run` begins.

        Args:
            channel: Sockets of hosts and of parents look the same.
            make_pipeline: Loads the model that the options name; whatever it raises is said.
        """
        self._first = _Connection(0, channel)
        """Its first message says what it is."""
        self._host: socket.socket | None = None
        self._make_pipeline = make_pipeline
        self._pipeline: Pipeline | None = None
        self._connections: dict[int, _Connection] = {}
        self._count = 0
        """Connections that came so far."""

    def run(self) -> None:
        """Serve until nobody is left who could want anything; then `end`."""
        first = self._first
        while self._pipeline is None:
            select.select([first.channel], [], [])
            data = first.receive()
            if not data:
                return self.end(0)
            for message in first.frames.feed(data):
                match message:
                    case ("start", options):
                        self._load(first, options)
                        self._take(first)
                    case ("host", options):
                        self._load(first, options)
                        self._host = first.channel
        while self._host is not None or self._connections:
            self._turn()
        self.end(0)

    def end(self, status: int) -> None:
        """End the process: nothing here is worth a destructor."""
        os._exit(status)

    # Private.

    def _load(self, asking: _Connection, options: Mapping[str, Any]) -> None:
        try:
            self._pipeline = self._make_pipeline(options)
        except Exception as error:  # whatever it is, the operator must read it
            asking.send("failed", _reason(error))
            return self.end(1)
        asking.send("ready", {"capacity": self._pipeline.capacity})

    def _turn(self) -> None:
        """Read what is there, without waiting if there is something to do, then run a step."""
        pipeline = self._pipeline
        assert pipeline is not None
        connections = list(self._connections.values())
        readers: list[Any] = [one.channel for one in connections]
        if self._host is not None:
            readers.append(self._host)
        writers = [one.channel for one in connections if one.unsent]
        ready, _, _ = select.select(readers, writers, [], 0 if pipeline.is_busy else None)
        is_ready = set(ready)
        for one in connections:
            if one.unsent:
                one.flush()
            if one.channel in is_ready:
                self._receive(one)
        if self._host is not None and self._host in is_ready:
            self._adopt(self._host)
        self._drop_lost(pipeline)
        if pipeline.is_busy:
            self._step(pipeline)
            self._drop_lost(pipeline)

    def _receive(self, connection: _Connection) -> None:
        data = connection.receive()
        if not data:
            connection.is_over = True
        for message in connection.frames.feed(data):
            self._hear(connection, message)

    def _hear(self, connection: _Connection, message: tuple[Any, ...]) -> None:
        pipeline = self._pipeline
        assert pipeline is not None
        match message:
            case ("generate", key, ids, options):
                try:
                    pipeline.add((connection.number, key), ids, options)
                except Refusal as refusal:
                    connection.send("refused", key, str(refusal))
                else:
                    connection.running.add(key)
            case ("cancel", key):
                connection.running.discard(key)
                pipeline.cancel((connection.number, key))

    def _step(self, pipeline: Pipeline) -> None:
        try:
            ready = pipeline.step()
        except Exception as error:  # the pipeline is unusable now: better a new process
            for one in self._connections.values():
                one.send("broken", _reason(error))
            return self.end(2)
        if not ready:
            return
        steps = defaultdict(list)
        for (number, key), ids, finish, cached in ready:
            steps[number].append((key, ids, finish, cached))
            if finish is not None:
                self._connections[number].running.discard(key)
        for number, own in steps.items():
            self._connections[number].send("steps", own)

    def _take(self, connection: _Connection) -> None:
        self._count += 1
        connection.number = self._count
        self._connections[connection.number] = connection

    def _adopt(self, host: socket.socket) -> None:
        """Take a connection that the host passes on."""
        try:
            what, descriptors, _, _ = socket.recv_fds(host, 1, 1)
        except OSError:
            what, descriptors = b"", []
        if not what:  # the host is gone: whoever is connected may finish
            self._host = None
            host.close()
        for descriptor in descriptors:
            connection = _Connection(0, socket.socket(fileno=descriptor))
            self._take(connection)
            assert self._pipeline is not None
            facts = {"capacity": self._pipeline.capacity, "counts": what == b"1"}
            connection.send("ready", facts)

    def _drop_lost(self, pipeline: Pipeline) -> None:
        lost = [one for one in self._connections.values() if one.is_over]
        for one in lost:
            del self._connections[one.number]
            for key in one.running:
                pipeline.cancel((one.number, key))
            one.channel.close()
        if lost and not self._connections and self._host is not None:
            with suppress(OSError):  # that it is gone, its end says
                self._host.setblocking(True)
                self._host.sendall(pack_frame("idle", self._count))


def _reason(error: BaseException) -> str:
    """Return the last line of what was said, which is where OpenVINO says it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:_LONGEST_REASON]
