"""Rules for items: what may be in an input, and which outputs belong to which calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwire.v1 import client_event_pb2, content_pb2, error_pb2, item_pb2, response_pb2
from turnwire_server.session.conversation import Conversation, OpenCalls, item_text
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.tool_rules import ToolCatalogue

__all__ = ["CheckedInput", "ItemRules"]

_ROLES = frozenset({"user", "assistant", "system", "developer"})
_INPUT_PARTS = frozenset({"input_text", "text"})
_ASSISTANT_PARTS = frozenset({"output_text", "refusal"})
_OUTPUT_PARTS = _INPUT_PARTS | {"output_text"}
_SUMMARY_PARTS = frozenset({"summary_text"})
_REASONING_PARTS = frozenset({"reasoning_text", "text"})
_MEDIA_PARTS = frozenset({"input_image", "input_file"})
_ID_PREFIX = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "reasoning": "rs_",
    "additional_tools": "at_",
}


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """The new items of a create, each with an id."""

    items: tuple[item_pb2.Item, ...]
    warnings: tuple[response_pb2.Warning, ...] = ()


@dataclass(frozen=True, slots=True)
class ItemRules:
    """The rules, with what they need from outside."""

    new_id: Callable[[str], str]
    find_item: Callable[[str], item_pb2.Item | None]
    """Returns an earlier item by id, for `item_reference`."""
    tools: ToolCatalogue
    is_strict: bool = False
    """Whether assistant messages may hold `output_text` and `refusal` only."""

    def check(
        self,
        given: client_event_pb2.Input | None,
        conversation: Conversation,
        *,
        outputs_required: bool,
    ) -> CheckedInput | Rejection:
        """Check the new input of a create that continues `conversation`.

        Args:
            given: The create's `input`, None when absent.
            conversation: What comes before it.
            outputs_required: Whether every open call must be answered (not for a warm-up).
        """
        checked: list[item_pb2.Item] = []
        warnings: list[response_pb2.Warning] = []
        for index, item in enumerate(_listed(given)):
            path = f"input[{index}]"
            resolved = self._resolve(item, path)
            if isinstance(resolved, Rejection):
                return resolved
            rejection = self._check_item(resolved, path, warnings)
            if rejection is not None:
                return rejection
            checked.append(resolved)
        if outputs_required:
            while checked and checked[-1].WhichOneof("item") == "reasoning":
                # A cut history: the item that the reasoning led to is missing.
                checked.pop()
                warnings.append(
                    response_pb2.Warning(
                        code="reasoning_dropped",
                        message="The last item is reasoning without the item that follows it.",
                        param=f"input[{len(checked)}]",
                    )
                )
            if not checked and not conversation.item_count:
                return _missing("input", "There is nothing to answer: no input and no parent.")
        rejection = _check_pairs(checked, conversation, outputs_required=outputs_required)
        return rejection or CheckedInput(tuple(checked), tuple(warnings))

    def _resolve(self, item: item_pb2.Item, path: str) -> item_pb2.Item | Rejection:
        """Return the item that is meant, with an id: a reference is replaced by its item."""
        arm = item.WhichOneof("item")
        if arm is None:
            return _missing(f"{path}.type", "An item needs a type.")
        if arm == "item_reference":
            if not item.item_reference.id:
                return _missing(f"{path}.id", "A reference needs the id of an item.")
            found = self.find_item(item.item_reference.id)
            if found is None:
                return Rejection(
                    error_pb2.ERROR_REASON_ITEM_NOT_FOUND,
                    f"Item with id {quoted(item.item_reference.id)} not found.",
                    param=f"{path}.id",
                )
            return found
        prefix = _ID_PREFIX.get(arm)
        if prefix is None:
            return Rejection(
                error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
                f"This server does not take items of type '{arm}' yet.",
                param=f"{path}.type",
            )
        value = getattr(item, arm)
        if not value.id:
            value.id = self.new_id(prefix)
        return item

    def _check_item(
        self, item: item_pb2.Item, path: str, warnings: list[response_pb2.Warning]
    ) -> Rejection | None:
        match item.WhichOneof("item"):
            case "message":
                return self._check_message(item.message, path)
            case "function_call":
                call = item.function_call
                return _required(call, path, "call_id", "name")
            case "custom_tool_call":
                return _required(item.custom_tool_call, path, "call_id", "name")
            case "function_call_output":
                output = item.function_call_output
                return _required(output, path, "call_id") or _check_output(output.output, path)
            case "custom_tool_call_output":
                custom = item.custom_tool_call_output
                return _required(custom, path, "call_id") or _check_output(custom.output, path)
            case "reasoning":
                summary, content = item.reasoning.summary, item.reasoning.content
                return _check_parts(summary, f"{path}.summary", _SUMMARY_PARTS) or _check_parts(
                    content, f"{path}.content", _REASONING_PARTS
                )
            case _:  # additional_tools
                role = item.additional_tools.role
                if role not in ("", "developer"):
                    return _invalid(f"{path}.role", f"{quoted(role)} is not 'developer'.")
                found = self.tools.check_list(item.additional_tools.tools, f"{path}.tools")
                if isinstance(found, Rejection):
                    return found
                warnings.extend(found)
                return None

    def _check_message(self, message: item_pb2.MessageItem, path: str) -> Rejection | None:
        if not message.role:
            return _missing(f"{path}.role", "A message needs a role.")
        if message.role not in _ROLES:
            return _invalid(
                f"{path}.role",
                f"{quoted(message.role)} is not one of 'user', 'assistant', 'system' and "
                "'developer'.",
            )
        path = f"{path}.content"
        allowed = _INPUT_PARTS
        if message.role == "assistant":
            allowed = _ASSISTANT_PARTS if self.is_strict else _ASSISTANT_PARTS | _INPUT_PARTS
        if message.content.WhichOneof("value") is None:
            return _missing(path, "A message needs content.")
        rejection = _check_parts(message.content.parts.parts, path, allowed)
        if rejection is not None:
            return rejection
        if message.role != "assistant" and not item_text(message.content):
            return _invalid(path, "The content is empty.")
        return None


def _listed(given: client_event_pb2.Input | None) -> Sequence[item_pb2.Item]:
    """Return the items of an input; text is one user message, empty text is nothing."""
    if given is None or not given.text:
        return given.items.items if given is not None else ()
    part = content_pb2.ContentPart(input_text=content_pb2.InputText(text=given.text))
    content = content_pb2.Content(parts=content_pb2.ContentPartList(parts=[part]))
    return [item_pb2.Item(message=item_pb2.MessageItem(role="user", content=content))]


def _check_output(content: content_pb2.Content, path: str) -> Rejection | None:
    path = f"{path}.output"
    if content.WhichOneof("value") is None:
        return _missing(path, "A tool output needs an output.")
    return _check_parts(content.parts.parts, path, _OUTPUT_PARTS)


def _check_parts(
    parts: Sequence[content_pb2.ContentPart], path: str, allowed: frozenset[str]
) -> Rejection | None:
    for index, part in enumerate(parts):
        arm = part.WhichOneof("part")
        where = f"{path}[{index}]"
        if arm is None:
            return _missing(f"{where}.type", "A content part needs a type.")
        if arm in _MEDIA_PARTS:
            return Rejection(
                error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
                f"The model takes text only, not '{arm}'.",
                param=where,
            )
        if arm not in allowed:
            return _invalid(where, f"A part of type '{arm}' cannot be here.")
    return None


def _check_pairs(
    items: Sequence[item_pb2.Item], conversation: Conversation, *, outputs_required: bool
) -> Rejection | None:
    calls = OpenCalls(conversation)
    for index, item in enumerate(items):
        if calls.read(item):
            continue
        arm = item.WhichOneof("item") or ""
        kind, call_id = arm.replace("_", " "), getattr(item, arm).call_id
        is_output = arm.endswith("_output")
        return _invalid(
            f"input[{index}].call_id",
            f"No tool call found for {kind} with call_id {call_id[:80]}."
            if is_output
            else f"The {kind} {call_id[:80]} is there already and has no output yet.",
        )
    if calls.open and outputs_required:
        call_id, output = next(iter(calls.open.items()))
        kind = output.removesuffix("_output").replace("_", " ")
        return _invalid("input", f"No tool output found for {kind} {call_id[:80]}.")
    return None


_Call = (
    item_pb2.FunctionCallItem
    | item_pb2.CustomToolCallItem
    | item_pb2.FunctionCallOutputItem
    | item_pb2.CustomToolCallOutputItem
)


def _required(value: _Call, path: str, *names: str) -> Rejection | None:
    for name in names:
        if not getattr(value, name):
            return _missing(f"{path}.{name}", f"The item needs a {name}.")
    return None


def _invalid(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_INVALID_VALUE, message, param=path)


def _missing(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_MISSING_REQUIRED_PARAMETER, message, param=path)
