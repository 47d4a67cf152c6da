"""Every transport carries the same conversation, token for token."""

from __future__ import annotations

import asyncio

import pytest

from turnwire_bench.converse import TRANSPORTS, converse, converse_echo, make_driver, make_echo
from turnwire_bench.drivers import Place
from turnwire_bench.echo import grpc_server
from turnwire_bench.echo_drivers import Plan
from turnwire_bench.failure import BenchFailure
from turnwire_bench.peer_driver import PEER_TRANSPORTS, PeerDriver
from turnwire_bench.samples import Conversation
from turnwire_bench.scenario import Scenario, load_scenario
from turnwire_bench.stand import wire_of

SCENARIO = Scenario(
    "small",
    tools=load_scenario("quick").tools,
    history_tokens=300,
    messages=2,
    tool_calls=2,
    call_tokens=40,
    output_tokens=(10,),
    answer_tokens=20,
)
SAID = [42, 42, 21] * 2
"""Tokens of each turn, with the id that ends it."""


def place(server, transport: str) -> Place:
    urls = {"http": server.http_url, "ws": server.websocket_url, "grpc": server.grpc_url}
    return Place(urls[wire_of(transport)])


@pytest.mark.parametrize("transport", [*TRANSPORTS, "sdk_plain"])
async def test_a_transport_carries_the_conversation(server, transport):
    options = SCENARIO.options("tag", 0.0)
    driver = make_driver(transport, place(server, transport), options)
    async with asyncio.timeout(60):
        held = await converse(driver, SCENARIO)
    assert [turn.output_tokens for turn in held.turns] == SAID
    assert all(turn.ttft_s is not None and turn.ttft_s <= turn.total_s for turn in held.turns)
    assert held.e2e_s >= sum(turn.total_s for turn in held.turns)
    assert held.client_cpu_s > 0
    assert Conversation.from_json(held.to_json()) == held
    is_rollout = transport.endswith("rollout")
    assert bool(held.run_stages_ms) is is_rollout
    assert all(bool(turn.stages_ms) is not is_rollout for turn in held.turns)


async def test_only_what_is_new_is_rendered_where_there_is_a_session(server):
    rendered = {}
    for transport in ("http_full", "http_chain", "ws", "grpc", "sdk_dropin"):
        options = SCENARIO.options(f"tag {transport}", 0.0)
        driver = make_driver(transport, place(server, transport), options)
        async with asyncio.timeout(60):
            held = await converse(driver, SCENARIO)
        rendered[transport] = held.turns[1].rendered_tokens
    assert rendered.pop("http_full") > 300
    assert max(rendered.values()) < 50


@pytest.mark.parametrize("transport", ["ws", "grpc"])
async def test_learning_notes_the_events_of_each_turn(server, transport):
    options = SCENARIO.options("tag", 0.0)
    driver = make_driver(transport, place(server, transport), options, learn=True)
    async with asyncio.timeout(60):
        held = await converse(driver, SCENARIO)
    for turn in held.turns:
        kinds = [is_delta for is_delta, _ in turn.events]
        assert True in kinds and not kinds[0] and not kinds[-1]
        assert min(size for _, size in turn.events) > 10


@pytest.mark.parametrize("transport", ["ws_bare", "grpc_bare"])
async def test_a_bare_client_carries_it_too(server, transport):
    driver = make_driver(transport, place(server, transport), SCENARIO.options("tag", 0.0))
    async with asyncio.timeout(60):
        held = await converse(driver, SCENARIO)
    assert [turn.output_tokens for turn in held.turns] == SAID
    assert all(turn.ttft_s is not None and turn.ttft_s <= turn.total_s for turn in held.turns)
    assert all(turn.bytes_up > 0 for turn in held.turns)


@pytest.mark.parametrize("transport", ["ws_bare", "grpc_bare"])
async def test_a_bare_client_says_that_a_turn_did_not_complete(server, transport):
    options = {**SCENARIO.options("tag", 0.0), "temperature": 9.0}
    driver = make_driver(transport, place(server, transport), options)
    async with asyncio.timeout(60):
        with pytest.raises(BenchFailure, match="turn"):
            await converse(driver, SCENARIO)


@pytest.mark.parametrize("transport", PEER_TRANSPORTS)
async def test_the_plain_client_carries_it_too(server, transport):
    driver = PeerDriver(transport, Place(server.http_url), SCENARIO.options("tag", 0.0))
    async with asyncio.timeout(60):
        held = await converse(driver, SCENARIO)
    assert [turn.output_tokens for turn in held.turns] == SAID
    if held.bytes_up is not None:  # of one connection, which every turn goes over
        assert held.bytes_up > sum(turn.bytes_up for turn in held.turns)


@pytest.mark.parametrize("transport", PEER_TRANSPORTS)
async def test_a_peer_that_is_not_there_is_said(unused_tcp_port, transport):
    url = f"http://127.0.0.1:{unused_tcp_port}/v1"
    driver = PeerDriver(transport, Place(url), SCENARIO.options("tag", 0.0))
    with pytest.raises((BenchFailure, OSError)):
        await converse(driver, SCENARIO)


async def test_a_peers_refusal_is_said(server):
    options = {**SCENARIO.options("tag", 0.0), "temperature": 9.0}
    for transport in PEER_TRANSPORTS:
        driver = PeerDriver(transport, Place(server.http_url), options)
        async with asyncio.timeout(60):
            with pytest.raises(BenchFailure, match="temperature"):
                await converse(driver, SCENARIO)


def test_an_unknown_transport_is_refused():
    with pytest.raises(BenchFailure, match="no transport 'pigeon'"):
        make_driver("pigeon", Place("ws://127.0.0.1:1"), {})


async def test_the_echo_plays_its_plans_one_message_after_the_other():
    server, port = grpc_server()
    await server.start()
    plans = [Plan(100, [(0.0, 30), (0.002, 40), (0.004, 50)], 1, 3) for _ in range(2)]
    try:
        async with asyncio.timeout(20):
            held = await converse_echo(make_echo("echo_grpc", port, plans), 2)
    finally:
        await server.stop(None)
    assert [turn.output_tokens for turn in held.turns] == [3, 3]
    assert all(turn.total_s >= 0.004 > 0.0 < turn.ttft_s for turn in held.turns)
