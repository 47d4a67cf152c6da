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
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import turnwire
from harness.families import write_folder
from turnwire_server.adapters.renderers.chat_template import ChatTemplateRenderer
from turnwire_server.adapters.screens.rules import RuleScreen
from turnwire_server.adapters.stores.sql import SqlResponseStore
from turnwire_server.app import Server, StartFailure, make_services
from turnwire_server.config import Config, load_config

SIM = {
    "http.address": "127.0.0.1:0",
    "grpc.address": "127.0.0.1:0",
    "models": [{"engine": "sim"}],
    "sealing.keys": ["A" * 43],
    "database.url": "memory",
}
_LIMIT = Path("/proc/sys/net/core/somaxconn")
_MOST_WAITING = int(_LIMIT.read_text()) if _LIMIT.exists() else 0
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
            async with asyncio.timeout(20), turnwire.connect(ready[wire], model="sim") as session:
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
            async with asyncio.timeout(20):
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
        async with asyncio.timeout(20), turnwire.connect(ready["grpc"], model="sim") as session:
            assert await session.models()


@asynccontextmanager
async def started(config: Config) -> AsyncIterator[Server]:
    server = Server(config, make_services(config))
    await server.start()
    try:
        yield server
    finally:
        async with asyncio.timeout(20):
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
            async with asyncio.timeout(20):
                assert (await session.run("Hello.")).output_text


async def test_responses_are_in_a_database_in_the_data_directory_by_default(tmp_path):
    options = {**SIM, "data_dir": str(tmp_path / "data")}
    del options["database.url"]
    config = load_config(environment={}, options=options)
    async with started(config) as server:
        async with turnwire.connect(server.http_url, model="sim") as session:
            async with asyncio.timeout(20):
                first = await session.run("Hello.")
        assert isinstance(server.services.store, SqlResponseStore)
    assert (tmp_path / "data" / "turnwire.db").is_file()
    async with started(config) as server:
        stored = await server.services.store.get(first.response.id, tenant="default")
        assert stored is not None


async def test_a_server_starts_in_spite_of_another_one_and_closes_its_database(tmp_path):
    options = {**SIM, "data_dir": str(tmp_path), "database.url": f"sqlite:///{tmp_path}/a.db"}
    config = load_config(environment={}, options=options)
    async with started(config), started(config):
        pass
    # Nothing is open: the log is folded into the file when the last one closes it.
    assert {path.name for path in tmp_path.glob("a.db*")} == {"a.db"}


async def test_a_database_that_cannot_be_used_stops_the_start_without_its_password():
    url = "postgresql://someone:hunter2@127.0.0.1:1/turnwire"
    config = sim_config(**{"database.url": url})
    server = Server(config, make_services(config))
    with pytest.raises(StartFailure, match=r"PostgreSQL, turnwire at 127\.0\.0\.1") as failure:
        async with asyncio.timeout(20):
            await server.start()
    assert "hunter2" not in str(failure.value)
    with pytest.raises(StartFailure, match=r"database\.url: it must begin with"):
        make_services(sim_config(**{"database.url": "mysql://someone:hunter2@host/turnwire"}))


async def test_a_model_may_be_one_that_is_not_steered():
    for member, takes_steers in (({}, True), ({"steering": False}, False)):
        config = sim_config(models=[{"engine": "sim", **member}])
        (model,) = make_services(config).models.models
        assert model.takes_steers is takes_steers


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


@pytest.mark.skipif(_MOST_WAITING < 1_000, reason="the system lets fewer connections wait")
async def test_a_crowd_may_wait_on_the_http_port_while_the_server_is_busy():
    config = sim_config()
    server = Server(config, make_services(config))
    await server._serve_http()
    address = (server.http_address.host, server.http_address.port)
    crowd = []
    try:
        for _ in range(500):  # without a wait: the server cannot accept them
            crowd.append(socket.create_connection(address, timeout=20))
    finally:
        for each in crowd:
            each.close()
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


def test_what_was_sealed_is_opened_after_a_restart_with_the_same_key_file(tmp_path):
    options = {**SIM, "sealing.keys": [], "sealing.data_dir": str(tmp_path / "data")}
    config = load_config(environment={}, options=options)
    sealed = make_services(config).seal_reasoning("a thought")
    path = tmp_path / "data/sealing.keys"
    assert path.stat().st_mode & 0o777 == 0o600
    assert make_services(config).unseal("reasoning", sealed) == b"a thought"
    path.unlink()
    assert make_services(config).unseal("reasoning", sealed) is None


def test_keys_of_the_configuration_seal_newest_first():
    old, new = "A" * 43, "B" + "A" * 42
    sealed = make_services(sim_config(**{"sealing.keys": [old]})).seal_reasoning("a thought")
    rotated = make_services(sim_config(**{"sealing.keys": [new, old]}))
    assert rotated.unseal("reasoning", sealed) == b"a thought"
    assert make_services(sim_config(**{"sealing.keys": [new]})).unseal("reasoning", sealed) is None


@pytest.mark.parametrize("bad", ["short", "not base64!", "A" * 44])
def test_a_key_that_cannot_be_used_is_refused_without_being_shown(bad):
    with pytest.raises(StartFailure) as failure:
        make_services(sim_config(**{"sealing.keys": [bad]}))
    assert "sealing.keys" in str(failure.value)
    assert bad not in str(failure.value)


def test_a_key_file_that_others_may_read_stops_the_start(tmp_path):
    path = tmp_path / "sealing.keys"
    path.write_text("A" * 43 + "\n")
    path.chmod(0o644)
    options = {**SIM, "sealing.keys": [], "sealing.data_dir": str(tmp_path)}
    with pytest.raises(StartFailure, match="only its owner"):
        make_services(load_config(environment={}, options=options))


def test_a_screen_is_made_of_the_rules_file(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("[[rules]]\ncategory = 'weapons'\npatterns = ['bomb']\n")
    services = make_services(sim_config(**{"screen.rules": str(path)}))
    assert isinstance(services.screen, RuleScreen)
    assert make_services(sim_config()).screen is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        ("[[rules]]\npatterns = ['bomb']\n", r"rules\[0\].category"),
        ("[[rules]]\ncategory = 'a'\npatterns = ['(']\n", "RE2"),
    ],
)
def test_rules_that_cannot_be_used_stop_the_start(tmp_path, content, problem):
    path = tmp_path / "rules.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StartFailure, match=rf"^screen\.rules: .*{problem}"):
        make_services(sim_config(**{"screen.rules": str(path)}))


async def test_metrics_can_be_switched_off():
    for is_on, status in ((True, 200), (False, 404)):
        async with started(sim_config(**{"http.metrics": is_on})) as server:
            async with aiohttp.ClientSession() as client:
                url = f"http://{server.http_address}/metrics"
                async with client.get(url) as answer:
                    assert answer.status == status


def test_a_folder_is_a_model_whose_prompts_are_as_configured(tmp_path):
    write_folder(tmp_path / "qwen", "qwen")
    options = {**SIM, "models": [{"path": str(tmp_path / "qwen"), "format": "mistral"}]}
    (model,) = make_services(load_config(environment={}, options=options)).models.models
    assert isinstance(model.renderer, ChatTemplateRenderer)
    assert model.renderer.describe()["calls"] == "mistral"


async def test_a_folder_without_a_model_of_openvino_says_what_is_missing(tmp_path):
    write_folder(tmp_path / "qwen", "qwen")
    options = {**SIM, "models": [{"path": str(tmp_path / "qwen")}]}
    config = load_config(environment={}, options=options)
    server = Server(config, make_services(config))
    with pytest.raises(StartFailure, match=r"a folder needs openvino_model\.xml"):
        await server.start()


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"format": "morse"}, "no format 'morse'"),
        ({"path": "no/such/folder"}, "no model file or folder at no/such/folder"),
    ],
)
def test_a_renderer_that_cannot_be_made_stops_the_start(tmp_path, members, problem):
    write_folder(tmp_path / "qwen", "qwen")
    options = {**SIM, "models": [{"path": str(tmp_path / "qwen"), **members}]}
    with pytest.raises(StartFailure, match=problem):
        make_services(load_config(environment={}, options=options))


def test_harmony_makes_the_prompts_where_it_is_configured(tmp_path):
    pytest.importorskip("openai_harmony")
    (tmp_path / "oss").mkdir()
    model = {"path": str(tmp_path / "oss"), "renderer": "harmony", "reasoning_effort": "high"}
    options = {**SIM, "models": [model]}
    (served,) = make_services(load_config(environment={}, options=options)).models.models
    assert served.renderer.describe()["calls"] == "harmony"
