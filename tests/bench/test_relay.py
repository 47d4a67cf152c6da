"""The relay moves bytes both ways, whole and in order, late by as much as it is told."""

from __future__ import annotations

import asyncio

import pytest

from turnwire_bench.network import Profile
from turnwire_bench.processes import child
from turnwire_bench.relay import Link

NEAR = Profile("")
FAR = Profile("", round_trip_s=0.4)


@pytest.fixture
async def echo_port():
    """A server that sends back what it gets, and its end."""

    async def echo(reader, writer):
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
async def open_link():
    """Opens links, and closes them at the end."""
    links = []

    async def opened(port: int, profile: Profile) -> tuple[Link, int]:
        links.append(Link(port, profile))
        return links[-1], await links[-1].open()

    yield opened
    for link in links:
        link.close()


async def exchange(port: int, data: bytes) -> bytes:
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer


async def test_bytes_and_the_end_cross_both_ways_and_are_counted(echo_port, open_link):
    link, port = await open_link(echo_port, NEAR)
    data = bytes(range(256)) * 8_000
    assert await exchange(port, data) == data
    assert (link.bytes_up, link.bytes_down, link.connections) == (len(data), len(data), 1)


async def test_what_comes_over_a_far_link_arrives_later_than_what_was_sent_after_it(
    echo_port, open_link
):
    (_, far), (_, near) = await open_link(echo_port, FAR), await open_link(echo_port, NEAR)
    arrived = []

    async def run(name, port):
        await exchange(port, b"x")
        arrived.append(name)

    first = asyncio.create_task(run("far", far))
    await asyncio.sleep(0)  # it is on its way before the other begins
    await run("near", near)
    await first
    assert arrived == ["near", "far"]


async def test_the_delay_is_one_connect_and_one_round_trip(echo_port, open_link):
    _, port = await open_link(echo_port, FAR)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await exchange(port, b"x")
    assert loop.time() - began >= 2 * FAR.round_trip_s  # never earlier; later on a busy machine


async def test_a_server_that_is_not_there_ends_the_connection(open_link):
    _, port = await open_link(9, NEAR)
    with pytest.raises(ConnectionError):
        await exchange(port, b"x" * 10)


async def test_a_client_that_is_gone_is_gone_for_the_server_too(open_link):
    gone = asyncio.Event()

    async def watch(reader, writer):
        await reader.read()
        gone.set()
        writer.close()

    async with await asyncio.start_server(watch, "127.0.0.1", 0) as server:
        _, port = await open_link(server.sockets[0].getsockname()[1], NEAR)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        await writer.drain()
        writer.transport.abort()
        async with asyncio.timeout(20):
            await gone.wait()


async def test_the_process_opens_links_and_counts(echo_port):
    def links():
        with child("turnwire_bench.relay") as relay:
            wanted = {"port": echo_port, "round_trip_s": 0.0, "bits_per_second": 0.0}
            link = relay.ask({"open": wanted})
            answer = asyncio.run(exchange(link["port"], b"hello"))
            return answer, relay.ask({"counts": link["link"]})

    answer, counts = await asyncio.to_thread(links)
    assert answer == b"hello"
    assert counts == {"bytes_up": 5, "bytes_down": 5, "connections": 1}
