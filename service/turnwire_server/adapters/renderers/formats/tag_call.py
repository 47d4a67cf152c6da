"""A call written as tags: `<function=name>` with `<parameter=x>` inside (Qwen3-Coder)."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator
from typing import Final

from turnwire_server.adapters.renderers.call_members import find_tool
from turnwire_server.adapters.renderers.formats.pieces import Outcome, cut_marker
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    OutputPiece,
    TextDelta,
)
from turnwire_server.session.tools import ToolSet, ToolSpec

__all__ = ["FUNCTION_OPEN", "TagCall"]

FUNCTION_OPEN: Final = "<function="
_FUNCTION_CLOSE: Final = "</function>"
_PARAMETER_OPEN: Final = "<parameter="
_PARAMETER_CLOSE: Final = "</parameter>"
_VALUE_END: Final = f"\n{_PARAMETER_CLOSE}"
_NAME: Final = re.compile(r"[^<>\n]{1,256}>")
_NAME_CUT: Final = re.compile(r"[^<>\n]{0,256}\Z")
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}


class _State(enum.Enum):
    HEAD = enum.auto()
    BETWEEN = enum.auto()
    VALUE = enum.auto()


class TagCall:
    """Reads one `<function=…>` block (`CallBody`).

    Values are text between tags; those that the tool's schema does not want as text become the
    JSON that they are. A function that is not known comes out as text in the form of JSON, so
    that no markup is left in it.
    """

    def __init__(self, tools: ToolSet) -> None:
        """Read a block from `<function=`."""
        self._tools = tools
        self._state = _State.HEAD
        self._tool: ToolSpec | None = None
        self._types: dict[str, frozenset[str]] = {}
        self._count = 0
        self._held: str | None = None
        """The value so far, when its kind shows only at its end."""
        self._skipped = False
        self.started = False
        """Whether something came out."""

    def feed(self, text: str, out: list[OutputPiece]) -> tuple[Outcome, int]:
        """Append what `text` adds; see `CallBody`."""
        position = 0
        while True:
            match self._state:
                case _State.HEAD:
                    outcome, used = self._head(text[position:], out)
                case _State.BETWEEN:
                    outcome, used = self._between(text[position:], out)
                case _State.VALUE:
                    outcome, used = self._value(text[position:], out)
            position += used
            if outcome is not None:
                return outcome, position

    def finish(self, out: list[OutputPiece], *, complete: bool) -> None:
        """End the call if it only lacks its closing tag."""
        if complete and self.started and self._state is _State.BETWEEN:
            self._end(out)

    def _head(self, text: str, out: list[OutputPiece]) -> tuple[Outcome | None, int]:
        if not text.startswith(FUNCTION_OPEN):
            return (Outcome.MORE if FUNCTION_OPEN.startswith(text) else Outcome.NO_CALL), 0
        match = _NAME.match(text, len(FUNCTION_OPEN))
        if match is None:
            is_cut = _NAME_CUT.match(text, len(FUNCTION_OPEN)) is not None
            return (Outcome.MORE if is_cut else Outcome.NO_CALL), 0
        name = match[0][:-1].strip()
        self._tool = tool = find_tool(self._tools, name)
        self.started = True
        self._state = _State.BETWEEN
        if tool is None:
            self._say(f'{{"name": {_quoted(name)}, "arguments": ', out)
        else:
            out.append(CallStarted(tool.name, tool.namespace, tool.kind == "custom"))
            self._types = _types_of(tool)
        return None, match.end()

    def _between(self, text: str, out: list[OutputPiece]) -> tuple[Outcome | None, int]:
        body = text.lstrip()
        blanks = len(text) - len(body)
        if body.startswith(_FUNCTION_CLOSE):
            self._end(out)
            return Outcome.ENDED, blanks + len(_FUNCTION_CLOSE)
        if body.startswith(_PARAMETER_OPEN):
            match = _NAME.match(body, len(_PARAMETER_OPEN))
            if match is not None:
                # One line break belongs to the tag, not to the value: wait for what follows.
                if match.end() == len(body):
                    return Outcome.MORE, blanks
                self._begin_value(match[0][:-1].strip(), out)
                return None, blanks + match.end() + (body[match.end()] == "\n")
            if _NAME_CUT.match(body, len(_PARAMETER_OPEN)):
                return Outcome.MORE, blanks
        elif _FUNCTION_CLOSE.startswith(body) or _PARAMETER_OPEN.startswith(body):
            return Outcome.MORE, blanks
        elif body.startswith("</t"):
            self._end(out)  # the block is closed although the function is not
            return Outcome.ENDED, blanks
        elif "</t".startswith(body):
            return Outcome.MORE, blanks
        return Outcome.BROKEN, blanks

    def _begin_value(self, name: str, out: list[OutputPiece]) -> None:
        self._state = _State.VALUE
        self._held = None
        if self._is_custom:
            # Free-form input has one parameter; others have no place.
            self._skipped = self._count > 0
        else:
            self._say(f"{', ' if self._count else '{'}{_quoted(name)}: ", out)
            types = self._types.get(name, frozenset())
            if types - {"string"}:
                self._held = ""
            else:
                self._say('"', out)
        self._count += 1

    def _value(self, text: str, out: list[OutputPiece]) -> tuple[Outcome | None, int]:
        end = text.find(_PARAMETER_CLOSE)
        if end < 0:
            held = max(cut_marker(text, _VALUE_END), cut_marker(text, _PARAMETER_CLOSE))
            used = len(text) - held
            self._add(text[:used], out)
            return Outcome.MORE, used
        value = text[:end]
        self._add(value[:-1] if value.endswith("\n") else value, out)
        if self._held is not None:
            self._say(_as_json(self._held), out)
        elif not self._is_custom:
            self._say('"', out)
        self._state = _State.BETWEEN
        return None, end + len(_PARAMETER_CLOSE)

    def _add(self, text: str, out: list[OutputPiece]) -> None:
        if self._held is not None:
            self._held += text
        elif not self._is_custom:
            self._say(_quoted(text)[1:-1], out)
        elif not self._skipped:
            self._say(text, out)

    def _end(self, out: list[OutputPiece]) -> None:
        if not self._is_custom:
            self._say("}" if self._count else "{}", out)
        if self._tool is None:
            self._say("}", out)
        else:
            out.append(CallEnded())

    @property
    def _is_custom(self) -> bool:
        return self._tool is not None and self._tool.kind == "custom"

    def _say(self, text: str, out: list[OutputPiece]) -> None:
        if text:
            out.append(TextDelta(text) if self._tool is None else CallDelta(text))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _as_json(text: str) -> str:
    """Return a value whose schema wants more than text: the JSON that it is, else a string."""
    value = text.strip()
    value = _PYTHON.get(value, value)
    try:
        json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _quoted(text)
    return value


def _refuse(constant: str) -> object:
    raise ValueError(constant)  # NaN and its like are no JSON


def _types_of(tool: ToolSpec) -> dict[str, frozenset[str]]:
    """Return the types that the schema of `tool` names for each parameter."""
    try:
        schema: object = json.loads(tool.parameters or "{}")
    except ValueError:
        return {}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: frozenset(_types_in(part)) for name, part in properties.items()}


def _types_in(schema: object) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    types = schema.get("type")
    for name in types if isinstance(types, list) else [types]:
        if isinstance(name, str):
            yield name
    for key in ("anyOf", "oneOf"):
        for part in schema.get(key) or ():
            yield from _types_in(part)
    if "$ref" in schema:
        yield "object"  # what it is shows in the value
