"""The ledger through a kill: what clients saw is what `turnwire usage` says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from harness.peers import GrpcPeer, Peer, WebSocketPeer
from harness.reading import response_of, status_of
from turnwire.v1.response_pb2 import Response

START_S = 60  # An interpreter, a vocabulary and a database; the machine may be busy.
WAIT_S = 20
SECRET = "a secret of more than 24 characters"

PRICES = """
[prices]
currency = "EUR"

[prices.models.sim]
input = "0.5"
cached_input = "0.05"
output = 2
"""


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNWIRE_")}
    return {**kept, "XDG_DATA_HOME": str(home)}


def config_file(home: Path, more: str = "") -> Path:
    path = home / "turnwire.toml"
    path.write_text(
        f"""
[http]
address = "127.0.0.1:0"
[grpc]
address = "127.0.0.1:0"
[[models]]
engine = "sim"
tokens_per_second = 400
{PRICES}
{more}
"""
    )
    return path


@asynccontextmanager
async def server(home: Path, config: Path) -> AsyncIterator[tuple[Process, dict[str, Any]]]:
    """A server in a process of its own that is ready, and what it said about itself."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turnwire", "serve", "--config", str(config)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=environment(home),
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
        if not line:
            _, said = await process.communicate()
            pytest.fail(said.decode())
        yield process, json.loads(line)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def usage(home: Path, config: Path, *arguments: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turnwire", "usage", "--config", str(config), "--json"),
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        env=environment(home),
    )
    async with asyncio.timeout(START_S):
        said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    shown = json.loads(said)
    assert isinstance(shown, dict)
    return shown


async def killed(process: Process) -> None:
    process.send_signal(signal.SIGKILL)
    async with asyncio.timeout(WAIT_S):
        await process.wait()


SLOW = {"turnwire.sim": '{"tokens": 100000}'}


@asynccontextmanager
async def peer_of(wire: str, ready: dict[str, Any]) -> AsyncIterator[Peer]:
    """A client that sees what is on the wire; the server may be killed under it."""
    peer: Peer
    if wire == "grpc":
        peer = GrpcPeer(ready["grpc"].removeprefix("grpc://"))
    else:
        peer = WebSocketPeer(ready["websocket"])
    await peer.open()
    try:
        yield peer
    finally:
        await peer.close()


async def run_turns(peer: Peer) -> list[Response]:
    """Run turns that end in every way that a client can bring about; return what it saw."""
    seen = [response_of(await peer.turn(input=f"Turn {n}.", stream_id="a")) for n in range(3)]
    cut = await peer.turn(input="Be cut.", stream_id="a", max_output_tokens=2)
    seen.append(response_of(cut))
    await peer.create(input="Be cancelled.", stream_id="b", metadata=SLOW)
    begun = await peer.until("response_created", "b")
    response_id = begun.response_created.response.id
    await peer.until("response_output_text_delta", "b")
    await peer.send({"type": "response.cancel", "response_id": response_id, "stream_id": "b"})
    seen.append(response_of(await peer.finish("b")))
    return seen


def used_by(responses: list[Response]) -> tuple[int, int, int, int]:
    used = [response.usage for response in responses]
    return (
        sum(each.input_tokens for each in used),
        sum(each.input_tokens_details.cached_tokens for each in used),
        sum(each.output_tokens for each in used),
        sum(each.output_tokens_details.reasoning_tokens for each in used),
    )


def kept(total: dict[str, Any]) -> tuple[int, int, int, int]:
    return (
        total["input_tokens"],
        total["cached_tokens"],
        total["output_tokens"],
        total["reasoning_tokens"],
    )


@pytest.mark.parametrize("wire", ["grpc", "websocket"])
async def test_after_a_kill_the_ledger_says_what_the_clients_saw(wire, tmp_path):
    config = config_file(tmp_path)
    async with server(tmp_path, config) as (process, ready), peer_of(wire, ready) as peer:
        async with asyncio.timeout(2 * WAIT_S):
            seen = await run_turns(peer)
            await peer.create(input="Run on.", stream_id="c", metadata=SLOW)
            await peer.until("response_output_text_delta", "c")
            await killed(process)
    async with server(tmp_path, config):
        after = await usage(tmp_path, config)
    statuses = [status_of(response) for response in seen]
    assert statuses == ["completed"] * 3 + ["incomplete", "cancelled"]
    total = after["total"]
    assert total["statuses"] == {**Counter(statuses), "interrupted": 1}
    assert kept(total) == used_by(seen)
    assert seen[-1].usage.output_tokens > 0
    in_, cached, out, _ = used_by(seen)
    # In millionths of a hundredth, so that no float rounds.
    cost = (in_ - cached) * 50 + cached * 5 + out * 200
    assert Decimal(after["total"]["cost"]) == Decimal(cost) / 100 / 1_000_000
    assert (after["currency"], after["groups"][0]["group"]) == ("EUR", "sim")


async def test_a_rollout_that_was_killed_in_its_pause_is_billed_as_its_client_was_told(tmp_path):
    config = config_file(tmp_path)
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    async with server(tmp_path, config) as (process, ready), peer_of("grpc", ready) as peer:
        async with asyncio.timeout(WAIT_S):
            await peer.create(input="Call.", rollout=True, tools=tools, tool_choice="required")
            paused = (await peer.until("response_done")).response_done
        await killed(process)
    async with server(tmp_path, config):
        total = (await usage(tmp_path, config))["total"]
    assert total["statuses"] == {"interrupted": 1}
    assert paused.usage.output_tokens > 0
    assert (total["input_tokens"], total["output_tokens"]) == (
        *(paused.usage.input_tokens, paused.usage.output_tokens),
    )


async def test_a_server_that_stops_in_order_leaves_nothing_to_recover(tmp_path):
    config = config_file(tmp_path, "[runtime]\ndrain_grace_s = 0.5\n")
    async with server(tmp_path, config) as (process, ready), peer_of("grpc", ready) as peer:
        async with asyncio.timeout(2 * WAIT_S):
            await peer.create(input="Run on.", metadata=SLOW)
            await peer.until("response_output_text_delta")
            process.send_signal(signal.SIGTERM)
            response = response_of(await peer.finish())
            assert await process.wait() == 0
    total = (await usage(tmp_path, config))["total"]
    assert total["statuses"] == {status_of(response): 1}
    assert kept(total) == used_by([response])
    assert not list((tmp_path / "turnwire/instances").iterdir())


async def test_what_was_not_exported_before_a_kill_is_exported_after_it(tmp_path):
    posts: list[dict[str, Any]] = []
    is_down, everything = True, asyncio.Event()

    async def take(request: web.Request) -> web.Response:
        body = await request.json()
        assert request.headers["idempotency-key"] == body["response_id"]
        posts.append(body)
        if len({post["response_id"] for post in posts}) == 3:
            everything.set()
        return web.Response(status=503 if is_down else 200)

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    exported = tmp_path / "usage.jsonl"
    config = config_file(
        tmp_path,
        f"""
[usage]
export_file = "usage.jsonl"
webhook_url = "http://127.0.0.1:{runner.addresses[0][1]}/"
webhook_secret = "{SECRET}"
export_longest_delay_s = 1
webhook_timeout_s = 1
""",
    )
    try:
        async with server(tmp_path, config) as (process, ready):
            async with peer_of("grpc", ready) as peer, asyncio.timeout(WAIT_S):
                seen = [response_of(await peer.turn(input="Hi.")).id for _ in range(3)]
                await everything.wait()
            await killed(process)
        is_down = False
        posts.clear()
        everything.clear()
        async with server(tmp_path, config) as (process, ready):
            async with asyncio.timeout(START_S):  # a claim of the dead process runs out first
                await everything.wait()
            async with aiohttp.ClientSession() as client:
                url = ready["http"].removesuffix("/v1") + "/metrics"
                async with client.get(url) as answer:
                    metrics = await answer.text()
    finally:
        await runner.cleanup()
    assert {post["response_id"] for post in posts} == set(seen)
    in_file = [json.loads(line)["response_id"] for line in exported.read_text().splitlines()]
    assert set(in_file) == set(seen)
    assert 'turnwire_usage_export_backlog{sink="file"}' in metrics
    assert SECRET not in metrics
