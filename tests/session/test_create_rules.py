from __future__ import annotations

import math

import pytest

from turnwire.v1 import error_pb2
from turnwire.v1.client_event_pb2 import (
    ContextManagement,
    ConversationReference,
    ResponseCreate,
)
from turnwire.v1.response_pb2 import (
    PromptTemplate,
    ReasoningConfig,
    TextConfig,
    TextFormat,
    TextFormatJsonSchema,
)
from turnwire_server.session.create_rules import TIMING, check_create, check_own


def check(*, stream_id=None, is_persistent=True, model="m", **fields):
    create = ResponseCreate(model=model, **fields)
    return check_create(create, stream_id=stream_id, is_persistent=is_persistent)


def refused(rejection):
    assert rejection is not None
    return rejection.code, rejection.param


def format_of(name="answer", schema='{"type":"object"}'):
    return TextConfig(format=TextFormat(json_schema=TextFormatJsonSchema(name=name, schema=schema)))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": True, "background": False, "generate": True, "rollout": False},
        {"temperature": 0, "top_p": 1, "presence_penalty": -2, "frequency_penalty": 2},
        {"top_logprobs": 20, "max_output_tokens": 1, "max_tool_calls": 1},
        {"truncation": "auto", "service_tier": "ultrafast"},
        {"reasoning": ReasoningConfig(effort="xhigh", summary="auto", context="all_turns")},
        {"reasoning": ReasoningConfig(mode="pro", generate_summary="concise")},
        {"text": TextConfig(verbosity="low", format=TextFormat(text={}))},
        {"text": TextConfig(format=TextFormat(json_object={}))},
        {"text": format_of()},
        {"include": ["reasoning.encrypted_content", TIMING]},
        {"metadata": {"k" * 64: "v" * 512}},
        {"metadata": {str(index): "" for index in range(16)}},
        {"previous_response_id": "resp_1"},
        {"prompt_cache_key": "x" * 100, "user": "u", "safety_identifier": "s"},
    ],
)
def test_a_create_may_say_so(fields):
    assert check(**fields) is None


@pytest.mark.parametrize("model", [None, ""])
def test_a_create_needs_a_model(model):
    assert refused(check(model=model)) == ("missing_required_parameter", "model")


@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -2.001, 2.001])
def test_a_number_out_of_its_range_or_none_at_all_is_refused(name, value):
    assert refused(check(**{name: value})) == ("invalid_value", name)


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("top_p", 1.01, "from 0 to 1"),
        ("temperature", -0.01, "from 0 to 2"),
        ("top_logprobs", 21, "from 0 to 20"),
        ("max_output_tokens", 0, "at least 1"),
        ("max_tool_calls", 0, "at least 1"),
    ],
)
def test_a_refused_number_comes_with_its_bounds(name, value, bound):
    rejection = check(**{name: value})
    assert refused(rejection) == ("invalid_value", name)
    assert bound in rejection.message


@pytest.mark.parametrize("value", ["", "hIGH", pytest.param("x" * 10_000, id="long")])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("truncation", lambda value: {"truncation": value}),
        ("service_tier", lambda value: {"service_tier": value}),
        ("reasoning.effort", lambda value: {"reasoning": ReasoningConfig(effort=value)}),
        ("reasoning.summary", lambda value: {"reasoning": ReasoningConfig(summary=value)}),
        (
            "reasoning.generate_summary",
            lambda value: {"reasoning": ReasoningConfig(generate_summary=value)},
        ),
        ("reasoning.context", lambda value: {"reasoning": ReasoningConfig(context=value)}),
        ("reasoning.mode", lambda value: {"reasoning": ReasoningConfig(mode=value)}),
        ("text.verbosity", lambda value: {"text": TextConfig(verbosity=value)}),
        ("include[1]", lambda value: {"include": [TIMING, value]}),
    ],
)
def test_an_unknown_word_is_refused_with_its_path_and_the_known_ones(path, fields, value):
    rejection = check(**fields(value))
    assert refused(rejection) == ("invalid_value", path)
    assert "is not one of" in rejection.message
    assert len(rejection.message) < 512


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"background": True, "store": False}, "background"),
        ({"multi_agent": '{"enabled":true}'}, "multi_agent"),
    ],
)
def test_what_this_server_cannot_do_is_refused_precisely(fields, param):
    assert refused(check(**fields)) == ("unsupported_parameter", param)


@pytest.mark.parametrize("fields", [{}, {"store": True}, {"background_options": "{}"}])
def test_a_request_of_its_own_may_run_in_the_background(fields):
    assert check(background=True, is_persistent=False, **fields) is None


def test_a_background_response_must_be_stored():
    rejection = check(background=True, store=False, is_persistent=False)
    assert refused(rejection) == ("invalid_value", "store")


@pytest.mark.parametrize(
    "fields",
    [
        {"conversation": ConversationReference(id="conv_1")},
        {"prompt": PromptTemplate(id="pmpt_1")},
        {"context_management": [ContextManagement(type="compaction")]},
        {"context_management": [ContextManagement(type="compaction", compact_threshold=1000)]},
    ],
)
def test_conversations_prompts_and_compaction_are_accepted(fields):
    assert check(**fields) is None


@pytest.mark.parametrize(
    ("entry", "param"),
    [
        (ContextManagement(), "context_management[1].type"),
        (ContextManagement(type="truncation"), "context_management[1].type"),
        (
            ContextManagement(type="compaction", compact_threshold=999),
            "context_management[1].compact_threshold",
        ),
    ],
)
def test_a_context_is_managed_by_compaction_beyond_a_threshold_only(entry, param):
    entries = [ContextManagement(type="compaction"), entry]
    assert refused(check(context_management=entries)) == ("invalid_value", param)


def test_a_conversation_and_a_parent_exclude_each_other():
    rejection = check(
        conversation=ConversationReference(id="conv_1"), previous_response_id="resp_1"
    )
    assert refused(rejection) == ("invalid_value", "conversation")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"generate": True}, "generate"),
        ({"generate": False}, "generate"),
        ({"rollout": False}, "rollout"),
        ({"stream_id": "main"}, "stream_id"),
    ],
)
def test_what_needs_a_persistent_connection_is_refused_over_http(fields, param):
    assert refused(check(is_persistent=False, **fields)) == ("unsupported_parameter", param)


def test_a_plain_create_passes_over_http():
    assert check(is_persistent=False, stream=True) is None


@pytest.mark.parametrize(
    ("metadata", "param"),
    [
        ({str(index): "" for index in range(17)}, "metadata"),
        ({"k" * 65: ""}, "metadata"),
        ({"key": "v" * 513}, "metadata.key"),
    ],
)
def test_metadata_has_at_most_16_pairs_of_64_and_512_characters(metadata, param):
    assert refused(check(metadata=metadata)) == ("invalid_value", param)


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        (format_of(name=""), "invalid_value", "text.format.name"),
        (format_of(name="a b"), "invalid_value", "text.format.name"),
        (format_of(name="x" * 65), "invalid_value", "text.format.name"),
        (format_of(schema=""), "invalid_value", "text.format.schema"),
        (format_of(schema="[]"), "invalid_value", "text.format.schema"),
        (format_of(schema='{"a":NaN}'), "invalid_value", "text.format.schema"),
        (format_of(schema='{"a":' * 50_000), "invalid_value", "text.format.schema"),
        (TextConfig(format=TextFormat()), "missing_required_parameter", "text.format.type"),
    ],
)
def test_a_bad_format_is_refused_with_its_path(text, code, param):
    assert refused(check(text=text)) == (code, param)


def test_the_codes_are_those_of_the_contract():
    assert check(background=True).reason == error_pb2.ERROR_REASON_UNSUPPORTED_PARAMETER
    assert check(temperature=9).reason == error_pb2.ERROR_REASON_INVALID_VALUE


@pytest.mark.parametrize(
    ("fields", "how", "param"),
    [
        ({"background": True}, {}, "background"),
        ({"generate": False}, {"is_persistent": False}, "generate"),
        ({}, {"is_persistent": False, "stream_id": "lane"}, "stream_id"),
        (
            {"conversation": ConversationReference(id="c"), "previous_response_id": "r"},
            {},
            "conversation",
        ),
        ({"metadata": {"key": "x" * 513}}, {}, "metadata.key"),
    ],
)
def test_what_settings_do_not_decide_is_checked_by_itself_too(fields, how, param):
    how = {"stream_id": None, "is_persistent": True, **how}
    create = ResponseCreate(model="m", **fields)
    assert check_own(ResponseCreate(model="m", truncation="?"), **how | {"stream_id": None}) is None
    rejection = check_own(create, **how)
    assert refused(rejection)[1] == param
    assert rejection == check_create(create, **how)
