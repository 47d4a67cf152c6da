"""Our prompts against those of each family's upstream, token for token."""

from __future__ import annotations

import pytest

from harness.families import FAMILIES, write_folder
from harness.golden import (
    family_prompts,
    harmony_prompts,
    items_of,
    read_golden,
    tool_set,
)
from turnwire_server.adapters.renderers.chat_model import model_of_gguf
from turnwire_server.adapters.renderers.chat_template import ChatTemplateRenderer
from turnwire_server.adapters.renderers.gguf import read_gguf
from turnwire_server.adapters.renderers.harmony import HarmonyRenderer
from turnwire_server.adapters.renderers.hf_folder import read_folder
from turnwire_server.ports.renderer import Renderer, RenderRequest


def check(renderer: Renderer, golden) -> None:
    """Each prompt of the golden file is ours, rendered cold and, where it may, turn by turn."""
    system, *messages = golden["messages"]
    options = {"instructions": system["content"], "tools": tool_set(golden["tools"])}
    done, previous = 0, None
    for prompt in golden["prompts"]:
        items = items_of(messages[: prompt["messages"] - 1])
        cold = renderer.render(RenderRequest(items, list, **options)).prompt
        assert list(cold.ids) == prompt["ids"]
        new = items_of(messages[done : prompt["messages"] - 1])
        grown = renderer.render(
            RenderRequest(new, lambda items=items, new=new: items[: -len(new)], previous, **options)
        ).prompt
        if renderer.template_class.keeps_prefixes:
            assert grown.ids == cold.ids
        # The model has said nothing yet: the items that it will say come with the next ones.
        previous = renderer.render(RenderRequest(items, list, generate=False, **options)).prompt
        done = prompt["messages"] - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_those_of_jinja(tmp_path, family):
    golden = read_golden(family)
    messages, tools, prompts = family_prompts(family)
    assert golden["messages"] == messages
    assert golden["tools"] == tools
    assert golden["prompts"] == prompts
    check(ChatTemplateRenderer(read_folder(write_folder(tmp_path, family))), golden)


def test_prompts_are_those_of_openai_harmony():
    golden = read_golden("harmony")
    assert golden["prompts"] == harmony_prompts(golden["messages"], golden["tools"])
    check(HarmonyRenderer(), golden)


def test_prompts_are_those_of_the_real_qwen3(qwen3_path):
    renderer = ChatTemplateRenderer(read_folder(qwen3_path))
    assert renderer.describe() == {
        "template class": "strips reasoning at a new user turn",
        "history": "kept",
        "calls": "hermes",
        "reasoning": "<think>",
    }
    check(renderer, read_golden("qwen3-original"))


def test_prompts_are_those_of_the_real_smollm2(smollm2_path):
    renderer = ChatTemplateRenderer(model_of_gguf(read_gguf(smollm2_path)))
    assert renderer.template_class.keeps_prefixes
    check(renderer, read_golden("smollm2-original"))
