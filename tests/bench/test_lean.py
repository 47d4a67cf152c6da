"""The load generator's clients speak what the server speaks."""

from __future__ import annotations

import asyncio
import json

import pytest

from harness.server import make_sim_services, serving
from harness.waiting import until
from turnwire_bench import load_jobs, stop_jobs
from turnwire_bench.lean import LeanSession, close_all, create_of, one_byte_tokens, open_lean
from turnwire_bench.paced import paced

WIRES = ("ws", "grpc")


def port_of(server, wire: str) -> int:
    return server.grpc_port if wire == "grpc" else server.http_port


async def opened(server, wire: str, **more) -> LeanSession:
    session = LeanSession(wire, **more)
    session.link = await open_lean(wire, port_of(server, wire), session.take)
    return session


@pytest.mark.parametrize("wire", WIRES)
async def test_a_turn_is_heard_whole_and_another_can_follow(server, wire):
    said = []
    session = await opened(server, wire, on_text=said.append)
    async with asyncio.timeout(20):
        for _ in range(2):
            end = await session.turn(create_of(wire, "Hello.", one_byte_tokens(123, 0.0)))
            assert end == "response_completed"
    assert "".join(said) == "x" * 246
    assert session.counts.events >= session.counts.messages > 2
    await close_all([session.link])
    assert session.link.closed.done()


@pytest.mark.parametrize("wire", WIRES)
async def test_a_message_beyond_the_first_window_arrives(server, wire):
    session = await opened(server, wire)
    text = "many words " * 30_000  # more than a window of HTTP/2, and than a short frame
    async with asyncio.timeout(20):
        end = await session.turn(create_of(wire, text, '{"tokens": 1}'))
    assert end == "response_completed"
    await close_all([session.link])


@pytest.mark.parametrize("wire", WIRES)
async def test_the_servers_refusal_ends_a_turn(server, wire):
    session = await opened(server, wire)
    async with asyncio.timeout(20):
        create = create_of(wire, "Hi.", "", previous_response_id="resp_nothing")
        assert await session.turn(create) == "error"
    await close_all([session.link])


async def test_an_address_without_a_websocket_is_a_refusal(server):
    with pytest.raises(ConnectionError, match="refused"):
        await open_lean("ws", server.http_port, print, path="/nowhere")


async def test_a_call_that_the_server_does_not_have_is_one_that_ended(server):
    link = await open_lean("grpc", server.grpc_port, print, path="/nobody.Service/Nothing")
    async with asyncio.timeout(20):
        await link.closed
    await close_all([link])


async def test_a_turn_ends_when_its_connection_does(server):
    session = await opened(server, "ws")
    script = json.dumps({"tokens": 50, "tokens_per_second": 0.1})
    turn = asyncio.create_task(session.turn(create_of("ws", "Hi.", script)))
    await asyncio.sleep(0)
    session.link.transport.abort()
    async with asyncio.timeout(20):
        assert await turn == ""


@pytest.mark.parametrize("wire", WIRES)
async def test_paced_streams_count_their_tokens_and_how_late_they_are(server, wire):
    job = {"wire": wire, "port": port_of(server, wire), "rate": 400.0, "sessions": 3}
    async with asyncio.timeout(60):
        result = await paced({**job, "seconds": 0.5, "pids": []})
    assert result["tokens"] > 0
    assert result["events"] > 0
    assert result["delay_ms"]["p50"] <= result["delay_ms"]["p99"] <= result["delay_ms"]["max"]
    assert result["ended"] == 0
    assert result["wanted_tokens"] == pytest.approx(result["wall_s"] * 1200)


async def test_idle_sessions_are_held_until_they_are_let_go(server):
    job = {"wire": "grpc", "port": server.grpc_port, "count": 5, "turn_bytes": 4_000, "items": 10}
    async with asyncio.timeout(60):
        result = await load_jobs.idle(job)
        assert (result["alive"], result["completed"]) == (5, 5)
        assert server.services.connection_count == 5
        assert await load_jobs.let_go({}) == {"closed": 5}
        assert await load_jobs.let_go({}) == {"closed": 0}


@pytest.mark.parametrize("wire", WIRES)
async def test_simultaneous_opens_are_all_served(server, wire):
    async with asyncio.timeout(60):
        result = await load_jobs.opens({"wire": wire, "port": port_of(server, wire), "count": 20})
    assert (result["served"], result["refused"]) == (20, 0)


async def test_opens_of_a_port_without_a_server_are_refused(unused_tcp_port):
    async with asyncio.timeout(60):
        result = await load_jobs.opens({"wire": "ws", "port": unused_tcp_port, "count": 3})
    assert (result["served"], result["refused"]) == (0, 3)
    assert result["reasons"] == {"not opened: ConnectionRefusedError": 3}


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reader_that_stops_gets_no_more_than_fits_on_the_way(server, wire):
    job = {"wire": wire, "port": port_of(server, wire), "count": 1, "turns": 60, "tokens": 4_000}
    async with asyncio.timeout(60):
        await load_jobs.stalled(job)
        await until(lambda: bool(server.services.running))
        for _ in range(2_000):
            await asyncio.sleep(0)
        assert server.services.running  # it would be over if everything were read
        await load_jobs.let_go({"cut": True})


async def test_a_burst_tells_its_events_and_the_echo_repeats_their_number(server):
    job = {"port": server.grpc_port, "tokens": 60, "turns": 2}
    async with asyncio.timeout(60):
        result = await load_jobs.burst(job)
    assert len(result["seconds"]) == 2
    kinds = [is_delta for is_delta, _ in result["events"]]
    assert True in kinds and not kinds[0] and not kinds[-1]
    assert result["frames"] <= len(kinds)


@pytest.mark.parametrize("transport", ["http", *WIRES])
async def test_a_cancel_and_a_cut_end_a_turn(transport):
    from turnwire_server.adapters.metrics.prometheus import PrometheusMetrics

    async with serving(make_sim_services(metrics=PrometheusMetrics())) as server:
        urls = {"http": server.http_url, "ws": server.websocket_url, "grpc": server.grpc_url}
        job = {
            "transport": transport,
            "url": urls[transport],
            "port": port_of(server, transport),
            "metrics": f"http://127.0.0.1:{server.http_port}/metrics",
            "repeats": 1,
        }
        async with asyncio.timeout(60):
            result = await stop_jobs.stop(job)
        assert not server.services.running
    assert all(value > 0 for value in (*result["cancel_ms"], *result["disconnect_ms"]))
