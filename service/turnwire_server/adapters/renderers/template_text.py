"""What a chat template writes: a whole conversation, its head, and what new items add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from turnwire.v1 import item_pb2
from turnwire_server.adapters.renderers.jinja_template import (
    ChatTemplate,
    Message,
    TemplateAbilities,
    TemplateRefusal,
)
from turnwire_server.adapters.renderers.model_tokenizer import ModelTokenizer
from turnwire_server.adapters.renderers.template_messages import (
    dummy_turn,
    free_marker,
    guarded,
    messages_of,
    system_text,
    tool_messages,
    tools_text,
)
from turnwire_server.ports.renderer import RenderRequest
from turnwire_server.session.tools import ToolSet

__all__ = ["TemplateText"]

_MARK: Final = "zqMARKqz"


class TemplateText:
    """Lets a template write. Texts of a client come out guarded: see `ModelTokenizer.guard`."""

    def __init__(
        self,
        template: ChatTemplate,
        abilities: TemplateAbilities,
        tokenizer: ModelTokenizer,
        *,
        first: str,
    ) -> None:
        """Find out how turns begin and end.

        Args:
            template: The template.
            abilities: What it accepts.
            tokenizer: Knows the special tokens.
            first: What goes first even if the template does not write it.

        Raises:
            TemplateRefusal: it refuses an answer, or leaves it out.
        """
        self._template = template
        self._abilities = abilities
        self._tokenizer = tokenizer
        self._first = first
        self.close = self._find_close()
        """What stands behind an assistant's words."""
        self._user_open = self._find_user_open()

    def whole(self, request: RenderRequest, items: Sequence[item_pb2.Item]) -> tuple[str, str]:
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
            self._guarded(conversation, marker), system, request.tools, marker
        )
        text = self._template.render(
            messages, tools=self._guarded(tools, marker), generate=request.generate
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

    def has_extra_system(self, has_tools: bool, /) -> bool:
        """Return whether tools, if there are any, make a system message."""
        return has_tools and not self._abilities.tools

    def _extra_system(self, tools: ToolSet) -> str:
        return tools_text(tools) if self.has_extra_system(bool(tools)) else ""

    def bridge(self, request: RenderRequest) -> tuple[str, str, str] | None:
        """Return what the new items and the generation prompt add to a conversation.

        Returns:
            What was before it, the added text and the marker that guards it; None when the
            template writes earlier turns otherwise because of them.

        Raises:
            TemplateRefusal: the template does not accept them.
        """
        messages = messages_of(request.new_items, self._abilities)
        marker = free_marker(messages)
        messages = self._guarded(messages, marker)
        if not messages and not request.generate:
            return "", "", marker
        base = dummy_turn(messages, _MARK, self._abilities)
        before = self._template.render(base)
        after = self._template.render([*base, *messages], generate=request.generate)
        if _MARK in before and _MARK in after:
            # What stands before the mark may differ: some show the last turn otherwise.
            close, added = before.partition(_MARK)[2], after.partition(_MARK)[2]
        else:
            close, added = before, after  # some leave out what is said beside calls
        if not added.startswith(close):
            return None
        return close, added[len(close) :], marker

    def head(self, request: RenderRequest) -> tuple[str, str] | None:
        """Return what stands before the first user message, and the marker that guards it.

        Returns:
            None when it cannot be told apart from what follows.

        Raises:
            TemplateRefusal: the template does not accept the instructions or the tools.
        """
        if not self._abilities.later_system or not self._user_open:
            return None  # messages may be part of the head, so it is not the same for all turns
        tools = tool_messages(request.tools) if self._abilities.tools else []
        extra = self._extra_system(request.tools)
        marker = free_marker([request.instructions, tools, extra])
        user: Message = {"role": "user", "content": _MARK}
        messages = self._with_system([user], request.instructions, request.tools, marker)
        text = self._template.render(messages, tools=self._guarded(tools, marker))
        before = self._first if self._first and not text.startswith(self._first) else ""
        text = before + text.rpartition(_MARK)[0]
        if not text.endswith(self._user_open):
            return None  # the first user message holds more than the user's words
        text = text[: -len(self._user_open)]
        return (text, marker) if text else None

    def _find_user_open(self) -> str:
        """Return what the template writes before a user's words, "" if tokens could cross it."""
        dummies = dummy_turn([], _MARK, self._abilities)
        second: Message = {"role": "user", "content": _MARK}
        try:
            text = self._template.render([*dummies, second])
        except TemplateRefusal:
            return ""
        between = text.split(_MARK)[1]
        opened = between.removeprefix(self.close)
        is_clean = between.startswith(self.close) and self._tokenizer.starts_special(opened)
        return opened if is_clean else ""

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

    def _guarded(self, messages: list[Message], marker: str) -> list[Message]:
        """Return `messages` with nothing in them that could become a special token."""
        guard = self._tokenizer.guard
        result = guarded(messages, lambda text: guard(text, marker))
        assert isinstance(result, list)
        return result
