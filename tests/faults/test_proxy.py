from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from faults.proxy import TcpProxy


@asynccontextmanager
async def relayed() -> AsyncIterator[TcpProxy]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = TcpProxy(server.sockets[0].getsockname()[1])
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
        server.close()


async def test_what_is_sent_comes_back_and_the_end_too() -> None:
    async with relayed() as proxy, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_a_cut_resets_the_connection_and_the_next_one_works() -> None:
    async with relayed() as proxy, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        await reader.readexactly(5)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        writer.close()


async def test_a_stall_holds_everything_back_and_loses_nothing() -> None:
    async with relayed() as proxy, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"a")
        await reader.readexactly(1)
        stall = asyncio.create_task(proxy.stall(0.2))
        await asyncio.sleep(0)
        writer.write(b"held")
        held = asyncio.create_task(reader.readexactly(4))
        done, _ = await asyncio.wait((stall, held), return_when=asyncio.FIRST_COMPLETED)
        assert stall in done or held not in done
        assert await held == b"held"
        await stall
        writer.close()


async def test_a_server_that_is_down_looks_as_it_would_without_a_relay() -> None:
    listener = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    proxy = TcpProxy(port)
    await proxy.start()
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
    await proxy.close()
