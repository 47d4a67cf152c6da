"""Finds calls and reasoning in a model's text while it is being written.

Every decision is made at a character, never at the end of a piece, so that what comes out does
not depend on how the text was split. White space around calls and reasoning is dropped. What
turns out not to call a known tool is text: as the model wrote it when it is prose about
markup, without its markers when it is an object.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from turnwire_server.adapters.renderers.formats.markers import (
    FENCE,
    closing_markup,
    find_marker,
    first_characters,
)
from turnwire_server.adapters.renderers.formats.mere_text import MereText
from turnwire_server.adapters.renderers.formats.named_call import named_end, named_head
from turnwire_server.adapters.renderers.formats.object_call import ObjectCall
from turnwire_server.adapters.renderers.formats.pieces import (
    CallBody,
    Outcome,
    cut_marker,
    merged,
)
from turnwire_server.adapters.renderers.formats.speech import Speech
from turnwire_server.adapters.renderers.formats.states import Marker, State
from turnwire_server.adapters.renderers.formats.syntax import CallSyntax, ThinkSyntax
from turnwire_server.adapters.renderers.formats.tag_call import FUNCTION_OPEN, TagCall
from turnwire_server.session.output import CallEnded, OutputPiece, TextDelta
from turnwire_server.session.tools import ToolSet

__all__ = ["CallParser"]

_NOWHERE = re.compile(r"(?!)")


class CallParser(MereText):
    """Text in, output pieces out (`FormatParser`)."""

    def __init__(
        self,
        syntax: CallSyntax,
        tools: ToolSet,
        *,
        opening: str = "",
        forced: bool = False,
        parallel: bool = True,
        lenient: bool = False,
        think: ThinkSyntax | None = None,
    ) -> None:
        """Parse the output of one turn.

        Args:
            syntax: How the model writes calls.
            tools: What may be called.
            opening: Text in the prompt that belongs to the output, e.g. the opener of a call.
            forced: Without an `opening`, the output begins with the object of a call.
            parallel: False to ignore everything after the first complete call.
            lenient: Also accept, for models that forget the markers, an object at the start
                of the message and the first fenced JSON, if it names a known tool.
            think: How reasoning is marked, None to take such marks as text. They count at the
                start of a line and after a call or reasoning, not amid a sentence.
        """
        super().__init__()
        self._syntax = syntax
        self._tools = tools
        self._forced = forced
        self._parallel = parallel
        self._lenient = lenient and bool(tools)
        self._think = think
        self._plain = not tools and think is None
        openers = (syntax.opener, FUNCTION_OPEN) if syntax.function_tags else (syntax.opener,)
        self._openers = openers if tools else ()
        self._closers = (syntax.closer,) if syntax.closer else ()
        self._keys = syntax.arguments_keys | ({"parameters"} if self._lenient else set())
        self._pending = ""
        """Text that is not consumed yet."""
        self._raw = ""
        """Text consumed since a marker began: what to say if it was none."""
        self._marker_length = 0
        """How much of `_raw` is blanks and the marker itself."""
        self._state = State.TEXT
        self._marker = Marker.TAG
        self._speech = Speech()
        self._drop_closer = False
        """A rejected object's closing marker may still come."""
        self._bare_allowed = self._fence_allowed = self._lenient
        self._firsts: re.Pattern[str] | None = None
        """Finds what `_markers` begin with; None when there may be more of them."""
        self._in_list = False
        self._body: CallBody | None = None
        self.done = False
        """Whether nothing more can come out: the one call allowed is complete."""
        if self._plain:
            self._markup = _NOWHERE
        if forced and not opening:
            self._enter(Marker.BARE, "")
        self._early: list[OutputPiece] = []
        if opening:
            self._early = self._consume(opening)
            if self._early:
                self._markup = None  # they come out with the next text

    @property
    def reasoning_spans(self) -> list[tuple[int, int]]:
        """Where reasoning stands in the text so far, `opening` included: ascending."""
        return self._speech.reasoning_spans

    def _read(self, text: str) -> Sequence[OutputPiece]:
        if self._plain:
            return [TextDelta(text)] if text else []
        return merged(self._consume(text))

    def finish(self, *, complete: bool) -> Sequence[OutputPiece]:
        """Return what was held back. `complete` says that the model ended its turn itself.

        A call whose arguments are complete ends even if the model forgot to close the object;
        one that is cut gets no `CallEnded`.
        """
        if self._state is State.TEXT and not self._pending and not self._early:
            return ()  # as most messages end
        out, self._early = self._early, []
        pending, self._pending = self._pending, ""
        if self.done:
            return out
        if self._state is State.TEXT:
            self._speech.say(pending, out)
        elif self._state is State.REASONING:
            self._speech.reason(pending.rstrip(), self._fed - len(pending), out)
        elif self._state in (State.BODY, State.CALL):
            if self._body is not None and self._body.started:
                self._body.finish(out, complete=complete)
            elif complete or not (self._forced or self._marker is Marker.TAG):
                self._finish_body(pending, out)
        return merged(out)

    def _consume(self, text: str) -> list[OutputPiece]:
        out, self._early = self._early, []
        self._pending += text
        self._fed += len(text)
        while not self.done and self._pending and self._step(out):
            pass
        if self.done and self.ending is None:
            self._close()
        self._markup = self._find_markup()
        return out

    def _step(self, out: list[OutputPiece]) -> bool:
        """Consume pending text in the current state; return False when more is needed."""
        match self._state:
            case State.TEXT:
                return self._text(out)
            case State.REASONING:
                return self._in_reasoning(out)
            case State.BODY:
                return self._begin_body(out)
            case State.CALL:
                return self._in_call(out)
            case State.BETWEEN:
                return self._between()
            case State.SKIP:
                return self._skip()

    # Text.

    def _text(self, out: list[OutputPiece]) -> bool:
        pending = self._pending
        if self._speech.is_fresh:
            body = pending.lstrip()
            if not body:
                return False
            is_first = self._bare_allowed and not self._speech.has_text
            if is_first and body[0] in "{[" and not self._may_be_marker(body):
                self._pending = body
                self._enter(Marker.BARE, pending[: len(pending) - len(body)])
                return True
        limit, end, found = find_marker(pending, *self._markers(), is_fresh=self._speech.is_fresh)
        said = pending[:limit].rstrip()
        self._speech.say(said, out)
        if not found:
            self._pending = pending[len(said) :]
            return False
        self._pending = pending[end:]
        marker = pending[limit:end]
        if self._think is not None and marker == self._think.opener:
            self._state = State.REASONING
            self._speech.begin_reasoning()
        elif marker == self._syntax.closer:
            self._drop_closer = False  # `_firsts` may go on to find it, which is only slower
        elif marker == FUNCTION_OPEN:
            self._pending = pending[limit:]
            self._enter(Marker.TAG, pending[len(said) : limit])
        else:
            kind = Marker.FENCE if marker.startswith(FENCE) else Marker.TAG
            self._enter(kind, pending[len(said) : end])
        return True

    def _find_markup(self) -> re.Pattern[str] | None:
        """Return what `_markup` is now: most text is said as it is."""
        if self._state is not State.TEXT or self._pending or self.done or self._speech.is_fresh:
            return None
        if self._firsts is None:
            self._firsts = first_characters(*self._markers())
        return self._firsts

    def _markers(self) -> tuple[tuple[str, ...], str | None, bool]:
        """Return what may end text now: markers of calls, that of reasoning, a fence."""
        markers = (*self._openers, *self._closers) if self._drop_closer else self._openers
        return markers, None if self._think is None else self._think.opener, self._fence_allowed

    def _may_be_marker(self, body: str) -> bool:
        """Return whether `body` begins with a marker or what may become one (`[TOOL_CALLS]`)."""
        markers = self._openers if self._think is None else (*self._openers, self._think.opener)
        return any(body.startswith(marker) or marker.startswith(body) for marker in markers)

    # Calls.

    def _enter(self, marker: Marker, raw: str) -> None:
        self._state = State.BODY
        self._marker = marker
        self._raw = raw
        self._marker_length = len(raw)
        self._in_list = False
        self._body = None
        self._bare_allowed = False
        if marker is Marker.FENCE:
            self._fence_allowed = False  # `_firsts` may go on to find it, which is only slower

    def _begin_body(self, out: list[OutputPiece]) -> bool:
        body = self._pending.lstrip()
        self._raw += self._pending[: len(self._pending) - len(body)]
        self._pending = body
        if not body:
            return False
        self._body = None
        if body[0] == "[" and not self._in_list:
            self._in_list = True
            self._raw += "["
            self._pending = body[1:]
            return True
        if body[0] == "{":
            marked = self._marker is Marker.TAG
            self._body = ObjectCall(
                self._tools,
                keys=frozenset(self._keys),
                marked=marked,
                name_suffices=marked or self._forced,
            )
        elif self._marker is Marker.TAG and self._syntax.function_tags:
            self._body = TagCall(self._tools)
        elif self._marker is Marker.TAG and self._syntax.arguments_marker:
            return self._begin_named(out)
        if self._body is None:
            self._reject(out)
        else:
            self._state = State.CALL
        return True

    def _begin_named(self, out: list[OutputPiece]) -> bool:
        head = named_head(self._pending, self._syntax, self._tools)
        if head is None:
            return False
        rest = self._pending[len(head.text) :]
        if head.tool is None:
            self._raw = self._raw[: self._marker_length]
            # Nothing of the markers between the name and the object is left.
            self._pending = f"{head.name}{rest}"
            self._reject(out)
            return True
        self._raw += head.text
        self._pending = rest
        self._body = ObjectCall.of_arguments(self._tools, head.tool)
        self._state = State.CALL
        return True

    def _finish_body(self, pending: str, out: list[OutputPiece]) -> None:
        """End what may be a call and never became one."""
        if self._body is None:
            head = named_end(pending, self._syntax, self._tools)
            if head.tool is not None:
                ObjectCall.of_arguments(self._tools, head.tool).feed("{}", out)
                return
            pending = head.text
        self._raw += pending
        self._reject(out)

    def _in_call(self, out: list[OutputPiece]) -> bool:
        assert self._body is not None
        pending = self._pending
        outcome, position = self._body.feed(pending, out)
        if not self._body.started:
            self._raw += pending[:position]
        self._pending = pending[position:]
        match outcome:
            case Outcome.MORE:
                return False
            case Outcome.NO_CALL:
                self._reject(out)
            case Outcome.ENDED:
                self._state = State.BETWEEN
                self.done = not self._parallel and isinstance(out[-1], CallEnded)
                self._settle()
            case Outcome.BROKEN:
                self._state = State.SKIP
                self._settle()
        return True

    def _reject(self, out: list[OutputPiece]) -> None:
        raw, self._raw = self._raw, ""
        is_object = isinstance(self._body, ObjectCall)
        if isinstance(self._body, TagCall) and self._pending.startswith(FUNCTION_OPEN):
            raw += FUNCTION_OPEN  # or it would be found again
            self._pending = self._pending[len(FUNCTION_OPEN) :]
        self._body = None
        self._state = State.TEXT
        if self._marker is Marker.TAG and (is_object or self._syntax.is_control):
            said = raw[self._marker_length :].lstrip()
            blanks = raw[: len(raw) - len(raw.lstrip())]
            raw = f"{blanks}{said}"
            self._drop_closer = bool(self._closers)
            self._firsts = None
        self._speech.say(raw, out)

    def _settle(self) -> None:
        self._raw = ""
        self._speech.settle()

    def _between(self) -> bool:
        body = self._pending = self._pending.lstrip()
        if not body:
            return False
        closers = (*self._closers, FENCE) if self._marker is Marker.FENCE else self._closers
        for closer in closers:
            if body.startswith(closer):
                self._pending = body[len(closer) :]
                self._state = State.TEXT
                return True
            if closer.startswith(body):
                return False
        if body[0] == "{":
            self._state = State.BODY
        elif body.startswith(FUNCTION_OPEN) and self._syntax.function_tags:
            self._state = State.BODY
        elif body[0] == "}" or body[0] in self._syntax.separators:
            self._pending = body[1:]  # a brace too many is common
        elif self._in_list and body[0] in ",]":
            self._pending = body[1:]  # a list goes on or ends
        else:
            self._state = State.TEXT
        return True

    def _close(self) -> None:
        """Look for the markup behind the one call allowed: it belongs to what the model said."""
        closers = ["]"] if self._in_list else []
        if self._marker is Marker.FENCE:
            closers.append(FENCE)
        elif self._marker is Marker.TAG:
            closers += self._closers
        markup = closing_markup(self._pending, closers)
        if markup is None:
            return  # it may still come
        length, is_whole = markup
        self.ending = self._fed - len(self._pending) + length, is_whole
        self._pending = ""

    def _skip(self) -> bool:
        closer = FENCE if self._marker is Marker.FENCE else self._syntax.closer
        if not closer:
            # Nothing tells where a broken call ends: what follows the break is text.
            self._state = State.TEXT
            return True
        start = self._pending.find(closer)
        if start < 0:
            self._pending = self._pending[-len(closer) + 1 :]
            return False
        self._pending = self._pending[start + len(closer) :]
        self._state = State.TEXT
        return True

    # What comes out.

    def _in_reasoning(self, out: list[OutputPiece]) -> bool:
        assert self._think is not None
        pending, closer = self._pending, self._think.closer
        end = pending.find(closer)
        limit = end if end >= 0 else len(pending) - cut_marker(pending, closer)
        thought = pending[:limit].rstrip()
        self._speech.reason(thought, self._fed - len(pending), out)
        if end < 0:
            self._pending = pending[len(thought) :]
            return False
        self._pending = pending[end + len(closer) :]
        self._state = State.TEXT
        self._settle()
        return True
