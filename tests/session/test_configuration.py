from __future__ import annotations

import json

import pytest

from harness.session_driver import user
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.item_pb2 import ConfigurationUpdateItem, Item
from turnwire.v1.response_pb2 import ReasoningConfig, TextConfig
from turnwire_server.session.configuration import apply_configuration, check_update
from turnwire_server.session.conversation import EMPTY

SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}


def update(**members):
    texts = {name: json.dumps(value) for name, value in members.items()}
    return ConfigurationUpdateItem(**texts)


def configured(*updates, **fields):
    items = [Item(configuration_update=one) for one in updates]
    create = ResponseCreate(**fields)
    apply_configuration(create, EMPTY.extended([user(), *items]).configuration)
    return create


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"reasoning": []}, "input[0].reasoning"),
        ({"reasoning": {"effort": "huge"}}, "input[0].reasoning.effort"),
        ({"reasoning": {"effort": 7}}, "input[0].reasoning.effort"),
        ({"text": "x"}, "input[0].text"),
        ({"text": {"format": {"type": "xml"}}}, "input[0].text.format"),
        ({"text": {"format": "text"}}, "input[0].text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "input[0].text.format"),
    ],
)
def test_an_update_that_cannot_be_applied_is_refused_at_its_path(members, param):
    rejection = check_update(update(**members), "input[0]")
    assert rejection is not None
    assert (rejection.code, rejection.param) == ("invalid_value", param)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"reasoning": {}},
        {"reasoning": {"effort": "low"}},
        {"text": {}},
        {"text": {"format": SCHEMA}},
    ],
)  # fmt: skip
def test_an_update_that_can_be_applied_is_accepted(members):
    assert check_update(update(**members), "input[0]") is None


def test_an_update_wins_over_the_create_s_own_setting():
    own = ReasoningConfig(effort="low", summary="auto")
    create = configured(update(reasoning={"effort": "high"}), reasoning=own)
    assert (create.reasoning.effort, create.reasoning.summary) == ("high", "auto")
    assert not create.HasField("text")


def test_a_later_update_replaces_what_it_names_and_nothing_else():
    create = configured(
        update(reasoning={"effort": "high"}, text={"format": SCHEMA}),
        update(reasoning={"effort": "low"}),
    )
    assert create.reasoning.effort == "low"
    schema = create.text.format.json_schema
    assert (schema.name, json.loads(schema.schema), schema.strict) == (
        "n",
        SCHEMA["schema"],
        True,
    )


@pytest.mark.parametrize("kind", ["text", "json_object"])
def test_a_format_may_be_changed_back(kind):
    text = TextConfig(verbosity="low")
    create = configured(update(text={"format": {"type": kind}}), text=text)
    assert create.text.format.WhichOneof("format") == kind
    assert create.text.verbosity == "low"


def test_a_schema_may_leave_out_whether_it_is_strict():
    given = {key: value for key, value in SCHEMA.items() if key != "strict"}
    create = configured(update(text={"format": given}))
    assert not create.text.format.json_schema.HasField("strict")
