"""Holding one conversation over one transport, in the process of the load."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from typing import Any, Final

from turnwire_bench.bare_drivers import BareGrpc, BareWebSocket
from turnwire_bench.drivers import Driver, FullHistory, OfficialSdk, Place, Rollout, Session
from turnwire_bench.echo_drivers import GrpcEcho, Plan, WebSocketEcho
from turnwire_bench.failure import BenchFailure
from turnwire_bench.samples import Conversation, TurnSample
from turnwire_bench.scenario import Scenario

__all__ = ["TRANSPORTS", "YARDSTICKS", "converse", "make_driver"]

TRANSPORTS: Final = (
    *("http_stateless", "http_full", "http_chain", "ws", "grpc"),
    *("ws_rollout", "grpc_rollout", "sdk_dropin"),
)
"""Rows of the benchmark, in the order in which they are shown."""
YARDSTICKS: Final = ("echo_grpc", "echo_ws")
_TURN_TIMEOUT_S: Final = 300.0


def make_driver(
    transport: str, place: Place, options: dict[str, Any], *, learn: bool = False
) -> Driver:
    """Return the driver of a transport."""
    match transport:
        case "http_stateless":
            return FullHistory(place, options, learn=learn, fresh=True)
        case "http_full":
            return FullHistory(place, options, learn=learn)
        case "http_chain":
            return Session(place, options, learn=learn, stored=True)
        case "ws" | "grpc":
            return Session(place, options, learn=learn)
        case "ws_rollout" | "grpc_rollout":
            return Rollout(place, options, learn=learn)
        case "ws_bare":
            return BareWebSocket(place, options)
        case "grpc_bare":
            return BareGrpc(place, options)
        case "sdk_dropin" | "sdk_plain":
            return OfficialSdk(place, options, plain=transport == "sdk_plain")
        case _:
            raise BenchFailure(f"There is no transport {transport!r}.")


def make_echo(yardstick: str, port: int, plans: Sequence[Plan]) -> GrpcEcho | WebSocketEcho:
    """Return the driver of a yardstick."""
    return (GrpcEcho if yardstick == "echo_grpc" else WebSocketEcho)(port, plans)


async def converse(driver: Driver, scenario: Scenario) -> Conversation:
    """Hold a whole conversation and time it."""
    gc.collect()
    turns: list[TurnSample] = []
    cpu = time.process_time()
    began = time.perf_counter()
    try:
        await driver.open()
        for number in range(scenario.turns):
            begins_run = scenario.begins_run(number)
            items = (
                scenario.input(number)
                if begins_run
                else scenario.outputs(number, turns[-1].call_ids)
            )
            async with asyncio.timeout(_TURN_TIMEOUT_S):
                sample = await driver.turn(items, begins_run=begins_run)
            turns.append(sample)
        ended = time.perf_counter()
        spent = time.process_time() - cpu
    finally:
        counts = await driver.close()
    conversation = Conversation(turns, e2e_s=ended - began, client_cpu_s=spent)
    if counts is not None:
        conversation.bytes_up, conversation.bytes_down = counts.up, counts.down
    if isinstance(driver, Rollout):
        conversation.run_stages_ms = driver.run_stages_ms
    return conversation


async def converse_echo(driver: GrpcEcho | WebSocketEcho, turns: int) -> Conversation:
    """Have the yardstick play all its plans."""
    gc.collect()
    samples = []
    cpu = time.process_time()
    began = time.perf_counter()
    try:
        await driver.open()
        for number in range(turns):
            async with asyncio.timeout(_TURN_TIMEOUT_S):
                samples.append(await driver.turn([], begins_run=number == 0))
        ended = time.perf_counter()
        spent = time.process_time() - cpu
    finally:
        counts = await driver.close()
    conversation = Conversation(samples, e2e_s=ended - began, client_cpu_s=spent)
    if counts is not None:
        conversation.bytes_up, conversation.bytes_down = counts.up, counts.down
    return conversation


async def hold(
    transport: str, place: Place, scenario: Scenario, *, count: int, tag: str
) -> list[Driver]:
    """Open conversations, hold the first turn of each, and keep them open.

    Returns:
        The drivers; the caller closes them.
    """
    drivers: list[Driver] = []
    for number in range(count):
        driver = make_driver(transport, place, scenario.options(f"{tag} {number}", 0.0))
        await driver.open()
        drivers.append(driver)
        await driver.turn(scenario.input(0), begins_run=True)
    return drivers
