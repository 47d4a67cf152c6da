"""The agent loop: turns and tools in alternation."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from turnwire._event import Event
from turnwire._request import (
    CreateOptions,
    RequestInput,
    RunOptions,
    ToolChoice,
    as_items,
    build_create,
    build_input,
)
from turnwire._response import FunctionCall, Response, function_calls
from turnwire._tools import Tool, Tools, as_tools, call_tool
from turnwire._turn import Turn, TurnStats
from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseCreate
from turnwire.v1.content_pb2 import Content
from turnwire.v1.item_pb2 import (
    CustomToolCallOutputItem,
    FunctionCallOutputItem,
    Item,
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
    answers = _Answers(own, on_tool_output, tool_timeout_s)
    new_input = build_input(input)
    items = as_items(new_input)
    if rollout:
        create.input.CopyFrom(new_input)
        create.rollout = True
        if previous_response_id is not None:
            create.previous_response_id = previous_response_id
        return await _rollout(session, create, stream_id, on_event, answers, max_turns, items)
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
        outputs = await answers.to(response.id, calls)
        items.extend(outputs)
        new_input = _whole_input(outputs)
        create.ClearField("tool_choice")


def _start(session: Session, create: ResponseCreate, stream_id: str | None) -> Turn:
    """Start a turn of what `create` is now."""
    return session._connection.start(ClientEvent(response_create=create), stream_id, None)


async def _rollout(
    session: Session,
    create: ResponseCreate,
    stream_id: str | None,
    on_event: EventCallback | None,
    answers: _Answers,
    max_rounds: int,
    items: list[Item],
) -> RunResult:
    """Run the loop inside one response."""
    rounds = shown = 0
    is_stopped = False
    async with _start(session, create, stream_id) as turn:
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
            outputs = await answers.to(turn.response_id or "", function_calls(said))
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
    async with _start(session, create, stream_id) as turn:
        if on_event is not None:
            async for event in turn:
                await _tell(on_event(event))
        response = await turn.response()
    stats = turn.stats
    assert stats is not None  # The response is the end of the turn.
    turns.append(stats)
    return response


class _Answers:
    """Runs the tools of a run, each call once: what was computed is sent again, not computed."""

    def __init__(
        self, tools: Sequence[Tool], on_tool_output: ToolCallback | None, timeout_s: float
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._on_tool_output = on_tool_output
        self._timeout_s = timeout_s
        self._known: dict[tuple[str, str], Item] = {}
        """Response and `call_id` -> output. Servers may use an id again in another response."""

    async def to(self, response_id: str, calls: Sequence[FunctionCall]) -> list[Item]:
        """Return the outputs of a response's calls, in order."""
        new = [call for call in calls if (response_id, call.call_id) not in self._known]
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(call_tool(self._tools, call, timeout_s=self._timeout_s))
                for call in new
            ]
        texts = [task.result() for task in running]
        for call, text in zip(new, texts, strict=True):
            self._known[response_id, call.call_id] = _output_item(call, text)
        for call, text in zip(new, texts, strict=True):
            if self._on_tool_output is not None:
                await _tell(self._on_tool_output(call, text))
        return [self._known[response_id, call.call_id] for call in calls]


def _output_item(call: FunctionCall, text: str) -> Item:
    output = Content(text=text)
    if call.is_custom:
        custom = CustomToolCallOutputItem(call_id=call.call_id, output=output)
        return Item(custom_tool_call_output=custom)
    return Item(function_call_output=FunctionCallOutputItem(call_id=call.call_id, output=output))


def _whole_input(items: Sequence[Item]) -> Input:
    whole = Input()
    whole.items.items.extend(items)
    return whole


async def _tell(told: object) -> None:
    if inspect.isawaitable(told):
        await told
