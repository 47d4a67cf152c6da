"""The agent loop: turns and tools in alternation."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from turnwire._event import Event
from turnwire._request import (
    CreateOptions,
    RequestInput,
    RunOptions,
    ToolChoice,
    build_create,
    build_input,
)
from turnwire._response import FunctionCall, Response, function_calls
from turnwire._tools import Tool, Tools, as_tools, call_tool
from turnwire._turn import TurnStats
from turnwire.v1.client_event_pb2 import Input, ResponseCreate
from turnwire.v1.content_pb2 import Content
from turnwire.v1.item_pb2 import (
    CustomToolCallOutputItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
)

if TYPE_CHECKING:
    from turnwire._session import Session

__all__ = ["EventCallback", "RunResult", "StopReason", "ToolCallback", "run"]

EventCallback: TypeAlias = Callable[[Event], object]
"""Called with an event; what it returns is awaited if it can be."""

ToolCallback: TypeAlias = Callable[[FunctionCall, str], object]
"""Called with a call and its output text; what it returns is awaited if it can be."""

StopReason: TypeAlias = Literal["answered", "max_turns", "incomplete", "cancelled"]

TIMING = "turnwire.timing"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What an agent loop came to."""

    response: Response
    """The last turn's response."""
    turns: Sequence[TurnStats]
    """What each turn cost, in order; of a rollout one, with all its rounds."""
    items: Sequence[Item]
    """What the run added to the conversation, in order: input, output, tools' outputs; as
    `turnwire.v1` messages, which may be the input of another create."""
    stop_reason: StopReason
    """`answered`: the model called nothing more; `max_turns`: the last response's calls were not
    run; `incomplete` or `cancelled`: the last turn was cut."""

    @property
    def output_text(self) -> str:
        """The text of the last turn."""
        return self.response.output_text


async def run(
    session: Session,
    input: RequestInput,
    *,
    tools: Tools | None,
    tool_choice: ToolChoice | None,
    max_turns: int,
    history: Literal["session", "full"],
    rollout: bool,
    previous_response_id: str | None,
    stream_id: str | None,
    on_event: EventCallback | None,
    on_tool_output: ToolCallback | None,
    tool_timeout_s: float,
    options: RunOptions,
) -> RunResult:
    """Run the loop; `Session.run` has the contract."""
    if max_turns < 1:
        raise ValueError("max_turns: at least 1 is needed")
    if history not in ("session", "full"):
        raise ValueError(f"history: {history!r} is neither 'session' nor 'full'")
    if history == "full" and previous_response_id is not None:
        raise ValueError("previous_response_id: a run with history='full' has no parent")
    if history == "full" and rollout:
        raise ValueError("rollout: a run with history='full' is made of many responses")
    own, create = _first_create(session, tools, tool_choice, history, options)
    by_name = {tool.name: tool for tool in own}

    async def answer(calls: Sequence[FunctionCall]) -> list[Item]:
        return await _answer(by_name, calls, on_tool_output, tool_timeout_s)

    new_input = build_input(input)
    items = _as_items(new_input)
    if rollout:
        create.input.CopyFrom(new_input)
        create.rollout = True
        if previous_response_id is not None:
            create.previous_response_id = previous_response_id
        return await _rollout(session, create, stream_id, on_event, answer, max_turns, items)
    turns: list[TurnStats] = []
    parent = previous_response_id
    while True:
        create.input.CopyFrom(_whole_input(items) if history == "full" and turns else new_input)
        if parent is not None and history == "session":
            create.previous_response_id = parent
        response = await _one_turn(session, create, stream_id, on_event, turns)
        parent = response.id
        items.extend(response.message.output)
        calls = response.function_calls
        if response.status != "completed" or not calls:
            return RunResult(response, turns, items, _stopped(response))
        if len(turns) == max_turns:
            return RunResult(response, turns, items, "max_turns")
        outputs = await answer(calls)
        items.extend(outputs)
        new_input = _whole_input(outputs)
        create.ClearField("tool_choice")


async def _rollout(
    session: Session,
    create: ResponseCreate,
    stream_id: str | None,
    on_event: EventCallback | None,
    answer: Callable[[Sequence[FunctionCall]], Awaitable[list[Item]]],
    max_rounds: int,
    items: list[Item],
) -> RunResult:
    """Run the loop inside one response."""
    rounds = shown = 0
    is_stopped = False
    async with session._connection.start(create, stream_id, None) as turn:
        async for event in turn:
            if on_event is not None:
                await _tell(on_event(event))
            if event.arm != "response_done":
                continue
            rounds += 1
            if rounds == max_rounds:
                is_stopped = True
                await turn.cancel()
                continue
            said = turn._state.round_items()
            outputs = await answer(function_calls(said))
            if turn.is_paused:  # else the server did not wait: the end is what follows
                shown += len(said)
                items += [*said, *outputs]
                await turn.append(outputs)
        response = await turn.response()
    stats = turn.stats
    assert stats is not None  # The response is the end of the turn.
    items += response.message.output[shown:]
    stopped: StopReason = "max_turns" if is_stopped else _stopped(response)
    return RunResult(response, [stats], items, stopped)


def _stopped(response: Response) -> StopReason:
    if response.status == "completed":
        return "answered"
    return "cancelled" if response.status == "cancelled" else "incomplete"


def _first_create(
    session: Session,
    tools: Tools | None,
    tool_choice: ToolChoice | None,
    history: Literal["session", "full"],
    options: RunOptions,
) -> tuple[list[Tool], ResponseCreate]:
    own, hosted = as_tools(tools)
    settings: CreateOptions = {**options, "tools": [*own, *hosted], "tool_choice": tool_choice}
    if settings.get("include") is None:
        settings["include"] = [TIMING]
    if settings.get("store") is None and (session.persistent or history == "full"):
        settings["store"] = False
    return own, build_create(None, settings, model=session.model)


async def _one_turn(
    session: Session,
    create: ResponseCreate,
    stream_id: str | None,
    on_event: EventCallback | None,
    turns: list[TurnStats],
) -> Response:
    async with session._connection.start(create, stream_id, None) as turn:
        if on_event is not None:
            async for event in turn:
                await _tell(on_event(event))
        response = await turn.response()
    stats = turn.stats
    assert stats is not None  # The response is the end of the turn.
    turns.append(stats)
    return response


async def _answer(
    tools: Mapping[str, Tool],
    calls: Sequence[FunctionCall],
    on_tool_output: ToolCallback | None,
    timeout_s: float,
) -> list[Item]:
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(call_tool(tools, call, timeout_s=timeout_s)) for call in calls]
    outputs = []
    for call, task in zip(calls, running, strict=True):
        text = task.result()
        if on_tool_output is not None:
            await _tell(on_tool_output(call, text))
        outputs.append(_output_item(call, text))
    return outputs


def _output_item(call: FunctionCall, text: str) -> Item:
    output = Content(text=text)
    if call.is_custom:
        custom = CustomToolCallOutputItem(call_id=call.call_id, output=output)
        return Item(custom_tool_call_output=custom)
    return Item(function_call_output=FunctionCallOutputItem(call_id=call.call_id, output=output))


def _as_items(given: Input) -> list[Item]:
    if given.WhichOneof("value") == "text":
        return [Item(message=MessageItem(role="user", content=Content(text=given.text)))]
    return list(given.items.items)


def _whole_input(items: Sequence[Item]) -> Input:
    whole = Input()
    whole.items.items.extend(items)
    return whole


async def _tell(told: object) -> None:
    if inspect.isawaitable(told):
        await told
