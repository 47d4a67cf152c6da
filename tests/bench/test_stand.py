"""The processes around a server: certificates, fronts, hops, and what they used."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import time

import aiohttp
import pytest
from aiohttp import web

from turnwire_bench.certificates import make_certificate
from turnwire_bench.failure import BenchFailure
from turnwire_bench.front import server_context
from turnwire_bench.hop import make_app
from turnwire_bench.network import PROFILES
from turnwire_bench.processes import child
from turnwire_bench.stand import Stand, notes_of
from turnwire_bench.usage import cpu_seconds, memory_kb, process_tree
from turnwire_bench.wire_counts import wire_counts

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


async def test_a_client_that_trusts_the_certificate_is_served_over_tls(tmp_path):
    made = make_certificate(tmp_path)
    assert made.key.stat().st_mode & 0o077 == 0

    async def echo(reader, writer):
        writer.write(await reader.readline())
        writer.close()

    context = server_context(made.chain, made.key)
    async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        trust = ssl.create_default_context(cadata=made.pem.decode())
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            writer.write(b"hello\n")
            assert await reader.readline() == b"hello\n"
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            writer.close()
            await writer.wait_closed()
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())


async def test_a_hop_passes_a_streamed_answer_on_while_it_comes():
    released = asyncio.Event()

    async def stream(request):
        response = web.StreamResponse(headers={"x-kind": "stream"})
        await response.prepare(request)
        await response.write(await request.read())
        await released.wait()
        await response.write(b" and the rest")
        return response

    app = web.Application()
    app.router.add_post("/v1/responses", stream)
    async with Served(app) as upstream, Served(make_app(upstream)) as port:
        async with aiohttp.ClientSession() as client, asyncio.timeout(20):
            url = f"http://127.0.0.1:{port}/v1/responses?x=1"
            async with client.post(url, data=b"first") as answer:
                assert answer.headers["x-kind"] == "stream"
                assert await answer.content.readany() == b"first"
                released.set()
                assert await answer.read() == b" and the rest"
            async with client.get(f"http://127.0.0.1:{port}/health") as answer:
                assert answer.status == 200


class Served:
    """Serves an application on a free port."""

    def __init__(self, app: web.Application) -> None:
        self._runner = web.AppRunner(app)

    async def __aenter__(self) -> int:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


@ON_LINUX
def test_a_process_and_what_it_started_are_counted_together():
    code = (
        "import subprocess, sys\n"
        "inner = subprocess.Popen([sys.executable, '-c', "
        "'for _ in range(3_000_000): pass\\nprint(1, flush=True)\\ninput()'], "
        "stdin=subprocess.PIPE)\n"
        "input()\ninner.communicate(b'x\\n')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        tree = process_tree(process.pid)
        assert len(tree) == 2
        whole, alone = cpu_seconds([process.pid]), cpu_seconds(tree[1:])
        assert whole is not None and alone is not None
        assert whole > alone > 0.01
        memory = memory_kb(process.pid)
        assert memory is not None and memory > 1_000
    finally:
        process.communicate(b"x\n", timeout=20)


@ON_LINUX
def test_cpu_time_grows_with_work():
    before = cpu_seconds([os.getpid()])
    began = time.process_time()
    while time.process_time() - began < 0.02:
        pass
    after = cpu_seconds([os.getpid()])
    assert before is not None and after is not None
    assert after - before >= 0.02


@ON_LINUX
async def test_bytes_of_open_connections_to_a_port_are_counted():
    async def answer(reader, writer):
        await reader.readexactly(1000)
        writer.write(b"y" * 300)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 1000)
        async with asyncio.timeout(20):
            await reader.readexactly(300)
        counts = wire_counts(port)
        assert counts is not None
        assert (counts.up, counts.down) == (1000, 300)
        writer.close()
        await writer.wait_closed()


def test_a_process_that_cannot_start_says_its_last_words():
    with pytest.raises(BenchFailure, match="No module named"), child("turnwire_bench.nothing"):
        pass


def test_a_process_that_refuses_says_why_and_goes_on():
    with child("turnwire_bench.worker") as worker:
        job = {"do": "conversation", "scenario": {"name": "s", "messages": 0}}
        with pytest.raises(BenchFailure, match="sizes that cannot be"):
            worker.ask(job)
        assert worker.ask({"do": "release"}) == {}


def test_the_stateless_row_alone_needs_tls_and_pays_for_its_handshakes():
    stand = Stand(tls="stateless")
    assert stand.wants_tls("http_stateless")
    assert not stand.wants_tls("grpc")
    assert [stand.round_trips(name) for name in ("http_stateless", "ws")] == [3, 1]
    assert Stand().round_trips("http_stateless") == 2
    assert Stand(tls="all").wants_tls("grpc")
    assert not Stand(tls="stateless", hops=2).wants_tls("http_stateless")


def test_the_notes_say_what_a_reader_has_to_know():
    assert notes_of("none", 0, [PROFILES["loopback"]]) == []
    notes = " ".join(notes_of("stateless", 2, [PROFILES["region"]]))
    assert "slow start" in notes
    assert "2 pass-through services" in notes
    assert "TLS is on http_stateless alone" in notes
