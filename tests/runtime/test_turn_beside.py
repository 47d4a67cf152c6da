"""What of a turn happens beside or behind what its client waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import aiohttp
import pytest

from harness.memory import MemorySink
from harness.reading import (
    arm_of,
    arms,
    failure_of,
    response_of,
    status_of,
)
from harness.server import running_server
from harness.stack import one_peer
from turnwire.v1.response_pb2 import Response
from turnwire_server.adapters.engines.prefix_index import PrefixIndex
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.adapters.renderers.sim_chatml import SimParser
from turnwire_server.ports.screen import ScreenFailure
from turnwire_server.runtime import commit, turn
from turnwire_server.runtime.outbox import Outbox
from turnwire_server.runtime.run import TurnRun
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.events import Delta, Outgoing
from turnwire_server.session.output import OutputPiece
from turnwire_server.session.responses import new_response

SECRET = "/srv/secret/path is on fire"


async def test_the_engine_starts_before_the_response_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []
    async with one_peer() as (stack, peer):

        def noted(*args: Any, **settings: Any) -> Response:
            started.append(len(stack.engine.requests))
            return new_response(*args, **settings)

        monkeypatch.setattr(turn, "new_response", noted)
        await peer.turn(input="Hi")
    assert started == [1]


@pytest.mark.parametrize("store", [True, False])
async def test_what_continues_a_turn_is_made_behind_its_end_unless_it_is_kept(
    store: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    encode, conversation_of = MemorySink.encode, commit.conversation_of

    def sent(self: MemorySink, event: Outgoing) -> bytes:
        if not isinstance(event, Delta) and arm_of(event) == "response_completed":
            story.append("end")
        return encode(self, event)

    def made(*args: Any) -> Conversation:
        story.append("continuation")
        return conversation_of(*args)

    monkeypatch.setattr(MemorySink, "encode", sent)
    monkeypatch.setattr(commit, "conversation_of", made)
    async with one_peer() as (_, peer):
        first = response_of(await peer.turn(input="Hi", store=store))
        assert story == (["continuation", "end"] if store else ["end", "continuation"])
        following = await peer.turn(input="Hi", store=store, previous_response_id=first.id)
        assert status_of(response_of(following)) == "completed"


async def test_a_turn_that_nothing_can_continue_frees_its_lane(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(SECRET)

    async with one_peer() as (_, peer):
        monkeypatch.setattr(commit, "conversation_of", broken)
        first = response_of(await peer.turn(input="Hi", store=False))
        assert "not cached session_id" in caplog.text and SECRET not in caplog.text
        monkeypatch.undo()
        [error] = await peer.turn(input="Hi", previous_response_id=first.id)
        assert failure_of(error)[0] == "previous_response_not_found"
        assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"


async def test_tokens_reach_their_client_without_waking_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hearers: list[asyncio.Task[Any] | None] = []
    hear = TurnRun.hear

    def noting(run: TurnRun, ids: Sequence[int], *, is_last: bool = False) -> bool:
        hearers.append(asyncio.current_task())
        return hear(run, ids, is_last=is_last)

    monkeypatch.setattr(TurnRun, "hear", noting)
    async with one_peer() as (_, peer):
        script = '{"tokens": 200}'
        events = await peer.turn(input="Hi", metadata={"turnwire.sim": script})
        assert arms(events)[-1] == "response_completed"
    first, *between, last = hearers
    assert first is not None and last is first
    assert len(between) > 3 and not any(between)


async def test_the_simulated_cache_learns_what_was_said_behind_the_terminal_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    encode, catch_up = MemorySink.encode, PrefixIndex.catch_up

    def noted_encode(sink: MemorySink, event: Outgoing) -> bytes:
        done.append("delta" if isinstance(event, Delta) else arm_of(event))
        return encode(sink, event)

    def noted_catch_up(index: PrefixIndex) -> None:
        done.append("learnt")
        catch_up(index)

    monkeypatch.setattr(MemorySink, "encode", noted_encode)
    monkeypatch.setattr(PrefixIndex, "catch_up", noted_catch_up)
    async with one_peer() as (_, peer):
        await peer.turn(input="Hi")
        await asyncio.sleep(0)
        assert done[-2:] == ["response_completed", "learnt"]


async def test_the_id_that_ends_a_turn_says_nothing_that_is_to_be_assembled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[list[OutputPiece]] = []
    add = ResponseAssembler.add

    def noted(assembler: ResponseAssembler, pieces: Iterable[OutputPiece]) -> list[Outgoing]:
        said.append([*pieces])
        return add(assembler, said[-1])

    drained: list[Outbox] = []

    async def drain(outbox: Outbox) -> None:
        drained.append(outbox)

    monkeypatch.setattr(ResponseAssembler, "add", noted)
    monkeypatch.setattr(Outbox, "drain", drain)
    async with one_peer(sim=SimSettings(step_tokens=1)) as (_, peer):
        events = await peer.turn(input="Hi", metadata={"turnwire.sim": '{"text": "Two words."}'})
        assert status_of(response_of(events)) == "completed"
    assert said and all(said)
    assert not drained


async def test_a_parser_that_breaks_at_a_single_token_fails_its_turn_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more_text = SimParser.more_text

    def broken(parser: SimParser, token: int) -> str | None:
        if asyncio.current_task() is None:
            raise RuntimeError(SECRET)
        return more_text(parser, token)

    monkeypatch.setattr(SimParser, "more_text", broken)
    script = '{"tokens": 20, "tokens_per_second": 100}'
    async with one_peer() as (stack, peer):
        events = await peer.turn(input="Hi", metadata={"turnwire.sim": script})
        assert arms(events)[-1] == "response_failed"
        assert SECRET not in str(events)
        assert not stack.services.running


async def test_a_parser_that_breaks_at_a_token_fails_its_turn_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed = SimParser.feed

    def broken(parser: SimParser, ids: Sequence[int]) -> Sequence[OutputPiece]:
        if asyncio.current_task() is None:
            raise RuntimeError(SECRET)
        return feed(parser, ids)

    monkeypatch.setattr(SimParser, "feed", broken)
    async with one_peer() as (stack, peer):
        script = '{"tokens": 200}'
        events = await peer.turn(input="Hi", metadata={"turnwire.sim": script})
        assert arms(events)[-1] == "response_failed"
        assert response_of(events).error.code == "server_error"
        assert SECRET not in str(events)
        assert not stack.services.running
        monkeypatch.undo()
        assert arms(await peer.turn(input="Again"))[-1] == "response_completed"


async def test_a_kept_response_whose_screening_cannot_begin_fails() -> None:
    class Refuses:
        def check(self, *_: object, **__: object) -> NoReturn:
            raise ScreenFailure("full")

    async with (
        asyncio.timeout(20),
        running_server(screen=Refuses()) as server,
        aiohttp.ClientSession() as client,
    ):
        url = f"http://127.0.0.1:{server.http_port}/v1/responses"
        create = {"model": "sim", "input": "Hi", "background": True}
        async with client.post(url, json=create) as answer:
            response = await answer.json()
        while response["status"] in ("queued", "in_progress"):
            async with client.get(f"{url}/{response['id']}") as answer:
                response = await answer.json()
        assert response["status"] == "failed"
        assert response["error"]["code"] == "server_error"
