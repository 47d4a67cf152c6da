"""Rules for items: what may be in an input, and which outputs belong to which calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf.message import Message

from turnwire._codec.limits import MAX_INPUT_ITEMS
from turnwire.v1 import client_event_pb2, content_pb2, error_pb2, item_pb2, response_pb2, tool_pb2
from turnwire_server.session.checked_input import (
    ROLES,
    CheckedInput,
    check_answered,
    check_message_alone,
)
from turnwire_server.session.configuration import check_update
from turnwire_server.session.conversation import Conversation, OpenCalls, call_key
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.image_rules import check_image, has_content
from turnwire_server.session.sealed import (
    Unseal,
    opened_compaction,
    opened_reasoning,
    unseals_nothing,
)
from turnwire_server.session.tool_rules import ToolCatalogue

__all__ = ["ItemRules"]

_INPUT_PARTS = frozenset({"input_text", "text"})
_ASSISTANT_PARTS = frozenset({"output_text", "refusal"})
_OUTPUT_PARTS = _INPUT_PARTS | {"output_text"}
_SUMMARY_PARTS = frozenset({"summary_text"})
_REASONING_PARTS = frozenset({"reasoning_text", "text"})
_MEDIA_PARTS = frozenset({"input_image", "input_file"})
_IMAGES = frozenset({"input_image"})
_ID_PREFIX: Mapping[str, str] = MappingProxyType(
    {
        "message": "msg_",
        "function_call": "fc_",
        "function_call_output": "fco_",
        "custom_tool_call": "ctc_",
        "custom_tool_call_output": "ctco_",
        "reasoning": "rs_",
        "compaction": "cmp_",
        "compaction_trigger": "cmpt_",
        "additional_tools": "at_",
        "configuration_update": "cfg_",
        "file_search_call": "fs_",
        "web_search_call": "ws_",
        "tool_search_call": "tsc_",
        "tool_search_output": "tso_",
        "image_generation_call": "ig_",
        "code_interpreter_call": "ci_",
        "local_shell_call": "lsh_",
        "local_shell_call_output": "lsho_",
        "shell_call": "sh_",
        "shell_call_output": "sho_",
        "apply_patch_call": "apc_",
        "apply_patch_call_output": "apco_",
        "mcp_list_tools": "mcpl_",
        "mcp_approval_request": "mcpr_",
        "mcp_approval_response": "mcpa_",
        "mcp_call": "mcp_",
        "program": "prog_",
        "program_output": "prgo_",
    }
)
"""The arms that are taken, and how ids of their items begin. The others need more than text."""

_REQUIRED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "function_call": ("call_id", "name"),
        "function_call_output": ("call_id",),
        "custom_tool_call": ("call_id", "name"),
        "custom_tool_call_output": ("call_id",),
        "compaction": ("encrypted_content",),
        "local_shell_call": ("call_id", "action"),
        "shell_call": ("call_id", "action"),
        "shell_call_output": ("call_id", "output"),
        "apply_patch_call": ("call_id", "operation"),
        "apply_patch_call_output": ("call_id", "status"),
        "mcp_list_tools": ("server_label",),
        "mcp_approval_request": ("id", "name", "server_label"),
        "mcp_approval_response": ("approval_request_id",),
        "mcp_call": ("name", "server_label"),
        "program": ("call_id",),
        "program_output": ("call_id",),
    }
)
"""Members that must not be empty, by arm."""

_KEY_MEMBER: Mapping[str, str] = MappingProxyType(
    {"mcp_approval_request": "id", "mcp_approval_response": "approval_request_id"}
)
"""Members that pair calls with their answers where it is not `call_id`."""


@dataclass(slots=True)  # not frozen: made per turn
class ItemRules:
    """The rules, with what they need from outside."""

    new_id: Callable[[str], str]
    find_item: Callable[[str], item_pb2.Item | None]
    """Returns an earlier item by id, for `item_reference`."""
    tools: ToolCatalogue
    is_strict: bool = False
    """Whether assistant messages may hold `output_text` and `refusal` only."""
    unseal: Unseal = unseals_nothing
    """Opens what this server sealed."""
    takes_images: bool = False
    """Whether messages and tool outputs may hold images."""

    def check(
        self,
        given: client_event_pb2.Input | None,
        conversation: Conversation,
        *,
        outputs_required: bool,
        before: Sequence[item_pb2.Item] = (),
    ) -> CheckedInput | Rejection:
        """Check the new input of a create that continues `conversation`.

        Args:
            given: The create's `input`, None when absent.
            conversation: What comes before it.
            outputs_required: Whether every open call must be answered (not for a warm-up).
            before: Messages, checked already, to be put before the input; paths do not count them.
        """
        alone = check_message_alone(
            given,
            conversation,
            self.new_id,
            outputs_required=outputs_required,
            before=before,
        )
        if alone is not None:
            return alone
        listed: Sequence[item_pb2.Item] = () if given is None else given.items.items
        return self.check_items(
            listed, conversation, outputs_required=outputs_required, before=before
        )

    def check_items(
        self,
        listed: Sequence[item_pb2.Item],
        conversation: Conversation,
        *,
        outputs_required: bool,
        before: Sequence[item_pb2.Item] = (),
    ) -> CheckedInput | Rejection:
        """Check an input that is known to be no message alone; for the rest see `check`."""
        checked: list[item_pb2.Item] = []
        warnings: list[response_pb2.Warning] = []
        if len(listed) > MAX_INPUT_ITEMS:
            return _invalid("input", f"The input has more than {MAX_INPUT_ITEMS} items.")
        covered, is_covering = 0, False
        wants_compaction = bool(listed) and listed[-1].WhichOneof("item") == "compaction_trigger"
        for index, item in enumerate(listed[:-1] if wants_compaction else listed):
            path = f"input[{index}]"
            resolved = self._resolve(item, path)
            if isinstance(resolved, Rejection):
                return resolved
            rejection = self._check_item(resolved, path, warnings)
            if rejection is not None:
                return rejection
            if self._covers(resolved):
                covered, is_covering = len(before) + len(checked), True
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
            if not checked and not before and not conversation.item_count:
                return _missing("input", "There is nothing to answer: no input and no parent.")
        rejection = _check_pairs(checked, conversation, outputs_required=outputs_required)
        return rejection or CheckedInput(
            (*before, *checked),
            tuple(warnings),
            covered=covered,
            is_covering=is_covering,
            wants_compaction=wants_compaction,
        )

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
                f"The model takes text only: no items of type '{arm}'.",
                param=f"{path}.type",
            )
        value = getattr(item, arm)
        required = _REQUIRED.get(arm)
        if required and (rejection := _required(value, path, *required)) is not None:
            return rejection
        if arm == "local_shell_call_output" and not call_key(item):
            return _missing(f"{path}.call_id", "The item needs a call_id.")
        if not value.id:
            value.id = self.new_id(prefix)
        return item

    def _covers(self, item: item_pb2.Item) -> bool:
        if item.WhichOneof("item") != "compaction":
            return False
        opened = opened_compaction(item.compaction.encrypted_content, self.unseal)
        return opened is not None and opened.covers

    def _check_item(
        self, item: item_pb2.Item, path: str, warnings: list[response_pb2.Warning]
    ) -> Rejection | None:
        match item.WhichOneof("item"):
            case "message":
                return self._check_message(item.message, path)
            case "function_call_output":
                return self._check_output(item.function_call_output.output, path)
            case "custom_tool_call_output":
                return self._check_output(item.custom_tool_call_output.output, path)
            case "reasoning":
                return self._check_reasoning(item.reasoning, path)
            case "compaction":
                sealed = item.compaction.encrypted_content
                return _broken(path) if opened_compaction(sealed, self.unseal) is None else None
            case "compaction_trigger":
                return _invalid(f"{path}.type", "A compaction_trigger must be the last item.")
            case "configuration_update":
                return check_update(item.configuration_update, path)
            case "apply_patch_call_output":
                status = item.apply_patch_call_output.status
                if status not in ("completed", "failed"):
                    return _invalid(f"{path}.status", "status must be 'completed' or 'failed'.")
            case "additional_tools":
                role = item.additional_tools.role
                if role not in ("", "developer"):
                    return _invalid(f"{path}.role", f"{quoted(role)} is not 'developer'.")
                return self._check_tools(item.additional_tools.tools, path, warnings)
            case "tool_search_output":
                return self._check_tools(item.tool_search_output.tools, path, warnings)
            case _:  # nothing but what `_REQUIRED` says
                pass
        return None

    def _check_tools(
        self, tools: Sequence[tool_pb2.Tool], path: str, warnings: list[response_pb2.Warning]
    ) -> Rejection | None:
        found = self.tools.check_list(tools, f"{path}.tools")
        if isinstance(found, Rejection):
            return found
        warnings.extend(found)
        return None

    def _check_reasoning(self, reasoning: item_pb2.ReasoningItem, path: str) -> Rejection | None:
        sealed = reasoning.encrypted_content
        if sealed and opened_reasoning(sealed, self.unseal) is None:
            return _broken(path)
        return _check_parts(reasoning.summary, f"{path}.summary", _SUMMARY_PARTS) or _check_parts(
            reasoning.content, f"{path}.content", _REASONING_PARTS
        )

    def _check_message(self, message: item_pb2.MessageItem, path: str) -> Rejection | None:
        role = message.role
        if not role:
            return _missing(f"{path}.role", "A message needs a role.")
        if role not in ROLES:
            return _invalid(
                f"{path}.role",
                f"{quoted(role)} is not one of 'user', 'assistant', 'system' and 'developer'.",
            )
        path = f"{path}.content"
        allowed = self._given(_INPUT_PARTS)
        if role == "assistant":
            allowed = _ASSISTANT_PARTS if self.is_strict else _ASSISTANT_PARTS | _INPUT_PARTS
        if message.content.WhichOneof("value") is None:
            if role != "assistant":
                return _missing(path, "A message needs content.")
            message.content.parts.SetInParent()  # An assistant may have said nothing.
        rejection = _check_parts(message.content.parts.parts, path, allowed)
        if rejection is not None:
            return rejection
        if role != "assistant" and not has_content(message.content):
            if message.content.parts.parts:  # A message of the contract cannot tell "" from none.
                return _missing(f"{path}[0].text", "The text of the content is missing or empty.")
            return _invalid(path, "The content is empty.")
        return None

    def _check_output(self, content: content_pb2.Content, path: str) -> Rejection | None:
        path = f"{path}.output"
        if content.WhichOneof("value") is None:
            return _missing(path, "A tool output needs an output.")
        return _check_parts(content.parts.parts, path, self._given(_OUTPUT_PARTS))

    def _given(self, parts: frozenset[str]) -> frozenset[str]:
        """Return which parts may be where the model did not write them."""
        return parts | _IMAGES if self.takes_images else parts


def _check_parts(
    parts: Sequence[content_pb2.ContentPart], path: str, allowed: frozenset[str]
) -> Rejection | None:
    for index, part in enumerate(parts):
        arm = part.WhichOneof("part")
        where = f"{path}[{index}]"
        if arm == "input_image" and arm in allowed:
            rejection = check_image(part.input_image, where)
            if rejection is not None:
                return rejection
            continue
        if arm is None:
            return _missing(f"{where}.type", "A content part needs a type.")
        if arm in _MEDIA_PARTS:
            takes = "text and images" if _IMAGES <= allowed else "text"
            return Rejection(
                error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
                f"The model takes {takes} only, not '{arm}'.",
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
        kind, call_id = arm.replace("_", " "), call_key(item)[:80]
        if arm.endswith("_output"):
            # The public service names the whole input too: one item alone is not at fault.
            return _invalid("input", f"No tool call found for {kind} with call_id {call_id}.")
        return _invalid(
            f"input[{index}].{_KEY_MEMBER.get(arm, 'call_id')}",
            f"No approval request found with id {call_id}, or it is answered already."
            if arm == "mcp_approval_response"
            else f"The {kind} {call_id} is there already and has no output yet.",
        )
    return check_answered(calls.open) if outputs_required else None


def _required(value: Message, path: str, *names: str) -> Rejection | None:
    for name in names:
        if not getattr(value, name):
            return _missing(f"{path}.{name}", f"The item needs a {name}.")
    return None


def _broken(path: str) -> Rejection:
    return _invalid(
        f"{path}.encrypted_content",
        "The encrypted content was not made by this server, was changed, or its key is gone.",
    )


def _invalid(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_INVALID_VALUE, message, param=path)


def _missing(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_MISSING_REQUIRED_PARAMETER, message, param=path)
