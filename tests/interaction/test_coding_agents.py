"""What coding agents send: large first frames, tools in three shapes, a warm-up, ids of their own.

Written after what was seen of them, in our words; `tests/compat` runs the agents themselves.
"""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from harness.peers import Peer, WebSocketPeer
from harness.reading import arm_of, arms, response_of, status_of
from interaction.conftest import Connect
from interaction.requirements import requirement

PROMPT = "You are a coding agent. " + "Work carefully and say what you do. " * 900
ENVIRONMENT = "<environment_context>\n<cwd>/repository</cwd>\n</environment_context>"
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /.+/'}


def function(name: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"cmd": {"type": "string", "description": "x" * 400}},
        "required": ["cmd"],
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": name, "strict": False} | {
        "parameters": schema
    }


FUNCTIONS = [function(name) for name in ("exec_command", "write_stdin", "view_image")]
CLASSIC: dict[str, Any] = {
    "tools": [
        *FUNCTIONS,
        {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": GRAMMAR},
        {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
        {"type": "web_search", "external_web_access": False, "search_content_types": ["text"]},
    ]
}
SUBAGENTS = {"type": "namespace", "name": "agents", "description": "Others."}
NAMESPACES = {
    "tools": [*FUNCTIONS, {**SUBAGENTS, "tools": [function("spawn")]}, {"type": "web_search"}]
}
IN_AN_ITEM = {
    "type": "additional_tools",
    "id": "at_of_client",
    "role": "developer",
    "tools": [
        {
            "type": "namespace",
            "name": "functions",
            "description": "What there is.",
            "tools": [
                {"type": "custom", "name": "exec", "description": "Runs JavaScript.",
                 "format": GRAMMAR},
                function("wait"),
            ],
        },
        {"type": "namespace", "name": "clock", "description": "Time.", "tools": [function("now")]},
    ],
}  # fmt: skip

# How a create looks without its input, and the items in front of the first one's.
STYLES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "a list with a grammar and hosted tools": (CLASSIC, []),
    "one item and no tools member": ({}, [IN_AN_ITEM]),
    "namespaces in the list": (NAMESPACES, []),
}


def message(number: int, role: str, text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "id": f"msg_{number:036}", "role": role, "content": content}


def frame(settings: dict[str, Any], number: int, **members: Any) -> dict[str, Any]:
    """A create as an agent writes it: everything each time, and values that change each time."""
    return {
        "type": "response.create",
        "model": "sim",
        "stream": True,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "context": "all_turns"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread_1",
        "text": {"verbosity": "low"},
        "client_metadata": {
            "x-stream-request-start-ms": str(number),
            "x-turn-metadata": json.dumps({"request_kind": "turn", "number": number}),
        },
        **settings,
        **members,
    }


async def turn(peer: Peer, create: dict[str, Any]) -> Any:
    await peer.send(create)
    events = await peer.finish()
    if isinstance(peer, WebSocketPeer):
        assert arms(events)[0] == "response_created"
    return response_of(events)


def calls_in(output: Any) -> list[tuple[str, str, str]]:
    """Type, name and call id of the calls among items."""
    found = []
    for item in output:
        arm = arm_of_item(item)
        if arm in ("function_call", "custom_tool_call"):
            call = getattr(item, arm)
            found.append((arm, call.name, call.call_id))
    return found


def arm_of_item(item: Any) -> str:
    return str(item.WhichOneof("item"))


@requirement("agents.turns")
@pytest.mark.parametrize("style", STYLES)
async def test_an_agent_warms_up_calls_a_tool_and_goes_on(connect: Connect, style: str) -> None:
    peer = await connect()
    settings, before = STYLES[style]
    first = [*before, message(1, "developer", PROMPT)]
    warm_up = frame(settings, 1, input=first, generate=False)
    assert len(orjson.dumps(warm_up)) > 30_000
    warm = await turn(peer, warm_up)
    assert (status_of(warm), len(warm.output)) == ("completed", 0)
    assert warm.usage.input_tokens > 5_000

    given = [message(2, "user", ENVIRONMENT), message(3, "user", "Run echo hello.")]
    asked = await turn(peer, frame(settings, 2, input=given, previous_response_id=warm.id))
    assert status_of(asked) == "completed"
    assert asked.usage.input_tokens_details.cached_tokens > 5_000
    ((arm, name, call_id),) = calls_in(asked.output)
    assert name in ("exec_command", "exec")

    kind, prefix = f"{arm}_output", "ctco" if arm == "custom_tool_call" else "fco"
    output = [{"type": "input_text", "text": "hello"}]  # a list, as some write it
    answer: dict[str, Any] = {"type": kind, "id": f"{prefix}_4", "call_id": call_id}
    said = await turn(
        peer,
        frame(settings, 3, input=[{**answer, "output": output}], previous_response_id=asked.id),
    )
    assert [arm_of_item(item) for item in said.output] == ["message"]

    # The user goes on, and then once more with the whole history, as after a lost connection.
    follow = await turn(
        peer,
        frame(settings, 4, input=[message(5, "user", "Thanks.")], previous_response_id=said.id),
    )
    assert status_of(follow) == "completed"


@requirement("agents.turns")
async def test_the_largest_first_frames_are_taken_too(connect: Connect) -> None:
    peer = await connect()
    warm_up = frame(CLASSIC, 1, input=[message(1, "developer", 2 * PROMPT)], generate=False)
    assert 60_000 < len(orjson.dumps(warm_up)) < 100_000
    assert status_of(await turn(peer, warm_up)) == "completed"


@requirement("agents.turns")
@pytest.mark.parametrize("style", STYLES)
async def test_an_agent_starts_again_with_its_whole_history(connect: Connect, style: str) -> None:
    settings, before = STYLES[style]
    peer = await connect()
    history = [*before, message(1, "developer", PROMPT), message(2, "user", "Run echo hello.")]
    asked = await turn(peer, frame(settings, 1, input=history))
    ((arm, name, call_id),) = calls_in(asked.output)
    await peer.disconnect()

    again = await connect()
    is_custom = arm == "custom_tool_call"
    call: dict[str, Any] = {"type": arm, "id": "of_client", "call_id": call_id, "name": name}
    call |= {"status": "completed", "namespace": getattr(asked.output[-1], arm).namespace or None}
    call |= {"input": "text(1)"} if is_custom else {"arguments": '{"cmd": "echo hello"}'}
    output = {"type": f"{arm}_output", "id": "out_of_client", "call_id": call_id, "output": "hello"}
    thought = {"type": "reasoning", "id": "rs_of_client", "summary": [], "content": None}
    refused = frame(settings, 2, input=[output], previous_response_id=asked.id)
    await again.send(refused)
    (error,) = await again.finish()
    assert (arm_of(error), error.error.error.code) == ("error", "previous_response_not_found")
    said = await turn(again, frame(settings, 3, input=[*history, thought, call, output]))
    assert [arm_of_item(item) for item in said.output] == ["message"]
