"""Items, tools and random conversations for the tests of renderers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from turnwire.v1 import content_pb2, item_pb2
from turnwire_server.session.tools import NO_TOOLS, ToolSet, ToolSpec

__all__ = [
    "TOOL_SETS",
    "RandomTurn",
    "answers",
    "call",
    "custom_call",
    "custom_output",
    "message",
    "output",
    "random_turns",
    "reasoning",
]

_WEATHER = ToolSpec(
    "weather",
    description="Tells the weather. <|im_end|><|end|>",
    parameters='{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}',
)
_NOTES = ToolSpec("read", namespace="notes", description="Reads a note", parameters="{}")
_SHELL = ToolSpec("exec", kind="custom", description="Runs a command")
TOOL_SETS = (
    NO_TOOLS,
    ToolSet.of((_WEATHER,), b"1"),
    ToolSet.of((_WEATHER, _NOTES, _SHELL), b"2"),
    ToolSet.of((_NOTES, _WEATHER), b"3"),
)
"""Tools that a client may change between turns."""


def message(role: str, text: str) -> item_pb2.Item:
    """A message."""
    content = content_pb2.Content(text=text)
    return item_pb2.Item(message=item_pb2.MessageItem(role=role, content=content))


def reasoning(text: str) -> item_pb2.Item:
    """Raw reasoning."""
    part = content_pb2.ContentPart(reasoning_text=content_pb2.ReasoningText(text=text))
    return item_pb2.Item(reasoning=item_pb2.ReasoningItem(content=[part]))


def call(call_id: str, name: str, arguments: str, namespace: str = "") -> item_pb2.Item:
    """A call of a function."""
    found = item_pb2.FunctionCallItem(call_id=call_id, name=name, arguments=arguments)
    if namespace:
        found.namespace = namespace
    return item_pb2.Item(function_call=found)


def custom_call(call_id: str, name: str, text: str) -> item_pb2.Item:
    """A call of a custom tool."""
    return item_pb2.Item(
        custom_tool_call=item_pb2.CustomToolCallItem(call_id=call_id, name=name, input=text)
    )


def output(call_id: str, text: str) -> item_pb2.Item:
    """What a function gave back."""
    content = content_pb2.Content(text=text)
    return item_pb2.Item(
        function_call_output=item_pb2.FunctionCallOutputItem(call_id=call_id, output=content)
    )


def custom_output(call_id: str, text: str) -> item_pb2.Item:
    """What a custom tool gave back."""
    content = content_pb2.Content(text=text)
    return item_pb2.Item(
        custom_tool_call_output=item_pb2.CustomToolCallOutputItem(call_id=call_id, output=content)
    )


def answers(calls: Sequence[item_pb2.Item], text: str) -> list[item_pb2.Item]:
    """The outputs of all calls in `calls`, in order."""
    found = []
    for item in calls:
        match item.WhichOneof("item"):
            case "function_call":
                found.append(output(item.function_call.call_id, text))
            case "custom_tool_call":
                found.append(custom_output(item.custom_tool_call.call_id, text))
            case _:
                pass
    return found


@dataclass(frozen=True)
class RandomTurn:
    """One turn of a random conversation."""

    parent: int
    """Index of the turn that it continues, -1 for none; not always the one before: a fork."""
    tools: ToolSet
    instructions: str
    texts: tuple[str, ...]
    """What the user says, if the parent has no calls to answer."""
    role: str
    thought: str
    answer: str
    calls: tuple[tuple[str, str], ...]
    """Names and arguments of the calls that the model makes, instead of an answer if any."""
    is_cut: bool
    """Whether the answer ended at the token limit."""


_TEXT = st.text(st.sampled_from('he wo\nü🙂中<|{"'), max_size=10)
_TRICKY = st.sampled_from(
    ["<|im_end|>", "<|end|>", "<|start|>system", "<|eot_id|>", "</tool_call>", "<think>", "\ufdd0"]
)
_WORDS = st.builds(lambda a, b, c: f"{a}{b}{c}x", _TEXT, _TRICKY | _TEXT, _TEXT)
"""Ends with a letter: templates that strip blanks would make another text of it."""


@st.composite
def random_turns(
    draw: st.DrawFn,
    *,
    most: int = 6,
    parallel: bool = True,
    changes: bool = True,
    users_begin: bool = False,
    tools: Sequence[ToolSet] = TOOL_SETS,
) -> list[RandomTurn]:
    """Draw a tree of turns: some forks, some with new tools or instructions.

    Args:
        draw: Hypothesis' own.
        most: Most turns.
        parallel: Whether the model may call several tools at once.
        changes: Whether tools and instructions may change.
        users_begin: Whether conversations begin with a user's words, not a developer's.
        tools: The sets to choose from.
    """
    turns: list[RandomTurn] = []
    for index in range(draw(st.integers(1, most))):
        parent = draw(st.just(index - 1) | st.integers(-1, index - 1)) if index else -1
        before = turns[parent] if parent >= 0 else None
        renew = before is None or (changes and draw(st.integers(0, 3)) == 0)
        chosen = draw(st.sampled_from(tools)) if renew or before is None else before.tools
        instructions = (
            draw(st.sampled_from(["", "Be brief.", "<|im_start|> be <|end|> odd"]))
            if renew or before is None
            else before.instructions
        )
        names = [tool.qualified_name for tool in chosen.tools]
        calls: list[tuple[str, str]] = []
        if names:
            wanted = draw(st.integers(0, 3 if parallel else 1))
            calls = [
                (draw(st.sampled_from(names)), json.dumps({"city": draw(_WORDS)}))
                for _ in range(wanted)
            ]
        turns.append(
            RandomTurn(
                parent=parent,
                tools=chosen,
                instructions=instructions,
                texts=tuple(draw(st.lists(_WORDS, min_size=1, max_size=2))),
                role=draw(st.sampled_from(["user", "user", "developer"]))
                if parent >= 0 or not users_begin
                else "user",
                thought=draw(st.just("") | _WORDS),
                answer=draw(_WORDS),
                calls=tuple(calls),
                is_cut=draw(st.integers(0, 4)) == 0,
            )
        )
    return turns
