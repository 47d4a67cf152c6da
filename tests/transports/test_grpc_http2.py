"""What the options of the gRPC server do on the HTTP/2 connection."""

from __future__ import annotations

import asyncio

import pytest

from harness.fake_services import FakeServices
from harness.http2 import GOAWAY, PING, raw_http2
from harness.wire_servers import grpc_port
from turnwire_server.transports.grpc import GrpcSettings

pytestmark = pytest.mark.usefixtures("each_grpc_backend")

MAX_CONCURRENT_STREAMS = 3


async def test_the_limit_of_concurrent_streams_is_announced() -> None:
    async with (
        grpc_port(FakeServices(), GrpcSettings(max_concurrent_streams=321)) as port,
        raw_http2(port) as client,
    ):
        assert (await client.settings())[MAX_CONCURRENT_STREAMS] == 321


async def test_pings_without_calls_as_often_as_the_interval_allows_are_no_strikes() -> None:
    settings = GrpcSettings(min_client_ping_interval_s=0)
    async with grpc_port(FakeServices(), settings) as port, raw_http2(port) as client:
        answers = [await client.ping(number) for number in range(50)]
    assert {answer.kind for answer in answers} == {PING}


async def test_pings_far_below_the_interval_still_end_in_enhance_your_calm() -> None:
    async with grpc_port(FakeServices()) as port, raw_http2(port) as client:
        answers = [await client.ping(0)]
        while answers[-1].kind == PING and len(answers) < 50:
            answers.append(await client.ping(len(answers)))
    assert answers[-1].kind == GOAWAY
    assert b"too_many_pings" in answers[-1].payload


async def test_a_silent_connection_is_pinged_without_calls() -> None:
    settings = GrpcSettings(ping_interval_s=0.05)
    async with grpc_port(FakeServices(), settings) as port, raw_http2(port) as client:
        while (await client.receive()).kind != PING:
            pass


async def test_a_peer_that_answers_no_ping_is_dropped() -> None:
    settings = GrpcSettings(ping_interval_s=0.05, ping_timeout_s=0.1)
    async with grpc_port(FakeServices(), settings) as port, raw_http2(port) as client:
        with pytest.raises(asyncio.IncompleteReadError):
            while True:
                await client.receive()


def test_pings_every_five_seconds_are_promised() -> None:
    options = dict(GrpcSettings().options(1))
    assert options["grpc.http2.min_ping_interval_without_data_ms"] < 5000
    assert options["grpc.keepalive_time_ms"] == 20_000
