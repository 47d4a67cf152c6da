"""Tools: which may be called, which must, and what belongs to what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.reading import arms, calls_of, code_of, failure_of, public, response_of, status_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import (
    CUSTOM,
    SHELL,
    WEATHER,
    call_output,
    function,
    said,
    script,
    user,
)
from turnwire.v1.response_pb2 import Response

_NAMESPACE = {
    "type": "namespace",
    "name": "mcp__fs",
    "description": "Files.",
    "tools": [function("read"), function("write")],
}


def _names(response: Response) -> list[str]:
    """Names of all calls, in order."""
    names = []
    for item in response.output:
        value = getattr(item, item.WhichOneof("item") or "")
        if hasattr(value, "call_id"):
            names.append(value.name)
    return names


@requirement("tools.choice")
@pytest.mark.parametrize(
    ("choice", "called"),
    [
        pytest.param("none", [], id="none"),
        pytest.param("auto", ["exec_command"], id="auto"),
        pytest.param("required", ["exec_command"], id="required"),
        pytest.param({"type": "function", "name": "get_weather"}, ["get_weather"], id="function"),
        pytest.param({"type": "custom", "name": "apply"}, ["apply"], id="custom"),
        pytest.param(
            {"type": "allowed_tools", "mode": "auto",
             "tools": [{"type": "function", "name": "get_weather"}]},
            ["get_weather"],
            id="allowed, auto",
        ),
        pytest.param(
            {"type": "allowed_tools", "mode": "required",
             "tools": [{"type": "function", "name": "get_weather"},
                       {"type": "custom", "name": "apply"}]},
            ["get_weather"],
            id="allowed, required",
        ),
    ],
)  # fmt: skip
async def test_tool_choice_decides_what_is_called(
    connect: Connect, choice: Any, called: list[str]
) -> None:
    peer = await connect()
    events = await peer.turn(input="Do it", tools=[SHELL, WEATHER, CUSTOM], tool_choice=choice)
    response = response_of(events)
    assert _names(response) == called
    assert public(response)["tool_choice"] == choice


@requirement("tools.choice_enforced")
async def test_a_model_that_calls_what_is_not_allowed_only_says_so(connect: Connect) -> None:
    peer = await connect()
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "get_weather"}],
    }
    calls = [{"name": "exec_command", "arguments": {"cmd": "rm"}}]
    events = await peer.turn(
        input="Do it", tools=[SHELL, WEATHER], tool_choice=choice, metadata=script(calls=calls)
    )
    assert _names(response_of(events)) == []
    none = await peer.turn(
        input="Do it", tools=[SHELL], tool_choice="none", metadata=script(calls=calls)
    )
    assert _names(response_of(none)) == []


@requirement("tools.choice_enforced")
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
async def test_a_forced_call_is_a_constraint_of_the_engine(connect: Connect, choice: Any) -> None:
    peer = await connect()
    events = await peer.turn(input="Do it", tools=[SHELL, WEATHER], tool_choice=choice)
    constraint = connect.stack.engine.request(response_of(events).id).constraint
    assert constraint is not None and constraint.kind == "json_schema"
    forced = json.dumps(json.loads(constraint.text))
    assert "get_weather" in forced
    assert ("exec_command" in forced) == (choice == "required")


@requirement("tools.parallel")
async def test_two_calls_of_one_response_are_answered_together_in_any_order(
    connect: Connect,
) -> None:
    peer = await connect()
    calls = [{"name": "exec_command", "arguments": {"cmd": name}} for name in ("ls", "pwd")]
    for order in (1, -1):
        first = response_of(
            await peer.turn(input="Look", tools=[SHELL], metadata=script(calls=calls))
        )
        outputs = [call_output(call) for call in calls_of(first)]
        assert len(outputs) == 2
        second = await peer.turn(
            input=outputs[::order], previous_response_id=first.id, metadata=said("Seen.")
        )
        assert arms(second)[-1] == "response_completed"


@requirement("tools.pairs")
async def test_a_call_that_is_not_answered_is_refused(connect: Connect) -> None:
    peer = await connect()
    calls = [{"name": "exec_command", "arguments": {"cmd": name}} for name in ("ls", "pwd")]
    first = response_of(await peer.turn(input="Look", tools=[SHELL], metadata=script(calls=calls)))
    one, two = calls_of(first)
    (error,) = await peer.turn(input=[call_output(one)], previous_response_id=first.id)
    assert failure_of(error) == ("invalid_value", 400, "input")
    assert two.call_id in error.error.error.message
    (error,) = await peer.turn(input="Hi", previous_response_id=first.id)
    assert failure_of(error) == ("invalid_value", 400, "input")


@requirement("tools.pairs")
@pytest.mark.parametrize("tool", [SHELL, CUSTOM], ids=["function", "custom"])
async def test_a_pair_is_found_by_parent_and_in_a_full_history(
    connect: Connect, tool: dict[str, Any]
) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="Do it", tools=[tool]))
    call = getattr(first.output[0], first.output[0].WhichOneof("item") or "")
    chained = response_of(
        await peer.turn(input=[call_output(call)], tools=[tool], previous_response_id=first.id)
    )
    assert status_of(chained) == "completed"
    whole = [user("Do it"), public(first.output[0]), call_output(call)]
    replayed = response_of(await peer.turn(input=whole, tools=[tool]))
    engine = connect.stack.engine
    assert list(engine.request(replayed.id).ids) == list(engine.request(chained.id).ids)
    assert engine.request(chained.id).outline.tool_outputs == 1


@requirement("tools.one_call")
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_without_parallel_calls_there_is_at_most_one(connect: Connect, choice: str) -> None:
    peer = await connect()
    calls = [{"name": "exec_command", "arguments": {"cmd": name}} for name in ("ls", "pwd")]
    events = await peer.turn(
        input="Look",
        tools=[SHELL],
        tool_choice=choice,
        parallel_tool_calls=False,
        metadata=script(calls=calls),
    )
    assert _names(response_of(events)) == ["exec_command"]
    assert arms(events)[-1] == "response_completed"
    assert response_of(events).parallel_tool_calls is False


@requirement("tools.namespace")
async def test_a_call_of_an_inner_tool_has_name_and_namespace_apart(connect: Connect) -> None:
    peer = await connect()
    calls = [{"name": "mcp__fs.write", "arguments": {"cmd": "x"}}]
    events = await peer.turn(input="Write", tools=[_NAMESPACE], metadata=script(calls=calls))
    response = response_of(events)
    (call,) = calls_of(response)
    assert (call.name, call.namespace) == ("write", "mcp__fs")
    shown = public(response)["tools"][0]
    assert [tool["name"] for tool in shown["tools"]] == ["read", "write"]
    second = await peer.turn(
        input=[call_output(call)], tools=[_NAMESPACE], previous_response_id=response.id
    )
    assert arms(second)[-1] == "response_completed"


@requirement("tools.namespace")
async def test_the_same_name_in_two_namespaces_is_two_tools(connect: Connect) -> None:
    peer = await connect()
    other = {**_NAMESPACE, "name": "mcp__git"}
    choice = {"type": "function", "name": "read", "namespace": "mcp__git"}
    events = await peer.turn(input="Read", tools=[_NAMESPACE, other], tool_choice=choice)
    (call,) = calls_of(response_of(events))
    assert (call.name, call.namespace) == ("read", "mcp__git")


@requirement("tools.additional")
async def test_tools_of_an_item_may_be_called_from_then_on(connect: Connect) -> None:
    peer = await connect()
    more = {"type": "additional_tools", "role": "developer", "tools": [SHELL]}
    first = response_of(await peer.turn(input=[user("Run it"), more]))
    (call,) = calls_of(first)
    assert call.name == "exec_command"
    second = response_of(
        await peer.turn(input=[call_output(call), user("Again")], previous_response_id=first.id)
    )
    assert _names(second) == ["exec_command"]
    assert not second.tools


@requirement("tools.hosted")
async def test_hosted_tools_are_dropped_and_reported(connect: Connect) -> None:
    peer = await connect()
    hosted = [{"type": "web_search"}, SHELL, {"type": "code_interpreter", "container": "auto"}]
    events = await peer.turn(input="Do it", tools=hosted)
    response = response_of(events)
    assert _names(response) == ["exec_command"]
    assert [(one.code, one.param) for one in response.warnings] == [
        ("tool_not_supported", "tools[0]"),
        ("tool_not_supported", "tools[2]"),
    ]
    assert "warnings" not in public(response_of(await peer.turn(input="Hi", tools=[SHELL])))


@requirement("tools.extras")
async def test_unknown_members_of_tools_come_back_as_they_were(connect: Connect) -> None:
    peer = await connect()
    tool = {**SHELL, "x_vendor": {"a": [1, 2.5, None], "b": "ü"}, "defer_loading": False}
    group = {**_NAMESPACE, "tools": [{**function("read"), "x_inner": [True]}], "x_group": "y"}
    shown = public(response_of(await peer.turn(input="Hi", tools=[tool, group])))["tools"]
    assert shown[0]["x_vendor"] == tool["x_vendor"]
    assert shown[0]["parameters"] == tool["parameters"]
    assert shown[1]["x_group"] == "y"
    assert shown[1]["tools"][0]["x_inner"] == [True]


@requirement("tools.secrets")
async def test_credentials_of_tools_are_not_shown_back(connect: Connect) -> None:
    peer = await connect()
    mcp = {
        "type": "mcp",
        "server_label": "s",
        "server_url": "https://example.test",
        "authorization": "SECRET",
        "headers": {"authorization": "SECRET"},
    }
    events = await peer.turn(input="Hi", tools=[mcp])
    assert all("SECRET" not in str(public(event)) for event in events)


@requirement("tools.answered_once")
async def test_an_answered_call_cannot_be_answered_again(connect: Connect) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="Do it", tools=[SHELL]))
    (call,) = calls_of(first)
    second = response_of(await peer.turn(input=[call_output(call)], previous_response_id=first.id))
    (error,) = await peer.turn(input=[call_output(call)], previous_response_id=second.id)
    assert code_of(error) == "invalid_value"
    assert call.call_id in error.error.error.message
