"""Rollouts and steering as the client has them, against the real server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

import turnwire
from harness.client_events import call_item, opening, rejected, text_turn
from harness.client_wires import MemoryWire, memory_session
from harness.server import RunningServer, running_server
from harness.waiting import until
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import (
    ResponseDone,
    ResponseOutputItemDone,
    ResponseSteerAccepted,
    ServerEvent,
    Steer,
)
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.runtime.settings import RuntimeSettings

PERSISTENT = ("grpc", "websocket")
SHELL = {
    "type": "function",
    "name": "shell",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
}


def echo(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


def script(**members: object) -> dict[str, str]:
    return {"turnwire.sim": json.dumps(members)}


def outputs(calls: list[turnwire.FunctionCall], text: str = "ran") -> list[turnwire.InputItem]:
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": text} for call in calls
    ]


@pytest.fixture(params=PERSISTENT)
async def session(
    request: pytest.FixtureRequest, server: RunningServer
) -> AsyncIterator[turnwire.Session]:
    url = server.url(request.param)
    async with asyncio.timeout(20), turnwire.connect(url, model="sim") as opened:
        yield opened


@pytest.fixture(params=PERSISTENT)
async def slow(request: pytest.FixtureRequest) -> AsyncIterator[turnwire.Session]:
    """A session with a model that takes its time."""
    async with (
        asyncio.timeout(20),
        running_server(sim=SimSettings(tokens_per_second=200)) as server,
        turnwire.connect(server.url(request.param), model="sim") as opened,
    ):
        yield opened


async def until_delta(turn: turnwire.Turn) -> None:
    async for event in turn:
        if event.delta:
            return


# Rollouts.


async def test_an_agent_run_may_be_one_response(session: turnwire.Session) -> None:
    seen: list[str] = []
    options = {"tools": {"shell": echo}, "metadata": script(tool_rounds=3)}
    result = await session.run(
        "Say hello.", rollout=True, on_event=lambda event: seen.append(event.type), **options
    )
    assert result.stop_reason == "answered"
    (turn,) = result.turns
    assert turn.response_id == result.response.id
    assert seen.count("response.done") == 3 and seen[-1] == "response.completed"
    kinds = [item.WhichOneof("item") for item in result.items]
    assert kinds == ["message", *["function_call", "function_call_output"] * 3, "message"]
    assert len(result.response.message.output) == 4
    usual = await session.run("Say hello.", **options)
    assert [item.WhichOneof("item") for item in usual.items] == kinds
    assert usual.output_text == result.output_text
    assert usual.turns[-1].tokens_input == turn.tokens_input + turn.tokens_output - (
        usual.turns[-1].tokens_output or 0
    )


async def test_a_rollout_by_hand_is_paused_and_appended_to(session: turnwire.Session) -> None:
    turn = session.create("Go.", rollout=True, tools=[SHELL], metadata=script(tool_rounds=2))
    assert turn.calls == []
    for _ in range(2):
        calls = await turn.paused()
        assert [call.name for call in calls] == ["shell"]
        assert turn.is_paused and turn.calls == calls
        await turn.append(outputs(calls))
    assert await turn.paused() == []
    assert not turn.is_paused
    response = await turn.response()
    assert response.status == "completed"
    assert turn.stats is not None and 0 < turn.stats.paused_s < turn.stats.total_s
    child = session.create("And?", previous_response_id=response.id, metadata=script(text="ok"))
    assert (await child.response()).output_text == "ok"
    with pytest.raises(ValueError, match="not paused"):
        await turn.append(outputs(calls))


async def test_a_refused_append_raises_and_the_turn_waits_on(session: turnwire.Session) -> None:
    turn = session.create("Go.", rollout=True, tools=[SHELL], stream_id="a")
    calls = await turn.paused()
    with pytest.raises(turnwire.InvalidRequest) as refused:
        await turn.append([{"role": "user", "content": "no output"}])
    assert (refused.value.code, refused.value.param) == ("invalid_value", "input")
    assert turn.is_paused
    beside = session.create("Hi", stream_id="b", metadata=script(text="beside"))
    assert (await beside.response()).output_text == "beside"
    await turn.append(outputs(calls))
    assert (await turn.response()).status == "completed"


async def test_a_paused_rollout_can_be_cancelled(session: turnwire.Session) -> None:
    turn = session.create("Go.", rollout=True, tools=[SHELL])
    await turn.paused()
    await turn.cancel()
    assert (await turn.response()).status == "cancelled"
    assert not turn.is_paused


async def test_a_run_stops_after_so_many_rounds(session: turnwire.Session) -> None:
    result = await session.run(
        "Go.", rollout=True, tools={"shell": echo}, max_turns=2, metadata=script(tool_rounds=9)
    )
    assert result.stop_reason == "max_turns"
    assert result.response.status == "cancelled"
    kinds = [item.WhichOneof("item") for item in result.items]
    assert kinds == ["message", "function_call", "function_call_output", "function_call"]


async def test_a_run_that_is_cut_says_so(session: turnwire.Session) -> None:
    result = await session.run("Go.", rollout=True, tools={"shell": echo}, max_output_tokens=40)
    assert result.stop_reason == "incomplete"
    assert result.response.incomplete_reason == "max_output_tokens"


async def test_a_tool_that_takes_too_long_for_the_server_ends_the_run() -> None:
    stopped = asyncio.Event()

    async def shell(command: str) -> str:
        """Run a command."""
        await stopped.wait()
        return command

    async with (
        asyncio.timeout(20),
        running_server(runtime=RuntimeSettings(append_timeout_s=0.05)) as server,
        turnwire.connect(server.grpc_url, model="sim") as session,
    ):
        told: list[str] = []

        def tell(event: turnwire.Event) -> None:
            told.append(event.type)

        run = asyncio.create_task(
            session.run("Go.", rollout=True, tools={"shell": shell}, on_event=tell)
        )
        await until(lambda: "response.done" in told)
        # The end is there before the tool is: nothing else is left to be received.
        watcher = session.create("Hi", stream_id="b", metadata=script(silent_s=0.2, text="x"))
        await watcher.response()
        stopped.set()
        result = await run
    assert result.stop_reason == "incomplete"
    assert result.response.incomplete_reason == "append_timeout"


async def test_a_rollout_is_refused_over_http(server: RunningServer) -> None:
    async with turnwire.connect(server.http_url, model="sim") as session:
        with pytest.raises(turnwire.InvalidRequest) as refused:
            await session.run("Go.", rollout=True)
        assert refused.value.param == "rollout"


async def test_a_rollout_cannot_resend_its_history(session: turnwire.Session) -> None:
    with pytest.raises(ValueError, match="rollout"):
        await session.run("Go.", rollout=True, history="full")


def pause(event: ClientEvent, call_id: str, first: int) -> list[ServerEvent]:
    item = call_item("shell", "{}", call_id)
    index = 0 if first == 2 else 1
    events = [
        ServerEvent(
            response_output_item_done=ResponseOutputItemDone(output_index=index, item=item)
        ),
        ServerEvent(response_done=ResponseDone(response_id="resp_1")),
    ]
    for number, one in enumerate(events, first):
        one.sequence_number = number
    return events


async def test_a_paused_turn_is_not_silent() -> None:
    def answer(event: ClientEvent) -> list[ServerEvent]:
        if event.HasField("response_create"):
            return [*opening(event, "resp_1"), *pause(event, "call_1", 2)]
        return pause(event, "call_2", 4)

    wire = MemoryWire(answer)
    async with asyncio.timeout(20), memory_session(wire, silence_timeout_s=0.05) as session:
        turn = session.create("Go.", rollout=True)
        assert [call.call_id for call in await turn.paused()] == ["call_1"]
        sleeping = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.2, sleeping.set_result, None)
        await sleeping
        await turn.append(outputs(turn.calls))
        assert [call.call_id for call in turn.calls] == ["call_2"]
    create, append = wire.sent[0], wire.sent[1]
    assert create.response_create.rollout
    assert append.response_append.response_id == "resp_1"
    assert append.event_id not in ("", create.event_id)


async def test_signs_of_life_do_not_end_a_pause() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("Go.", rollout=True, stream_id="a")
        await wire.sent_count(1)
        events = [*opening(wire.sent[0], "resp_1"), *pause(wire.sent[0], "call_1", 2)]
        for event in events:
            event.stream_id = "a"
        wire.push(*events)
        await turn.paused()
        appending = asyncio.create_task(turn.append(outputs(turn.calls)))
        await wire.sent_count(2)
        keepalive = ServerEvent(sequence_number=4, stream_id="a")
        keepalive.keepalive.SetInParent()
        wire.push(keepalive, rejected(wire.sent[1], "invalid_value", param="input"))
        with pytest.raises(turnwire.InvalidRequest):
            await appending
        assert turn.is_paused


# Steering.


async def test_a_steered_turn_has_a_successor(slow: turnwire.Session) -> None:
    turn = slow.create("Talk.", metadata=script(tokens=60), stream_id="a")
    queued = slow.create("Later.", metadata=script(text="later"), stream_id="a")
    await until_delta(turn)
    first = await turn.steer("In French.")
    second = await turn.steer([{"role": "user", "content": "Please."}])
    assert first.id != second.id
    assert first.previous_response_id == turn.response_id
    successor = await first.successor()
    assert successor is not None
    assert await second.successor() is successor
    assert (await turn.response()).status == "completed"
    response = await successor.response()
    assert response.previous_response_id == turn.response_id
    assert successor.stream_id == "a"
    assert successor.stats is not None and successor.stats.input_items == 2
    assert (await queued.response()).output_text == "later"


async def test_steers_of_a_turn_that_calls_tools_go_with_the_outputs(
    slow: turnwire.Session,
) -> None:
    call = {"name": "shell", "arguments": {"command": "ls " * 20}}
    turn = slow.create("Go.", tools=[SHELL], metadata=script(calls=[call]))
    await until_delta(turn)
    steer = await turn.steer("Faster.")
    assert await steer.successor() is None
    response = await turn.response()
    following = slow.create(outputs(response.function_calls), previous_response_id=response.id)
    assert (await following.response()).status == "completed"


async def test_a_steer_of_a_rollout_goes_with_what_is_appended(session: turnwire.Session) -> None:
    turn = session.create("Go.", rollout=True, tools=[SHELL])
    calls = await turn.paused()
    steer = await turn.steer("Faster.")
    assert await steer.successor() is None
    assert turn.is_paused
    await turn.append(outputs(calls))
    while calls := await turn.paused():
        await turn.append(outputs(calls))
    assert (await turn.response()).status == "completed"


async def test_a_steer_that_comes_too_late_is_refused(session: turnwire.Session) -> None:
    turn = session.create("Hi")
    await turn.response()
    with pytest.raises(turnwire.ResponseRejected) as refused:
        await turn.steer("late")
    assert refused.value.code == "response_already_completed"
    assert (await session.create("Hi").response()).status == "completed"


async def test_a_steer_that_is_none_is_refused_and_the_turn_goes_on(
    slow: turnwire.Session,
) -> None:
    turn = slow.create("Talk.", metadata=script(tokens=30))
    with pytest.raises(turnwire.InvalidRequest) as refused:
        await turn.steer([{"role": "assistant", "content": "me"}])
    assert refused.value.code == "invalid_input"
    assert (await turn.response()).status == "completed"


async def test_steers_of_a_cancelled_turn_are_given_back(slow: turnwire.Session) -> None:
    turn = slow.create("Talk.", metadata=script(tokens=200))
    await until_delta(turn)
    steer = await turn.steer("more")
    await turn.cancel()
    with pytest.raises(turnwire.ResponseRejected) as refused:
        await steer.successor()
    assert refused.value.code == "response_not_active"


async def test_steering_needs_a_connection(server: RunningServer) -> None:
    async with turnwire.connect(server.http_url, model="sim") as session:
        turn = session.create("Hi")
        with pytest.raises(ValueError, match="steering"):
            await turn.steer("x")
        assert (await turn.response()).status == "completed"


async def test_steers_end_with_the_session() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("Talk.")
        await wire.sent_count(1)
        wire.push(*opening(wire.sent[0], "resp_1"))
        asked = asyncio.create_task(turn.steer("more"))
        await wire.sent_count(2)
        accepted = ResponseSteerAccepted(steer=Steer(id="steer_1", previous_response_id="resp_1"))
        wire.push(ServerEvent(sequence_number=2, response_steer_accepted=accepted))
        steer = await asked
        waiting = asyncio.create_task(steer.successor())
        unanswered = asyncio.create_task(turn.steer("and more"))
        await wire.sent_count(3)
        wire.lose(turnwire.ConnectionLost("gone"))
        for task in (waiting, unanswered):
            with pytest.raises(turnwire.ConnectionLost):
                await task
        with pytest.raises(turnwire.ConnectionLost):
            await turn.steer("still more")


async def test_what_is_said_of_a_steer_that_nobody_sent_is_a_notice() -> None:
    notices: list[turnwire.Event] = []
    wire = MemoryWire(lambda event: text_turn(event, "resp_2", "ok"))
    async with (
        asyncio.timeout(20),
        memory_session(wire, on_notice=notices.append) as session,
    ):
        accepted = ResponseSteerAccepted(steer=Steer(id="steer_1", previous_response_id="resp_1"))
        wire.push(ServerEvent(sequence_number=0, response_steer_accepted=accepted))
        assert (await session.create("Hi").response()).output_text == "ok"
    assert [notice.type for notice in notices] == ["response.steer.accepted"]


# Without `await`.


@contextmanager
def threaded(**settings: object) -> Iterator[str]:
    """Run a server in a thread, as a script's server is elsewhere; yields its gRPC URL."""
    ready: list[str] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with running_server(**settings) as server:  # type: ignore[arg-type]
            ready.append(server.grpc_url)
            started.set()
            await asyncio.get_running_loop().run_in_executor(None, stop.wait, 20)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(20)
        yield ready[0]
    finally:
        stop.set()
        thread.join(20)


def test_a_script_runs_rollouts_and_steers() -> None:
    with (
        threaded(sim=SimSettings(tokens_per_second=500)) as url,
        turnwire.connect_sync(url, model="sim") as session,
    ):
        result = session.run("Go.", rollout=True, tools={"shell": echo})
        assert (result.stop_reason, len(result.turns)) == ("answered", 1)
        turn = session.create("Go.", rollout=True, tools=[SHELL])
        calls = turn.paused()
        assert turn.is_paused and turn.calls == calls
        turn.append(outputs(calls))
        assert turn.response().status == "completed"
        talk = session.create("Talk.", metadata=script(tokens=2000))
        assert any(event.delta for event in talk)
        steer = talk.steer("More.")
        assert steer.id.startswith("steer_")
        assert steer.previous_response_id == talk.response_id
        successor = steer.successor()
        assert successor is not None
        assert successor.response().previous_response_id == talk.response_id
