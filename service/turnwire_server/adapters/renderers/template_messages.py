"""Items as the messages that chat templates know."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from turnwire.v1 import item_pb2
from turnwire_server.adapters.renderers.item_text import content_text, part_text
from turnwire_server.adapters.renderers.jinja_template import Message, TemplateAbilities
from turnwire_server.adapters.renderers.tool_calls import CALL_CLOSE, CALL_OPEN
from turnwire_server.ports.renderer import RenderFailure
from turnwire_server.session.tools import ToolSet, ToolSpec

__all__ = [
    "dummy_turn",
    "free_marker",
    "guarded",
    "messages_of",
    "system_text",
    "tool_messages",
    "tools_text",
]

_RESPONSE_OPEN: Final = "<tool_response>"
_RESPONSE_CLOSE: Final = "</tool_response>"
# Noncharacters: no keyboard types them; if a text has one all the same, the next is taken.
_MARKERS: Final = tuple(map(chr, range(0xFDD0, 0xFDF0)))
_MOST_KEPT_CHARS: Final = 500_000
"""Tools beyond it are not kept: the memory of what clients send must stay small."""
_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_SKIPPED: Final = frozenset({"additional_tools", "configuration_update", "compaction_trigger"})
"""Items that change a turn's settings and say nothing themselves."""


def messages_of(items: Iterable[item_pb2.Item], abilities: TemplateAbilities) -> list[Message]:
    """Return the messages of `items`, in a form that a template of these abilities accepts.

    An assistant's reasoning, text and calls that follow each other become one message.

    Raises:
        RenderFailure: an item or a part is of a kind that has no text.
    """
    messages: list[Message] = []
    names: dict[str, str] = {}
    for item in items:
        _add_item(item, abilities, names, messages)
    for message in messages:
        if not abilities.tools:
            message.pop("tool_calls", None)
    return messages if abilities.repeated_roles else _merged(messages)


def system_text(items: Sequence[item_pb2.Item], instructions: str) -> tuple[str, int]:
    """Merge `instructions` with the system and developer messages that begin `items`.

    For templates that take one system message, at the front.

    Returns:
        The text, and how many of `items` are in it.
    """
    texts = [instructions] if instructions else []
    count = 0
    for item in items:
        if item.WhichOneof("item") != "message" or item.message.role in ("user", "assistant"):
            break
        texts.append(content_text(item.message.content))
        count += 1
    return "\n\n".join(texts), count


def tool_messages(tools: ToolSet) -> list[Message]:
    """Return the tools as templates that know tools want them. They must not be changed."""
    return list((_kept_messages if _is_kept(tools) else _messages_of_tools)(tools))


def tools_text(tools: ToolSet) -> str:
    """Return a system text that offers `tools` to a model whose template does not know tools."""
    return (_kept_text if _is_kept(tools) else _text_of_tools)(tools)


def _is_kept(tools: ToolSet) -> bool:
    """Whether what is made of `tools` may be kept for the next turn."""
    size = sum(len(tool.description) + len(tool.parameters) for tool in tools.tools)
    return size <= _MOST_KEPT_CHARS


def _messages_of_tools(tools: ToolSet) -> tuple[Message, ...]:
    return tuple(
        {
            "type": "function",
            "function": {
                "name": tool.qualified_name,
                "description": tool.description,
                "parameters": _parameters(tool),
            },
        }
        for tool in tools.tools
    )


def _text_of_tools(tools: ToolSet) -> str:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tool_messages(tools))
    return (
        "# Tools\n\n"
        "You may call one or more of these functions, described within <tools></tools>:\n"
        f"<tools>\n{lines}\n</tools>\n\n"
        "To call a function, answer with its name and its arguments as a JSON object:\n"
        f'{CALL_OPEN}\n{{"name": <function name>, "arguments": <arguments object>}}\n{CALL_CLOSE}'
    )


# Clients send the same tools with every turn.
_kept_messages = lru_cache(maxsize=32)(_messages_of_tools)
_kept_text = lru_cache(maxsize=32)(_text_of_tools)


def dummy_turn(
    messages: Sequence[Message], text: str, abilities: TemplateAbilities
) -> list[Message]:
    """Return a conversation behind which `messages` may come: its assistant says `text`.

    Outputs that begin `messages` find the calls that they answer.
    """
    assistant: Message = {"role": "assistant", "content": text}
    calls: list[object] = []
    for message in messages:
        if message["role"] != "tool":
            break
        arguments: object = {} if abilities.dictionary_arguments else "{}"
        calls.append(
            {
                "id": message["tool_call_id"],
                "type": "function",
                "function": {"name": message["name"], "arguments": arguments},
            }
        )
    if calls:
        assistant["tool_calls"] = calls
    return [{"role": "user", "content": "x"}, assistant]


def free_marker(value: object) -> str:
    """Return a character that no text in `value` has.

    Raises:
        RenderFailure: they have all 32 of them.
    """
    texts = list(_strings_in(value))
    for marker in _MARKERS:
        if not any(marker in text for text in texts):
            return marker
    raise RenderFailure("the conversation has every Unicode noncharacter in it")


def _strings_in(value: object) -> Iterator[str]:
    """Yield every text inside `value`, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _strings_in(key)
            yield from _strings_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings_in(part)


def guarded(value: object, guard: Callable[[str], str]) -> object:
    """Return a copy of `value` with `guard` applied to every text inside it."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, dict):
        return {guard(key): guarded(part, guard) for key, part in value.items()}
    if isinstance(value, list):
        return [guarded(part, guard) for part in value]
    return value


def _add_item(
    item: item_pb2.Item,
    abilities: TemplateAbilities,
    names: dict[str, str],
    messages: list[Message],
) -> None:
    kind = item.WhichOneof("item")
    match kind:
        case "message":
            _add_message(item.message, abilities, messages)
        case "function_call":
            call = item.function_call
            name = ToolSpec(call.name, namespace=call.namespace or None).qualified_name
            names[call.call_id] = name
            _add_call(call.call_id, name, call.arguments, abilities, messages)
        case "custom_tool_call":
            custom = item.custom_tool_call
            name = ToolSpec(custom.name, namespace=custom.namespace or None).qualified_name
            names[custom.call_id] = name
            arguments = json.dumps({"input": custom.input}, ensure_ascii=False)
            _add_call(custom.call_id, name, arguments, abilities, messages)
        case "function_call_output":
            output = item.function_call_output
            name = names.get(output.call_id) or output.name
            _add_output(output.call_id, name, content_text(output.output), abilities, messages)
        case "custom_tool_call_output":
            free = item.custom_tool_call_output
            name = names.get(free.call_id, "")
            _add_output(free.call_id, name, content_text(free.output), abilities, messages)
        case "reasoning":
            text = "".join(map(part_text, item.reasoning.content))
            if text:
                _assistant(messages)["reasoning_content"] = text
        case _ if kind in _SKIPPED:
            pass
        case _:
            raise RenderFailure(f"items of type {kind or 'unknown'} cannot be rendered")


def _add_message(
    message: item_pb2.MessageItem, abilities: TemplateAbilities, messages: list[Message]
) -> None:
    role, text = message.role, content_text(message.content)
    if role not in _ROLES:
        raise RenderFailure("a message has a role that the model does not know")
    if role == "assistant":
        if messages and "tool_calls" in messages[-1]:
            messages.append({"role": "assistant", "content": ""})
        into = _assistant(messages)
        into["content"] = f"{into['content']}\n{text}" if into["content"] else text
    elif role == "user":
        messages.append({"role": "user", "content": text})
    elif abilities.later_system:
        messages.append({"role": "system", "content": text})
    else:
        # The template would refuse it here; as a user's words it at least keeps its place.
        messages.append({"role": "user", "content": f"[{role}]\n{text}"})


def _add_call(
    call_id: str, name: str, arguments: str, abilities: TemplateAbilities, messages: list[Message]
) -> None:
    message = _assistant(messages)
    if not abilities.tools:
        quoted = json.dumps(name, ensure_ascii=False)
        body = f'{{"name": {quoted}, "arguments": {arguments or "{}"}}}'
        said = f"{message['content']}\n" if message["content"] else ""
        message["content"] = f"{said}{CALL_OPEN}\n{body}\n{CALL_CLOSE}"
        message["tool_calls"] = []  # marks that text after it is another message
        return
    value: object = arguments
    if abilities.dictionary_arguments:
        try:
            parsed: object = json.loads(arguments or "{}")
        except ValueError:
            parsed = None
        value = parsed if isinstance(parsed, dict) else {"input": arguments}
    call = {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": value},
    }
    calls = message.setdefault("tool_calls", [])
    assert isinstance(calls, list)
    calls.append(call)


def _add_output(
    call_id: str, name: str, text: str, abilities: TemplateAbilities, messages: list[Message]
) -> None:
    if abilities.tools:
        messages.append(
            {"role": "tool", "tool_call_id": call_id, "name": name or "tool", "content": text}
        )
        return
    response = f"{_RESPONSE_OPEN}\n{text}\n{_RESPONSE_CLOSE}"
    last = messages[-1] if messages else None
    if last is not None and last.get("outputs"):
        last["content"] = f"{last['content']}\n{response}"
    else:
        messages.append({"role": "user", "content": response, "outputs": True})


def _assistant(messages: list[Message]) -> Message:
    """Return the assistant's message that goes on, a new one when another role spoke last."""
    if messages and messages[-1]["role"] == "assistant":
        return messages[-1]
    messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Join messages of one role that follow each other, for templates that want them to turn."""
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"] == "user":
            merged[-1] = {
                "role": "user",
                "content": f"{merged[-1]['content']}\n\n{message['content']}",
            }
        else:
            merged.append(message)
    return merged


def _parameters(tool: ToolSpec) -> object:
    if tool.kind == "custom":
        return {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        }
    try:
        parameters: object = json.loads(tool.parameters or "{}")
    except ValueError:
        parameters = {}
    return parameters if isinstance(parameters, dict) else {}
