"""One seed, from start to verdict."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

import turnwire
from faults.agent import work
from faults.checks import Kept, Record, check
from faults.plan import Fault, Plan
from faults.proxy import TcpProxy
from faults.seen import Seen
from faults.server import BrokenServerError, FaultServer
from turnwire import _codec
from turnwire.v1.response_pb2 import Response as ResponseMessage

__all__ = ["Outcome", "play"]

_SEED_S = 120.0
_CONFIG: Final = """
[[models]]
engine = "sim"
tokens_per_second = 400
tool_rounds = 3
answer_tokens = 24

[runtime]
drain_grace_s = 10
resume_grace_s = 20
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a seed came to."""

    seed: int
    plan: str
    problems: tuple[str, ...]
    struck: tuple[str, ...]
    """The faults that happened; others were planned for events that never came."""
    runs: int
    losses: tuple[str, ...]
    """Runs that the client could not save and the agent began anew, by the error's name."""
    responses: int
    records: Mapping[str, int]
    """Status -> records of the ledger."""


async def play(plan: Plan, directory: Path) -> Outcome:
    """Play a plan in an empty directory."""
    server = FaultServer(directory, _CONFIG, grpc_backend=plan.grpc_backend)
    seen = [Seen(agent.name) for agent in plan.agents]
    proxies: list[TcpProxy] = []
    struck: list[str] = []
    problems: list[str] = []
    kept: dict[str, Kept] = {}
    try:
        await server.start()
        for agent in plan.agents:
            port = server.grpc_port if agent.wire == "grpc" else server.http_port
            proxies.append(TcpProxy(port))
            await proxies[-1].start()
        try:
            async with asyncio.timeout(_SEED_S):
                await _work(plan, server, proxies, seen, struck)
                kept = await _fetch(server, seen)
        except TimeoutError:
            problems.append(f"it was not over after {_SEED_S:g} s")
        await server.close()
    except BrokenServerError as error:
        problems.append(f"the server: {error}")
    finally:
        for proxy in proxies:
            await proxy.close()
        await server.abandon()
    ledger, open_records = _ledger(server.database)
    planned = {agent.name: agent.runs for agent in plan.agents}
    problems += check(seen, planned, kept, ledger, open_records)
    errors = [line for line in server.log().splitlines() if " ERROR " in line]
    problems += [f"the server logged: {line[:300]}" for line in errors[:3]]
    statuses = [record.status for record in ledger.values()]
    return Outcome(
        plan.seed,
        str(plan),
        tuple(problems),
        tuple(struck),
        sum(len(each.finished) for each in seen),
        tuple(loss for each in seen for loss in each.losses),
        sum(len(each.responses) for each in seen),
        {status: statuses.count(status) for status in sorted(set(statuses))},
    )


async def _work(
    plan: Plan,
    server: FaultServer,
    proxies: list[TcpProxy],
    seen: list[Seen],
    struck: list[str],
) -> None:
    """Let the agents work and the faults strike."""
    waiting = list(plan.faults)
    async with asyncio.TaskGroup() as group:

        def look(index: int) -> None:
            for fault in list(waiting):
                if fault.agent == index and seen[index].events >= fault.at_event:
                    waiting.remove(fault)
                    struck.append(f"{fault.action}@{fault.at_event}/{plan.agents[index].name}")
                    group.create_task(_strike(fault, server, proxies[index]))

        for index, agent in enumerate(plan.agents):
            look(index)
            group.create_task(
                work(
                    agent,
                    _url(agent.wire, proxies[index].port),
                    seen[index],
                    lambda index=index: look(index),  # type: ignore[misc]  # the loop's own
                )
            )


async def _strike(fault: Fault, server: FaultServer, proxy: TcpProxy) -> None:
    match fault.action:
        case "kill":
            await server.kill()
        case "drain":
            await server.drain()
        case "freeze":
            await server.freeze(fault.seconds)
        case "cut":
            proxy.cut()
        case "stall":
            await proxy.stall(fault.seconds)
        case "stall_and_cut":
            await proxy.stall(fault.seconds)
            proxy.cut()


def _url(wire: str, port: int) -> str:
    match wire:
        case "grpc":
            return f"grpc://127.0.0.1:{port}"
        case "websocket":
            return f"ws://127.0.0.1:{port}/v1/responses"
        case _:
            return f"http://127.0.0.1:{port}/v1"


async def _fetch(server: FaultServer, seen: list[Seen]) -> dict[str, Kept]:
    """Fetch every stored response that was seen to end."""
    kept = {}
    async with aiohttp.ClientSession() as client:
        for each in seen:
            for response in each.responses.values():
                if not response.store or not response.status:
                    continue
                async with client.get(f"{server.http_url}/responses/{response.id}") as answer:
                    if answer.status == 200:
                        kept[response.id] = _kept(await answer.json())
    return kept


def _kept(shown: dict[str, object]) -> Kept:
    response = turnwire.Response(_codec.parse(ResponseMessage, shown))
    usage = response.message.usage
    return Kept(
        response.status,
        (usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens),
        response.output_text,
    )


def _ledger(database: Path) -> tuple[dict[str, Record], int]:
    """Read the ledger that a server left behind, and how many of its records are open."""
    ledger: dict[str, Record] = {}
    open_records = 0
    with suppress(sqlite3.OperationalError), sqlite3.connect(database) as base:
        rows = base.execute(
            "select response_id, status, input_tokens, cached_tokens, output_tokens, closed_at"
            " from usage_records"
        )
        for response_id, status, given, cached, output, closed_at in rows:
            ledger[response_id] = Record(status, (given, cached, output))
            open_records += closed_at is None
    return ledger, open_records
