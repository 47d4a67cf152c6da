"""Streams that generate all the time, and how late each of their tokens is."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any, Final

from turnwire_bench.echo import ECHO_METHOD, ECHO_PATH, plans_message, turn_message
from turnwire_bench.figures import percentile
from turnwire_bench.lean import (
    MOST_ONE_BYTE_TOKENS,
    LeanSession,
    LeanWire,
    Link,
    close_all,
    create_of,
    one_byte_tokens,
    open_lean,
)
from turnwire_bench.usage import cpu_seconds

__all__ = ["paced"]

Job = dict[str, Any]

_AT_ONCE: Final = 64
"""Streams that are opened at a time."""
_OPENS_TIMEOUT_S: Final = 400.0
_SETTLE_S: Final = 0.5
_DELTA_BYTES: Final = {"ws": 180, "grpc": 60}
"""About what a delta takes; the yardstick's messages are as long."""


async def paced(job: Job) -> dict[str, Any]:
    """Keep `sessions` generating at `rate` for `seconds`.

    Returns:
        Events and tokens of the window, delays of tokens behind the engine's schedule, and the
        CPU seconds of this process and of `pids` in it.
    """
    load = _PacedLoad(job)
    await load.open()
    try:
        return await load.run()
    finally:
        await load.close()


class _PacedLoad:
    """Streams that generate all the time, each a little later than the one before."""

    def __init__(self, job: Job) -> None:
        self._wire: LeanWire = job["wire"]
        self._is_echo: bool = job.get("echo", False)
        self._port: int = job["port"]
        self._rate: float = job["rate"]
        self._seconds: float = job["seconds"]
        self._pids: list[int] = job["pids"]
        # As long as an answer is: what it costs to begin and to end a turn is another figure.
        self._tokens = MOST_ONE_BYTE_TOKENS
        self._streams = [_PacedStream(self._tokens, self._rate) for _ in range(job["sessions"])]
        self._create = create_of(self._wire, "Go on.", one_byte_tokens(self._tokens, self._rate))
        self._failures = 0

    async def open(self) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(stream: _PacedStream) -> None:
            async with limit:
                if self._is_echo:
                    await stream.open_echo(self._wire, self._port)
                else:
                    await stream.open(self._wire, self._port, self._create)

        async with asyncio.timeout(_OPENS_TIMEOUT_S):
            await asyncio.gather(*map(one, self._streams))

    async def run(self) -> dict[str, Any]:
        gc.collect()
        loop = asyncio.get_running_loop()
        spread = min(1.0, self._tokens / self._rate)
        for number, stream in enumerate(self._streams):
            loop.call_later(spread * number / len(self._streams), stream.begin)
        await asyncio.sleep(spread + _SETTLE_S)
        for stream in self._streams:
            stream.forget()
        began = time.perf_counter()
        own, theirs = time.process_time(), cpu_seconds(self._pids)
        await asyncio.sleep(self._seconds)
        wall = time.perf_counter() - began
        own_spent, theirs_after = time.process_time() - own, cpu_seconds(self._pids)
        delays = [delay for stream in self._streams for delay in stream.delays]
        turns = [took for stream in self._streams for took in stream.turns]
        return {
            "wall_s": wall,
            "events": sum(stream.events for stream in self._streams),
            "messages": sum(stream.messages for stream in self._streams),
            "tokens": sum(stream.tokens for stream in self._streams),
            "wanted_tokens": wall * self._rate * len(self._streams),
            "delay_ms": {
                name: percentile(delays, part) * 1e3 if delays else None
                for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
            },
            "turn_overhead_ms": {
                name: percentile(turns, part) * 1e3 if turns else None
                for name, part in (("p50", 0.5), ("p99", 0.99))
            },
            "client_cpu_s": own_spent,
            "server_cpu_s": None if theirs is None else (theirs_after or 0.0) - theirs,
            "ended": sum(stream.link.closed.done() for stream in self._streams),
        }

    async def close(self) -> None:
        for stream in self._streams:
            stream.stop()
        links = [stream.link for stream in self._streams if hasattr(stream, "link")]
        await close_all(links, politely=False)


class _PacedStream:
    """One session that says the same again and again, and how late each token was."""

    link: Link

    def __init__(self, tokens: int, rate: float) -> None:
        self._period = 1 / rate
        self._count = tokens
        self._request = b""
        self._began = 0.0
        self._seen = 0
        self._is_over = False
        self._session: LeanSession | None = None
        self._echoed = 0
        self.forget()

    def forget(self) -> None:
        """Begin to count."""
        self.delays: list[float] = []
        self.turns: list[float] = []
        self.tokens = 0
        self._events_before, self._messages_before = self._totals()

    @property
    def events(self) -> int:
        """Events since then."""
        return self._totals()[0] - self._events_before

    @property
    def messages(self) -> int:
        """Messages since then."""
        return self._totals()[1] - self._messages_before

    def _totals(self) -> tuple[int, int]:
        if self._session is None:
            return self._echoed, self._echoed
        return self._session.counts.events, self._session.counts.messages

    async def open(self, wire: LeanWire, port: int, create: bytes) -> None:
        """Open a session."""
        self._request = create
        self._session = LeanSession(wire, on_text=self._text, on_end=self._end)
        self.link = await open_lean(wire, port, self._session.take)
        self.forget()

    async def open_echo(self, wire: LeanWire, port: int) -> None:
        """Open a stream of the yardstick, with one message for each token."""
        ready = asyncio.get_running_loop().create_future()
        self._take: Callable[[bytes], None] = lambda _: ready.set_result(None)
        path = ECHO_METHOD if wire == "grpc" else ECHO_PATH
        self.link = await open_lean(wire, port, lambda data: self._take(data), path=path)
        size = _DELTA_BYTES[wire]
        self.link.send(plans_message([[(n * self._period, size) for n in range(self._count)]]))
        await ready
        self._take = self._echo
        self._request = turn_message(0, 200)
        self.forget()

    def begin(self) -> None:
        """Ask for the next turn."""
        if self._is_over:
            return
        self._seen = 0
        self._began = time.perf_counter()
        self.link.send(self._request)

    def stop(self) -> None:
        """Ask for no more turns."""
        self._is_over = True

    def _text(self, text: str) -> None:
        self._note(len(text))

    def _end(self, _: str) -> None:
        # The id that ends the turn is a token as well.
        self.turns.append(time.perf_counter() - self._began - self._count * self._period)
        self.begin()

    def _echo(self, _: bytes) -> None:
        self._echoed += 1
        self._note(1)
        if self._seen == self._count:
            late = time.perf_counter() - self._began - (self._count - 1) * self._period
            self.turns.append(late)
            self.begin()

    def _note(self, tokens: int) -> None:
        self._seen += tokens
        self.tokens += tokens
        due = self._began + (self._seen - 1) * self._period
        self.delays.append(time.perf_counter() - due)
