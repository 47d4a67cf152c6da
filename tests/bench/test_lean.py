"""The load generator's clients speak what the server speaks."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import time
from collections import Counter

import pytest

from harness.server import make_sim_services, serving
from harness.waiting import until
from turnwire_bench import load_jobs, stop_jobs
from turnwire_bench import paced as paced_module
from turnwire_bench.echo import grpc_server
from turnwire_bench.lean import (
    METHOD,
    LeanSession,
    close_all,
    connect_lean,
    create_of,
    one_byte_tokens,
    open_lean,
)
from turnwire_bench.lean_call import LeanConnection
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


async def test_calls_share_a_connection_and_each_hears_its_own(server):
    connection = await connect_lean(server.grpc_port)
    said: list[list[str]] = [[], []]
    sessions = [LeanSession("grpc", on_text=each.append) for each in said]
    for session in sessions:
        session.link = connection.call(METHOD, session.take)
    creates = [create_of("grpc", "Hi.", one_byte_tokens(count, 0.0)) for count in (50, 70)]
    async with asyncio.timeout(20):
        ends = await asyncio.gather(*map(LeanSession.turn, sessions, creates))
        assert ends == ["response_completed"] * 2
        assert [len("".join(each)) for each in said] == [50, 70]
        sessions[0].link.close()
        await sessions[0].link.closed
        assert await sessions[1].turn(creates[0]) == "response_completed"
        await close_all([sessions[1].link], politely=False)
        await sessions[1].link.closed


class Wire:
    """A transport that keeps the lengths of DATA frames, by stream."""

    def __init__(self) -> None:
        self.sent = Counter()

    def write(self, data: bytes) -> None:
        if data[3:4] == b"\0":
            self.sent[int.from_bytes(data[5:9], "big")] += len(data) - 9


async def test_calls_that_share_a_connection_share_its_window_and_have_one_each():
    connection = LeanConnection(1)
    first, second = (connection.call(METHOD, print) for _ in range(2))
    wire = Wire()
    connection.connection_made(wire)
    for call in (first, second):
        call.send(b"x" * 99_995)
    assert wire.sent == {1: 65_535}
    window = struct.pack(">BHBBI", 0, 4, 8, 0, 0) + struct.pack(">I", 80_000)
    connection.data_received(window)  # of all: the first has used up its own
    assert wire.sent == {1: 65_535, 3: 65_535}
    connection.data_received(window[:8] + b"\1" + window[9:])  # of the first
    assert wire.sent == {1: 80_000, 3: 65_535}


@pytest.mark.parametrize("kind", ["sessions", "echo"])
async def test_paced_streams_can_share_one_connection(server, kind, monkeypatch):
    echo, port = None, server.grpc_port
    if kind == "echo":
        echo, port = grpc_server()
        await echo.start()
    connected = []

    async def connect(port: int):
        connected.append(await connect_lean(port))
        return connected[-1]

    monkeypatch.setattr(paced_module, "connect_lean", connect)
    monkeypatch.delattr(paced_module, "open_lean")
    job = {"wire": "grpc", "port": port, "rate": 400.0, "sessions": 5, "connections": 1}
    async with asyncio.timeout(60):
        result = await paced({**job, "echo": echo is not None, "seconds": 0.5, "pids": []})
    assert result["tokens"] > 0
    assert (result["ended"], len(connected)) == (0, 1)
    if echo is not None:
        await echo.stop(None)


def test_the_second_turns_of_paced_streams_begin_evenly():
    # At 65 tokens/s a turn takes longer than the second within which all streams begin.
    job = {"wire": "grpc", "port": 1, "rate": 65, "sessions": 100, "seconds": 1.0, "pids": []}
    firsts = [stream._count for stream in paced_module._PacedLoad(job)._streams]
    seconds = [number / 100 + count / 65 for number, count in enumerate(firsts)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(seconds)]
    assert seconds[0] == pytest.approx(1.0)
    assert seconds[-1] == pytest.approx(1.0 + 400 / 65, abs=0.1)
    assert all(gap == pytest.approx(400 / 65 / 100, abs=1.5 / 65) for gap in gaps)
    # At 1,000 it does not, and they are even as it is.
    fast = paced_module._PacedLoad({**job, "rate": 1000})
    assert {stream._count for stream in fast._streams} == {400}


async def test_delays_of_first_turns_do_not_count_once_there_are_others(server):
    load = paced_module._PacedLoad(
        {"wire": "ws", "port": 1, "rate": 400, "sessions": 2, "seconds": 1.0, "pids": []}
    )
    first, second = load._streams
    first.delays, second.delays = [5.0], [7.0]
    first._began = second._began = time.perf_counter()
    assert load._delays() == [5.0, 7.0]
    first.stop()
    first._end("response_completed")
    assert load._delays() == []
    first.delays = [0.1]
    assert load._delays() == [0.1]
    second._began -= 1000.0  # It starves: its first turn should be over long ago.
    assert load._delays() == [0.1, 7.0]


@pytest.mark.parametrize(("delays", "gave_up"), [([0.04, 0.06, 0.06], True), ([0.04, 9.0], False)])
async def test_a_load_that_is_far_too_much_is_given_up(server, delays, gave_up):
    job = {"wire": "ws", "port": 1, "rate": 400, "sessions": 1, "seconds": 0.01, "pids": []}
    load = paced_module._PacedLoad({**job, "give_up_ms": 50.0})
    load._streams[0].delays = delays
    assert await load._window() is gave_up
    assert await paced_module._PacedLoad(job)._window() is False


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
