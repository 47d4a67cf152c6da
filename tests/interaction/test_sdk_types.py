"""The official SDK's own types as a judge of every event."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response as SdkResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from harness.peers import HttpPeer, WebSocketPeer
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import CUSTOM, SHELL, script

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_CALLS = [{"name": "exec_command", "arguments": {"cmd": "ls"}}, {"name": "apply", "input": "x"}]
_TURNS: dict[str, dict[str, Any]] = {
    "text": {"metadata": script(text="Hello."), "instructions": "Be brief."},
    "calls": {"tools": [SHELL, CUSTOM], "metadata": script(text="Look:", calls=_CALLS)},
    "reasoning": {"metadata": script(reasoning="Hm.", text="So.")},
    "empty": {"metadata": script(text="")},
    "incomplete": {"max_output_tokens": 2, "metadata": script(tokens=20)},
    "failed": {"metadata": script(text="a b c d e f", fail_after=3)},
    "hosted": {"tools": [{"type": "web_search"}, SHELL], "tool_choice": "none"},
    "named": {"tools": [SHELL], "tool_choice": {"type": "function", "name": "exec_command"}},
    "format": {
        "text": {
            "format": {
                "type": "json_schema",
                "name": "answer",
                "schema": {"type": "object", "properties": {"a": {"type": "string"}}},
            }
        }
    },
    "settings": {
        "reasoning": {"effort": "low"},
        "service_tier": "flex",
        "user": "u",
        "prompt_cache_key": "k",
        "store": False,
        "parallel_tool_calls": False,
        "truncation": "auto",
    },
}


@requirement("events.sdk_types")
@pytest.mark.parametrize("create", _TURNS.values(), ids=_TURNS.keys())
async def test_every_event_is_valid_by_the_official_types(
    connect: Connect, create: dict[str, Any]
) -> None:
    peer = await connect()
    assert isinstance(peer, WebSocketPeer | HttpPeer)
    await peer.turn(create, input="Hi")
    assert len(peer.raw) >= 3
    for value in peer.raw:
        event = _EVENT.validate_python(value)
        assert event.type == value["type"]
        assert type(event).model_fields.keys() >= {"type", "sequence_number"}
        if "response" in value:
            assert SdkResponse.model_validate(value["response"]).id
