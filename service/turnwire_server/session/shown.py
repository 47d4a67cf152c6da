"""What a model is told of each item: the few kinds that every prompt format knows.

`docs/items.md` lists the types. Items that say nothing to a text model are carried along in the
conversation and are not shown; calls of other tools than functions become calls of functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from turnwire.v1 import content_pb2, item_pb2
from turnwire_server.session.sealed import Unseal, opened_compaction, opened_reasoning

__all__ = ["shown_items"]

_AS_THEY_ARE = frozenset(
    {
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
    }
)


def shown_items(items: Sequence[item_pb2.Item], unseal: Unseal) -> Sequence[item_pb2.Item]:
    """Return what a model is told of `items`.

    Args:
        items: The items; they are not changed.
        unseal: Opens sealed texts. What it cannot open is not shown.
    """
    for item in items:
        if item.WhichOneof("item") not in _AS_THEY_ARE:
            return [told for item in items for told in _told(item, unseal)]
    return items


def _told(item: item_pb2.Item, unseal: Unseal) -> Iterator[item_pb2.Item]:
    arm = item.WhichOneof("item")
    match arm:
        case "reasoning":
            yield _reasoning(item, unseal)
        case "compaction":
            opened = opened_compaction(item.compaction.encrypted_content, unseal)
            if opened is not None:
                yield _user_message(opened.text)
        case "local_shell_call":
            local = item.local_shell_call
            yield _call(local.call_id, "local_shell", local.action)
        case "local_shell_call_output":
            result = item.local_shell_call_output
            yield _output(result.call_id or result.id, "local_shell", result.output)
        case "shell_call":
            yield _call(item.shell_call.call_id, "shell", item.shell_call.action)
        case "shell_call_output":
            shell = item.shell_call_output
            yield _output(shell.call_id, "shell", _shell_text(shell.output))
        case "apply_patch_call":
            patch = item.apply_patch_call
            yield _call(patch.call_id, "apply_patch", patch.operation)
        case "apply_patch_call_output":
            patched = item.apply_patch_call_output
            text = "\n".join(filter(None, (patched.status, patched.output)))
            yield _output(patched.call_id, "apply_patch", text)
        case "mcp_call":
            yield from _mcp_call(item.mcp_call)
        case "code_interpreter_call":
            yield from _code_interpreter_call(item.code_interpreter_call)
        case _ if arm in _AS_THEY_ARE:
            yield item
        case _:  # it says nothing to a text model
            pass


def _reasoning(item: item_pb2.Item, unseal: Unseal) -> item_pb2.Item:
    """Return reasoning with its text, for renderers that read `content` only."""
    reasoning = item.reasoning
    if reasoning.content:
        return item
    text = None
    if reasoning.encrypted_content:
        text = opened_reasoning(reasoning.encrypted_content, unseal)
    if text is None:  # the summary is what is left of it
        text = "\n\n".join(part.summary_text.text for part in reasoning.summary)
    told = item_pb2.Item(reasoning=item_pb2.ReasoningItem(id=reasoning.id))
    if text:
        told.reasoning.content.append(
            content_pb2.ContentPart(reasoning_text=content_pb2.ReasoningText(text=text))
        )
    return told


def _mcp_call(call: item_pb2.McpCallItem) -> Iterator[item_pb2.Item]:
    shown = _call(call.id, call.name, call.arguments)
    shown.function_call.namespace = call.server_label
    yield shown
    yield _output(call.id, f"{call.server_label}.{call.name}", call.output or call.error)


def _code_interpreter_call(call: item_pb2.CodeInterpreterCallItem) -> Iterator[item_pb2.Item]:
    yield _call(call.id, "code_interpreter", json.dumps({"code": call.code}, ensure_ascii=False))
    logs = [_text(output.get("logs")) for output in _objects(call.outputs)]
    yield _output(call.id, "code_interpreter", "\n".join(filter(None, logs)))


def _shell_text(outputs: str) -> str:
    """Return the outputs of shell commands, given as JSON, as a terminal would show them."""
    texts = []
    for output in _objects(outputs):
        texts += [_text(output.get("stdout")).rstrip("\n"), _text(output.get("stderr"))]
        outcome = output.get("outcome")
        if isinstance(outcome, dict):
            code = outcome.get("exit_code")
            texts.append("timed out" if code is None else f"exit code: {code}")
    return "\n".join(filter(None, texts))


def _objects(text: str) -> list[Mapping[str, object]]:
    """Return the objects of a JSON array, nothing for other JSON."""
    value = json.loads(text or "[]")
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _call(call_id: str, name: str, arguments: str) -> item_pb2.Item:
    return item_pb2.Item(
        function_call=item_pb2.FunctionCallItem(call_id=call_id, name=name, arguments=arguments)
    )


def _output(call_id: str, name: str, text: str) -> item_pb2.Item:
    return item_pb2.Item(
        function_call_output=item_pb2.FunctionCallOutputItem(
            call_id=call_id, name=name, output=content_pb2.Content(text=text)
        )
    )


def _user_message(text: str) -> item_pb2.Item:
    part = content_pb2.ContentPart(input_text=content_pb2.InputText(text=text))
    content = content_pb2.Content(parts=content_pb2.ContentPartList(parts=[part]))
    return item_pb2.Item(message=item_pb2.MessageItem(role="user", content=content))
