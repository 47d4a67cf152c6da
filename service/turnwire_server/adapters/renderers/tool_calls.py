"""Finds tool calls in a model's text while it is being written.

The format is that of Hermes and Qwen models: `<tool_call>{"name": …, "arguments": {…}}
</tool_call>`, for a custom tool with `"input": "…"`. Whatever turns out not to call a known
tool is text, exactly as the model wrote it. Every decision is made at a character, never at
the end of a piece, so that what comes out does not depend on how the text was split.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from turnwire_server.adapters.renderers.call_members import CallMembers, find_tool
from turnwire_server.adapters.renderers.json_members import MemberEvent, MemberScanner
from turnwire_server.session.output import CallDelta, OutputPiece, ReasoningDelta, TextDelta
from turnwire_server.session.tools import ToolSet

__all__ = ["CALL_CLOSE", "CALL_OPEN", "THINK_CLOSE", "THINK_OPEN", "ToolCallParser"]

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"

_FENCE = "```"
_FENCE_WORDS = ("json", "JSON", "tool_call")
_WORD = "|".join(_FENCE_WORDS)
_CUT_WORD = "|".join(word[:end] for word in _FENCE_WORDS for end in range(1, len(word)))
_FENCE_HEAD = re.compile(rf"```(?:{_WORD})?\s*(?=[{{\[])")
_FENCE_HEAD_CUT = re.compile(rf"`{{1,3}}\Z|```(?:{_CUT_WORD})\Z|```(?:{_WORD})?\s*\Z")
# Keys of an object that may yet turn out to be a call; a data object shows another one soon.
_CALL_KEYS = frozenset({"name", "arguments", "parameters", "input", "type", "id"})


class _State(enum.Enum):
    TEXT = enum.auto()
    REASONING = enum.auto()
    BODY = enum.auto()
    """After a marker: an object, or a list of them, must come."""
    OBJECT = enum.auto()
    """In an object that may be a call; `_call` is set once its tool is known."""
    BETWEEN = enum.auto()
    """After a complete call: another one, the closing marker, or text."""
    SKIP = enum.auto()
    """After a call that broke: drop everything up to the closing marker."""


class _Marker(enum.Enum):
    TAG = enum.auto()
    FENCE = enum.auto()
    BARE = enum.auto()


class ToolCallParser:
    """Text in, output pieces out. Holds back what could be the start of markup.

    White space around calls and reasoning is dropped, all other text comes out verbatim.
    """

    def __init__(
        self,
        tools: ToolSet,
        *,
        opening: str = "",
        forced: bool = False,
        parallel: bool = True,
        lenient: bool = False,
        reasoning: bool = False,
    ) -> None:
        """Parse the output of one turn.

        Args:
            tools: What may be called.
            opening: Text in the prompt that belongs to the output, e.g. the opener of a call.
            forced: Without an `opening`, the output begins with the object of a call.
            parallel: False to ignore everything after the first complete call.
            lenient: Also accept, for models that forget the markers, an object at the start
                of the message and the first fenced JSON, if it names a known tool.
            reasoning: Whether `<think>…</think>` before text or a call is reasoning.
        """
        self._tools = tools
        self._forced = forced
        self._parallel = parallel
        self._lenient = lenient and bool(tools)
        self._reasoning = reasoning
        self._plain = not tools and not reasoning
        self._pending = ""
        """Text that is not consumed yet."""
        self._raw = ""
        """Text consumed since a marker began: what to say if it was none."""
        self._state = _State.TEXT
        self._marker = _Marker.TAG
        self._fresh = True
        """No text came yet, or none since the last call or reasoning."""
        self._drop_blanks = False
        self._bare_allowed = self._lenient
        self._fence_allowed = self._lenient
        self._in_list = False
        self._scanner = MemberScanner()
        self._call: CallMembers | None = None
        self._object = ""
        self._key = ""
        self._name = ""
        self._done = False
        if forced and not opening:
            self._enter(_Marker.BARE, "")
        self._early: list[OutputPiece] = []
        if opening:
            self._early = self._consume(opening)

    @property
    def done(self) -> bool:
        """True when nothing more can come out: the one call allowed is complete."""
        return self._done

    def feed(self, text: str) -> Sequence[OutputPiece]:
        """Return what `text` adds, adjacent deltas merged."""
        if self._plain:
            return [TextDelta(text)] if text else []
        return _merged(self._consume(text))

    def finish(self, *, complete: bool) -> Sequence[OutputPiece]:
        """Return what was held back. `complete` says that the model ended its turn itself.

        A call whose arguments are complete ends even if the model forgot to close the object;
        one that is cut gets no `CallEnded`.
        """
        out, self._early = self._early, []
        pending, self._pending = self._pending, ""
        if self._done:
            return out
        if self._state is _State.TEXT:
            self._say(pending, out)
        elif self._state is _State.REASONING:
            self._think(pending.rstrip(), out)
        elif self._state in (_State.BODY, _State.OBJECT):
            call = self._call
            if call is not None and call.started:
                if call.finished and complete:
                    call.end(out)
            elif complete or not (self._forced or self._marker is _Marker.TAG):
                self._reject(out)
        return _merged(out)

    def _consume(self, text: str) -> list[OutputPiece]:
        out, self._early = self._early, []
        self._pending += text
        while not self._done and self._pending and self._step(out):
            pass
        if self._done:
            self._pending = ""
        return out

    def _step(self, out: list[OutputPiece]) -> bool:
        """Consume pending text in the current state; return False when more is needed."""
        match self._state:
            case _State.TEXT:
                return self._text(out)
            case _State.REASONING:
                return self._in_reasoning(out)
            case _State.BODY:
                return self._body(out)
            case _State.OBJECT:
                return self._in_object(out)
            case _State.BETWEEN:
                return self._between()
            case _State.SKIP:
                return self._skip()

    def _text(self, out: list[OutputPiece]) -> bool:
        pending = self._pending
        if self._fresh:
            body = pending.lstrip()
            if not body:
                return False
            if self._reasoning and body.startswith(THINK_OPEN):
                self._pending = body[len(THINK_OPEN) :]
                self._state = _State.REASONING
                self._drop_blanks = True
                return True
            if self._reasoning and THINK_OPEN.startswith(body):
                return False
            if self._bare_allowed and body[0] in "{[":
                self._pending = body
                self._enter(_Marker.BARE, pending[: len(pending) - len(body)])
                return True
        limit, marker_end, marker = self._find_marker(pending)
        said = pending[:limit].rstrip()
        self._say(said, out)
        if marker is None:
            self._pending = pending[len(said) :]
            return False
        self._pending = pending[marker_end:]
        self._enter(marker, pending[len(said) : marker_end])
        return True

    def _find_marker(self, text: str) -> tuple[int, int, _Marker | None]:
        """Return where text ends, where the marker that ends it ends, and which one it is.

        Without a marker, text ends where one may have begun.
        """
        found: tuple[int, int, _Marker | None] = len(text), len(text), None
        if self._tools:
            start = text.find(CALL_OPEN)
            if start >= 0:
                found = start, start + len(CALL_OPEN), _Marker.TAG
        if self._fence_allowed and (head := _FENCE_HEAD.search(text)) and head.start() < found[0]:
            found = head.start(), head.end(), _Marker.FENCE
        if found[2] is not None:
            return found
        limit = len(text)
        if self._tools:
            limit -= _cut_marker(text, CALL_OPEN)
        if self._fence_allowed and (cut := _FENCE_HEAD_CUT.search(text)):
            limit = min(limit, cut.start())
        return limit, limit, None

    def _enter(self, marker: _Marker, raw: str) -> None:
        self._state = _State.BODY
        self._marker = marker
        self._raw = raw
        self._in_list = False
        self._bare_allowed = False
        if marker is _Marker.FENCE:
            self._fence_allowed = False

    def _body(self, out: list[OutputPiece]) -> bool:
        body = self._pending.lstrip()
        self._raw += self._pending[: len(self._pending) - len(body)]
        self._pending = body
        if not body:
            return False
        if body[0] == "[" and not self._in_list:
            self._in_list = True
            self._raw += "["
            self._pending = body[1:]
        elif body[0] == "{":
            self._state = _State.OBJECT
            self._scanner = MemberScanner()
            self._call = None
            self._object = self._key = self._name = ""
        else:
            self._reject(out)
        return True

    def _in_object(self, out: list[OutputPiece]) -> bool:
        position = 0
        pending = self._pending
        while True:
            start = position
            event, text, position = self._scanner.step(pending, start)
            if self._call is None:
                self._raw += pending[start:position]
                self._object += pending[start:position]
                keep = self._decide(event, text, out)
            else:
                if not self._call.started:
                    self._raw += pending[start:position]
                keep = self._advance(self._call, event, text, out)
            if event is MemberEvent.MORE or not keep:
                self._pending = pending[position:]
                if not keep and self._state is _State.OBJECT:
                    self._reject(out)
                return event is not MemberEvent.MORE

    def _decide(self, event: MemberEvent, text: str, out: list[OutputPiece]) -> bool:
        """Take an event of an object whose tool is not known; return False if it is no call."""
        match event:
            case MemberEvent.KEY:
                self._key = text
                return self._marker is _Marker.TAG or text in _CALL_KEYS
            case MemberEvent.BEGIN:
                return self._key != "name" or text == '"'
            case MemberEvent.CHUNK if self._key == "name":
                self._name += text
            case MemberEvent.FINISH if self._key == "name":
                return self._know(out)
            case MemberEvent.END | MemberEvent.BROKEN:
                return False
            case _:
                pass
        return True

    def _know(self, out: list[OutputPiece]) -> bool:
        tool = find_tool(self._tools, self._name)
        if tool is None:
            return False
        keys = {"arguments"}
        if self._lenient:
            keys.add("parameters")
        if tool.kind == "custom":
            keys.add("input")
        self._call = CallMembers(tool, keys=frozenset(keys))
        # Arguments may have come before the name: read the object again, now knowing the tool.
        self._scanner = MemberScanner()
        position = 0
        event = MemberEvent.KEY
        while event is not MemberEvent.MORE:
            event, text, position = self._scanner.step(self._object, position)
            self._call.member(event, text, out)
        self._object = ""
        return True

    def _advance(
        self, call: CallMembers, event: MemberEvent, text: str, out: list[OutputPiece]
    ) -> bool:
        """Take an event of a call; return False when the object is over or no call after all."""
        call.member(event, text, out)
        if event is MemberEvent.END:
            if not call.started:
                if self._marker is not _Marker.TAG and not self._forced:
                    return False
                call.start(out)
            self._end(call, out)
        elif event is MemberEvent.BROKEN and call.started:
            if call.finished:
                self._end(call, out)
            else:
                self._state = _State.SKIP
                self._settle()
        else:
            return event is not MemberEvent.BROKEN
        return False

    def _end(self, call: CallMembers, out: list[OutputPiece]) -> None:
        call.end(out)
        self._state = _State.BETWEEN
        self._done = not self._parallel
        self._settle()

    def _settle(self) -> None:
        self._raw = ""
        self._fresh = self._drop_blanks = True

    def _between(self) -> bool:
        body = self._pending = self._pending.lstrip()
        if not body:
            return False
        closers = (CALL_CLOSE, _FENCE) if self._marker is _Marker.FENCE else (CALL_CLOSE,)
        for closer in closers:
            if body.startswith(closer):
                self._pending = body[len(closer) :]
                self._state = _State.TEXT
                return True
            if closer.startswith(body):
                return False
        if body[0] == "{":
            self._state = _State.BODY
        elif body[0] == "}" or (self._in_list and body[0] in ",]"):
            self._pending = body[1:]  # a brace too many is common; a list goes on or ends
        else:
            self._state = _State.TEXT
        return True

    def _skip(self) -> bool:
        closer = _FENCE if self._marker is _Marker.FENCE else CALL_CLOSE
        start = self._pending.find(closer)
        if start < 0:
            self._pending = self._pending[-len(closer) + 1 :]
            return False
        self._pending = self._pending[start + len(closer) :]
        self._state = _State.TEXT
        return True

    def _in_reasoning(self, out: list[OutputPiece]) -> bool:
        pending = self._pending
        end = pending.find(THINK_CLOSE)
        limit = end if end >= 0 else len(pending) - _cut_marker(pending, THINK_CLOSE)
        thought = pending[:limit].rstrip()
        self._think(thought, out)
        if end < 0:
            self._pending = pending[len(thought) :]
            return False
        self._pending = pending[end + len(THINK_CLOSE) :]
        self._state = _State.TEXT
        self._settle()
        return True

    def _reject(self, out: list[OutputPiece]) -> None:
        raw, self._raw, self._object = self._raw, "", ""
        self._call = None
        self._state = _State.TEXT
        self._say(raw, out)

    def _say(self, text: str, out: list[OutputPiece]) -> None:
        if self._drop_blanks:
            text = text.lstrip()
        if text:
            self._fresh = self._drop_blanks = self._bare_allowed = False
            out.append(TextDelta(text))

    def _think(self, text: str, out: list[OutputPiece]) -> None:
        if self._drop_blanks:
            text = text.lstrip()
        if text:
            self._drop_blanks = False
            out.append(ReasoningDelta(text))


def _cut_marker(text: str, marker: str) -> int:
    """Return how much of the end of `text` may be the beginning of `marker`."""
    start = text.rfind("<", max(0, len(text) - len(marker) + 1))
    return len(text) - start if start >= 0 and marker.startswith(text[start:]) else 0


def _merged(pieces: list[OutputPiece]) -> list[OutputPiece]:
    if len(pieces) < 2:
        return pieces
    out: list[OutputPiece] = []
    for piece in pieces:
        last = out[-1] if out else None
        match last, piece:
            case TextDelta(), TextDelta():
                out[-1] = TextDelta(last.text + piece.text)
            case ReasoningDelta(), ReasoningDelta():
                out[-1] = ReasoningDelta(last.text + piece.text)
            case CallDelta(), CallDelta():
                out[-1] = CallDelta(last.text + piece.text)
            case _:
                out.append(piece)
    return out
