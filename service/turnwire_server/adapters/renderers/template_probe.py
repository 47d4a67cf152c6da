"""Finds out what a chat template does to a conversation, by rendering a small one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from turnwire_server.adapters.renderers.jinja_template import (
    ChatTemplate,
    Message,
    TemplateAbilities,
    TemplateRefusal,
)
from turnwire_server.adapters.renderers.template_class import TemplateClass

__all__ = ["probe_class"]

_TOOL: Final[Message] = {
    "type": "function",
    "function": {"name": "zq_tool", "description": "zq_described", "parameters": {}},
}


def probe_class(template: ChatTemplate, abilities: TemplateAbilities) -> TemplateClass:
    """Find out what `template` does to a conversation.

    Raises:
        TemplateRefusal: it refuses a plain conversation.
    """
    plain = _conversation(with_tools=False, abilities=abilities)
    prompts = _prompts(template, plain, None)
    texts = [prompts]
    if abilities.tools:
        try:
            loop = _conversation(with_tools=True, abilities=abilities)
            texts.append(_prompts(template, loop, [_TOOL]))
        except TemplateRefusal:
            pass  # it knows tools in another order than this one
    keeps = all(
        after.startswith(before) for found in texts for before, after in itertools.pairwise(found)
    )
    last = texts[-1][-1]
    return TemplateClass(
        keeps_prefixes=keeps,
        strips_reasoning=_strips(template, plain),
        inserts_in_generation_prompt=_inserts(template, plain),
        moves_tools=last.find("zq_described") > last.find("zq_user_1"),
    )


def _conversation(*, with_tools: bool, abilities: TemplateAbilities) -> list[Message]:
    messages: list[Message] = []
    for number in (1, 2):
        messages.append({"role": "user", "content": f"zq_user_{number}"})
        if with_tools:
            arguments: object = {} if abilities.dictionary_arguments else "{}"
            function = {"name": "zq_tool", "arguments": arguments}
            call = {"id": f"call0000{number}", "type": "function"}
            messages += [
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning_content": f"zq_plan_{number}",
                    "tool_calls": [{**call, "function": function}],
                },
                {
                    "role": "tool",
                    "name": "zq_tool",
                    "tool_call_id": call["id"],
                    "content": f"zq_output_{number}",
                },
            ]
        messages.append(
            {
                "role": "assistant",
                "content": f"zq_answer_{number}",
                "reasoning_content": f"zq_thought_{number}",
            }
        )
    return [*messages, {"role": "user", "content": "zq_user_3"}]


def _prompts(
    template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Message] | None
) -> list[str]:
    """Return the prompt at each point where the model would go on."""
    return [
        template.render(messages[:end], tools=tools, generate=True)
        for end in range(1, len(messages) + 1)
        if messages[end - 1]["role"] != "assistant"
    ]


def _strips(template: ChatTemplate, messages: Sequence[Message]) -> bool:
    shown = template.render(messages[:2])
    return "zq_thought_1" in shown and "zq_thought_1" not in template.render(messages[:3])


def _inserts(template: ChatTemplate, messages: Sequence[Message]) -> bool:
    """Return whether a turn does not begin in history as it began when it was written."""
    before = template.render(messages[:1])
    prompt = template.render(messages[:1], generate=True)
    silent = {**messages[1], "reasoning_content": ""}
    del silent["reasoning_content"]
    # A thought that the prompt opens may be in history with the thought, and only then.
    histories = [template.render([messages[0], said]) for said in (messages[1], silent)]
    return prompt.startswith(before) and not any(text.startswith(prompt) for text in histories)
