"""Regular expressions to grammar expressions (xgrammar's EBNF).

What the standard library's parser understands and a grammar can say: literals, classes,
groups, alternatives, repetition and anchors at the ends. Unlimited repetition gets a limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from re import _constants as constants  # type: ignore[attr-defined]  # the only parser there is
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

__all__ = ["UnsupportedPattern", "json_text_rule", "literal", "text_rule"]

_MOST_REPEATS: Final = 128
_AROUND: Final = 32
"""Characters allowed on a side where a pattern is not anchored."""
_LONGEST_PATTERN: Final = 2_000
_DEEPEST: Final = 32
_LAST: Final = 0x10FFFF

_Ranges = list[tuple[int, int]]
_CATEGORIES: Final[dict[Any, _Ranges]] = {
    constants.CATEGORY_DIGIT: [(48, 57)],
    constants.CATEGORY_SPACE: [(9, 13), (32, 32)],
    constants.CATEGORY_WORD: [(48, 57), (65, 90), (95, 95), (97, 122)],
}
_NEGATED: Final = {
    constants.CATEGORY_NOT_DIGIT: constants.CATEGORY_DIGIT,
    constants.CATEGORY_NOT_SPACE: constants.CATEGORY_SPACE,
    constants.CATEGORY_NOT_WORD: constants.CATEGORY_WORD,
}
_NOT_IN_JSON: Final[_Ranges] = [(0, 31), (34, 34), (92, 92), (0xD800, 0xDFFF)]
"""Characters that a JSON text escapes, and no characters at all."""
_NO_CHARACTERS: Final[_Ranges] = [(0xD800, 0xDFFF)]


class UnsupportedPattern(Exception):
    """The pattern cannot become a grammar."""


def text_rule(pattern: str) -> str:
    """Return an expression for the texts that `pattern` matches from start to end.

    Raises:
        UnsupportedPattern: it cannot be translated.
    """
    return _Translator(_NO_CHARACTERS, escape=False).translate(pattern, anchored=True)


def json_text_rule(pattern: str) -> str:
    """Return an expression for texts, written as in a JSON string, in which `pattern` occurs.

    Raises:
        UnsupportedPattern: it cannot be translated.
    """
    return _Translator(_NOT_IN_JSON, escape=True).translate(pattern, anchored=False)


def literal(text: str) -> str:
    """Return the expression for exactly `text`."""
    written = "".join(
        character if character.isprintable() and character not in '"\\' else _escape(character)
        for character in text
    )
    return f'"{written}"'


class _Translator:
    def __init__(self, excluded: _Ranges, *, escape: bool) -> None:
        self._excluded = excluded
        self._escape_json = escape

    def translate(self, pattern: str, *, anchored: bool) -> str:
        if len(pattern) > _LONGEST_PATTERN:
            raise UnsupportedPattern("it is too long")
        try:
            # ASCII: a grammar has no tables of Unicode's digits and letters.
            tree = list(parser.parse(pattern, re.ASCII))
        except (re.error, RecursionError, OverflowError):
            raise UnsupportedPattern("it is not a regular expression") from None
        around = f"{self._class([], negated=True)}{{0,{_AROUND}}}"
        before = after = "" if anchored else around
        while tree and tree[0] in (
            (constants.AT, constants.AT_BEGINNING),
            (constants.AT, constants.AT_BEGINNING_STRING),
        ):
            tree, before = tree[1:], ""
        while tree and tree[-1] in (
            (constants.AT, constants.AT_END),
            (constants.AT, constants.AT_END_STRING),
        ):
            tree, after = tree[:-1], ""
        body = self._sequence(tree, 0)
        return " ".join(part for part in (before, body, after) if part)

    def _sequence(self, nodes: Iterable[tuple[Any, Any]], depth: int) -> str:
        if depth > _DEEPEST:
            raise UnsupportedPattern("it is nested too deeply")
        parts = [self._node(kind, value, depth) for kind, value in nodes]
        return " ".join(part for part in parts if part) or '""'

    def _node(self, kind: Any, value: Any, depth: int) -> str:
        if kind is constants.LITERAL:
            return self._literal(value)
        if kind is constants.NOT_LITERAL:
            return self._class([(value, value)], negated=True)
        if kind is constants.ANY:
            return self._class([(10, 10)], negated=True)
        if kind is constants.IN:
            return self._set(value)
        if kind is constants.BRANCH:
            return self._either([self._sequence(branch, depth + 1) for branch in value[1]])
        if kind is constants.SUBPATTERN:
            return f"({self._sequence(value[3], depth + 1)})"
        if kind in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            least, most, body = value
            most = least + _MOST_REPEATS if most is constants.MAXREPEAT else most
            if most > 2 * _MOST_REPEATS:
                raise UnsupportedPattern("it repeats too often")
            return f"({self._sequence(body, depth + 1)}){{{least},{most}}}"
        raise UnsupportedPattern("it uses look-around, back-references or inner anchors")

    def _literal(self, code: int) -> str:
        character = chr(code)
        if 0xD800 <= code <= 0xDFFF:
            raise UnsupportedPattern("it names half of a surrogate pair")
        if not self._escape_json:
            return literal(character)
        if character in '"\\':
            return literal("\\" + character)
        if code < 32:
            short = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}.get(code)
            return literal(f"\\{short}" if short else f"\\u{code:04x}")
        return literal(character)

    def _set(self, members: Sequence[tuple[Any, Any]]) -> str:
        ranges: _Ranges = []
        negated = False
        for kind, value in members:
            if kind is constants.NEGATE:
                negated = True
            elif kind is constants.LITERAL:
                ranges.append((value, value))
            elif kind is constants.RANGE:
                ranges.append(value)
            elif kind is constants.CATEGORY and value in _CATEGORIES:
                ranges += _CATEGORIES[value]
            elif kind is constants.CATEGORY and value in _NEGATED:
                ranges += _complement(_CATEGORIES[_NEGATED[value]])
            else:
                raise UnsupportedPattern("it uses an unknown class")
        return self._class(ranges, negated=negated)

    def _class(self, ranges: _Ranges, *, negated: bool) -> str:
        allowed = _complement(ranges) if negated else ranges
        plain = _complement(_complement(allowed) + self._excluded)
        options = []
        if plain:
            options.append("[" + "".join(map(_range_text, plain)) + "]")
        if self._escape_json:
            wanted = [code for code in (34, 92, 8, 9, 10, 12, 13) if _has(allowed, code)]
            options += [self._literal(code) for code in wanted]
        if not options:
            raise UnsupportedPattern("it has a class without characters")
        return self._either(options)

    def _either(self, options: Sequence[str]) -> str:
        return options[0] if len(options) == 1 else f"({' | '.join(options)})"


def _complement(ranges: _Ranges) -> _Ranges:
    """Return the code points that are in none of `ranges`."""
    result: _Ranges = []
    start = 0
    for low, high in sorted(ranges):
        if low > start:
            result.append((start, low - 1))
        start = max(start, high + 1)
    if start <= _LAST:
        result.append((start, _LAST))
    return result


def _has(ranges: _Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _range_text(bounds: tuple[int, int]) -> str:
    low, high = bounds
    first = _escape(chr(low))
    return first if low == high else f"{first}-{_escape(chr(high))}"


def _escape(character: str) -> str:
    # Not `\\x`: it takes as many digits as follow.
    code = ord(character)
    if character.isascii() and character.isalnum():
        return character
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
