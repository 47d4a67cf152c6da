"""Renders for gpt-oss, in harmony's form, with `openai-harmony`.

What the model sampled stays as it is, its reasoning too: the library's way of dropping
reasoning at a new user turn would change what the engine has seen. Only the id that ended the
last turn, which is in no cache yet, becomes the one that history has.
"""

from __future__ import annotations

import copy
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from openai_harmony import (
    Conversation,
    HarmonyError,
    Message,
    ReasoningEffort,
    RenderConversationConfig,
    Role,
    SystemContent,
)

from turnwire.v1 import item_pb2
from turnwire_server.adapters.renderers.call_members import arguments_schema, input_schema
from turnwire_server.adapters.renderers.fingerprints import (
    digest,
    rerender_reason,
    turn_fingerprint,
)
from turnwire_server.adapters.renderers.harmony_encoding import harmony_tokens
from turnwire_server.adapters.renderers.harmony_messages import (
    FUNCTIONS,
    INPUT_SCHEMA,
    call_message,
    developer_content,
    messages_of,
    recipient_of,
)
from turnwire_server.adapters.renderers.harmony_parser import HarmonyParser
from turnwire_server.adapters.renderers.harmony_settings import HarmonySettings
from turnwire_server.adapters.renderers.template_class import TemplateClass
from turnwire_server.ports.engine import Constraint, FinishReason
from turnwire_server.ports.renderer import Rendered, RenderFailure, RenderRequest
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tokens import TokenIds
from turnwire_server.session.tools import ToolSpec

__all__ = ["HarmonyRenderer"]

_VERSION: Final = "harmony-1"
_FINAL: Final = "<|channel|>final<|message|>"
_RECIPIENT: Final = re.compile(r"to=(\S+)")
_MOST_HEADS: Final = 32
_LONGEST_OPENING: Final = 256
"""Ids of a prompt's end that may hold the header of the message that goes on."""
_CLASS: Final = TemplateClass(keeps_prefixes=True)


class HarmonyRenderer:
    """Renders for gpt-oss (`ports.Renderer`).

    Every text of a client is encoded as ordinary text: what looks like a marker in it never
    becomes one.
    """

    def __init__(self, settings: HarmonySettings | None = None) -> None:
        """Load the encoding, once per process.

        Raises:
            HarmonyFailure: the library cannot load it.
            VocabularyFailure: the vocabulary's data is missing.
        """
        self._settings = settings or HarmonySettings()
        self._tokens = tokens = harmony_tokens()
        self._heads: OrderedDict[str, TokenIds] = OrderedDict()
        # A prompt ends where the model goes on as the assistant.
        self._generation = [tokens.start, *tokens.vocabulary.encode("assistant")]
        self._final = self._encode_markup(_FINAL)
        self._stop_ids = frozenset({tokens.end_of_turn, tokens.call})
        self._fingerprint = digest(f"{_VERSION}\0{self._settings!r}".encode())

    @property
    def fingerprint(self) -> str:
        """Digest of model, encoding and system message."""
        return self._fingerprint

    @property
    def stop_ids(self) -> frozenset[int]:
        """`<|return|>` and `<|call|>`."""
        return self._stop_ids

    @property
    def template_class(self) -> TemplateClass:
        """What happens to a conversation as it grows: nothing."""
        return _CLASS

    @property
    def keeps_prefixes(self) -> bool:
        """Always; see `ports.Auditable`."""
        return _CLASS.keeps_prefixes

    def cold(self) -> HarmonyRenderer:
        """Return one that remembers no heads; see `ports.Auditable`."""
        fresh = copy.copy(self)
        fresh._heads = OrderedDict()
        return fresh

    def describe(self) -> dict[str, str]:
        """Return what is known of the format, for an operator."""
        return {"template class": _CLASS.describe(), "calls": "harmony", "reasoning": "analysis"}

    def render(self, request: RenderRequest) -> Rendered:
        """Render one turn; a new head costs the head, everything else only the new items.

        Raises:
            RenderFailure: an item has no text, or names a tool that a header cannot hold.
        """
        fingerprint = turn_fingerprint(self._fingerprint, request)
        previous = request.previous
        reason = rerender_reason(previous, fingerprint)
        items = request.new_items
        kept = 0
        if previous is None or reason == "model":
            history = request.history()
            reason = reason or ("store" if history else "first")
            items = [*history, *items]
            head = self._head(fingerprint, request)
            ids, head_length = TokenIds(head.as_array()), len(head)
        elif reason:
            head = self._head(fingerprint, request)
            rest = previous.ids.as_array(previous.head_length)
            ids, head_length, kept = TokenIds(head.as_array()).extended(rest), len(head), len(rest)
        else:
            ids, head_length, kept = previous.ids, previous.head_length, len(previous.ids)
        new = [*previous.tail] if previous is not None and kept else []
        for message in messages_of(items, lambda call_id: self._find_recipient(request, call_id)):
            new += self._render_message(message)
        opening: list[int] = []
        constraint = None
        if request.generate:
            opening, constraint = self._opening(request)
            new += [*self._generation, *opening]
        ids = ids.extended(new)
        return Rendered(
            prompt=Prompt(fingerprint, ids, head_length),
            rendered_tokens=len(ids) - kept,
            rerender_reason=reason,
            constraint=constraint,
            opening=self._tokens.encoding.decode(opening),
        )

    def parser(self, request: RenderRequest, rendered: Rendered) -> HarmonyParser:
        """Return a parser for the output of this turn."""
        force = request.force
        return HarmonyParser(
            self._tokens,
            request.tools,
            opening=self._encode_markup(rendered.opening),
            parallel=request.parallel_calls and (force is None or force.parallel),
        )

    def sampled(self, rendered: Rendered, ids: Sequence[int], finish: FinishReason) -> Prompt:
        """Return the prompt after `ids` were sampled: verbatim, the last message closed.

        A header that was cut is dropped, as is text behind the last message; an answer without
        a header gets one.
        """
        tokens = self._tokens
        prompt = rendered.prompt
        kept = list(ids)
        is_ended = bool(kept) and kept[-1] in tokens.ends
        if kept and kept[-1] == tokens.end_of_turn:
            kept.pop()
        elif is_ended:
            return Prompt(prompt.fingerprint, prompt.ids.extended(kept), prompt.head_length)
        before = prompt.ids.as_array(max(0, len(prompt.ids) - _LONGEST_OPENING))
        base = len(prompt.ids) - len(before)
        both = [*before, *kept]
        seen = self._last_marker(both)
        if both[seen] == tokens.message:
            tail = tokens.call if self._is_call(both, seen) and not is_ended else tokens.end
            return Prompt(
                prompt.fingerprint, prompt.ids.extended(kept), prompt.head_length, (tail,)
            )
        if both[seen] == tokens.start and seen < len(before) and self._is_plain(kept):
            answer = prompt.ids.extended([*self._final, *kept])
            return Prompt(prompt.fingerprint, answer, prompt.head_length, (tokens.end,))
        stop = base + (seen if both[seen] == tokens.start else seen + 1)
        if stop >= len(prompt.ids):
            whole = prompt.ids.extended(kept[: stop - len(prompt.ids)])
        else:
            whole = TokenIds(prompt.ids.as_array(0, stop))
        return Prompt(prompt.fingerprint, whole, prompt.head_length)

    def count(self, text: str) -> int:
        """Return how many tokens `text` is."""
        return len(self._tokens.vocabulary.encode(text))

    # The head.

    def _head(self, fingerprint: str, request: RenderRequest) -> TokenIds:
        head = self._heads.get(fingerprint)
        if head is None:
            head = self._heads[fingerprint] = TokenIds(self._render_head(request))
            if len(self._heads) > _MOST_HEADS:
                self._heads.popitem(last=False)
        self._heads.move_to_end(fingerprint)
        return head

    def _render_head(self, request: RenderRequest) -> list[int]:
        settings = self._settings
        system = SystemContent.new().with_reasoning_effort(
            ReasoningEffort[settings.reasoning_effort.upper()]
        )
        if settings.identity:
            system = system.with_model_identity(settings.identity)
        if settings.current_date:
            system = system.with_conversation_start_date(settings.current_date)
        messages = [Message.from_role_and_content(Role.SYSTEM, system)]
        if request.instructions or request.tools:
            content = developer_content(request.instructions, request.tools)
            messages.append(Message.from_role_and_content(Role.DEVELOPER, content))
        try:
            # Together, because the system message says whether there are functions.
            ids: list[int] = self._tokens.encoding.render_conversation(
                Conversation.from_messages(messages),
                config=RenderConversationConfig(auto_drop_analysis=False),
            )
        except HarmonyError as error:
            raise RenderFailure("the instructions or the tools cannot be rendered") from error
        return ids

    # The items.

    def _render_message(self, message: Message) -> list[int]:
        try:
            ids: list[int] = self._tokens.encoding.render(message)
        except HarmonyError as error:
            raise RenderFailure("an item cannot be rendered") from error
        return ids

    def _find_recipient(self, request: RenderRequest, call_id: str) -> str:
        """Return what an earlier call was addressed to: by the ids if they say it clearly."""
        previous = request.previous
        if previous is not None:
            found = self._last_recipients(previous)
            if len(found) == 1:
                return found.pop()
        return _recipient_in(request.history(), call_id) or recipient_of("tool", None)

    def _last_recipients(self, previous: Prompt) -> set[str]:
        """Return what the calls at the end of `previous` were addressed to."""
        tokens = self._tokens
        found: set[str] = set()
        ids = previous.ids
        end = len(ids) if tokens.call in previous.tail else len(ids) - 1
        while end > 0 and (end == len(ids) or ids[end] == tokens.call):
            start = end - 1
            message = end
            while start >= 0 and ids[start] != tokens.start:
                message = start if ids[start] == tokens.message else message
                start -= 1
            header = tokens.header_text(ids[max(start, 0) : message])
            match = _RECIPIENT.search(header)
            if match is None:
                break
            found.add(match[1])
            end = start - 1
        return found

    # The opening.

    def _opening(self, request: RenderRequest) -> tuple[list[int], Constraint | None]:
        """Return the ids that make the model begin as the turn wants it, and its constraint."""
        if request.force is None:
            if request.text_format is None:
                return [], None
            # The format is that of the answer, not of what is thought before it.
            return self._final, request.text_format
        names = request.force.tool_names
        tools = [request.tools.by_qualified_name[name] for name in names]
        recipients = [recipient_of(tool.name, tool.namespace) for tool in tools]
        if len(tools) == 1:
            ids = self._render_message(call_message(recipients[0], ""))
            opening = ids[len(self._generation) : ids.index(self._tokens.message) + 1]
            schema = _input_object(tools[0])
            if tools[0].kind == "function":
                schema = arguments_schema(tools[0])
            return opening, Constraint("json_schema", json.dumps(schema, ensure_ascii=False))
        # Which one is the model's choice: the header has markers, which no constraint can hold.
        is_plain = all(recipient.startswith(f"{FUNCTIONS}.") for recipient in recipients)
        begun = f" to={FUNCTIONS}" if is_plain else " to="
        return self._tokens.vocabulary.encode(begun), None

    def _encode_markup(self, text: str) -> list[int]:
        ids: list[int] = self._tokens.encoding.encode(text, allowed_special="all")
        return ids

    # The end.

    def _last_marker(self, ids: Sequence[int]) -> int:
        """Return where the last of the ids that structure messages stands, -1 if nowhere."""
        tokens = self._tokens
        markers = {tokens.start, tokens.message, *tokens.ends}
        return next((i for i in range(len(ids) - 1, -1, -1) if ids[i] in markers), -1)

    def _is_call(self, ids: Sequence[int], message: int) -> bool:
        start = message
        while start > 0 and ids[start] != self._tokens.start:
            start -= 1
        return _RECIPIENT.search(self._tokens.header_text(ids[start:message])) is not None

    def _is_plain(self, ids: Sequence[int]) -> bool:
        """Return whether `ids` are an answer without a header."""
        is_marked = any(map(self._tokens.is_special, ids))
        return bool(ids) and not is_marked and not self._tokens.begins_recipient(ids)


def _input_object(tool: ToolSpec) -> object:
    return {**INPUT_SCHEMA, "properties": {"input": input_schema(tool)}}


def _recipient_in(items: Sequence[item_pb2.Item], call_id: str) -> str:
    for item in reversed(items):
        match item.WhichOneof("item"):
            case "function_call" if item.function_call.call_id == call_id:
                return recipient_of(item.function_call.name, item.function_call.namespace)
            case "custom_tool_call" if item.custom_tool_call.call_id == call_id:
                custom = item.custom_tool_call
                return recipient_of(custom.name, custom.namespace)
            case _:
                pass
    return ""
