"""Reads what gpt-oss samples: channels, calls and messages in harmony's form.

`openai-harmony` reads the headers. The contents are ours: a marker amid them, which the
library would give as text, ends them, and what stands outside of every message is text.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from openai_harmony import HarmonyError, Role, StreamableParser

from turnwire_server.adapters.renderers.call_members import CallMembers
from turnwire_server.adapters.renderers.detokenizer import Detokenizer
from turnwire_server.adapters.renderers.formats.pieces import merged
from turnwire_server.adapters.renderers.harmony_encoding import HarmonyTokens
from turnwire_server.adapters.renderers.harmony_messages import tool_of_recipient
from turnwire_server.adapters.renderers.json_members import MemberEvent, MemberScanner
from turnwire_server.ports.engine import FinishReason
from turnwire_server.ports.renderer import Ending
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    OutputPiece,
    ReasoningDelta,
    TextDelta,
)
from turnwire_server.session.tools import ToolSet, ToolSpec

__all__ = ["HarmonyParser"]


class _State(enum.Enum):
    HEADER = enum.auto()
    CONTENT = enum.auto()
    OUTSIDE = enum.auto()
    """After a message: the next one must begin."""


class _Kind(enum.Enum):
    TEXT = enum.auto()
    REASONING = enum.auto()
    CALL = enum.auto()
    IGNORED = enum.auto()
    """What the model wrote in another's name."""


# To look up a member of an enum takes longer than the rest of a token.
_CONTENT = _State.CONTENT
_TEXT = _Kind.TEXT


class HarmonyParser:
    """Sampled ids in, output pieces out (`ports.OutputParser`)."""

    def __init__(
        self,
        tokens: HarmonyTokens,
        tools: ToolSet,
        *,
        opening: Sequence[int] = (),
        parallel: bool = True,
    ) -> None:
        """Read behind `<|start|>assistant`.

        Args:
            tokens: The encoding.
            tools: What may be called.
            opening: Ids in the prompt that belong to the output.
            parallel: False to ignore everything after the first complete call.
        """
        self._tokens = tokens
        self._tools = tools
        self._parallel = parallel
        self._state = _State.HEADER
        self._header: list[int] = []
        self._is_first = True
        self._kind = _Kind.TEXT
        self._tool: ToolSpec | None = None
        self._input: _FreeFormInput | None = None
        self._is_empty = True
        self._text = Detokenizer(tokens.vocabulary.token_bytes)
        self._done = False
        self._fed = 0
        self.reasoning_tokens = 0
        """How many ids gave text of reasoning."""
        self._early: list[OutputPiece] = []
        for token in opening:
            self._take(token, self._early)

    @property
    def done(self) -> bool:
        """Whether nothing that could follow matters."""
        return self._done

    @property
    def ending(self) -> Ending | None:
        """Where the output ends, None before that is known."""
        return Ending(self._fed, is_exact=True) if self._done else None

    def more_text(self, token: int) -> str | None:
        """Return the text of an id that is nothing but more of the message."""
        is_message = self._state is _CONTENT and self._kind is _TEXT and not self._early
        if not is_message or self._tokens.is_special(token):
            return None
        text = self._text.whole(token)
        if not text:
            return None
        self._fed += 1
        return text

    def feed(self, ids: Sequence[int]) -> Sequence[OutputPiece]:
        """Return what `ids` add."""
        out, self._early = self._early, []
        for token in ids:
            if self._done:
                break
            self._fed += 1
            self._take(token, out)
        return merged(out)

    def finish(self, reason: FinishReason) -> Sequence[OutputPiece]:
        """Return what was held back."""
        out, self._early = self._early, []
        if self._done:
            return out
        if self._state is _State.CONTENT:
            # A forced call ends with its constraint, without the id that would end it.
            self._end_content(out, is_complete=reason == "stop")
        return merged(out)

    def _take(self, token: int, out: list[OutputPiece]) -> None:
        tokens = self._tokens
        if not tokens.is_special(token):
            self._ordinary(token, out)
        elif token in tokens.ends:
            if self._state is _State.CONTENT:
                self._end_content(out, is_complete=True)
            self._state = _State.OUTSIDE
        elif token == tokens.start:
            if self._state is _State.CONTENT:
                self._end_content(out, is_complete=False)
            self._begin_header(is_first=False)
        elif token == tokens.channel and self._state is not _State.HEADER:
            # The model forgot who speaks: it does.
            if self._state is _State.CONTENT:
                self._end_content(out, is_complete=False)
            self._begin_header(is_first=True)
            self._header.append(token)
        elif token == tokens.message and self._state is _State.HEADER:
            self._begin_content(out)
        elif self._state is _State.HEADER:
            self._header.append(token)

    def _ordinary(self, token: int, out: list[OutputPiece]) -> None:
        if self._state is _State.HEADER:
            header = self._header
            header.append(token)
            is_marked = self._tokens.is_special(header[0])
            if not self._is_first or is_marked or self._tokens.begins_recipient(header):
                return
            # A header begins otherwise: the model answers without one.
            self._state, self._kind = _State.CONTENT, _Kind.TEXT
            self._add(self._text.feed(header), out)
            return
        if self._state is _State.OUTSIDE:
            self._state, self._kind = _State.CONTENT, _Kind.TEXT
        if self._kind is _Kind.REASONING:
            self.reasoning_tokens += 1
        self._add(self._text.feed((token,)), out)

    def _begin_header(self, *, is_first: bool) -> None:
        self._state = _State.HEADER
        self._is_first = is_first
        self._header = []

    def _begin_content(self, out: list[OutputPiece]) -> None:
        self._state = _State.CONTENT
        self._kind = _Kind.TEXT
        self._tool = self._input = None
        self._is_empty = True
        channel, recipient, role = self._read_header()
        if role is not Role.ASSISTANT:
            self._kind = _Kind.IGNORED
            return
        tool = tool_of_recipient(self._tools, recipient) if recipient else None
        if tool is not None:
            self._kind, self._tool = _Kind.CALL, tool
            if tool.kind == "custom":
                self._input = _FreeFormInput(tool)
            out.append(CallStarted(tool.name, tool.namespace, tool.kind == "custom"))
        elif channel == "analysis":
            self._kind = _Kind.REASONING

    def _read_header(self) -> tuple[str | None, str | None, Role | None]:
        """Return channel, recipient and role; a header that is none is the assistant's."""
        role = Role.ASSISTANT if self._is_first else None
        parser = StreamableParser(self._tokens.encoding, role, strict=False)
        try:
            if not self._is_first:
                parser.process(self._tokens.start)
            for token in self._header:
                parser.process(token)
            parser.process(self._tokens.message)
        except HarmonyError:
            return None, None, Role.ASSISTANT
        return parser.current_channel, parser.current_recipient, parser.current_role

    def _add(self, text: str, out: list[OutputPiece]) -> None:
        if not text:
            return
        match self._kind:
            case _Kind.TEXT:
                out.append(TextDelta(text))
            case _Kind.REASONING:
                out.append(ReasoningDelta(text))
            case _Kind.CALL:
                text = self._input.feed(text) if self._input is not None else text
                if text:
                    self._is_empty = False
                    out.append(CallDelta(text))
            case _Kind.IGNORED:
                pass

    def _end_content(self, out: list[OutputPiece], *, is_complete: bool) -> None:
        self._add(self._text.finish(), out)
        self._state = _State.OUTSIDE
        if self._kind is _Kind.CALL and is_complete:
            if self._is_empty and self._input is None:
                out.append(CallDelta("{}"))
            out.append(CallEnded())
            self._done = not self._parallel


class _FreeFormInput:
    """The input of a custom tool: the `input` of an object, or all of the text."""

    def __init__(self, tool: ToolSpec) -> None:
        """Read from the beginning of the call's content."""
        self._scanner: MemberScanner | None = None
        self._members = CallMembers(tool, keys=frozenset({"input"}))
        self._is_plain = False
        self._is_over = False

    def feed(self, text: str) -> str:
        """Return the input that `text` adds."""
        if self._is_plain:
            return text
        if self._scanner is None:
            text = text.lstrip()
            if not text:
                return ""
            if text[0] != "{":
                self._is_plain = True
                return text
            self._scanner = MemberScanner()
        found: list[OutputPiece] = []
        position = 0
        while not self._is_over:
            event, part, position = self._scanner.step(text, position)
            self._members.member(event, part, found)
            if event is MemberEvent.MORE:
                break
            self._is_over = event in (MemberEvent.END, MemberEvent.BROKEN)
        return "".join(piece.text for piece in found if isinstance(piece, CallDelta))
