"""Items and tools as harmony messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from openai_harmony import (
    Author,
    DeveloperContent,
    Message,
    Role,
    ToolDescription,
    ToolNamespaceConfig,
)

from turnwire.v1 import item_pb2
from turnwire_server.adapters.renderers.call_members import find_tool
from turnwire_server.adapters.renderers.item_text import content_text, part_text
from turnwire_server.ports.renderer import RenderFailure
from turnwire_server.session.tools import ToolSet, ToolSpec

__all__ = [
    "FUNCTIONS",
    "INPUT_SCHEMA",
    "call_message",
    "developer_content",
    "messages_of",
    "recipient_of",
    "tool_of_recipient",
]

FUNCTIONS: Final = "functions"
"""Harmony's namespace of tools that have none of their own."""
_CONTENT_TYPE: Final = "<|constrain|>json"
_SKIPPED: Final = frozenset({"additional_tools", "configuration_update", "compaction_trigger"})
_NAME: Final = re.compile(r"[^\s<>|]+")
INPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


def recipient_of(name: str, namespace: str | None) -> str:
    """Return what a call of that tool is addressed to."""
    return f"{namespace or FUNCTIONS}.{name}"


def tool_of_recipient(tools: ToolSet, recipient: str) -> ToolSpec | None:
    """Return the tool that a call addresses, None if there is none."""
    return find_tool(tools, recipient) or find_tool(tools, recipient.removeprefix(f"{FUNCTIONS}."))


def developer_content(instructions: str, tools: ToolSet) -> DeveloperContent:
    """Return what the developer says first: instructions and tools, by namespace.

    A custom tool is a function with one text, `input`, its grammar told in its description.
    """
    content = DeveloperContent.new()
    if instructions:
        content = content.with_instructions(instructions)
    spaces: dict[str, list[ToolDescription]] = {}
    for tool in tools.tools:
        spaces.setdefault(tool.namespace or FUNCTIONS, []).append(_description(tool))
    for name, descriptions in spaces.items():
        content = content.with_tools(
            ToolNamespaceConfig(name=name, description=None, tools=descriptions)
        )
    return content


def messages_of(
    items: Iterable[item_pb2.Item], find_recipient: Callable[[str], str]
) -> list[Message]:
    """Return the messages of `items`.

    Args:
        items: What was said, oldest first.
        find_recipient: What the call of that `call_id`, which is not among `items`, was
            addressed to.

    Raises:
        RenderFailure: an item or a part is of a kind that has no text.
    """
    recipients: dict[str, str] = {}
    messages: list[Message] = []
    for item in items:
        message = _message(item, recipients, find_recipient)
        if message is not None:
            messages.append(message)
    return messages


def call_message(recipient: str, arguments: str) -> Message:
    """Return a call as history has it."""
    return (
        Message.from_role_and_content(Role.ASSISTANT, arguments)
        .with_channel("commentary")
        .with_recipient(recipient)
        .with_content_type(_CONTENT_TYPE)
    )


def _message(
    item: item_pb2.Item, recipients: dict[str, str], find_recipient: Callable[[str], str]
) -> Message | None:
    kind = item.WhichOneof("item")
    match kind:
        case "message":
            return _spoken(item.message)
        case "function_call":
            call = item.function_call
            recipient = _checked(recipient_of(call.name, call.namespace))
            recipients[call.call_id] = recipient
            return call_message(recipient, call.arguments or "{}")
        case "custom_tool_call":
            custom = item.custom_tool_call
            recipient = _checked(recipient_of(custom.name, custom.namespace))
            recipients[custom.call_id] = recipient
            arguments = json.dumps({"input": custom.input}, ensure_ascii=False)
            return call_message(recipient, arguments)
        case "function_call_output":
            output = item.function_call_output
            author = recipients.get(output.call_id)
            if author is None and output.name:
                author = _checked(recipient_of(output.name, output.namespace))
            return _answer(author or find_recipient(output.call_id), content_text(output.output))
        case "custom_tool_call_output":
            free = item.custom_tool_call_output
            author = recipients.get(free.call_id)
            return _answer(author or find_recipient(free.call_id), content_text(free.output))
        case "reasoning":
            text = "".join(map(part_text, item.reasoning.content))
            message = Message.from_role_and_content(Role.ASSISTANT, text)
            return message.with_channel("analysis") if text else None
        case _ if kind in _SKIPPED:
            return None
        case _:
            raise RenderFailure(f"items of type {kind or 'unknown'} cannot be rendered")


def _spoken(message: item_pb2.MessageItem) -> Message:
    text = content_text(message.content)
    match message.role:
        case "user":
            return Message.from_role_and_content(Role.USER, text)
        case "assistant":
            channel = "commentary" if message.phase == "commentary" else "final"
            return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)
        case "system" | "developer":
            content = DeveloperContent.new().with_instructions(text)
            return Message.from_role_and_content(Role.DEVELOPER, content)
        case _:
            raise RenderFailure("a message has a role that the model does not know")


def _answer(author: str, text: str) -> Message:
    message = Message.from_author_and_content(Author.new(Role.TOOL, author), text)
    return message.with_channel("commentary").with_recipient("assistant")


def _checked(name: str) -> str:
    """Return `name` if a header can hold it.

    Raises:
        RenderFailure: it has blanks or what markers are made of.
    """
    if not _NAME.fullmatch(name):
        raise RenderFailure("a call names a tool in a way that the model does not know")
    return name


def _description(tool: ToolSpec) -> ToolDescription:
    description = tool.description
    if tool.kind == "custom" and tool.grammar:
        kind = tool.grammar_syntax or "grammar"
        told = f"The input must match this {kind}:\n{tool.grammar}"
        description = f"{description}\n{told}" if description else told
    return ToolDescription.new(tool.name, description, _parameters(tool))


def _parameters(tool: ToolSpec) -> dict[str, Any] | None:
    if tool.kind == "custom":
        return dict(INPUT_SCHEMA)
    try:
        parameters: object = json.loads(tool.parameters or "null")
    except ValueError:
        parameters = None
    # Without properties the library writes a function that takes nothing, as it should.
    if not isinstance(parameters, Mapping) or not parameters.get("properties"):
        return None
    return dict(parameters)
