from __future__ import annotations

import pytest

from turnwire.v1 import response_pb2
from turnwire.v1.client_event_pb2 import ConversationReference, Input, ResponseCreate
from turnwire.v1.response_pb2 import (
    Conversation,
    PromptCacheOptions,
    PromptTemplate,
    ReasoningConfig,
    TextConfig,
    TextFormat,
    Warning,
)
from turnwire.v1.tool_pb2 import FunctionTool, NamedToolChoice, Tool, ToolChoice
from turnwire_server.session.create_rules import OF_ONE_TURN
from turnwire_server.session.presence import has, number
from turnwire_server.session.responses import new_response, shown_settings, usage_of


def respond(tools=b"", warnings=(), event_id=None, **fields):
    create = ResponseCreate(model="m", **fields)
    return new_response(
        create,
        response_id="resp_1",
        created_at=1_800_000_000,
        settings=shown_settings(create, tools) if tools else None,
        warnings=warnings,
        event_id=event_id,
    )


def test_a_response_says_that_it_runs_in_the_background():
    assert respond(background=True).background


def test_a_response_begins_with_the_public_defaults():
    response = respond()
    assert (response.id, response.object, response.model) == ("resp_1", "response", "m")
    assert response.status == response_pb2.RESPONSE_STATUS_IN_PROGRESS
    assert response.created_at.seconds == 1_800_000_000
    assert (response.temperature, response.top_p) == (1.0, 1.0)
    assert (response.presence_penalty, response.frequency_penalty) == (0, 0)
    assert (response.store, response.parallel_tool_calls, response.background) == (
        True,
        True,
        False,
    )
    assert (response.truncation, response.service_tier) == ("disabled", "default")
    assert response.tool_choice.mode == "auto"
    assert response.text.format.WhichOneof("format") == "text"
    assert response.HasField("reasoning")
    for absent in (
        "completed_at",
        "usage",
        "error",
        "incomplete_details",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_options",
        "safety_identifier",
        "user",
        "turnwire",
    ):
        assert not response.HasField(absent), absent
    assert not response.output
    assert not response.warnings


def test_a_response_echoes_what_was_asked_for():
    tool = Tool(function=FunctionTool(name="shell"))
    response = respond(
        tools=response_pb2.Response(tools=[tool]).SerializeToString(),
        warnings=[Warning(code="tool_not_supported", message="No.", param="tools[1]")],
        event_id="e1",
        previous_response_id="resp_0",
        instructions="Be brief.",
        store=False,
        parallel_tool_calls=False,
        temperature=0,
        top_p=0.5,
        presence_penalty=1,
        frequency_penalty=-1,
        top_logprobs=2,
        max_output_tokens=9,
        max_tool_calls=3,
        truncation="auto",
        reasoning=ReasoningConfig(effort="low"),
        text=TextConfig(format=TextFormat(json_object={}), verbosity="low"),
        tool_choice=ToolChoice(function=NamedToolChoice(name="shell")),
        metadata={"k": "v"},
        prompt_cache_key="key",
        prompt_cache_retention="24h",
        prompt_cache_options=PromptCacheOptions(ttl="1h"),
        safety_identifier="s",
        user="u",
    )
    assert list(response.tools) == [tool]
    assert response.warnings[0].param == "tools[1]"
    assert response.turnwire.event_id == "e1"
    assert response.previous_response_id == "resp_0"
    assert response.instructions == "Be brief."
    assert not response.store
    assert not response.parallel_tool_calls
    assert (response.temperature, response.top_p, response.top_logprobs) == (0, 0.5, 2)
    assert (response.presence_penalty, response.frequency_penalty) == (1, -1)
    assert (response.max_output_tokens, response.max_tool_calls) == (9, 3)
    assert response.truncation == "auto"
    assert response.reasoning.effort == "low"
    assert response.text.format.WhichOneof("format") == "json_object"
    assert response.text.verbosity == "low"
    assert response.tool_choice.function.name == "shell"
    assert dict(response.metadata) == {"k": "v"}
    assert (response.prompt_cache_key, response.prompt_cache_retention) == ("key", "24h")
    assert response.prompt_cache_options.ttl == "1h"
    assert (response.safety_identifier, response.user) == ("s", "u")


OWN = {
    "conversation": ConversationReference(id="conv_1"),
    "input": Input(text="Hi"),
    "instructions": "Be brief.",
    "metadata": {"k": "v"},
    "previous_response_id": "resp_0",
    "prompt": PromptTemplate(id="pmpt_1"),
    "prompt_cache_key": "key",
    "safety_identifier": "s",
    "user": "u",
}


def test_settings_are_shown_the_same_for_all_turns_that_have_them():
    assert set(OWN) == OF_ONE_TURN
    settings = {
        "model": "m",
        "store": False,
        "max_output_tokens": 5,
        "tool_choice": {"mode": "none"},
    }
    shown = shown_settings(ResponseCreate(**settings, **OWN))
    assert shown == shown_settings(ResponseCreate(**settings))
    for own in ({}, OWN):
        create = ResponseCreate(**settings, **own)
        made = [
            new_response(create, response_id="resp_1", created_at=1, settings=known)
            for known in (None, shown)
        ]
        assert made[0] == made[1]
        assert made[0].instructions == own.get("instructions", "")
        assert (made[0].max_output_tokens, made[0].tool_choice.mode) == (5, "none")


def test_an_empty_parent_id_is_none():
    assert not respond(previous_response_id="").HasField("previous_response_id")


def test_usage_adds_up():
    usage = usage_of(input_tokens=10, cached_tokens=4, output_tokens=3, reasoning_tokens=2)
    assert usage.total_tokens == 13
    assert usage.input_tokens_details.cached_tokens == 4
    assert usage.output_tokens_details.reasoning_tokens == 2


def test_no_more_tokens_are_cached_than_there_are():
    assert usage_of(input_tokens=3, cached_tokens=9).input_tokens_details.cached_tokens == 3


def test_usage_shows_its_details_even_when_nothing_was_used():
    usage = usage_of()
    assert usage.HasField("input_tokens_details")
    assert usage.HasField("output_tokens_details")


def test_presence_is_told_by_name():
    create = ResponseCreate(temperature=0)
    assert has(create, "temperature")
    assert not has(create, "top_p")
    assert number(create, "temperature") == 0
    assert number(create, "top_p") is None


@pytest.mark.parametrize(
    "reference",
    [ConversationReference(id="conv_1"), ConversationReference(object=Conversation(id="conv_1"))],
)
def test_a_conversation_and_a_prompt_are_shown(reference):
    prompt = PromptTemplate(id="pmpt_1", version="2", variables='{"a":"b"}')
    response = respond(conversation=reference, prompt=prompt)
    assert response.conversation.id == "conv_1"
    assert response.prompt == prompt
    assert not respond().HasField("conversation") and not respond().HasField("prompt")
