"""Grammars as regular expressions, so that tests can ask what a grammar accepts."""

from __future__ import annotations

import re

__all__ = ["grammar_pattern"]

_TOKEN = re.compile(
    r"""\s*(?:(?P<literal>"(?:[^"\\]|\\.)*")|(?P<class>\[(?:[^\]\\]|\\.)*\])"""
    r"""|(?P<repeat>\{\d+(?:,\d*)?\})|(?P<sign>[()|?])|(?P<name>\w+))"""
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|x([0-9a-f]{2})|(.))", re.DOTALL)
_SHORT = {"n": "\n", "t": "\t", "r": "\r"}


def grammar_pattern(grammar: str, *, depth: int = 6) -> re.Pattern[str]:
    """Compile `grammar`; rules that refer to themselves are followed `depth` times."""
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines() if line)
    return re.compile(_pattern("root", rules, {}, depth), re.DOTALL)


def _pattern(name: str, rules: dict[str, str], seen: dict[str, int], depth: int) -> str:
    if seen.get(name, 0) >= depth:
        return "(?!)"
    inner = {**seen, name: seen.get(name, 0) + 1}
    out = []
    body = rules[name]
    position = 0
    while match := _TOKEN.match(body, position):
        position = match.end()
        if match["literal"]:
            out.append(f"(?:{re.escape(_unescaped(match['literal'][1:-1]))})")
        elif match["class"]:
            out.append(_character_class(match["class"]))
        elif match["name"]:
            out.append(f"(?:{_pattern(match['name'], rules, inner, depth)})")
        else:
            sign = match["sign"] or match["repeat"]
            out.append("(?:" if sign == "(" else sign)
    assert not body[position:].strip(), f"not understood: {body[position:]}"
    return "".join(out)


def _character_class(text: str) -> str:
    negated = text.startswith("[^")
    inner = text[2 if negated else 1 : -1]
    parts = re.findall(r"\\u[0-9a-f]{4}|\\U[0-9a-f]{8}|\\x[0-9a-f]{2}|\\.|.", inner, re.DOTALL)
    written = "".join("-" if part == "-" else re.escape(_unescaped(part)) for part in parts)
    return f"[{'^' if negated else ''}{written}]"


def _unescaped(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        return chr(int(code, 16)) if code else _SHORT.get(match[4], match[4])

    return _ESCAPE.sub(replaced, text)
