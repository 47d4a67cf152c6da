from __future__ import annotations

import pytest

from turnwire_server.adapters.renderers.formats.syntax import (
    ANGLE_THINK,
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    QWEN_CODER,
    SQUARE_THINK,
    CallSyntax,
    find_syntax,
    find_think,
)


@pytest.mark.parametrize(
    ("template", "syntax"),
    [
        ("<|im_start|>{{ '<tool_call>' }}", HERMES),
        ("<tool_call>\n<function=x>\n<parameter=y>", QWEN_CODER),
        ("[AVAILABLE_TOOLS]…[TOOL_CALLS]", MISTRAL),
        ("<|start_header_id|>user", LLAMA3_JSON),
        ("<|python_tag|>", LLAMA3_JSON),
        ("<|im_start|>user", HERMES),
    ],
)
def test_the_template_shows_how_its_model_writes_calls(template: str, syntax: CallSyntax) -> None:
    assert find_syntax(template) is syntax


def test_the_template_shows_how_its_model_marks_reasoning() -> None:
    assert find_think("{{ '<think>' }}") is ANGLE_THINK
    assert find_think("{{ content.split('</think>') }}") is ANGLE_THINK
    assert find_think("[THINK]") is SQUARE_THINK
    assert find_think("<|im_start|>") is None
