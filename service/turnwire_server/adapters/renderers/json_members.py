"""Reads a JSON object while a model is still writing it.

`MemberScanner` reports the members of one object one event at a time; `StringDecoder` decodes
the inside of a JSON string piece by piece. Both give the same whatever the pieces are.
"""

from __future__ import annotations

import enum
import json
import re

__all__ = ["MemberEvent", "MemberScanner", "StringDecoder"]

_BLANKS = re.compile(r"[ \t\r\n]*")
_STRING_RUN = re.compile(r'[^"\\]*')
# Outside strings, `<` and a backtick are never JSON: there a marker or a fence cuts the object.
_NESTED_RUN = re.compile(r'[^"{}\[\]<`]*')
_SCALAR_RUN = re.compile(r'[^\s,{}\[\]":<`]*')
_LOW_SURROGATE_START = re.compile(r"\\(u([0-9a-fA-F]{0,3}))?\Z|\Z")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]*\Z")

_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class MemberEvent(enum.Enum):
    """What the scanner met."""

    MORE = enum.auto()
    """All text is consumed and the object goes on."""
    KEY = enum.auto()
    """A member's name, decoded."""
    BEGIN = enum.auto()
    """The member's value begins; the text is its first character."""
    CHUNK = enum.auto()
    """Verbatim text of the value; of a string, what is between the quotes, still escaped."""
    FINISH = enum.auto()
    """The member's value is complete."""
    END = enum.auto()
    """The object is complete."""
    BROKEN = enum.auto()
    """The next character cannot continue an object; it is not consumed."""


class _State(enum.Enum):
    BEFORE = enum.auto()
    MEMBER = enum.auto()
    KEY = enum.auto()
    COLON = enum.auto()
    VALUE = enum.auto()
    STRING = enum.auto()
    NESTED = enum.auto()
    SCALAR = enum.auto()
    ENDED = enum.auto()
    AFTER = enum.auto()
    OVER = enum.auto()


class MemberScanner:
    """Scans one JSON object. Values are delimited, not validated."""

    def __init__(self) -> None:
        """Expect the object's opening brace."""
        self._state = _State.BEFORE
        self._key = ""
        self._escaped = False
        self._in_string = False
        self._depth = 0

    def step(self, text: str, position: int) -> tuple[MemberEvent, str, int]:
        """Read on from `text[position]` up to the next event.

        Returns:
            The event, its text, and the position after what was consumed.
        """
        while True:
            state = self._state
            if state is _State.KEY or state is _State.STRING:
                return self._string(text, position)
            if state is _State.NESTED:
                return self._nested(text, position)
            if state is _State.SCALAR:
                return self._scalar(text, position)
            if state is _State.ENDED:
                self._state = _State.AFTER
                return MemberEvent.FINISH, "", position
            if state is _State.OVER:
                return MemberEvent.BROKEN, "", position
            position = _end(_BLANKS, text, position)
            if position == len(text):
                return MemberEvent.MORE, "", position
            event = self._punctuation(text[position])
            if event is MemberEvent.BROKEN:
                return event, "", position
            if event is MemberEvent.BEGIN:
                # An opening quote is not part of the value's text, an opening brace is.
                return event, text[position], position + (self._state is _State.STRING)
            position += 1
            if event is MemberEvent.END:
                return event, "", position
            if self._state is _State.KEY:
                self._key = ""

    def _punctuation(self, character: str) -> MemberEvent:
        """Move over one character between tokens; MORE means that the scan goes on."""
        match self._state, character:
            case _State.BEFORE, "{":
                self._state = _State.MEMBER
            case _State.MEMBER, '"':
                self._state = _State.KEY
            case ((_State.MEMBER | _State.AFTER), "}"):
                self._state = _State.OVER
                return MemberEvent.END
            case _State.COLON, ":":
                self._state = _State.VALUE
            case _State.AFTER, ",":
                self._state = _State.MEMBER
            case _State.VALUE, '"':
                self._state = _State.STRING
                return MemberEvent.BEGIN
            case _State.VALUE, ("{" | "["):
                self._state = _State.NESTED
                self._depth = 0
                return MemberEvent.BEGIN
            case _State.VALUE, _ if _end(_SCALAR_RUN, character, 0):
                self._state = _State.SCALAR
                return MemberEvent.BEGIN
            case _:
                return MemberEvent.BROKEN
        return MemberEvent.MORE

    def _string(self, text: str, position: int) -> tuple[MemberEvent, str, int]:
        start = position
        is_key = self._state is _State.KEY
        end, closed = self._to_quote(text, position)
        if is_key:
            self._key += text[start:end]
            if not closed:
                return MemberEvent.MORE, "", end
            self._state = _State.COLON
            return MemberEvent.KEY, _decoded(self._key), end + 1
        if end > start:
            return MemberEvent.CHUNK, text[start:end], end
        if not closed:
            return MemberEvent.MORE, "", end
        self._state = _State.AFTER
        return MemberEvent.FINISH, "", end + 1

    def _to_quote(self, text: str, position: int) -> tuple[int, bool]:
        """Return where the string's closing quote or the text ends, and whether it is the quote."""
        while position < len(text):
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            position = _end(_STRING_RUN, text, position)
            if position == len(text):
                break
            if text[position] == '"':
                return position, True
            self._escaped = True
            position += 1
        return position, False

    def _nested(self, text: str, position: int) -> tuple[MemberEvent, str, int]:
        start = position
        while position < len(text):
            if self._in_string:
                position, closed = self._to_quote(text, position)
                if closed:
                    self._in_string = False
                    position += 1
                continue
            position = _end(_NESTED_RUN, text, position)
            if position == len(text):
                break
            match text[position]:
                case '"':
                    self._in_string = True
                case "{" | "[":
                    self._depth += 1
                case "}" | "]":
                    self._depth -= 1
                case _ if position == start:
                    return MemberEvent.BROKEN, "", position
                case _:
                    break
            position += 1
            if self._depth == 0:
                self._state = _State.ENDED
                break
        if position == start:
            return MemberEvent.MORE, "", position
        return MemberEvent.CHUNK, text[start:position], position

    def _scalar(self, text: str, position: int) -> tuple[MemberEvent, str, int]:
        end = _end(_SCALAR_RUN, text, position)
        if end > position:
            return MemberEvent.CHUNK, text[position:end], end
        if end == len(text):
            return MemberEvent.MORE, "", end
        self._state = _State.AFTER
        return MemberEvent.FINISH, "", end


class StringDecoder:
    """Decodes the inside of a JSON string. Lone surrogates become U+FFFD."""

    def __init__(self) -> None:
        """Start at the first character after the opening quote."""
        self._held = ""

    def feed(self, raw: str) -> str:
        """Return what `raw` adds, holding back an escape that is not complete."""
        text = self._held + raw
        self._held = ""
        if "\\" not in text:
            return text
        parts: list[str] = []
        position = 0
        while (escape := text.find("\\", position)) >= 0:
            parts.append(text[position:escape])
            decoded, used = _escape_at(text, escape)
            if not used:
                self._held = text[escape:]
                return "".join(parts)
            parts.append(decoded)
            position = escape + used
        parts.append(text[position:])
        return "".join(parts)

    def finish(self) -> str:
        """Return what was held back: U+FFFD for half a surrogate pair, else ""."""
        held, self._held = self._held, ""
        return "\ufffd" if len(held) >= 6 else ""


def _escape_at(text: str, position: int) -> tuple[str, int]:
    """Return the decoded escape at `position` and its length, 0 when more text is needed."""
    if position + 1 == len(text):
        return "", 0
    letter = text[position + 1]
    if letter != "u":
        return _ESCAPES.get(letter, letter), 2
    digits = text[position + 2 : position + 6]
    if not _HEXADECIMAL.match(digits):
        return "\ufffd", 2
    if len(digits) < 4:
        return "", 0
    code = int(digits, 16)
    if not 0xD800 <= code < 0xE000:
        return chr(code), 6
    if code < 0xDC00:
        following = text[position + 6 : position + 12]
        if len(following) < 6:
            if _LOW_SURROGATE_START.match(following):
                return "", 0
        elif following.startswith("\\u") and _HEXADECIMAL.match(following[2:]):
            low = int(following[2:], 16)
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), 12
    return "\ufffd", 6


def _decoded(raw: str) -> str:
    try:
        return str(json.loads(f'"{raw}"', strict=False))
    except ValueError:
        return raw


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Return where the run of `pattern`, which matches anything or nothing, ends."""
    match = pattern.match(text, position)
    return match.end() if match else position
