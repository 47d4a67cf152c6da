"""Ways to carry a conversation: one small class for each."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

import turnwire
from turnwire_bench.failure import BenchFailure
from turnwire_bench.samples import TurnSample
from turnwire_bench.wire_counts import WireCounts, wire_counts

__all__ = ["STAGES", "Driver", "FullHistory", "OfficialSdk", "Place", "Rollout", "Session"]

STAGES: Final = (
    *("queue", "resolve", "validate", "render", "screen", "prefill", "decode", "commit"),
)
"""Names of the server's stages, in their order."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is, and how it is spoken to."""

    url: str
    """As `turnwire.connect` takes it."""
    model: str = "sim"
    api_key: str | None = None
    certificate: bytes | None = None
    """PEM of the authority to trust; of TLS only."""

    @property
    def port(self) -> int:
        """The port, to find the connections by."""
        authority = self.url.split("/")[2]
        return int(authority.rpartition(":")[2])


class Driver(Protocol):
    """Carries one conversation."""

    async def open(self) -> None:
        """Connect, where the transport has a connection to keep."""

    async def turn(self, items: Sequence[Any], *, begins_run: bool) -> TurnSample:
        """Bring items, and wait for the end of the turn that they start or go on with.

        Args:
            items: What is new.
            begins_run: Whether it is a user's turn; else the outputs of calls.
        """

    async def close(self) -> WireCounts | None:
        """Let go of the connection; return the bytes of all turns on the wire."""


class _Base:
    """What all ways over the Python client share."""

    def __init__(self, place: Place, options: dict[str, Any], *, learn: bool = False) -> None:
        """Speak to `place`.

        Args:
            place: Where.
            options: What every create repeats.
            learn: Whether the sizes of the events are noted; this takes time.
        """
        self._place = place
        self._options = options
        self._learn = learn
        self._stack = AsyncExitStack()
        self._counts: WireCounts | None = WireCounts()

    def _connect(self) -> Any:
        return turnwire.connect(
            self._place.url,
            api_key=self._place.api_key,
            model=self._place.model,
            root_certificates=self._place.certificate,
            # Plain HTTP, as others send it: without keys that let a request be repeated.
            resume=not self._place.url.startswith("http"),
        )

    def _count(self) -> None:
        """Add up the bytes of the connections that are about to be closed."""
        if self._counts is not None:
            counts = wire_counts(self._place.port)
            self._counts = None if counts is None else self._counts + counts

    async def close(self) -> WireCounts | None:
        """Close the session."""
        self._count()
        await self._stack.aclose()
        return self._counts

    async def _finished(self, turn: turnwire.Turn, began: float) -> TurnSample:
        first: float | None = None
        events = []
        async for event in turn:
            if first is None and event.delta is not None:
                first = time.perf_counter()
            if self._learn:
                size = len(orjson.dumps(event.to_dict()))
                if self._place.url.startswith("grpc"):
                    size = event.message.ByteSize() + 8
                events.append((event.delta is not None, size))
        ended = time.perf_counter()
        response = await turn.response()
        stats = turn.stats
        assert stats is not None  # the turn is over
        return TurnSample(
            total_s=ended - began,
            ttft_s=None if first is None else first - began,
            output_tokens=stats.tokens_output or 0,
            input_tokens=stats.tokens_input or 0,
            rendered_tokens=stats.tokens_rendered,
            bytes_up=stats.bytes_up,
            stages_ms=_stages(response.timing),
            call_ids=[call.call_id for call in response.function_calls],
            events=events,
        )


def _stages(timing: turnwire.Timing | None) -> dict[str, float]:
    if timing is None:
        return {}
    return {stage: getattr(timing, f"{stage}_ms") for stage in STAGES}


class Session(_Base):
    """A kept connection; each turn continues the one before and brings what is new."""

    def __init__(
        self, place: Place, options: dict[str, Any], *, learn: bool = False, stored: bool = False
    ) -> None:
        """Speak to `place`; `stored` for a wire whose chains need stored responses."""
        super().__init__(place, options if stored else {**options, "store": False}, learn=learn)
        self._parent: str | None = None

    async def open(self) -> None:
        """Connect."""
        self._session = await self._stack.enter_async_context(self._connect())

    async def turn(self, items: Sequence[Any], *, begins_run: bool) -> TurnSample:
        """Run a turn."""
        began = time.perf_counter()
        turn = self._session.create(items, previous_response_id=self._parent, **self._options)
        sample = await self._finished(turn, began)
        self._parent = turn.response_id
        return sample


class FullHistory(_Base):
    """Each turn resends everything so far."""

    def __init__(
        self, place: Place, options: dict[str, Any], *, learn: bool = False, fresh: bool = False
    ) -> None:
        """Speak to `place`; `fresh` for a connection of its own for each turn."""
        super().__init__(place, {**options, "store": False}, learn=learn)
        self._fresh = fresh
        self._items: list[Any] = []

    async def open(self) -> None:
        """Connect, unless each turn does."""
        if not self._fresh:
            self._session = await self._stack.enter_async_context(self._connect())

    async def turn(self, items: Sequence[Any], *, begins_run: bool) -> TurnSample:
        """Run a turn."""
        self._items.extend(items)
        began = time.perf_counter()
        if self._fresh:
            async with self._connect() as session:
                turn = session.create(self._items, **self._options)
                sample = await self._finished(turn, began)
                self._count()
        else:
            turn = self._session.create(self._items, **self._options)
            sample = await self._finished(turn, began)
        self._items.extend((await turn.response()).message.output)
        return sample


class Rollout(_Base):
    """A kept connection; a whole run is one response that pauses for the tools."""

    def __init__(self, place: Place, options: dict[str, Any], *, learn: bool = False) -> None:
        """Speak to `place`."""
        super().__init__(place, {**options, "store": False}, learn=learn)
        self._parent: str | None = None
        self._turn: turnwire.Turn | None = None
        self._events: AsyncIterator[turnwire.Event] | None = None
        self._said = 0
        """Output tokens of the rounds before."""
        self.run_stages_ms: dict[str, float] = {}
        """The server's times of all rounds."""

    async def open(self) -> None:
        """Connect."""
        self._session = await self._stack.enter_async_context(self._connect())

    async def turn(self, items: Sequence[Any], *, begins_run: bool) -> TurnSample:
        """Begin a run, or go on with it, until it pauses or ends."""
        began = time.perf_counter()
        if begins_run:
            self._turn = self._session.create(
                items, previous_response_id=self._parent, rollout=True, **self._options
            )
            self._events, self._said = aiter(self._turn), 0
        turn, events = self._turn, self._events
        assert turn is not None and events is not None  # the first turn begins a run
        if not begins_run:
            await turn.append(items)
        first: float | None = None
        sample = TurnSample(total_s=0.0, ttft_s=None, output_tokens=0)
        async for event in events:
            if first is None and event.delta is not None:
                first = time.perf_counter()
            if event.arm == "response_done":
                sample.total_s = time.perf_counter() - began
                said = event.message.usage.output_tokens  # type: ignore[attr-defined]  # by its arm
                sample.call_ids = [call.call_id for call in turn.calls]
                break
        else:
            sample.total_s = time.perf_counter() - began
            response = await turn.response()
            self._parent = response.id
            said = response.usage.output_tokens if response.usage else self._said
            for stage, spent in _stages(response.timing).items():
                self.run_stages_ms[stage] = self.run_stages_ms.get(stage, 0.0) + spent
        sample.ttft_s = None if first is None else first - began
        sample.output_tokens, self._said = said - self._said, said
        return sample


class OfficialSdk:
    """The official SDK, as an application has it: the whole history each time.

    Over sessions, by the transport of `turnwire.openai`, or over HTTP as it comes.
    """

    def __init__(self, place: Place, options: dict[str, Any], *, plain: bool = False) -> None:
        """Make the client for `place`; this takes the SDK a while, and is in no figure.

        Args:
            place: Where; of HTTP when `plain`.
            options: What every create repeats.
            plain: Whether it is the SDK as it comes.

        Raises:
            BenchFailure: The SDK is not installed.
        """
        try:
            # Imported here: the other transports need none of it.
            import openai

            import turnwire.openai
            from turnwire.openai._httpx import httpx
        except ImportError:
            raise BenchFailure(
                "sdk_dropin needs the official SDK. Install it with: pip install 'turnwire[bench]'"
            ) from None
        self._place = place
        self._options = {**options, "store": False}
        self._history: list[Any] = []
        self._bytes_up = 0
        self._transport: turnwire.openai.Transport | None = None
        if not plain:
            self._transport = turnwire.openai.Transport(
                place.url, root_certificates=place.certificate
            )
        self._client = openai.AsyncOpenAI(
            # Over sessions it plays no part.
            base_url=place.url if plain else "http://127.0.0.1/v1",
            api_key=place.api_key or "none",
            http_client=httpx.AsyncClient(transport=self._transport),
        )

    async def open(self) -> None:
        """Do nothing: the transport connects with its first request."""

    async def turn(self, items: Sequence[Any], *, begins_run: bool) -> TurnSample:
        """Run a turn."""
        self._history.extend(items)
        first: float | None = None
        response: Any = None
        began = time.perf_counter()
        stream: Any = await self._client.responses.create(
            model=self._place.model, input=self._history, stream=True, **self._options
        )
        async for event in stream:
            if first is None and event.type.endswith(".delta"):
                first = time.perf_counter()
            response = getattr(event, "response", response)
        ended = time.perf_counter()
        output = [item.model_dump(exclude_none=True) for item in response.output]
        self._history.extend(output)
        timing = (response.model_extra or {}).get("turnwire", {}).get("timing", {})
        bytes_up = self._transport.stats.bytes_up if self._transport is not None else 0
        sample = TurnSample(
            total_s=ended - began,
            ttft_s=None if first is None else first - began,
            output_tokens=response.usage.output_tokens,
            input_tokens=response.usage.input_tokens,
            rendered_tokens=timing.get("tokens", {}).get("rendered"),
            bytes_up=bytes_up - self._bytes_up,
            stages_ms={stage: timing[f"{stage}_ms"] for stage in STAGES if f"{stage}_ms" in timing},
            call_ids=[item["call_id"] for item in output if "call_id" in item],
        )
        self._bytes_up = bytes_up
        return sample

    async def close(self) -> WireCounts | None:
        """Close the client and its sessions."""
        counts = wire_counts(self._place.port)
        await self._client.close()
        return counts
