"""Carrying the yardstick's conversation: the same number of messages, of the same sizes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp
import grpc

from turnwire_bench.echo import ECHO_METHOD, ECHO_PATH, plans_message, turn_message
from turnwire_bench.samples import EventSize, TurnSample
from turnwire_bench.scenario import Scenario
from turnwire_bench.wire_counts import WireCounts, wire_counts

__all__ = ["GrpcEcho", "Plan", "WebSocketEcho", "plan_of", "plans_of"]

_HOST: Final = "127.0.0.1"

Messages = list[tuple[float, int]]
"""When each message is due, in seconds after the request, and how long it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn of the yardstick."""

    request_size: int
    messages: Messages
    first_delta: int
    """Place of the message that stands for the first delta."""
    tokens: int
    """Tokens that it stands for."""


def plans_of(turns: Sequence[TurnSample], scenario: Scenario, rate: float) -> list[Plan]:
    """Return the plans of a conversation's turns, with an event for each token.

    A busy machine makes the server join tokens that came late. Of turns of the same length, which
    say the same here, the one with the most events stands for all; and a scripted answer has a
    delta for each of its tokens but the one that ends it.
    """
    fullest: dict[int, TurnSample] = {}
    for turn in turns:
        known = fullest.get(turn.output_tokens)
        if known is None or len(turn.events) > len(known.events):
            fullest[turn.output_tokens] = turn
    plans = []
    for number, turn in enumerate(turns):
        events = fullest[turn.output_tokens].events
        if scenario.is_answer(number) and not scenario.recorded:
            events = _one_by_one(events, turn.output_tokens - 1)
        plans.append(plan_of(replace(turn, events=events), rate))
    return plans


def _one_by_one(events: Sequence[EventSize], count: int) -> list[EventSize]:
    """Return a turn's events with `count` deltas, as long as the shortest."""
    deltas = [number for number, (is_delta, _) in enumerate(events) if is_delta]
    if not deltas:
        return list(events)
    size = min(events[number][1] for number in deltas)
    return [*events[: deltas[0]], *[(True, size)] * count, *events[deltas[-1] + 1 :]]


def plan_of(sample: TurnSample, rate: float) -> Plan:
    """Return the plan that has a turn's events at the engine's pace.

    What comes before the first delta is due at once, the deltas with the last tokens before the
    one that ends the turn, and all behind them with that one.
    """
    last = max(0, sample.output_tokens - 1)
    deltas = sum(is_delta for is_delta, _ in sample.events)
    messages: Messages = []
    seen = 0
    for is_delta, size in sample.events:
        token = last if seen == deltas else 0
        if is_delta:
            token = max(0, last - deltas + seen)
            seen += 1
        messages.append((token / rate if rate else 0.0, size))
    kinds = [is_delta for is_delta, _ in sample.events]
    first_delta = kinds.index(True) if deltas else 0
    return Plan(sample.bytes_up, messages, first_delta, sample.output_tokens)


class _Echo:
    """What both share."""

    def __init__(self, port: int, plans: Sequence[Plan]) -> None:
        """Speak to `port` of this machine; `plans` says what happens in each turn."""
        self._port = port
        self._plans = plans
        self._number = 0

    async def _begin(self) -> None:
        await self._write(plans_message([plan.messages for plan in self._plans]))
        await self._read()

    async def _write(self, message: bytes) -> None:
        raise NotImplementedError

    async def _read(self) -> object:
        raise NotImplementedError

    async def turn(self, items: Sequence[Any], *, begins_run: bool) -> TurnSample:
        """Ask for the next plan's messages and read them all."""
        number = self._number % len(self._plans)
        self._number += 1
        plan = self._plans[number]
        message = turn_message(number, plan.request_size)
        first = 0.0
        began = time.perf_counter()
        await self._write(message)
        for place in range(len(plan.messages)):
            await self._read()
            if place == plan.first_delta:
                first = time.perf_counter()
        return TurnSample(
            total_s=time.perf_counter() - began, ttft_s=first - began, output_tokens=plan.tokens
        )


class GrpcEcho(_Echo):
    """Over grpc.aio, messages as bytes."""

    async def open(self) -> None:
        """Open the stream and send the plans."""
        self._channel = grpc.aio.insecure_channel(
            f"{_HOST}:{self._port}", options=[("grpc.max_receive_message_length", 64 << 20)]
        )
        connect: Any = self._channel.stream_stream(ECHO_METHOD)
        self._call = connect()
        await self._begin()

    async def _write(self, message: bytes) -> None:
        await self._call.write(message)

    async def _read(self) -> object:
        return await self._call.read()

    async def close(self) -> WireCounts | None:
        """Close the stream."""
        counts = wire_counts(self._port)
        self._call.cancel()
        await self._channel.close()
        return counts


class WebSocketEcho(_Echo):
    """Over a WebSocket of aiohttp, messages as text."""

    async def open(self) -> None:
        """Connect and send the plans."""
        self._client = aiohttp.ClientSession()
        self._socket = await self._client.ws_connect(
            f"http://{_HOST}:{self._port}{ECHO_PATH}", max_msg_size=0
        )
        await self._begin()

    async def _write(self, message: bytes) -> None:
        await self._socket.send_frame(message, aiohttp.WSMsgType.TEXT)

    async def _read(self) -> object:
        return await self._socket.receive()

    async def close(self) -> WireCounts | None:
        """Close the socket."""
        counts = wire_counts(self._port)
        await self._socket.close()
        await self._client.close()
        return counts
