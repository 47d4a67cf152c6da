"""Real server processes on one database, killed and started again."""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness import peers
from harness.peers import Peer, Wire
from harness.postgres import PostgresServer
from harness.server_process import ServerProcess, server_process
from turnwire.v1 import response_pb2
from turnwire.v1.server_event_pb2 import ServerEvent

WIRES: tuple[Wire, ...] = ("grpc", "websocket", "http")
SHORT = {"turnwire.sim": '{"tokens": 20}'}
LONG = "the session keeps what is there " * 200


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes on a busy machine."""
    monkeypatch.setattr(peers, "WAIT_S", 20.0)


@pytest.fixture(params=["sqlite", "postgres"])
async def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of servers that share a database."""
    shared = {"TURNWIRE_DATABASE_VERIFY_S": "0"}
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        shared["TURNWIRE_DATABASE_URL"] = await server.new_database()
    return shared


def response_of(events: Sequence[ServerEvent]) -> response_pb2.Response:
    assert events[-1].WhichOneof("event") == "response_completed", events[-1]
    return events[-1].response_completed.response


async def turn(peer: Peer, text: str, parent: response_pb2.Response | None = None, **more: Any):
    members = {"input": text, "metadata": SHORT, "include": ["turnwire.timing"], **more}
    if parent is not None:
        members["previous_response_id"] = parent.id
    return response_of(await peer.turn(members))


def is_continued(response: response_pb2.Response, parent: response_pb2.Response) -> bool:
    """Whether a turn took over all token ids of its parent and rendered what was new alone."""
    assert response.turnwire.timing.rerender_reason == ""
    before = parent.turnwire.timing.tokens
    tokens = response.turnwire.timing.tokens
    # The id that ended the turn is written again, with what closes a turn.
    return tokens.rendered == tokens.input - (before.input + before.output - 1)


async def get(server: ServerProcess, response_id: str) -> tuple[int, dict[str, Any]]:
    url = f"{server.ready['http']}/responses/{response_id}"
    async with aiohttp.ClientSession() as client, client.get(url) as answer:
        return answer.status, await answer.json()


async def delete(server: ServerProcess, response_id: str) -> int:
    url = f"{server.ready['http']}/responses/{response_id}"
    async with aiohttp.ClientSession() as client, client.delete(url) as answer:
        return answer.status


async def test_two_processes_continue_each_others_responses(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    async with (
        server_process(tmp_path, environment=environment) as one,
        server_process(tmp_path, environment=environment) as other,
    ):
        parent = await turn(await one.connect("grpc"), LONG, instructions="Be brief.")
        responses = [parent]
        for server, wire in zip(itertools.cycle([other, one]), (*WIRES, *WIRES), strict=False):
            peer = await server.connect(wire)
            response = await turn(peer, f"And over {wire}?", parent, instructions="Be brief.")
            assert is_continued(response, parent)
            assert response.turnwire.timing.tokens.rendered < 40
            responses.append(response)
            parent = response
        for server in (one, other):
            for response in responses:
                status, shown = await get(server, response.id)
                assert (status, shown["id"], shown["status"]) == (200, response.id, "completed")
        # A fork from the middle, by the process that made the next one and by the other.
        for server in (one, other):
            fork = await turn(
                await server.connect("http"), "A fork.", responses[2], instructions="Be brief."
            )
            assert is_continued(fork, responses[2])
        # What one deletes is gone for the other; what continues it goes on.
        assert await delete(one, responses[3].id) == 200
        assert (await get(other, responses[3].id))[0] == 404
        refused = await (await other.connect("http")).turn(
            input="x", previous_response_id=responses[3].id
        )
        assert refused[-1].error.error.code == "previous_response_not_found"
        following = await turn(
            await other.connect("websocket"), "Still?", responses[4], instructions="Be brief."
        )
        assert is_continued(following, responses[4])


async def test_what_was_seen_completed_is_there_after_a_kill(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    parent: response_pb2.Response | None = None
    is_sqlite = "TURNWIRE_DATABASE_URL" not in environment
    for wire in WIRES if is_sqlite else WIRES[:2]:
        async with server_process(tmp_path, environment=environment) as server:
            peer = await server.connect(wire)
            if parent is not None:
                status, shown = await get(server, parent.id)
                assert (status, shown["status"]) == (200, "completed")
            response = await turn(peer, LONG if parent is None else "Next.", parent)
            await server.kill()  # in the moment in which the event was read
        if parent is not None:
            assert is_continued(response, parent)
        parent = response


async def test_conversations_go_on_after_a_kill_and_on_another_process(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    async with server_process(tmp_path, environment=environment) as one:
        async with aiohttp.ClientSession() as client:
            async with client.post(f"{one.ready['http']}/conversations", json={}) as answer:
                conversation = (await answer.json())["id"]
        first = await turn(await one.connect("http"), LONG, conversation=conversation)
        await one.kill()
    async with server_process(tmp_path, environment=environment) as other:
        second = await turn(await other.connect("grpc"), "And?", conversation=conversation)
        assert is_continued(second, first)
        url = f"{other.ready['http']}/conversations/{conversation}/items"
        async with aiohttp.ClientSession() as client, client.get(url) as answer:
            assert len((await answer.json())["data"]) == 4


# What must not be kept.


@pytest.fixture
def _core_dumps() -> Iterator[None]:
    """Allow core dumps as far as this process may, as its children find it."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.mark.usefixtures("_core_dumps")
async def test_nothing_of_an_unstored_turn_is_in_any_file(tmp_path: Path) -> None:
    secrets = Secrets()
    async with server_process(tmp_path, "--verbose") as server:
        assert core_limit(server.process.pid) == 0
        for wire in WIRES:
            await drive(await server.connect(wire), secrets)
        http = await server.connect("http")
        kept = response_of(
            await http.turn(input=f"kept {secrets.kept}", instructions=secrets.kept_too)
        )
        printed = await server.kill()
    files = {"stdout": printed, **contents(tmp_path)}
    assert any(name.endswith("turnwire.db") for name in files)
    # It would be found: what is stored is, and the log says that there were turns.
    for wanted in (secrets.kept, secrets.kept_too, kept.id):
        assert any(wanted.encode() in content for content in files.values())
    for name, content in files.items():
        found = secrets.found_in(content)
        assert not found, f"{name} has {len(found)} of them: {found[:5]}"


def core_limit(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_CORE)[0]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Secrets:
    """Words that are nowhere else."""

    def __init__(self) -> None:
        self.kept = "xyzzy-kept-0"
        self.kept_too = "xyzzy-kept-1"
        self._words: list[str] = []

    def new(self, what: str) -> str:
        """Return a new word that must not be found."""
        self._words.append(f"plugh-{what}-{len(self._words)}")
        return self._words[-1]

    def found_in(self, content: bytes) -> list[str]:
        """Return what is there after all, written in any usual way."""
        return [
            word
            for word in self._words
            if any(
                form in content
                for form in (word.encode(), word.encode("utf-16-le"), word.encode().hex().encode())
            )
        ]


async def drive(peer: Peer, secrets: Secrets) -> None:
    """Run unstored turns with content in all places: answered, failed, refused, cancelled."""

    def members(*items: object, **more: object) -> dict[str, Any]:
        return {
            "store": False,
            "instructions": secrets.new("instructions"),
            "input": list(items),
            "tools": [
                {
                    "type": "function",
                    "name": "lookup",
                    "description": secrets.new("description"),
                    "parameters": {"type": "object", "properties": {}},
                }
            ],
            "metadata": {"note": secrets.new("metadata")},
            "user": secrets.new("user"),
            **more,
        }

    def said(what: str) -> dict[str, object]:
        return {"role": "user", "content": secrets.new(what)}

    call_id = secrets.new("call")
    call = {
        "type": "function_call",
        "call_id": call_id,
        "name": "lookup",
        "arguments": json.dumps({"word": secrets.new("arguments")}),
    }
    output = {"type": "function_call_output", "call_id": call_id, "output": secrets.new("output")}
    first = response_of(await peer.turn(members(said("message"), call, output)))
    script = {"text": secrets.new("said"), "reasoning": secrets.new("thought")}
    spoken = members(said("spoken"), metadata={"turnwire.sim": json.dumps(script)})
    answered = response_of(await peer.turn(spoken))
    assert answered.output[-1].message.content.parts.parts[0].output_text.text == script["text"]
    if peer.wire != "http":  # an unstored parent is known to its connection alone
        await peer.turn(members(said("next"), previous_response_id=answered.id))
    failed = await peer.turn(members(said("failed"), metadata={"turnwire.sim": "fail"}))
    assert failed[-1].WhichOneof("event") == "response_failed"
    for wrong in (
        members({"type": "function_call_output", "call_id": secrets.new("call"), "output": "x"}),
        members(said("unknown"), previous_response_id=secrets.new("id")),
        members({"type": "item_reference", "id": secrets.new("reference")}),
        members(said("tools"), tool_choice={"type": "function", "name": secrets.new("name")}),
        members(said("model"), model=secrets.new("model")),
    ):
        refused = await peer.turn(wrong)
        assert refused[-1].WhichOneof("event") == "error"
    assert first.id != answered.id


async def test_what_a_machine_ran_that_does_not_come_back_has_failed_for_another_one(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    folders = [tmp_path / name for name in ("lost", "other")]
    for folder in folders:
        folder.mkdir()
    shared = {
        "TURNWIRE_DATABASE_URL": f"sqlite:///{tmp_path / 'shared.db'}",
        **environment,
        "TURNWIRE_DATABASE_HEARTBEAT_S": "0.3",
    }
    # Each has directories of its own, so that neither sees the other's lock.
    async with (
        server_process(folders[0], environment=shared) as lost,
        server_process(folders[1], environment=shared) as other,
    ):
        body = {
            "model": "sim",
            "input": "Hi",
            "background": True,
            "metadata": {"turnwire.sim": '{"tokens": 100000, "tokens_per_second": 10}'},
        }
        url = f"{lost.ready['http']}/responses"
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as answer:
            response_id = (await answer.json())["id"]
        assert (await get(other, response_id))[1]["status"] == "in_progress"
        await lost.kill()
        async with asyncio.timeout(60):
            while (found := await get(other, response_id))[1]["status"] == "in_progress":
                pass
        assert found[1]["status"] == "failed"
        assert found[1]["error"]["code"] == "server_error"
