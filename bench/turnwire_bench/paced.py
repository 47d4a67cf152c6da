"""Streams that generate all the time, and how late each of their tokens is."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from turnwire_bench.echo import ECHO_METHOD, ECHO_PATH, plans_message, turn_message
from turnwire_bench.figures import percentile
from turnwire_bench.lean import (
    METHOD,
    MOST_ONE_BYTE_TOKENS,
    LeanSession,
    LeanWire,
    Link,
    close_all,
    connect_lean,
    create_of,
    one_byte_tokens,
    open_lean,
)
from turnwire_bench.usage import cpu_seconds

__all__ = ["PACED_NOTE", "paced"]

Job = dict[str, Any]
OpenLink = Callable[[Callable[[bytes], None]], Awaitable[Link]]
"""Opens what a stream goes over; told what takes each message."""

_AT_ONCE: Final = 64
"""Streams that are opened at a time."""
_OPENS_TIMEOUT_S: Final = 400.0
_SETTLE_S: Final = 0.5
_DELTA_BYTES: Final = {"ws": 180, "grpc": 60}
"""About what a delta takes; the yardstick's messages are as long."""
_RAMP_S: Final = 1.0
"""Longest time within which all streams begin."""
_OVERDUE_S: Final = 1.0
"""So late no first turn ends because all streams begin within a second."""
_LOOK: Final = 1 / 3
"""Of the window: when a load that is far too much is given up."""

PACED_NOTE: Final = (
    "All sessions begin within a second, which is a load of its own, and a turn that begins late "
    "is late to its end. Their first turns are therefore of different lengths, so that from then "
    "on turns begin evenly over time, and the delays of first turns do not count, but for those "
    "that should have ended a second ago."
)


async def paced(job: Job) -> dict[str, Any]:
    """Keep `sessions` generating at `rate` for `seconds`.

    With `connections` the streams of gRPC share so many, as those of a gateway do. With
    `give_up_ms` it ends after a third of the seconds when half of the tokens are later than that;
    `gave_up` says so.

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
        self._rate = float(job["rate"])
        self._seconds: float = job["seconds"]
        self._pids: list[int] = job["pids"]
        # As long as an answer is: what it costs to begin and to end a turn is another figure.
        self._tokens = MOST_ONE_BYTE_TOKENS
        self._give_up_ms: float | None = job.get("give_up_ms")
        self._connections: int = job.get("connections", 0)
        count = job["sessions"]
        self._ramp_s = min(_RAMP_S, self._tokens / self._rate)
        self._streams = [
            _PacedStream(self._tokens, self._rate, first=self._first_tokens(number / count))
            for number in range(count)
        ]

    def _first_tokens(self, place: float) -> int:
        """Return the length of a first turn; `place` is which one it is, from 0 to 1.

        The first of the second turns begins when the ramp is over, the last a turn's time later.
        """
        at_once = self._ramp_s * self._rate / self._tokens
        part: float = at_once + (1 - at_once) * place
        return max(1, round(self._tokens * part))

    async def open(self) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)
        shared = [await connect_lean(self._port) for _ in range(self._connections)]

        async def link(number: int, take: Callable[[bytes], None]) -> Link:
            path = None
            if self._is_echo:
                path = ECHO_METHOD if self._wire == "grpc" else ECHO_PATH
            if shared:
                return shared[number % len(shared)].call(path or METHOD, take)
            return await open_lean(self._wire, self._port, take, path=path)

        async def one(number: int, stream: _PacedStream) -> None:
            async with limit:
                if self._is_echo:
                    await stream.open_echo(self._wire, partial(link, number))
                else:
                    await stream.open(self._wire, partial(link, number))

        async with asyncio.timeout(_OPENS_TIMEOUT_S):
            await asyncio.gather(*map(one, itertools.count(), self._streams))

    async def run(self) -> dict[str, Any]:
        gc.collect()
        loop = asyncio.get_running_loop()
        for number, stream in enumerate(self._streams):
            loop.call_later(self._ramp_s * number / len(self._streams), stream.begin)
        await asyncio.sleep(self._ramp_s + _SETTLE_S)
        for stream in self._streams:
            stream.forget()
        began = time.perf_counter()
        own, theirs = time.process_time(), cpu_seconds(self._pids)
        gave_up = await self._window()
        wall = time.perf_counter() - began
        own_spent, theirs_after = time.process_time() - own, cpu_seconds(self._pids)
        delays = self._delays()
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
            "gave_up": gave_up,
        }

    async def _window(self) -> bool:
        """Wait for the window's end; return whether it was not worth the wait."""
        if self._give_up_ms is None:
            await asyncio.sleep(self._seconds)
            return False
        await asyncio.sleep(self._seconds * _LOOK)
        delays = self._delays()
        late = sum(delay * 1e3 > self._give_up_ms for delay in delays)
        # Half of all tokens: no hiccup of the machine makes as many late.
        if late * 2 > len(delays):
            return True
        await asyncio.sleep(self._seconds * (1 - _LOOK))
        return False

    def _delays(self) -> list[float]:
        """Return the delays of all but first turns; of these where nothing else was seen.

        A first turn that should be over long ago counts: streams that starve must be seen.
        """
        counted = [stream for stream in self._streams if stream.is_settled or stream.is_overdue]
        return [delay for stream in counted or self._streams for delay in stream.delays]

    async def close(self) -> None:
        for stream in self._streams:
            stream.stop()
        links = [stream.link for stream in self._streams if hasattr(stream, "link")]
        await close_all(links, politely=False)


class _PacedStream:
    """One session that says the same again and again, and how late each token was."""

    link: Link

    def __init__(self, tokens: int, rate: float, *, first: int) -> None:
        """Say `tokens` tokens at `rate` again and again, but `first` at first."""
        self._rate = rate
        self._period = 1 / rate
        self._tokens = tokens
        self._count = first
        self._request = self._later_request = b""
        self.is_settled = False
        """Whether its first turn is over."""
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
    def is_overdue(self) -> bool:
        """Whether the turn that it is in should be over long ago."""
        due = self._began + self._count * self._period
        return time.perf_counter() > due + _OVERDUE_S

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

    async def open(self, wire: LeanWire, link: OpenLink) -> None:
        """Open a session."""
        self._request, self._later_request = (
            create_of(wire, "Go on.", one_byte_tokens(count, self._rate))
            for count in (self._count, self._tokens)
        )
        self._session = LeanSession(wire, on_text=self._text, on_end=self._end)
        self.link = await link(self._session.take)
        self.forget()

    async def open_echo(self, wire: LeanWire, link: OpenLink) -> None:
        """Open a stream of the yardstick, with one message for each token."""
        ready = asyncio.get_running_loop().create_future()
        self._take: Callable[[bytes], None] = lambda _: ready.set_result(None)
        self.link = await link(lambda data: self._take(data))
        size = _DELTA_BYTES[wire]
        plans = [
            [(number * self._period, size) for number in range(count)]
            for count in (self._count, self._tokens)
        ]
        self.link.send(plans_message(plans))
        await ready
        self._take = self._echo
        self._request, self._later_request = turn_message(0, 200), turn_message(1, 200)
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
        self._over(self._count)

    def _echo(self, _: bytes) -> None:
        self._echoed += 1
        self._note(1)
        if self._seen == self._count:
            self._over(self._count - 1)

    def _over(self, periods: int) -> None:
        """Note the end of a turn of some periods, and begin the next."""
        if self.is_settled:
            self.turns.append(time.perf_counter() - self._began - periods * self._period)
        else:
            self.is_settled = True
            self._request, self._count = self._later_request, self._tokens
            self.delays.clear()
        self.begin()

    def _note(self, tokens: int) -> None:
        self._seen += tokens
        self.tokens += tokens
        due = self._began + (self._seen - 1) * self._period
        self.delays.append(time.perf_counter() - due)
