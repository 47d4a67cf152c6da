"""The server as a process: it says when it is ready, serves all wires, and stops in order."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

import turnwire
from turnwire_server.app import Server, StartFailure, make_services
from turnwire_server.config import Config, load_config

SIM = {"http.address": "127.0.0.1:0", "grpc.address": "127.0.0.1:0", "models": [{"engine": "sim"}]}
START_S = 60  # An interpreter and the vocabulary; the machine may be busy.


def sim_config(**options: object) -> Config:
    return load_config(environment={}, options={**SIM, **options})


@asynccontextmanager
async def serve(
    *arguments: str,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """A server in a process of its own that is ready, and what it said about itself."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turnwire", "serve", "--engine", "sim"),
        *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
        yield process, json.loads(line)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def exit_code(process: Process) -> int:
    async with asyncio.timeout(20):
        return await process.wait()


async def test_a_served_process_answers_on_every_wire_and_ends_with_0_on_sigterm():
    async with serve() as (process, ready):
        assert ready["event"] == "ready"
        assert ready["models"] == ["sim"]
        assert ready["pid"] == process.pid
        for wire in ("grpc", "websocket", "http"):
            async with asyncio.timeout(10), turnwire.connect(ready[wire], model="sim") as session:
                result = await session.run("Hello.")
                assert result.output_text.startswith("Simulated answer")
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0
        assert process.stdout is not None
        assert await process.stdout.read() == b""  # nothing but the one line


@pytest.mark.parametrize("wire", ["grpc", "websocket"])
async def test_a_running_turn_ends_with_its_terminal_event_when_the_server_stops(wire):
    async with serve("--rate", "20") as (process, ready):
        async with turnwire.connect(ready[wire], model="sim") as session:
            turn = session.create("Go on for long.", metadata={"turnwire.sim": '{"tokens": 2000}'})
            async with asyncio.timeout(10):
                await turn.started()
                process.send_signal(signal.SIGINT)
                response = await turn.response()
            assert response.status == "cancelled"
        assert await exit_code(process) == 0


async def test_a_server_stops_with_the_program_that_started_it():
    async with serve("--until-stdin-closes") as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        assert await exit_code(process) == 0


async def test_without_that_option_the_standard_input_does_not_matter():
    async with serve() as (process, ready):
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(10), turnwire.connect(ready["grpc"], model="sim") as session:
            assert await session.models()


@asynccontextmanager
async def started(config: Config) -> AsyncIterator[Server]:
    server = Server(config, make_services(config))
    await server.start()
    try:
        yield server
    finally:
        async with asyncio.timeout(10):
            await server.close()


async def test_the_services_get_the_settings_of_the_configuration():
    config = sim_config(**{"auth.keys": ["secret"], "session.max_in_flight": 3, "any_model": True})
    async with started(config) as server:
        assert server.services.settings.session.max_in_flight == 3
        async with aiohttp.ClientSession() as client:
            async with client.get(f"{server.http_url}/models") as refused:
                assert refused.status == 401
            headers = {"authorization": "Bearer secret"}
            async with client.get(f"{server.http_url}/models", headers=headers) as allowed:
                assert (await allowed.json())["data"][0]["id"] == "sim"
        async with turnwire.connect(server.grpc_url, api_key="secret", model="any") as session:
            async with asyncio.timeout(5):
                assert (await session.run("Hello.")).output_text


async def test_readiness_follows_the_engines():
    config = sim_config()
    server = Server(config, make_services(config))
    await server._serve_http()
    url = f"http://{server.http_address}"
    try:
        async with aiohttp.ClientSession() as client:
            async with client.get(f"{url}/readyz") as early:
                assert early.status == 503
            async with client.get(f"{url}/healthz") as alive:
                assert alive.status == 200
            await server.services.start()
            async with client.get(f"{url}/readyz") as ready:
                assert ready.status == 200
    finally:
        await server.close()


@pytest.mark.parametrize("key", ["http.address", "grpc.address"])
async def test_a_port_that_is_taken_is_named(key):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = sim_config(**{key: address})
        server = Server(config, make_services(config))
        with pytest.raises(StartFailure, match=f"cannot listen on {address}"):
            await server.start()


def test_a_model_that_was_not_pulled_is_said_with_the_way_to_get_it(tmp_path):
    options = {**SIM, "models": [{"engine": "openvino"}], "models_directory": str(tmp_path)}
    with pytest.raises(StartFailure) as failure:
        make_services(load_config(environment={}, options=options))
    assert "turnwire models pull smollm2" in str(failure.value)
    assert "turnwire serve --engine sim" in str(failure.value)


def test_a_file_that_is_no_model_is_named(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUX" + bytes(100))
    options = {**SIM, "models": [{"path": str(path)}]}
    with pytest.raises(StartFailure, match=r"broken\.gguf is not a GGUF file"):
        make_services(load_config(environment={}, options=options))
