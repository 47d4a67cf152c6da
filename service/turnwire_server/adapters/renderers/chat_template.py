"""Renders for a real model: with the chat template and the vocabulary of its files.

What the engine has seen stays as it is. A turn renders only its new items, by letting the
template write them behind a dummy conversation and taking what they add (the *bridge*). A
template for which that does not work gets the whole conversation again, and keeps the ids of
the longest common prefix of what it writes. So does one that rewrites history, if it is asked to.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from turnwire_server.adapters.renderers.chat_model import ChatModel, ChatModelFailure
from turnwire_server.adapters.renderers.fingerprints import (
    digest,
    rerender_reason,
    turn_fingerprint,
)
from turnwire_server.adapters.renderers.formats.call_parser import CallParser
from turnwire_server.adapters.renderers.formats.forced import ForcedCall, forced_call
from turnwire_server.adapters.renderers.formats.syntax import (
    HERMES,
    SYNTAXES,
    CallSyntax,
    find_syntax,
    find_think,
)
from turnwire_server.adapters.renderers.jinja_template import (
    ChatTemplate,
    TemplateRefusal,
    probe,
)
from turnwire_server.adapters.renderers.template_class import TemplateClass
from turnwire_server.adapters.renderers.template_probe import probe_class
from turnwire_server.adapters.renderers.template_settings import ChatTemplateSettings
from turnwire_server.adapters.renderers.template_text import TemplateText
from turnwire_server.adapters.renderers.text_parser import TextParser
from turnwire_server.ports.engine import FinishReason
from turnwire_server.ports.renderer import (
    Rendered,
    RenderFailure,
    RenderRequest,
    RerenderReason,
)
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tokens import TokenIds

__all__ = ["ChatTemplateRenderer", "ChatTemplateSettings"]

_VERSION: Final = "chat-template-1"
_REFUSED: Final = "the model's chat template does not accept this conversation"
_MOST_HEADS: Final = 32
_LONGEST_CLOSER: Final = 32
"""In tokens, blanks and an end-of-turn id behind it included."""
_NO_INSTRUCTIONS: Final = digest(b"")
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
_FACTS: Final = tuple(field.name for field in fields(TemplateClass))


@dataclass(frozen=True, slots=True)
class _Head:
    """Instructions and tools as the front of a prompt; no ids when it cannot be told apart."""

    text: str
    ids: tuple[int, ...]


class ChatTemplateRenderer:
    """Renders for the model of one GGUF file or folder (`ports.Renderer`).

    Every text of a client is encoded as ordinary text: what looks like a special token in it
    never becomes one.
    """

    def __init__(self, model: ChatModel, settings: ChatTemplateSettings | None = None) -> None:
        """Take tokenizer and template of `model`, and find out what the template can do.

        Raises:
            ChatModelFailure: the template cannot be used, or the settings name an unknown format.
        """
        settings = settings or ChatTemplateSettings()
        self._settings = settings
        self._tokenizer = model.tokenizer
        source = model.template
        self._think = find_think(source)
        try:
            template = ChatTemplate(source, bos=model.bos, eos=model.eos)
            abilities = probe(template)
            self._text = TemplateText(
                template, abilities, model.tokenizer, first=model.bos if model.adds_bos else ""
            )
            found = probe_class(template, abilities)
        except TemplateRefusal as refusal:
            raise ChatModelFailure(
                f"{model.file_name} has a chat template ({model.template_key}) that cannot "
                f"be used: {refusal}."
            ) from refusal
        facts = {name: getattr(settings, name) for name in _FACTS}
        self._class = replace(found, **{k: v for k, v in facts.items() if v is not None})
        self._syntax = _syntax(settings.format, source, has_tools=abilities.tools)
        self._by_name = bool(self._syntax.arguments_marker) and (
            self._syntax.arguments_marker in source
        )
        self._markers = self._control_markers()
        self._close_ids = tuple(self._tokenizer.encode_markup(self._text.close))
        self._stop_ids = self._find_stop_ids(model)
        self._heads: OrderedDict[str, _Head] = OrderedDict()
        self._fingerprint = digest(
            "\0".join((_VERSION, model.name, self._tokenizer.digest, source)).encode()
        )

    @property
    def fingerprint(self) -> str:
        """Digest of model, tokenizer and template."""
        return self._fingerprint

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an assistant turn."""
        return self._stop_ids

    @property
    def template_class(self) -> TemplateClass:
        """What the template does to a conversation as it grows."""
        return self._class

    @property
    def keeps_prefixes(self) -> bool:
        """What probing or the settings say; see `ports.Auditable`."""
        return self._class.keeps_prefixes

    def cold(self) -> ChatTemplateRenderer:
        """Return one that remembers no heads; see `ports.Auditable`."""
        fresh = copy.copy(self)
        fresh._heads = OrderedDict()
        return fresh

    def describe(self) -> dict[str, str]:
        """Return what is known of the template, for an operator."""
        return {
            "template class": self._class.describe(),
            "history": self._settings.history,
            "calls": self._syntax.name,
            "reasoning": self._think.opener if self._think is not None else "none",
        }

    def render(self, request: RenderRequest) -> Rendered:
        """Render one turn; work is proportional to the new items where the template allows it.

        Raises:
            RenderFailure: an item has no text, or the template refuses the conversation.
        """
        fingerprint = turn_fingerprint(self._fingerprint, request)
        previous = request.previous
        reason = rerender_reason(previous, fingerprint)
        if previous is not None and self._must_rewrite(request):
            reason = reason or "template"
        elif previous is not None and reason in ("", "instructions", "tools"):
            rendered = self._continue(request, previous, fingerprint, reason)
            if rendered is not None:
                return rendered
            reason = reason or "template"
        return self._render_whole(request, fingerprint, reason)

    def parser(self, request: RenderRequest, rendered: Rendered) -> TextParser:
        """Return a parser for the output of this turn."""
        force = request.force
        calls = CallParser(
            self._syntax,
            request.tools,
            opening=rendered.opening,
            forced=force is not None,
            parallel=request.parallel_calls and (force is None or force.parallel),
            # Formatted text is JSON too, and it is not a call.
            lenient=request.text_format is None,
            think=self._think,
        )
        decode = self._tokenizer.token_bytes
        if self._markers and (request.tools or self._think is not None):
            decode = self._visible_bytes
        return TextParser(decode, calls, opening=rendered.opening)

    def _visible_bytes(self, token: int) -> bytes:
        """Return the bytes of an id, those too of a control token whose text is markup."""
        return self._markers.get(token) or self._tokenizer.token_bytes(token)

    def sampled(self, rendered: Rendered, ids: Sequence[int], finish: FinishReason) -> Prompt:
        """Return the prompt after `ids` were sampled.

        The sampled ids are kept verbatim, but for an end-of-turn id other than the template's
        own: it is the last one, which is in no cache yet, and the tail has the right one.
        """
        prompt = rendered.prompt
        tail = self._close_ids
        kept = list(ids)
        closer = self._syntax.closer
        if closer and rendered.opening.startswith(self._syntax.opener):
            # A constraint ends with the call's object; history wants its closing marker too.
            end = "".join(map(self._token_text, kept[-_LONGEST_CLOSER:]))
            if not end.rstrip().endswith(closer):
                tail = tuple(self._tokenizer.encode_markup(f"\n{closer}{self._text.close}"))
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
            if not head.ids or not head_length or self._loses_system(request, previous):
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
        bridge = self._text.bridge(request)
        if bridge is None:
            return None
        close, text, marker = bridge
        # Tokens must not reach across the seam, or the ids would not be those of the whole.
        seam = self._tokenizer.starts_special(text) or self._tokenizer.ends_special(close)
        if text and not seam:
            return None
        return self._tokenizer.encode_markup(text, marker)

    def _loses_system(self, request: RenderRequest, previous: Prompt) -> bool:
        """Return whether there was a system message and is none now.

        Many templates then take the first system message of the conversation in its place.
        """
        _, instructions, tools = previous.fingerprint.split(".")
        had_one = instructions != _NO_INSTRUCTIONS or self._text.has_extra_system(bool(tools))
        has_one = request.instructions or self._text.has_extra_system(bool(request.tools))
        return bool(had_one and not has_one)

    # The whole conversation.

    def _render_whole(
        self, request: RenderRequest, fingerprint: str, reason: RerenderReason
    ) -> Rendered:
        history = request.history()
        if not reason:
            reason = "store" if history else "first"
        try:
            text, marker = self._text.whole(request, [*history, *request.new_items])
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
        found = self._text.head(request)
        if found is None:
            return _Head("", ())
        text, marker = found
        return _Head(text, tuple(self._tokenizer.encode_markup(text, marker)))

    # Ends.

    def _find_stop_ids(self, model: ChatModel) -> frozenset[int]:
        close = self._close_ids[:1]
        return model.known_stop_ids().union(filter(self._tokenizer.is_special, close))

    def _rendered(
        self, request: RenderRequest, prompt: Prompt, count: int, reason: RerenderReason
    ) -> Rendered:
        """Add what makes the model begin as the turn wants it."""
        opening, constraint = "", request.text_format if request.generate else None
        ids = prompt.ids
        if request.generate and self._think is not None:
            # The last few tokens show whether the template opened the model's reasoning.
            end = "".join(map(self._token_text, ids[-8:]))
            _, think, after = end.rpartition(self._think.opener)
            opening = think + after if think and not after.strip() else ""
        if request.generate and request.force is not None:
            forced = self._forced(request)
            closed = f"\n{self._think.closer}\n\n" if opening and self._think is not None else ""
            opening, constraint = forced.opening, forced.constraint
            added = self._tokenizer.encode_markup(closed + opening)
            ids, count = ids.extended(added), count + len(added)
        return Rendered(
            prompt=Prompt(prompt.fingerprint, ids, prompt.head_length, prompt.tail),
            rendered_tokens=count,
            rerender_reason=reason,
            constraint=constraint,
            opening=opening,
        )

    def _forced(self, request: RenderRequest) -> ForcedCall:
        assert request.force is not None
        return forced_call(self._syntax, request.tools, request.force, by_name=self._by_name)

    def _must_rewrite(self, request: RenderRequest) -> bool:
        """Return whether the template shall write the whole conversation anew."""
        if self._settings.history == "kept":
            return False
        speaks = any(item.WhichOneof("item") not in _OUTPUTS for item in request.new_items)
        return self._class.rewrites_history(user_speaks=speaks)

    # Tokens.

    def _control_markers(self) -> dict[int, bytes]:
        """Return the control tokens that are markup which the parser reads."""
        think = self._think
        markers = [*self._syntax.markers, *((think.opener, think.closer) if think else ())]
        ids = {marker: self._tokenizer.special_id(marker) for marker in markers}
        return {token: marker.encode() for marker, token in ids.items() if token is not None}

    def _token_text(self, token: int) -> str:
        data = self._visible_bytes(token)
        return data.decode("utf-8", "replace")


def _syntax(name: str, template: str, *, has_tools: bool) -> CallSyntax:
    """Return the syntax of that name, or the one that `template` shows.

    A template without tools shows none: the system text then tells the model to use Hermes'.

    Raises:
        ChatModelFailure: there is none of that name.
    """
    if name == "auto":
        return find_syntax(template) if has_tools else HERMES
    if name not in SYNTAXES:
        known = ", ".join(sorted(SYNTAXES))
        raise ChatModelFailure(f"There is no format {name!r}; there is auto, {known}.")
    return SYNTAXES[name]
