"""Renders for a real model: the chat template and the vocabulary of its GGUF file.

What the engine has seen stays as it is. A turn renders only its new items, by letting the
template write them behind a dummy conversation and taking what they add (the *bridge*). A
template for which that does not work gets the whole conversation again, and keeps the ids of
the longest common prefix of what it writes.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from turnwire.v1 import item_pb2
from turnwire_server.adapters.renderers.call_members import forced_call_schema
from turnwire_server.adapters.renderers.detokenizer import Detokenizer
from turnwire_server.adapters.renderers.gguf import GgufFailure, GgufFile
from turnwire_server.adapters.renderers.gguf_tokenizer import GgufTokenizer
from turnwire_server.adapters.renderers.jinja_template import (
    ChatTemplate,
    Message,
    TemplateRefusal,
    probe,
)
from turnwire_server.adapters.renderers.template_messages import (
    dummy_turn,
    free_marker,
    guarded,
    messages_of,
    system_text,
    tool_messages,
    tools_text,
)
from turnwire_server.adapters.renderers.tool_calls import (
    CALL_CLOSE,
    CALL_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
    ToolCallParser,
)
from turnwire_server.ports.engine import Constraint, FinishReason
from turnwire_server.ports.renderer import (
    Rendered,
    RenderFailure,
    RenderRequest,
    RerenderReason,
)
from turnwire_server.session.output import OutputPiece
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tokens import TokenIds
from turnwire_server.session.tools import ToolSet

__all__ = ["ChatTemplateParser", "ChatTemplateRenderer"]

_VERSION: Final = "chat-template-1"
_CALL_OPENING: Final = f"{CALL_OPEN}\n"
_MARK: Final = "zqMARKqz"
_REFUSED: Final = "the model's chat template does not accept this conversation"
_END_TOKENS: Final = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>")
_MOST_HEADS: Final = 32


@dataclass(frozen=True, slots=True)
class _Head:
    """Instructions and tools as the front of a prompt; no ids when it cannot be told apart."""

    text: str
    ids: tuple[int, ...]


class ChatTemplateParser:
    """Reads the output of one turn."""

    def __init__(self, tokenizer: GgufTokenizer, calls: ToolCallParser) -> None:
        """Detokenize with `tokenizer`, find calls and reasoning with `calls`."""
        self._detokenizer = Detokenizer(tokenizer.token_bytes)
        self._calls = calls

    @property
    def done(self) -> bool:
        """Whether nothing that could follow matters."""
        return self._calls.done

    def feed(self, ids: Sequence[int]) -> Sequence[OutputPiece]:
        """Return what `ids` add."""
        return self._calls.feed(self._detokenizer.feed(ids))

    def finish(self, reason: FinishReason) -> Sequence[OutputPiece]:
        """Return what was held back."""
        pieces = [*self._calls.feed(self._detokenizer.finish())]
        return [*pieces, *self._calls.finish(complete=reason == "stop")]


class ChatTemplateRenderer:
    """Renders for the model of one GGUF file (`ports.Renderer`).

    Every text of a client is encoded as ordinary text: what looks like a special token in it
    never becomes one.
    """

    def __init__(self, gguf: GgufFile) -> None:
        """Build tokenizer and template of `gguf`, and find out what the template can do.

        Raises:
            GgufFailure: the file lacks them, or has them of a kind that is not supported.
        """
        self._tokenizer = GgufTokenizer(gguf)
        source = gguf.text("tokenizer.chat_template")
        bos, eos = _token_text(gguf, "bos"), _token_text(gguf, "eos")
        try:
            self._template = ChatTemplate(source, bos=bos, eos=eos)
            self._abilities = probe(self._template)
            self._close = self._find_close()
        except TemplateRefusal as refusal:
            raise GgufFailure(
                f"{gguf.path.name} has a chat template (tokenizer.chat_template) that cannot "
                f"be used: {refusal}."
            ) from refusal
        self._first = bos if gguf.metadata.get("tokenizer.ggml.add_bos_token") is True else ""
        self._reasoning = THINK_OPEN in source
        self._stop_ids = self._find_stop_ids(gguf)
        self._close_ids = tuple(self._tokenizer.encode_markup(self._close))
        self._user_open = self._find_user_open()
        self._heads: OrderedDict[str, _Head] = OrderedDict()
        name = gguf.text("general.name", "")
        self._fingerprint = _digest(
            "\0".join((_VERSION, name, self._tokenizer.digest, source)).encode()
        )

    @property
    def fingerprint(self) -> str:
        """Digest of model, tokenizer and template."""
        return self._fingerprint

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an assistant turn."""
        return self._stop_ids

    def render(self, request: RenderRequest) -> Rendered:
        """Render one turn; work is proportional to the new items where the template allows it.

        Raises:
            RenderFailure: an item has no text, or the template refuses the conversation.
        """
        fingerprint = self._full_fingerprint(request)
        reason = self._reason(request.previous, fingerprint)
        previous = request.previous
        if previous is not None and reason in ("", "instructions", "tools"):
            rendered = self._continue(request, previous, fingerprint, reason)
            if rendered is not None:
                return rendered
            reason = reason or "template"
        return self._render_whole(request, fingerprint, reason)

    def parser(self, request: RenderRequest, rendered: Rendered) -> ChatTemplateParser:
        """Return a parser for the output of this turn."""
        force = request.force
        calls = ToolCallParser(
            request.tools,
            opening=rendered.opening,
            forced=force is not None,
            parallel=request.parallel_calls and (force is None or force.parallel),
            # Formatted text is JSON too, and it is not a call.
            lenient=request.text_format is None,
            reasoning=self._reasoning,
        )
        return ChatTemplateParser(self._tokenizer, calls)

    def sampled(self, rendered: Rendered, ids: Sequence[int], finish: FinishReason) -> Prompt:
        """Return the prompt after `ids` were sampled.

        The sampled ids are kept verbatim, but for an end-of-turn id other than the template's
        own: it is the last one, which is in no cache yet, and the tail has the right one.
        """
        prompt = rendered.prompt
        tail = self._close_ids
        if rendered.opening.endswith(_CALL_OPENING):
            # The constraint ends with the call's object; history wants its closing marker too.
            tail = tuple(self._tokenizer.encode_markup(f"\n{CALL_CLOSE}{self._close}"))
        kept = list(ids)
        if kept and kept[-1] in self._stop_ids:
            if tail and kept[-1] == tail[0]:
                tail = tail[1:]
            else:
                kept.pop()
        return Prompt(prompt.fingerprint, prompt.ids.extended(kept), prompt.head_length, tail)

    def count(self, text: str) -> int:
        """Return how many tokens `text` is."""
        return len(self._tokenizer.encode(text))

    # Continuing.

    def _continue(
        self, request: RenderRequest, previous: Prompt, fingerprint: str, reason: RerenderReason
    ) -> Rendered | None:
        """Render behind `previous`; None when the template does not allow it."""
        try:
            new = self._bridge(request)
        except TemplateRefusal:
            return None
        if new is None:
            return None
        ids, head_length, rendered = previous.ids, previous.head_length, 0
        if reason:
            head = self._head(request, fingerprint)
            if not head.ids or not head_length:
                return None
            ids = TokenIds(head.ids).extended(previous.ids.as_array(head_length))
            head_length = rendered = len(head.ids)
        ids = ids.extended([*previous.tail, *new])
        prompt = Prompt(fingerprint, ids, head_length, self._close_ids if request.generate else ())
        return self._rendered(request, prompt, rendered + len(new), reason)

    def _bridge(self, request: RenderRequest) -> list[int] | None:
        """Return the ids that the new items and the generation prompt add, None if unknown.

        Raises:
            TemplateRefusal: the template does not accept them.
        """
        messages = messages_of(request.new_items, self._abilities)
        marker = free_marker(messages)
        messages = self._guard(messages, marker)
        if not messages and not request.generate:
            return []
        base = dummy_turn(messages, _MARK, self._abilities)
        before = self._template.render(base)
        after = self._template.render([*base, *messages], generate=request.generate)
        # What stands before the mark may differ: some templates show the last turn otherwise.
        close = before.partition(_MARK)[2]
        _, mark, added = after.partition(_MARK)
        if not mark or not added.startswith(close):
            return None
        text = added[len(close) :]
        # Tokens must not reach across the seam, or the ids would not be those of the whole.
        seam = self._tokenizer.starts_special(text) or self._tokenizer.ends_special(close)
        if text and not seam:
            return None
        return self._tokenizer.encode_markup(text, marker)

    # The whole conversation.

    def _render_whole(
        self, request: RenderRequest, fingerprint: str, reason: RerenderReason
    ) -> Rendered:
        history = request.history()
        if not reason:
            reason = "store" if history else "first"
        try:
            text, marker = self._whole_text(request, [*history, *request.new_items])
            head = self._head(request, fingerprint)
        except TemplateRefusal as refusal:
            raise RenderFailure(_REFUSED) from refusal
        previous = request.previous
        if previous is not None and previous.fingerprint.startswith(f"{self._fingerprint}."):
            ids, kept = self._tokenizer.continued(previous.ids, text, marker)
        elif head.ids and text.startswith(head.text):
            rest = self._tokenizer.encode_markup(text[len(head.text) :], marker)
            ids, kept = TokenIds(head.ids).extended(rest), 0
        else:
            ids, kept = TokenIds(self._tokenizer.encode_markup(text, marker)), 0
        head_length = len(head.ids) if tuple(ids[: len(head.ids)]) == head.ids else 0
        prompt = Prompt(fingerprint, ids, head_length, self._close_ids if request.generate else ())
        return self._rendered(request, prompt, len(ids) - kept, reason)

    def _whole_text(
        self, request: RenderRequest, items: Sequence[item_pb2.Item]
    ) -> tuple[str, str]:
        """Return the conversation's text, and the marker that guards it.

        Raises:
            TemplateRefusal: the template does not accept it.
        """
        system, used = request.instructions, 0
        if not self._abilities.later_system:
            system, used = system_text(items, request.instructions)
        conversation = messages_of(items[used:], self._abilities)
        tools = tool_messages(request.tools) if self._abilities.tools else []
        marker = free_marker([conversation, system, tools, self._extra_system(request.tools)])
        messages = self._with_system(
            self._guard(conversation, marker), system, request.tools, marker
        )
        text = self._template.render(
            messages, tools=self._guard(tools, marker), generate=request.generate
        )
        if self._first and not text.startswith(self._first):
            text = self._first + text
        return text, marker

    def _with_system(
        self, messages: list[Message], system: str, tools: ToolSet, marker: str
    ) -> list[Message]:
        guard = self._tokenizer.guard
        extra = guard(self._extra_system(tools), marker)
        system = "\n\n".join(part for part in (guard(system, marker), extra) if part)
        if not system:
            return messages
        if self._abilities.system:
            return [{"role": "system", "content": system}, *messages]
        if messages and messages[0]["role"] == "user":
            first: Message = {"role": "user", "content": f"{system}\n\n{messages[0]['content']}"}
            return [first, *messages[1:]]
        return [{"role": "user", "content": system}, *messages]

    def _extra_system(self, tools: ToolSet) -> str:
        return tools_text(tools) if tools and not self._abilities.tools else ""

    # The head.

    def _head(self, request: RenderRequest, fingerprint: str) -> _Head:
        head = self._heads.get(fingerprint)
        if head is None:
            head = self._heads[fingerprint] = self._render_head(request)
            if len(self._heads) > _MOST_HEADS:
                self._heads.popitem(last=False)
        self._heads.move_to_end(fingerprint)
        return head

    def _render_head(self, request: RenderRequest) -> _Head:
        """Find what stands before the first user message.

        Raises:
            TemplateRefusal: the template does not accept the instructions or the tools.
        """
        none = _Head("", ())
        if not self._abilities.later_system or not self._user_open:
            return none  # messages may be part of the head, so it is not the same for all turns
        tools = tool_messages(request.tools) if self._abilities.tools else []
        extra = self._extra_system(request.tools)
        marker = free_marker([request.instructions, tools, extra])
        user: Message = {"role": "user", "content": _MARK}
        messages = self._with_system([user], request.instructions, request.tools, marker)
        text = self._template.render(messages, tools=self._guard(tools, marker))
        before = self._first if self._first and not text.startswith(self._first) else ""
        text = before + text.rpartition(_MARK)[0]
        if not text.endswith(self._user_open):
            return none  # the first user message holds more than the user's words
        text = text[: -len(self._user_open)]
        return _Head(text, tuple(self._tokenizer.encode_markup(text, marker))) if text else none

    def _find_user_open(self) -> str:
        """Return what the template writes before a user's words, "" if tokens could cross it."""
        dummies = dummy_turn([], _MARK, self._abilities)
        second: Message = {"role": "user", "content": _MARK}
        try:
            text = self._template.render([*dummies, second])
        except TemplateRefusal:
            return ""
        between = text.split(_MARK)[1]
        opened = between.removeprefix(self._close)
        is_clean = between.startswith(self._close) and self._tokenizer.starts_special(opened)
        return opened if is_clean else ""

    # Ends.

    def _find_close(self) -> str:
        """Return what the template writes behind an assistant's words.

        Raises:
            TemplateRefusal: it leaves them out.
        """
        dummies = dummy_turn([], _MARK, self._abilities)
        _, mark, close = self._template.render(dummies).partition(_MARK)
        if not mark:
            raise TemplateRefusal("it leaves out what the assistant says")
        return close

    def _find_stop_ids(self, gguf: GgufFile) -> frozenset[int]:
        found = {
            gguf.integer(f"tokenizer.ggml.{name}_token_id", -1) for name in ("eos", "eot", "eom")
        }
        found.update(
            token for text in _END_TOKENS if (token := self._tokenizer.special_id(text)) is not None
        )
        close = self._tokenizer.encode_markup(self._close)
        if close and self._tokenizer.is_special(close[0]):
            found.add(close[0])
        return frozenset(token for token in found if 0 <= token < self._tokenizer.size)

    def _rendered(
        self, request: RenderRequest, prompt: Prompt, count: int, reason: RerenderReason
    ) -> Rendered:
        """Add what makes the model begin as the turn wants it."""
        opening, constraint = "", request.text_format if request.generate else None
        ids = prompt.ids
        if request.generate and self._reasoning:
            # The last few tokens show whether the template opened the model's reasoning.
            end = b"".join(map(self._tokenizer.token_bytes, ids[-8:])).decode("utf-8", "replace")
            _, think, after = end.rpartition(THINK_OPEN)
            opening = think + after if think and not after.strip() else ""
        if request.generate and request.force is not None:
            constraint = Constraint("json_schema", forced_call_schema(request.tools, request.force))
            added = self._tokenizer.encode_markup(f"\n{THINK_CLOSE}\n\n") if opening else []
            opening = _CALL_OPENING
            added += self._tokenizer.encode_markup(opening)
            ids, count = ids.extended(added), count + len(added)
        return Rendered(
            prompt=Prompt(prompt.fingerprint, ids, prompt.head_length, prompt.tail),
            rendered_tokens=count,
            rerender_reason=reason,
            constraint=constraint,
            opening=opening,
        )

    # Fingerprints and guards.

    def _full_fingerprint(self, request: RenderRequest) -> str:
        """Return renderer, instructions and tools, each as a digest of its own."""
        tools = request.tools
        parts = (
            self._fingerprint,
            _digest(request.instructions.encode()),
            _digest(tools.fingerprint) if tools else "",
        )
        return ".".join(parts)

    def _reason(self, previous: Prompt | None, fingerprint: str) -> RerenderReason:
        if previous is None or previous.fingerprint == fingerprint:
            return ""
        before, now = previous.fingerprint.split("."), fingerprint.split(".")
        if len(before) != 3 or before[0] != now[0]:
            return "model"
        return "instructions" if before[1] != now[1] else "tools"

    def _guard(self, messages: list[Message], marker: str) -> list[Message]:
        """Return `messages` with nothing in them that could become a special token."""
        guard = self._tokenizer.guard
        result = guarded(messages, lambda text: guard(text, marker))
        assert isinstance(result, list)
        return result


def _token_text(gguf: GgufFile, name: str) -> str:
    token = gguf.integer(f"tokenizer.ggml.{name}_token_id", -1)
    tokens = gguf.texts("tokenizer.ggml.tokens")
    return tokens[token] if 0 <= token < len(tokens) else ""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
