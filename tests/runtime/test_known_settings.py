"""Settings that were checked before: found again, and never for a create that has others."""

from __future__ import annotations

import gc
import itertools
import json
import math
import random
import weakref
from dataclasses import fields
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from harness.clock import ManualClock
from harness.server import make_sim_services
from harness.waiting import until
from turnwire.v1 import error_pb2
from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseCreate
from turnwire.v1.item_pb2 import AdditionalToolsItem, ConfigurationUpdateItem, Item, ItemList
from turnwire.v1.tool_pb2 import CustomTool, FunctionTool, Tool, ToolChoice
from turnwire_server.adapters.engines.sim import SimEngine, SimSettings
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.ports.engine import Sampling
from turnwire_server.runtime import known_settings
from turnwire_server.runtime.known_settings import CheckedSettings, KnownSettings, check_settings
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.resolve import Parent
from turnwire_server.runtime.settings_bytes import Settings, settings_of
from turnwire_server.runtime.validate import CheckedCreate, Validator
from turnwire_server.session.create_rules import OF_ONE_TURN
from turnwire_server.session.errors import Rejection
from turnwire_server.session.responses import new_response
from turnwire_server.session.tool_rules import CheckedTools, ToolCatalogue

RENDERER = SimRenderer()
MEMBERS = tuple(ResponseCreate.DESCRIPTOR.fields_by_name)
SETTINGS = [name for name in MEMBERS if name not in OF_ONE_TURN]


def served(name: str = "sim") -> ServedModel:
    return ServedModel(name, SimEngine(SimSettings(), ManualClock()), RENDERER)


MODEL = served()


def tool(name: str, description: str = "") -> Tool:
    return Tool(function=FunctionTool(name=name, description=description))


def create(**members: Any) -> ResponseCreate:
    return ResponseCreate(model="sim", tools=[tool("a"), tool("b")], **members)


def with_member(name: str) -> ResponseCreate:
    """Return a create whose member `name` is another than that of `create()`."""
    changed = create()
    member = ResponseCreate.DESCRIPTOR.fields_by_name[name]
    value = getattr(changed, name)
    if name == "metadata":
        value["key"] = "value"
    elif isinstance(value, str | int | float):
        setattr(changed, name, {str: "x", bool: True, int: 5, float: 0.5}[type(value)])
    elif member.message_type is None:
        value.append("x")
    elif hasattr(value, "add"):
        value.add()
    else:
        value.SetInParent()
    return changed


def checked(given: ResponseCreate, model: ServedModel = MODEL) -> CheckedSettings:
    tools = ToolCatalogue().check(given.tools)
    assert isinstance(tools, CheckedTools)
    settings = check_settings(given, model, tools)
    assert isinstance(settings, CheckedSettings)
    return settings


def knowing(*creates: ResponseCreate, max_bytes: int = 1 << 20) -> KnownSettings:
    known = KnownSettings(max_bytes)
    for given in creates:
        known.add(given, (), checked(create(), MODEL))
    return known


@pytest.mark.parametrize("name", sorted(OF_ONE_TURN))
def test_settings_are_found_though_what_is_of_one_turn_differs(name: str) -> None:
    assert knowing(create()).find(with_member(name), MODEL, ()) is not None
    assert knowing(with_member(name)).find(create(), MODEL, ()) is not None


@pytest.mark.parametrize("name", SETTINGS)
def test_a_create_with_another_setting_is_not_found(name: str) -> None:
    assert knowing(create()).find(with_member(name), MODEL, ()) is None
    assert knowing(with_member(name)).find(create(), MODEL, ()) is None
    assert knowing(with_member(name)).find(with_member(name), MODEL, ()) is not None


DOUBLES = [
    field.name
    for field in ResponseCreate.DESCRIPTOR.fields
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE
]


@pytest.mark.parametrize("name", DOUBLES)
@pytest.mark.parametrize(("first", "second"), [(0.0, -0.0), (-0.0, 0.0)])
def test_zero_and_minus_zero_are_not_taken_for_each_other(
    name: str, first: float, second: float
) -> None:
    one, other = create(**{name: first}), create(**{name: second})
    known = KnownSettings()
    known.add(one, (), checked(one))
    assert known.find(other, MODEL, ()) is None
    known.add(other, (), checked(other))
    for given in (one, other, one):
        found = known.find(given, MODEL, ())
        assert found is not None and found.shown == checked(given).shown


def test_each_of_several_zeros_is_compared() -> None:
    values = list(itertools.product((0.0, -0.0, 0.5), repeat=2))
    known = KnownSettings()
    for temperature, top_p in values[:8]:  # as many as are known with the same tools
        given = create(temperature=temperature, top_p=top_p)
        assert known.find(given, MODEL, ()) is None
        known.add(given, (), checked(given))
    for temperature, top_p in values[:8]:
        given = create(temperature=temperature, top_p=top_p)
        found = known.find(given, MODEL, ())
        assert found is not None and found.shown == checked(given).shown


@pytest.mark.parametrize("name", DOUBLES)
def test_what_is_no_number_is_refused_whatever_came_before(name: str) -> None:
    rules = validator()
    for value in (0.5, 0.0, math.nan, math.nan, -math.inf, 0.5):
        given = create(input=Input(text="Hi"), **{name: value})
        refused = check(rules, given)
        assert isinstance(refused, Rejection) is not math.isfinite(value)


def test_numbers_of_other_members_are_not_taken_for_each_other() -> None:
    alike: list[dict[str, Any]] = [
        {"store": True},
        {"parallel_tool_calls": True},
        {"top_logprobs": 1},
        {"max_tool_calls": 1},
        {"temperature": 1.0},
        {"top_p": 1.0},
        {"store": False},
        {"top_logprobs": 0},
    ]
    known = KnownSettings()
    for members in alike:
        given = create(**members)
        assert known.find(given, MODEL, ()) is None
        known.add(given, (), checked(given))
    for members in alike:
        given = create(**members)
        found = known.find(given, MODEL, ())
        assert found is not None and found.shown == checked(given).shown


def test_every_tool_is_compared() -> None:
    known = knowing(create())
    assert known.find(create(), MODEL, (tool("added").SerializeToString(),)) is None
    for tools in ([tool("a", "x"), tool("b")], [tool("a"), tool("b", "x")], [tool("b"), tool("a")]):
        assert known.find(ResponseCreate(model="sim", tools=tools), MODEL, ()) is None


def test_what_is_known_does_not_change_with_its_create() -> None:
    first = create(truncation="auto")
    first.reasoning.effort = "low"
    known = knowing(first)
    first.reasoning.effort = "high"
    first.truncation = "disabled"
    first.tools[0].function.name = "other"
    assert known.find(first, MODEL, ()) is None
    again = create(truncation="auto")
    again.reasoning.effort = "low"
    assert known.find(again, MODEL, ()) is not None


def test_nothing_of_one_turn_is_kept() -> None:
    secret = create(input=Input(text="SECRET"), instructions="SECRET", user="SECRET")
    secret.metadata["SECRET"] = secret.prompt_cache_key = secret.safety_identifier = "SECRET"
    secret.prompt.variables = '"SECRET"'
    known = KnownSettings()
    known.add(secret, (), checked(secret))
    (kept,) = known._known.items()
    assert "SECRET" not in repr(kept)


def test_no_credentials_are_kept() -> None:
    given = create()
    given.tools.add().mcp.authorization = "SECRET"
    known = knowing(given)
    known.add(create(), (given.tools[-1].SerializeToString(),), checked(create()))
    assert not known._known and known.find(given, MODEL, ()) is None


def test_the_settings_of_a_model_that_was_replaced_are_forgotten() -> None:
    known, other = (
        knowing(create(), create(store=True, tool_choice=ToolChoice(mode="none"))),
        served(),
    )
    assert known.find(create(store=True, tool_choice=ToolChoice(mode="none")), other, ()) is None
    assert not known._known
    refused = Rejection(error_pb2.ERROR_REASON_MODEL_NOT_FOUND, "There is no such model.")
    known = knowing(create())
    assert known.find(create(), refused, ()) is None


def test_what_is_kept_is_bounded_and_what_was_used_last_stays() -> None:
    creates = [ResponseCreate(model="sim", tools=[tool(f"tool_{n}")]) for n in range(4)]
    one = 1024 + len(creates[0].SerializeToString()) + len(checked(create()).shown)
    known = knowing(*creates[:3], max_bytes=3 * one + 100)
    assert known.find(creates[0], MODEL, ()) is not None
    known.add(creates[3], (), checked(create()))
    found = [known.find(given, MODEL, ()) is not None for given in creates]
    assert found == [True, False, True, True]
    known.add(create(text={"verbosity": "x" * 4 * one}), (), checked(create()))
    assert [known.find(given, MODEL, ()) is not None for given in creates] == found


def test_of_settings_with_the_same_tools_the_newest_few_are_known() -> None:
    known = knowing(*[create(max_output_tokens=count) for count in range(1, 100)])
    found = [
        count
        for count in range(1, 100)
        if known.find(create(max_output_tokens=count), MODEL, ()) is not None
    ]
    assert found == list(range(92, 100))
    newest = [create(max_output_tokens=count) for count in range(92, 100)]
    assert known._bytes == knowing(*newest)._bytes


def test_settings_that_are_known_are_known_of_a_create_as_it_was_sent() -> None:
    known, event = knowing(create()), ClientEvent(response_create=create())
    event.response_create.instructions = "Be brief."
    assert known.has(event.SerializeToString())
    event.response_create.tools[0].function.parameters = "{"
    assert not known.has(event.SerializeToString())
    assert not known.has(ClientEvent(event_id="none").SerializeToString())


def test_a_create_that_was_known_as_it_was_sent_is_not_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, event = knowing(create()), ClientEvent(response_create=create())
    sent = event.response_create
    expected = known.find(sent, MODEL, ())
    asked: list[ResponseCreate] = []

    def noted(given: ResponseCreate) -> Settings:
        asked.append(given)
        return settings_of(given)

    monkeypatch.setattr(known_settings, "settings_of", noted)
    data = event.SerializeToString()
    assert known.has(data, sent) and known.find(sent, MODEL, ()) is expected
    assert asked == []
    assert known.find(sent, MODEL, ()) is expected  # no create is kept longer than that
    assert len(asked) == 1
    sent.input.text = "a" * 70_000  # too large to be held until somebody asks
    assert known.has(event.SerializeToString(), sent)
    assert known.find(sent, MODEL, ()) is expected
    assert len(asked) == 2


def test_what_was_found_for_a_create_as_it_was_sent_is_for_that_create_and_its_tools_only() -> None:
    known, event = knowing(create()), ClientEvent(response_create=create())
    sent, data = event.response_create, event.SerializeToString()
    assert known.has(data, sent)
    assert known.find(create(store=True), MODEL, ()) is None
    assert known.has(data, sent)
    assert known.find(sent, MODEL, (tool("added").SerializeToString(),)) is None
    assert known.has(data, sent)
    assert known.find(sent, served(), ()) is None and not known._known
    known = knowing(create())
    assert known.has(data, sent)
    known.forget()
    assert known.find(sent, MODEL, ()) is None


# What a turn gets is the same, whether its settings are known or not.


def validator(registry: ModelRegistry | None = None) -> Validator:
    ids = itertools.count()
    return Validator(
        registry or ModelRegistry([MODEL]),
        lambda prefix: f"{prefix}{next(ids)}",
        strict_content=False,
    )


def check(
    rules: Validator, given: ResponseCreate, parent: Parent | None = None, **how: Any
) -> CheckedCreate | Rejection:
    how = {"stream_id": None, "is_persistent": True, "is_warm_up": False, **how}
    return rules.check(given, parent or Parent(), find_item=lambda item_id: None, **how)


def outcome(result: CheckedCreate | Rejection) -> object:
    if isinstance(result, Rejection):
        return result
    shown = new_response(
        result.create,
        response_id="resp_1",
        created_at=1,
        settings=result.shown_settings,
        warnings=result.warnings,
    )
    left = {"items", "conversation", "model"}  # with ids of their own
    values = {f.name: getattr(result, f.name) for f in fields(result) if f.name not in left}
    return {**values, "response": shown}


CHOICES: dict[str, list[Any]] = {
    "model": ["sim", "", "none"],
    "tools": [[], [tool("a"), tool("b")], [tool("a")], [Tool(custom=CustomTool(name="a"))]],
    "tool_choice": [None, ToolChoice(mode="required"), ToolChoice(mode="none"), ToolChoice()],
    "store": [None, True, False],
    "temperature": [None, 0.5, 3.0, 0.0, -0.0, math.nan],
    "max_output_tokens": [None, 0, 20],
    "include": [[], ["turnwire.timing"], ["what"]],
    "metadata": [{}, {"a": "b"}, {"a": "b" * 600}],
    "instructions": [None, "Be brief.", "Be long."],
    "user": [None, "somebody"],
    "generate": [None, True],
    "background": [None, True],
    "previous_response_id": [None, "resp_0"],
    "top_logprobs": [None, 3],
}


@pytest.mark.parametrize("seed", range(3))
def test_known_settings_change_nothing_for_any_create(seed: int) -> None:
    chosen, warm = random.Random(seed), validator()
    usual = {name: values[0] for name, values in CHOICES.items()}
    for _ in range(300):
        changed = chosen.sample(sorted(CHOICES), chosen.choice([0, 1, 1, 2]))
        members = {**usual, **{name: chosen.choice(CHOICES[name]) for name in changed}}
        given = ResponseCreate(input=Input(text="Hi"), **members)
        how = {
            "is_persistent": chosen.random() < 0.8,
            "stream_id": chosen.choice([None, None, None, "lane"]),
        }
        copy = ResponseCreate.FromString(given.SerializeToString())
        assert outcome(check(warm, given, **how)) == outcome(check(validator(), copy, **how))


def test_each_number_of_the_settings_is_the_samplings_own() -> None:
    numbers = {
        "temperature": 0.5,
        "top_p": 0.25,
        "presence_penalty": -1.0,
        "frequency_penalty": 2.0,
    }
    for members in (numbers, dict.fromkeys(numbers)):
        result = check(validator(), create(input=Input(text="Hi"), **members))
        assert isinstance(result, CheckedCreate)
        assert Sampling(7, *result.settings.sampling) == Sampling(max_tokens=7, **members)


def test_a_second_create_with_the_same_settings_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = validator()
    assert isinstance(check(rules, create(input=Input(text="Hi"))), CheckedCreate)
    monkeypatch.setattr(rules, "_check_settings", None)  # what works them out
    again = create(input=Input(text="Hello"), instructions="Be brief.", metadata={"a": "b"})
    assert isinstance(check(rules, again), CheckedCreate)


def test_a_model_that_was_replaced_is_no_longer_used() -> None:
    registry, new = ModelRegistry([MODEL]), served()
    rules = validator(registry)
    check(rules, create(input=Input(text="Hi")))
    registry.replace([new], any_model=False)
    after = check(rules, create(input=Input(text="Hi")))
    assert isinstance(after, CheckedCreate) and after.model is new
    registry.replace([served("other")], any_model=False)
    gone = check(rules, create(input=Input(text="Hi")))
    assert isinstance(gone, Rejection) and gone.param == "model"


async def test_a_model_that_is_gone_is_not_kept_alive_by_its_settings() -> None:
    services = make_sim_services()
    gone = services.models.find("sim")
    assert isinstance(gone, ServedModel)
    given = ResponseCreate(model="sim", input=Input(text="Hi"))
    assert isinstance(check(services.validator, given), CheckedCreate)
    renderer = weakref.ref(gone.renderer)
    services.serve_models([served("other")], any_model=False)
    del gone
    await until(lambda: gc.collect() >= 0 and renderer() is None)
    await services.close()


def test_what_a_configuration_says_is_not_taken_for_a_setting_that_was_checked() -> None:
    rules, name = validator(), "no name!"
    text = {"format": {"type": "json_schema", "name": name, "schema": {}}}
    update = ConfigurationUpdateItem(text=json.dumps(text))
    given = create(input=Input(items=ItemList(items=[Item(configuration_update=update)])))
    updated = check(rules, given)
    assert isinstance(updated, CheckedCreate)
    assert updated.create.text.format.json_schema.name == name
    own = create(input=Input(text="Hi"))
    own.text.format.json_schema.name, own.text.format.json_schema.schema = name, "{}"
    refused = check(rules, own)
    assert isinstance(refused, Rejection) and refused.param == "text.format.name"
    plain = check(rules, create(input=Input(text="Hi")))
    assert isinstance(plain, CheckedCreate) and plain.text_format is None
    following = check(
        rules, create(input=Input(text="Hi")), Parent(updated.conversation)
    )  # with settings that are known, in a conversation that changes them
    assert isinstance(following, CheckedCreate) and following.text_format is not None


def test_tools_that_items_offer_are_there_from_then_on() -> None:
    rules, offer = validator(), AdditionalToolsItem(tools=[tool("late")])
    check(rules, create(input=Input(text="Hi")))
    items = ItemList(items=[Item(additional_tools=offer)])
    for _ in range(2):  # known the second time
        offered = check(rules, create(input=Input(items=items)))
        assert isinstance(offered, CheckedCreate)
        later = check(rules, create(input=Input(text="Hi")), Parent(offered.conversation))
        before = check(rules, create(input=Input(text="Hi")))
        assert isinstance(later, CheckedCreate) and isinstance(before, CheckedCreate)
        assert [spec.name for spec in offered.tools.tools] == ["a", "b", "late"]
        assert offered.tools == later.tools != before.tools


@pytest.mark.parametrize("allowed", [["a", "b"], ["a"], None])
def test_a_parser_knows_the_tools_that_the_turn_may_call(allowed: list[str] | None) -> None:
    given = create(input=Input(text="Hi"))
    if allowed is not None:
        given.tool_choice.allowed_tools.mode = "auto"
        for name in allowed:
            given.tool_choice.allowed_tools.tools.add().function.name = name
    result = check(validator(), given)
    assert isinstance(result, CheckedCreate)
    asked = result.render_request(Parent())
    for_parser = result.parser_request(asked)
    assert [spec.name for spec in asked.tools.tools] == ["a", "b"]
    assert [spec.name for spec in for_parser.tools.tools] == (allowed or ["a", "b"])
    assert for_parser.new_items is asked.new_items
