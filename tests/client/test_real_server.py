"""The client against the real server on the simulated engine, over every wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import turnwire
from harness.server import RunningServer, running_server
from turnwire_server.adapters.engines.sim import SimSettings

WIRES = ("grpc", "websocket", "http")
PERSISTENT = ("grpc", "websocket")


def echo(command: str) -> str:
    """Run a command.

    Args:
        command: The command.
    """
    return f"ran {command}"


@pytest.fixture(params=WIRES)
async def session(
    request: pytest.FixtureRequest, server: RunningServer
) -> AsyncIterator[turnwire.Session]:
    url = server.url(request.param)
    async with asyncio.timeout(20), turnwire.connect(url, model="sim") as opened:
        yield opened


async def test_an_agent_loop_runs_and_renders_only_what_is_new(session: turnwire.Session) -> None:
    result = await session.run(
        "Say hello.", tools={"shell": echo}, tool_choice="required", instructions="Be brief."
    )
    assert result.stop_reason == "answered"
    assert result.output_text
    assert len(result.turns) == 2
    first, second = result.turns
    assert first.tokens_sent and first.tokens_rendered and first.tokens_rendered > 0
    assert second.tokens_rendered == second.tokens_sent
    assert second.overhead_ms is not None and second.timing is not None
    kinds = [item.WhichOneof("item") for item in result.items]
    assert kinds == ["message", "function_call", "function_call_output", "message"]
    assert result.items[2].function_call_output.output.text.startswith("ran ")


async def test_a_stateless_run_gives_the_same_answer_and_renders_all(
    session: turnwire.Session,
) -> None:
    kept = await session.run("Say hello.", tools={"shell": echo})
    resent = await session.run("Say hello.", tools={"shell": echo}, history="full")
    assert resent.output_text == kept.output_text
    assert (resent.turns[1].tokens_sent or 0) > (kept.turns[1].tokens_sent or 0)


async def test_events_come_in_order_without_a_gap(session: turnwire.Session) -> None:
    turn = session.create("Hi", max_output_tokens=16)
    events = [event async for event in turn]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].response is not None
    assert (await turn.response()).usage is not None


async def test_an_unknown_model_is_not_found(session: turnwire.Session) -> None:
    with pytest.raises(turnwire.NotFound) as refused:
        await session.create("Hi", model="nobody").response()
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    assert (await session.create("Hi").response()).status == "completed"


async def test_an_unknown_parent_is_previous_response_not_found(session: turnwire.Session) -> None:
    with pytest.raises(turnwire.PreviousResponseNotFound):
        await session.create("Hi", previous_response_id="resp_none").response()


async def test_lanes_fork_a_stored_parent(session: turnwire.Session) -> None:
    parent = await session.create("Hi").response()
    turns = [
        session.create("And?", previous_response_id=parent.id, stream_id=f"lane-{number}")
        for number in range(8)
    ]
    responses = [await turn.response() for turn in turns]
    assert {response.previous_response_id for response in responses} == {parent.id}
    assert len({response.id for response in responses}) == 8


async def test_stored_responses_are_looked_after(session: turnwire.Session) -> None:
    response = await session.create("Hi").response()
    stored = await session.get(response.id)
    assert stored.output_text == response.output_text
    page = await session.input_items(response.id)
    assert page.items[0].message.role == "user"
    assert (await session.cancel_response(response.id)).id == response.id
    await session.delete(response.id)
    with pytest.raises(turnwire.NotFound):
        await session.get(response.id)


async def test_tokens_are_counted_and_models_listed(session: turnwire.Session) -> None:
    count = await session.count_tokens("Hi", instructions="Be brief.")
    response = await session.create("Hi", instructions="Be brief.").response()
    assert response.usage is not None and count == response.usage.input_tokens
    assert [model.id for model in await session.models()] == ["sim"]


@pytest.mark.parametrize("wire", PERSISTENT)
async def test_fifty_turns_without_a_store_render_only_new_tokens(
    wire: str, server: RunningServer
) -> None:
    async with asyncio.timeout(30), turnwire.connect(server.url(wire), model="sim") as session:
        parent = (await session.warm_up(instructions="Be brief.", store=False)).id
        for number in range(50):
            turn = session.create(
                f"Turn {number}",
                previous_response_id=parent,
                store=False,
                instructions="Be brief.",
                include=["turnwire.timing"],
            )
            parent = (await turn.response()).id
            assert turn.stats is not None
            assert turn.stats.tokens_rendered == turn.stats.tokens_sent


@pytest.mark.parametrize("wire", WIRES)
async def test_a_slow_turn_can_be_cancelled(wire: str) -> None:
    async with (
        asyncio.timeout(20),
        running_server(sim=SimSettings(tokens_per_second=20)) as server,
        turnwire.connect(server.url(wire), model="sim") as session,
    ):
        turn, queued = session.create("Hi"), session.create("Hi")
        async for event in turn:
            if event.delta:
                break
        await queued.cancel()
        await turn.cancel()
        assert (await turn.response()).status == "cancelled"
        with pytest.raises(turnwire.RequestCancelled):
            await queued.response()


@pytest.mark.parametrize("patience_s", [0.0, 0.3])
@pytest.mark.parametrize("wire", PERSISTENT)
async def test_a_server_that_closes_and_does_not_come_back_loses_the_turn(
    wire: str, patience_s: float
) -> None:
    async with asyncio.timeout(20):
        async with running_server() as server:
            opening = turnwire.connect(server.url(wire), model="sim", reconnect_s=patience_s)
            session = await opening.__aenter__()
            assert (await session.create("Hi").response()).status == "completed"
        try:
            with pytest.raises(turnwire.ConnectionLost):
                await session.create("Hi").response()
        finally:
            await opening.__aexit__(None, None, None)
