"""Random conversations on a template of each family: turn by turn against all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.conversations import (
    RandomTurn,
    answers,
    call,
    custom_call,
    message,
    output,
    random_turns,
    reasoning,
)
from harness.families import FAMILIES, write_folder
from turnwire.v1 import item_pb2
from turnwire_server.adapters.renderers.chat_model import ChatModel, ChatModelFailure
from turnwire_server.adapters.renderers.chat_template import (
    ChatTemplateRenderer,
    ChatTemplateSettings,
)
from turnwire_server.adapters.renderers.hf_folder import read_folder
from turnwire_server.ports.renderer import Ending, RenderRequest, ToolForce
from turnwire_server.runtime.audit import find_mismatch
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    ReasoningDelta,
    TextDelta,
)
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tokens import TokenIds
from turnwire_server.session.tools import ToolSet, ToolSpec

KEEPING = ("qwen", "smollm", "llama3", "qwen_coder")
Items = list[item_pb2.Item]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, ChatModel]:
    path = tmp_path_factory.mktemp("folders")
    return {family: read_folder(write_folder(path / family, family)) for family in FAMILIES}


@pytest.fixture(scope="module")
def make(models) -> Callable[..., ChatTemplateRenderer]:
    def renderer(family: str, **options) -> ChatTemplateRenderer:
        return ChatTemplateRenderer(models[family], ChatTemplateSettings(**options))

    return renderer


def request(items: Items, history: Sequence[item_pb2.Item] = (), **options) -> RenderRequest:
    return RenderRequest(new_items=items, history=lambda: list(history), **options)


def said_by(turn: RandomTurn, index: int) -> Items:
    items = [reasoning(turn.thought)] if turn.thought else []
    for number, (name, arguments) in enumerate(turn.calls):
        tool = turn.tools.by_qualified_name[name]
        call_id = f"call{index:02}{number:03}"
        if tool.kind == "custom":
            items.append(custom_call(call_id, name, arguments))
        else:
            items.append(call(call_id, tool.name, arguments, tool.namespace or ""))
    return items if turn.calls else [*items, message("assistant", turn.answer)]


def sampled_ids(renderer: ChatTemplateRenderer, before: Items, said: Items, options) -> list[int]:
    """The ids that the template has for what the model said, with the id that ends it."""
    prompt = renderer.render(request(before, **options)).prompt.ids
    whole = renderer.render(request([*before, *said], generate=False, **options)).prompt.ids
    assert list(whole[: len(prompt)]) == list(prompt)
    behind = len(renderer._close_ids) - 1
    return list(whole[len(prompt) : len(whole) - behind])


def walk(
    renderer: ChatTemplateRenderer,
    turns: Sequence[RandomTurn],
    check: Callable[[Prompt, Prompt | None, Items, Items, dict], None],
    *,
    is_canonical: bool = True,
) -> None:
    histories: list[Items] = []
    prompts: list[Prompt] = []
    for index, turn in enumerate(turns):
        history = histories[turn.parent] if turn.parent >= 0 else []
        previous = prompts[turn.parent] if turn.parent >= 0 else None
        called = [*history[len(history) - len(turns[turn.parent].calls) :]] if history else []
        items = answers(called, turn.texts[0]) or [message(turn.role, text) for text in turn.texts]
        options = {"tools": turn.tools, "instructions": turn.instructions}
        rendered = renderer.render(request(items, history, previous=previous, **options))
        check(rendered.prompt, previous, history, items, options)
        said = said_by(turn, index)
        if is_canonical:
            ids = sampled_ids(renderer, [*history, *items], said, options)
        else:
            ids = [*renderer._tokenizer.encode(turn.answer), renderer._close_ids[0]]
        if turn.is_cut and not turn.calls:
            prompts.append(renderer.sampled(rendered, ids[:-1], "length"))
        else:
            prompts.append(renderer.sampled(rendered, ids, "stop"))
        histories.append([*history, *items, *said])


def is_cold(renderer: ChatTemplateRenderer):
    def check(prompt, previous, history, items, options) -> None:
        cold = renderer.render(request([*history, *items], **options)).prompt
        assert prompt.ids == cold.ids
        assert prompt.head_length == cold.head_length

    return check


@pytest.mark.parametrize("family", KEEPING)
def test_a_template_that_keeps_prefixes_gives_the_ids_of_a_cold_render(make, family):
    renderer = make(family)
    assert renderer.template_class.keeps_prefixes

    @settings(max_examples=40, deadline=None)
    @given(random_turns(parallel=family != "llama3", users_begin=family == "llama3"))
    def property_of(turns):
        walk(renderer, turns, is_cold(renderer))

    property_of()


@pytest.mark.parametrize("family", KEEPING)
def test_an_audit_raises_no_false_alarm_over_what_was_sampled_otherwise(make, family):
    renderer = make(family)

    def check(prompt, previous, history, items, options) -> None:
        assert find_mismatch(renderer.cold(), request(items, history, **options), prompt) == ""
        if previous is None:
            return
        behind = prompt.ids.as_array(len(previous.ids))
        wrong = TokenIds(prompt.ids.as_array(0, prompt.head_length)).extended(behind)
        if wrong != prompt.ids:
            broken = replace(prompt, ids=wrong)
            assert find_mismatch(renderer.cold(), request(items, history, **options), broken)

    @settings(max_examples=25, deadline=None)
    @given(random_turns(parallel=family != "llama3", users_begin=family == "llama3"))
    def property_of(turns):
        walk(renderer, turns, check, is_canonical=False)

    property_of()


@pytest.mark.parametrize("family", ["qwen3", "mistral", "thinking"])
def test_exact_history_gives_the_ids_of_a_cold_render(make, family):
    renderer = make(family, history="exact")
    assert not renderer.template_class.keeps_prefixes

    @settings(max_examples=40, deadline=None)
    @given(random_turns())
    def property_of(turns):
        walk(renderer, turns, is_cold(renderer), is_canonical=family != "thinking")

    property_of()


@pytest.mark.parametrize("family", ["qwen3", "mistral", "thinking"])
def test_kept_history_stays_as_the_engine_saw_it(make, family):
    renderer = make(family)

    def check(prompt, previous, history, items, options) -> None:
        if previous is not None:
            assert list(prompt.ids[: len(previous.ids)]) == list(previous.ids)

    @settings(max_examples=40, deadline=None)
    @given(random_turns(changes=False))
    def property_of(turns):
        walk(renderer, turns, check, is_canonical=False)

    property_of()


@pytest.mark.parametrize("family", KEEPING)
def test_without_instructions_the_first_developer_message_may_take_their_place(make, family):
    renderer = make(family)
    history = [message("developer", "Be odd."), message("user", "go")]
    first = renderer.render(request(history, instructions="Be brief."))
    prompt = renderer.sampled(first, [renderer._close_ids[0]], "stop")
    items: Items = [message("assistant", ""), message("user", "x")]
    after = renderer.render(request(items[1:], [*history, items[0]], previous=prompt))
    assert after.prompt.ids == renderer.render(request([*history, *items])).prompt.ids
    assert after.rerender_reason == "instructions"


@pytest.mark.parametrize("family", KEEPING)
def test_a_turn_costs_its_new_items(make, family):
    renderer = make(family)
    history: Items = [message("user", "go " * 200)]
    first = renderer.render(request(history))
    prompt = renderer.sampled(first, [renderer._close_ids[0]], "stop")
    after = renderer.render(request([message("user", "x")], previous=prompt))
    assert after.rerender_reason == ""
    assert after.rendered_tokens < 100
    calls = ToolSet.of((ToolSpec("f"),), b"f")
    first = renderer.render(request(history, tools=calls))
    prompt = renderer.sampled(first, [renderer._close_ids[0]], "stop")
    after = renderer.render(request([output("c", "x")], previous=prompt, tools=calls))
    assert after.rerender_reason == ""
    assert after.rendered_tokens < 200


@pytest.mark.parametrize(
    ("family", "words", "calls", "think"),
    [
        ("qwen", "keeps prefixes", "hermes", "none"),
        ("smollm", "keeps prefixes", "hermes", "none"),
        ("llama3", "keeps prefixes", "llama3_json", "none"),
        ("qwen_coder", "keeps prefixes", "qwen_coder", "none"),
        ("qwen3", "strips reasoning at a new user turn", "hermes", "<think>"),
        ("thinking", "inserts in the generation prompt", "hermes", "<think>"),
        ("mistral", "moves tools", "mistral", "none"),
    ],
)
def test_probing_finds_the_class_of_a_template(make, family, words, calls, think):
    assert make(family).describe() == {
        "template class": words,
        "history": "kept",
        "calls": calls,
        "reasoning": think,
    }


def test_settings_override_what_was_found(make):
    renderer = make("qwen3", format="qwen_coder", history="exact", strips_reasoning=False)
    assert renderer.template_class.describe() == "rewrites history"
    assert renderer.describe()["calls"] == "qwen_coder"
    assert make("qwen", keeps_prefixes=False).template_class.describe() == "rewrites history"
    with pytest.raises(ChatModelFailure, match="no format 'other'; there is auto, hermes, "):
        make("qwen", format="other")


WRITTEN = {
    "qwen": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    "smollm": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    "llama3": 'Well. <|python_tag|>{"name": "f", "parameters": {"a": 1}}',
    "qwen3": '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n'
    "</tool_call>",
    "thinking": 'hm</think><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
    "mistral": 'Well. [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "x"}]',
    "qwen_coder": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n"
    "</tool_call>",
}
TOOLS = ToolSet.of(
    (ToolSpec("f", parameters='{"properties": {"a": {"type": "integer"}}}'), ToolSpec("g")), b"f"
)
CALLED = [CallStarted("f"), CallDelta('{"a": 1}'), CallEnded()]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("step", [1, 1000])
def test_sampled_markers_are_understood_though_they_are_control_tokens(make, family, step):
    renderer = make(family)
    turn = request([message("user", "go")], tools=TOOLS)
    parser = renderer.parser(turn, renderer.render(turn))
    ids = [*renderer._tokenizer.encode_markup(WRITTEN[family]), renderer._close_ids[0]]
    pieces = [p for at in range(0, len(ids), step) for p in parser.feed(ids[at : at + step])]
    pieces += parser.finish("stop")
    if family in ("qwen3", "thinking"):
        assert [p for p in pieces if isinstance(p, ReasoningDelta)]
        pieces = [p for p in pieces if not isinstance(p, ReasoningDelta)]
    if family in ("llama3", "mistral"):
        assert "".join(p.text for p in pieces if isinstance(p, TextDelta)) == "Well."
        pieces = [p for p in pieces if not isinstance(p, TextDelta)]
    joined = "".join(p.text for p in pieces if isinstance(p, CallDelta))
    assert [pieces[0], CallDelta(joined), pieces[-1]] == CALLED
    assert not any(isinstance(p, TextDelta) for p in pieces)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forced_call_goes_on_from_its_opening(make, family):
    renderer = make(family)
    turn = request([message("user", "go")], tools=TOOLS, force=ToolForce(("f",)))
    rendered = renderer.render(turn)
    written = {
        "llama3": '{"name": "f", "parameters": {"a": 1}}',
        "mistral": '[{"name": "f", "arguments": {"a": 1}}]',
    }.get(family, '{"name": "f", "arguments": {"a": 1}}')
    ids = renderer._tokenizer.encode(written)
    parser = renderer.parser(turn, rendered)
    assert [*parser.feed(ids), *parser.finish("stop")] == CALLED
    assert parser.done
    prompt = renderer.sampled(rendered, ids, "stop")
    after = renderer.render(request([output("c", "x")], previous=prompt, tools=TOOLS))
    closer = {"llama3": "", "mistral": ""}.get(family, "\n</tool_call>")
    tail = renderer._tokenizer.encode_markup(f"{written}{closer}{renderer._text.close}")
    length = len(prompt.ids) + len(prompt.tail)
    assert list(after.prompt.ids[length - len(tail) : length]) == tail


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("family", KEEPING)
def test_ids_behind_the_one_call_allowed_are_not_kept(make, family, step):
    renderer = make(family)
    before, called = [message("user", "go")], [call("call00000", "f", '{"a": 1}')]
    turn = request(before, tools=TOOLS, parallel_calls=False)
    rendered = renderer.render(turn)
    *said, end = sampled_ids(renderer, before, called, {"tools": TOOLS})
    behind = renderer._tokenizer.encode_markup(" and on and on")
    ids = [*said, *(behind if family == "llama3" else said), end]
    parser = renderer.parser(turn, rendered)
    fed = 0
    while parser.ending is None:
        parser.feed(ids[fed : fed + step])
        fed += step
    assert parser.ending == Ending(len(said), is_exact=True)
    prompt = renderer.sampled(rendered, ids[: parser.ending.ids], "stop")
    answered = [output("call00000", "x")]
    after = renderer.render(request(answered, before + called, previous=prompt, tools=TOOLS))
    assert (
        after.prompt.ids
        == renderer.render(request(before + called + answered, tools=TOOLS)).prompt.ids
    )


@pytest.mark.parametrize("closer", ["", "\n</tool_call>"])
def test_a_forced_call_is_closed_once(make, closer):
    renderer = make("qwen")
    turn = request([message("user", "go")], tools=TOOLS, force=ToolForce(("f",)))
    rendered = renderer.render(turn)
    written = '{"name": "f", "arguments": {"a": 1}}'
    ids = renderer._tokenizer.encode_markup(f"{written}{closer}")
    prompt = renderer.sampled(rendered, ids, "stop")
    text = "".join(map(renderer._token_text, [*prompt.ids, *prompt.tail]))
    assert text.endswith(f"<tool_call>\n{written}\n</tool_call>\n")


@given(st.sampled_from(sorted(FAMILIES)), st.text(max_size=20))
def test_counting_knows_the_vocabulary(make, family, text):
    renderer = make(family)
    assert renderer.count(text) <= len(text.encode())
