"""SIGHUP: keys and models change, and no session is dropped."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.peers import Peer
from harness.reading import arm_of, failure_of, response_of, status_of
from harness.served_process import ServedProcess, served
from harness.waiting import until
from interaction.pauses import append, round_of
from interaction.scripts import SHELL, script
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.app import StartFailure, make_services
from turnwire_server.config import Config, ConfigFailure, WorkerPlace, load_config
from turnwire_server.ports.engine import EngineFailure
from turnwire_server.reloading import Reloading
from turnwire_server.runtime.services import Services

RELOADED = "configuration reloaded"
PERSISTENT = pytest.mark.parametrize("wire", ["grpc", "websocket"])


def model(name: str, **members: Any) -> str:
    lines = [
        f"{key} = {value!r}" for key, value in {"name": name, "engine": "sim", **members}.items()
    ]
    return "\n".join(["[[models]]", *lines, ""])


async def reload(server: ServedProcess, directory: Path, config: str, *, says: str) -> None:
    before = server.log().count(says)
    (directory / "turnwire.toml").write_text(config)
    server.signal(signal.SIGHUP)
    await server.logged(says, times=before + 1)


async def paused(peer: Peer, name: str) -> ServerEvent:
    create = {"tools": [SHELL], "rollout": True, "metadata": script(tool_rounds=1)}
    await peer.create(create, input="Hi", model=name)
    done = (await round_of(peer))[-1]
    assert arm_of(done) == "response_done"
    return done


@PERSISTENT
async def test_models_come_and_go_and_their_turns_finish(tmp_path: Path, wire: Any) -> None:
    async with served(tmp_path, model("old") + model("same")) as server:
        peer, other = await server.connect(wire), await server.connect(wire)
        done = await paused(peer, "old")
        untouched = await paused(other, "same")
        await reload(server, tmp_path, model("same") + model("new"), says=RELOADED)
        turn = await peer.turn(input="Hi", model="new", stream_id="b")
        assert status_of(response_of(turn)) == "completed"
        (refused,) = await peer.turn(input="Hi", model="old", stream_id="c")
        assert failure_of(refused) == ("model_not_found", 404, "model")
        _, listed = await server.get("/v1/models")
        assert [one["id"] for one in listed["data"]] == ["new", "same"]
        for each, event in ((peer, done), (other, untouched)):
            await append(each, event)
            assert status_of(response_of(await each.finish())) == "completed"
        server.signal(signal.SIGTERM)
        # A client that reads its good-bye answers it; one that does not is waited for.
        for each in (peer, other):
            assert await each.ended() == {"grpc": "UNAVAILABLE", "websocket": "1001"}[wire]
        assert await server.exit_code() == 0


async def test_a_model_that_changed_is_another_one_for_new_turns(tmp_path: Path) -> None:
    async with served(tmp_path, model("m", context_length=4096)) as server:
        peer = await server.connect("grpc")
        done = await paused(peer, "m")
        await reload(server, tmp_path, model("m", context_length=100), says=RELOADED)
        _, listed = await server.get("/v1/models/m")
        assert listed["context_length"] == 100
        await append(peer, done)
        response = response_of(await peer.finish())
        assert status_of(response) == "completed"
        (refused,) = await peer.turn(input="word " * 200, model="m")
        assert failure_of(refused)[0] == "context_length_exceeded"


@PERSISTENT
async def test_a_revoked_key_is_refused_at_its_next_turn_on_the_same_socket(
    tmp_path: Path, wire: Any
) -> None:
    keys = "[auth]\nkeys = {}\n"
    async with served(tmp_path, keys.format('["first", "second"]') + model("sim")) as server:
        revoked, valid = [await server.connect(wire, key=key) for key in ("first", "second")]
        for peer in (revoked, valid):
            assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"
        running = await paused(revoked, "sim")
        fresh = keys.format('["second", "third"]') + model("sim")
        await reload(server, tmp_path, fresh, says=RELOADED)
        (refused,) = await revoked.turn(input="more", stream_id="b", event_id="e1")
        assert failure_of(refused) == ("invalid_api_key", 401, None)
        assert (refused.stream_id, refused.event_id) == ("b", "e1")
        # What runs already is finished.
        await append(revoked, running)
        assert status_of(response_of(await revoked.finish())) == "completed"
        assert status_of(response_of(await valid.turn(input="more"))) == "completed"
        new = await server.connect(wire, key="third")
        assert status_of(response_of(await new.turn(input="Hi"))) == "completed"
        assert (await server.get("/v1/models", key="first"))[0] == 401


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ("no TOML at all", "is not TOML"),
        ("[runtime]\nno_such_key = 1\n" + model("sim"), "unknown key"),
        ('[[models]]\npath = "missing.gguf"\n', "missing.gguf"),
    ],
)
async def test_a_configuration_that_cannot_be_used_leaves_everything_as_it_is(
    tmp_path: Path, broken: str, problem: str
) -> None:
    async with served(tmp_path, model("sim")) as server:
        peer = await server.connect("grpc")
        await reload(server, tmp_path, broken, says="the new configuration is not used")
        assert problem in server.log()
        assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"
        await reload(server, tmp_path, model("sim") + model("more"), says=RELOADED)
        assert status_of(response_of(await peer.turn(input="Hi", model="more"))) == "completed"


# In this process: what a file cannot be made to do.


def sim_config(*names: str, **options: Any) -> Config:
    models = [{"engine": "sim", "name": name} for name in names or ("sim",)]
    given = {"models": models, "sealing.keys": ["A" * 43], "database.url": "memory", **options}
    return load_config(environment={}, options=given)


async def reloaded(services: Services, old: Config, *news: Config | Exception) -> Reloading:
    """Reload once for each of the new configurations."""
    waiting = iter(news)

    def load() -> Config:
        fresh = next(waiting)
        if isinstance(fresh, Exception):
            raise fresh
        return fresh

    reloading = Reloading(services, old, load)
    for _ in news:
        reloading.request()
        assert reloading._task is not None
        async with asyncio.timeout(20):
            await asyncio.wait((reloading._task,))
    return reloading


async def test_an_engine_that_does_not_start_leaves_everything_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = sim_config("a")
    services = make_services(config)
    await services.start()
    closed: list[str] = []

    hosts: set[Path | None] = set()

    def make(one: Any, directory: Path, clock: Any, *, engines: Path | None) -> Any:
        hosts.add(engines)
        made = make_services(sim_config(one.name)).models.models[0]

        async def start() -> None:
            if one.name == "broken":
                raise EngineFailure("it does not start")

        async def close() -> None:
            closed.append(one.name)

        monkeypatch.setattr(made.engine, "start", start)
        monkeypatch.setattr(made.engine, "close", close)
        return made

    monkeypatch.setattr("turnwire_server.reloading.make_model", make)
    place = WorkerPlace(Path("somewhere"), 1)
    fresh = sim_config("fine", "broken", **{"auth.keys": ["k"]}).of_worker(place)
    await reloaded(services, config, fresh)
    assert hosts == {place.engines}
    assert [one.name for one in services.models.models] == ["a"]
    assert services.authorize(None) == "default"
    assert sorted(closed) == ["broken", "fine"]
    assert "it does not start" in caplog.text
    await services.close()


@pytest.mark.parametrize("problem", [ConfigFailure("no."), StartFailure("no."), ValueError("x")])
async def test_whatever_goes_wrong_the_next_reload_works(
    problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    config = sim_config()
    services = make_services(config)
    await services.start()
    await reloaded(services, config, problem, sim_config("sim", "more", any_model=True))
    assert [one.name for one in services.models.models] == ["more", "sim"]
    assert "the new configuration is not used" in caplog.text
    await services.close()


async def test_what_only_a_restart_takes_over_is_named(caplog: pytest.LogCaptureFixture) -> None:
    config = sim_config()
    services = make_services(config)
    await services.start()
    fresh = sim_config(**{"http.address": "127.0.0.1:1", "runtime.keepalive_s": 7.0})
    with caplog.at_level(logging.WARNING):
        await reloaded(services, config, fresh, fresh)
    named = [one.message for one in caplog.records if "restart" in one.message]
    assert named == ["only a restart takes over what has changed in http_address, runtime"] * 2
    (same,) = services.models.models
    assert same.engine is services.models.models[0].engine
    await services.close()


async def test_a_model_that_goes_is_closed_when_its_last_turn_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = sim_config("a", "b")
    services = make_services(config)
    await services.start()
    closed = asyncio.Event()
    old = next(one for one in services.models.models if one.name == "a")

    async def close() -> None:
        closed.set()

    monkeypatch.setattr(old.engine, "close", close)
    old.leases.take()
    await reloaded(services, config, sim_config("b"))
    assert len(services._retiring) == 1
    for _ in range(50):
        await asyncio.sleep(0)
    assert not closed.is_set()
    old.leases.give_back()
    async with asyncio.timeout(20):
        await closed.wait()
    await until(lambda: not len(services._retiring))
    await services.close()


async def test_a_server_that_stops_waits_for_no_model_that_goes() -> None:
    config = sim_config("a", "b")
    services = make_services(config)
    await services.start()
    old = next(one for one in services.models.models if one.name == "a")
    old.leases.take()
    await reloaded(services, config, sim_config("b"))
    async with asyncio.timeout(20):
        await services.close()
    assert not len(services._retiring)


async def test_a_server_that_cannot_read_its_configuration_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = sim_config()
    services = make_services(config)
    await services.start()
    reloading = Reloading(services, config, None)
    reloading.request()
    await until(lambda: "cannot read its configuration" in caplog.text)
    await reloading.close()
    await services.close()
