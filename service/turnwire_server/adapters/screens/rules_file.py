"""The rules file of the `rules` screen: TOML, checked strictly, explained in docs/screening.md."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from turnwire_server.adapters.screens.canonical import SOURCES, Source

__all__ = ["Action", "Rule", "RuleSet", "RulesFailure", "parse_rules", "read_rules"]

Action = Literal["block", "refuse", "flag"]

_FORMAT: Final = "1"
"""Part of the fingerprint: changes when the canonical form or the state does."""

_MAX_FILE_BYTES: Final = 1 << 20
_MAX_RULES: Final = 256
_MAX_PATTERNS: Final = 1024
_MAX_PATTERN_CHARS: Final = 4096
_MAX_CATEGORY_CHARS: Final = 64
_MAX_MESSAGE_CHARS: Final = 400
_WINDOW: Final = 512
_MIN_WINDOW: Final = 16
_MAX_WINDOW: Final = 4096

_TOP_KEYS: Final = frozenset({"window", "rules"})
_RULE_KEYS: Final = frozenset(
    {"action", "applies_to", "category", "ignore_case", "message", "patterns"}
)


class RulesFailure(Exception):
    """The rules cannot be used. `str()` is a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    category: str
    """What the log and the client are told; never what was found."""
    patterns: tuple[str, ...]
    """In RE2 syntax; any of them is enough."""
    action: Action = "block"
    """`block` fails the turn, `refuse` answers with a refusal, `flag` goes on and is logged."""
    applies_to: frozenset[Source] = frozenset(SOURCES)
    """Which texts it reads."""
    ignore_case: bool = False
    message: str = ""
    """What the client is told; empty for words of the server's own."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of a screen."""

    rules: tuple[Rule, ...]
    window: int = _WINDOW
    """Characters of earlier text, in canonical form, that are read again before new text."""

    @property
    def fingerprint(self) -> bytes:
        """Eight bytes that stand for what a state depends on: the sources read and the window."""
        groups = [",".join(sorted(sources)) for sources in self.groups]
        described = "\n".join((_FORMAT, str(self.window), *groups))
        return hashlib.sha256(described.encode()).digest()[:8]

    @property
    def groups(self) -> tuple[frozenset[Source], ...]:
        """The different `applies_to`, in the order of their first rule."""
        return tuple(dict.fromkeys(rule.applies_to for rule in self.rules))


def read_rules(path: Path) -> RuleSet:
    """Read a rules file; blocks.

    Raises:
        RulesFailure: It is not there, or cannot be used.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise RulesFailure(f"{path}: cannot be read: {error.strerror}.") from None
    if len(content) > _MAX_FILE_BYTES:
        raise RulesFailure(f"{path}: is longer than {_MAX_FILE_BYTES} bytes.")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise RulesFailure(f"{path}: is not UTF-8 text.") from None
    return parse_rules(text, origin=str(path))


def parse_rules(text: str, *, origin: str) -> RuleSet:
    """Return the rules that `text` holds; `origin` is named in failures.

    Raises:
        RulesFailure: They cannot be used. Patterns are compiled later, by the screen.
    """
    try:
        table = tomllib.loads(text)
        return _rule_set(table)
    except tomllib.TOMLDecodeError as error:
        raise RulesFailure(f"{origin}: is not TOML: {error}.") from None
    except _Problem as problem:
        raise RulesFailure(f"{origin}: {problem}.") from None


class _Problem(Exception):
    """What is wrong, without the file's name."""


def _rule_set(table: Mapping[str, Any]) -> RuleSet:
    _only(table, _TOP_KEYS, "")
    window = table.get("window", _WINDOW)
    if not _is_whole(window) or not _MIN_WINDOW <= window <= _MAX_WINDOW:
        raise _Problem(f"window: a whole number from {_MIN_WINDOW} to {_MAX_WINDOW} is needed")
    rules = table.get("rules")
    if not isinstance(rules, list) or not 1 <= len(rules) <= _MAX_RULES:
        raise _Problem(f"rules: 1 to {_MAX_RULES} tables ([[rules]]) are needed")
    return RuleSet(
        tuple(_rule(rule, f"rules[{position}]") for position, rule in enumerate(rules)), window
    )


def _rule(table: object, path: str) -> Rule:
    if not isinstance(table, dict):
        raise _Problem(f"{path}: a table is needed")
    _only(table, _RULE_KEYS, f"{path}.")
    category = table.get("category")
    if not isinstance(category, str) or not _is_name(category):
        raise _Problem(
            f"{path}.category: 1 to {_MAX_CATEGORY_CHARS} letters, digits or any of '_-./' are "
            "needed"
        )
    action = table.get("action", "block")
    if action not in get_args(Action):
        raise _Problem(f"{path}.action: {' or '.join(get_args(Action))} is needed")
    ignore_case = table.get("ignore_case", False)
    if not isinstance(ignore_case, bool):
        raise _Problem(f"{path}.ignore_case: true or false is needed")
    message = table.get("message", "")
    if not isinstance(message, str) or len(message) > _MAX_MESSAGE_CHARS:
        raise _Problem(f"{path}.message: text of at most {_MAX_MESSAGE_CHARS} characters is needed")
    return Rule(
        category=category,
        patterns=_patterns(table.get("patterns"), f"{path}.patterns"),
        action=action,
        applies_to=_sources(table.get("applies_to", list(SOURCES)), f"{path}.applies_to"),
        ignore_case=ignore_case,
        message=message,
    )


def _patterns(value: object, path: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_PATTERNS:
        raise _Problem(f"{path}: an array of 1 to {_MAX_PATTERNS} patterns is needed")
    for position, pattern in enumerate(value):
        where = f"{path}[{position}]"
        if not isinstance(pattern, str) or not 1 <= len(pattern) <= _MAX_PATTERN_CHARS:
            raise _Problem(f"{where}: 1 to {_MAX_PATTERN_CHARS} characters are needed")
        if pattern.startswith(("^", r"\A")) or _ends_anchored(pattern):
            # New text is read behind the end of earlier text: it has no beginning of its own.
            raise _Problem(f"{where}: a pattern cannot be tied to the beginning or end of a text")
    return tuple(value)


def _ends_anchored(pattern: str) -> bool:
    if pattern.endswith("$"):
        before = pattern[:-1]
    elif pattern.endswith(r"\z"):
        before = pattern[:-2]
    else:
        return False
    return (len(before) - len(before.rstrip("\\"))) % 2 == 0


def _sources(value: object, path: str) -> frozenset[Source]:
    if not isinstance(value, list) or not value or not all(entry in SOURCES for entry in value):
        raise _Problem(f"{path}: an array with any of {', '.join(SOURCES)} is needed")
    return frozenset(value)


def _only(table: Mapping[str, Any], known: frozenset[str], prefix: str) -> None:
    for key in table:
        if key not in known:
            raise _Problem(f"{prefix}{key[:80]}: unknown key; known are {', '.join(sorted(known))}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_name(text: str) -> bool:
    return (
        0 < len(text) <= _MAX_CATEGORY_CHARS
        and text.isascii()
        and all(character.isalnum() or character in "_-./" for character in text)
    )
