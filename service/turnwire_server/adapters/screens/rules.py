"""A screen of rules: RE2 patterns, so that no text takes more than linear time.

What is found is a match that ends in new text. It may begin in earlier text: of each group of
rules that read the same sources, the last `window` characters travel along as the state.

Texts that follow each other are read in two views, set apart by a space and joined without one,
so that a phrase is found whether it was split between words or within one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from turnwire.v1 import item_pb2
from turnwire_server.adapters.screens.canonical import Source, canonical, item_text, source_of
from turnwire_server.adapters.screens.rules_file import Rule, RuleSet, RulesFailure
from turnwire_server.ports.screen import Verdict

__all__ = ["RuleScreen"]

_SEAM: Final = "\x1f"
"""Stands between two texts; the canonical form has no control characters."""
_BETWEEN_TAILS: Final = "\x1e"
_FINGERPRINT_BYTES: Final = 8
_MAX_UTF8_BYTES: Final = 4
"""Bytes of one character."""
_INLINE_CHARS: Final = 8192
"""Up to here a check costs less than the way to another thread."""
_MAX_KNOWN_INSTRUCTIONS: Final = 256
_REFUSAL: Final = "I can't help with that."
_MAX_PROGRAM_BYTES: Final = 16 << 20

Hits = frozenset[int]
"""Positions of the rules that found something."""


class RuleScreen:
    """Implements `ports.Screen`."""

    def __init__(self, rules: RuleSet) -> None:
        """Compile the rules; blocks.

        Raises:
            RulesFailure: A pattern cannot be used, or RE2 is not installed.
        """
        self._rules = rules.rules
        self._fingerprint = rules.fingerprint
        compiled = [_compiled(rule, position) for position, rule in enumerate(rules.rules)]
        self._groups = [
            _Group(
                sources,
                [
                    (position, compiled[position])
                    for position, rule in enumerate(rules.rules)
                    if rule.applies_to == sources
                ],
                [rule for rule in rules.rules if rule.applies_to == sources],
                rules.window,
            )
            for sources in rules.groups
        ]
        self._known_instructions: OrderedDict[bytes, Hits] = OrderedDict()

    async def check(
        self, state: bytes, new_items: Sequence[item_pb2.Item], *, instructions: str = ""
    ) -> Verdict:
        """Judge new input; see `ports.Screen`. Costs nothing that grows with the history.

        Instructions come again with every turn: the same ones are read once.
        """
        texts = [(source_of(item), item_text(item)) for item in new_items]
        digest = b""
        known: Hits | None = frozenset()
        if instructions:
            digest = hashlib.sha256(instructions.encode()).digest()
            known = self._known_instructions.get(digest)
        unread = instructions if known is None else ""
        if sum(len(text) for _, text in texts) + len(unread) <= _INLINE_CHARS:
            hits, of_instructions, tails = self._judge(state, texts, unread)
        else:
            # RE2 works outside the interpreter's lock: other turns go on meanwhile.
            hits, of_instructions, tails = await asyncio.to_thread(
                self._judge, state, texts, unread
            )
        if known is None:
            known = of_instructions
            self._remember(digest, known)
        return self._verdict(hits | known, tails)

    def _judge(
        self, state: bytes, texts: Sequence[tuple[Source, str]], instructions: str
    ) -> tuple[Hits, Hits, bytes]:
        """Return what the items hit, what the instructions hit, and the new state."""
        read = [(source, canonical(text)) for source, text in texts]
        hits: set[int] = set()
        tails = []
        for group, tail in zip(self._groups, self._tails(state), strict=True):
            own = [text for source, text in read if text and source in group.sources]
            hits.update(group.hits(tail, own))
            tails.append(group.tail(tail, own))
        of_instructions: set[int] = set()
        if instructions:
            own = [canonical(instructions)]
            for group in self._groups:
                if "instructions" in group.sources:
                    of_instructions.update(group.hits("", own))
        return frozenset(hits), frozenset(of_instructions), self._state(tails)

    def _verdict(self, hits: Hits, state: bytes) -> Verdict:
        found = [self._rules[position] for position in sorted(hits)]
        categories = tuple(dict.fromkeys(rule.category for rule in found))
        for action in ("block", "refuse"):
            rule = next((rule for rule in found if rule.action == action), None)
            if rule is not None:
                return Verdict(
                    allowed=False,
                    state=state,
                    refusal=rule.message or _words(rule),
                    ending="fail" if action == "block" else "refuse",
                    categories=categories,
                )
        return Verdict(allowed=True, state=state, categories=categories)

    def _remember(self, digest: bytes, hits: Hits) -> None:
        self._known_instructions[digest] = hits
        if len(self._known_instructions) > _MAX_KNOWN_INSTRUCTIONS:
            self._known_instructions.popitem(last=False)

    # The state: a fingerprint, then the tail of each group.

    def _state(self, tails: Sequence[str]) -> bytes:
        return self._fingerprint + _BETWEEN_TAILS.join(tails).encode()

    def _tails(self, state: bytes) -> list[str]:
        """Return the tails in `state`; those of other rules mean nothing here."""
        if state[:_FINGERPRINT_BYTES] == self._fingerprint:
            tails = state[_FINGERPRINT_BYTES:].decode(errors="replace").split(_BETWEEN_TAILS)
            if len(tails) == len(self._groups):
                return tails
        return [""] * len(self._groups)


class _Group:
    """The rules that read the same sources."""

    def __init__(
        self,
        sources: frozenset[Source],
        patterns: Sequence[tuple[int, Any]],
        rules: Sequence[Rule],
        window: int,
    ) -> None:
        self.sources = sources
        self._patterns = patterns
        self._window = window
        self._any = _compiled_any(rules)

    def tail(self, tail: str, texts: Sequence[str]) -> str:
        """Return the end of what was read so far."""
        for text in texts:
            tail = f"{tail}{_SEAM}{text}"[-self._window :] if tail else text[-self._window :]
        return tail

    def hits(self, tail: str, texts: Sequence[str]) -> Iterator[int]:
        """Yield the rules that match something that ends in `texts`; one may come twice."""
        if not texts:
            return
        before = tail + _SEAM if tail else ""
        new = _SEAM.join(texts)
        for joint in (" ", ""):
            head = before.replace(_SEAM, joint).encode()
            view = head + new.replace(_SEAM, joint).encode()
            is_known = joint == "" and _SEAM not in new  # the first view has read the rest
            yield from self._matching(view, len(head), is_known=is_known)

    def _matching(self, view: bytes, start: int, *, is_known: bool) -> Iterator[int]:
        reach = start + self._window * _MAX_UTF8_BYTES
        if self._any is not None and not _matches(self._any, view, start, reach, is_known=is_known):
            return
        for position, pattern in self._patterns:
            if _matches(pattern, view, start, reach, is_known=is_known):
                yield position


def _matches(pattern: Any, view: bytes, start: int, reach: int, *, is_known: bool) -> bool:
    """Return whether a match ends in `view[start:]`.

    Args:
        pattern: Compiled to prefer the longest match, so that where one of several matches at a
            place ends in new text, it is the one that is seen.
        view: Earlier text and new text.
        start: Where new text begins.
        reach: How far a match that begins before `start` may go.
        is_known: Whether nothing matches within the new text alone.
    """
    if not is_known and pattern.search(view, start) is not None:
        return True
    position = 0
    while position < start:
        match = pattern.search(view, position, min(reach, len(view)))
        if match is None or match.start() >= start:
            return False
        if match.end() > start:
            return True
        position = match.start() + 1
    return False


def _compiled(rule: Rule, position: int) -> Any:
    """Return the pattern of a rule, compiled; each is tried alone for the sake of the message."""
    for index, pattern in enumerate(rule.patterns):
        where = f"rules[{position}].patterns[{index}]"
        alone = _compile([pattern], where)
        if any(_is_empty(match) for probe in _PROBES for match in alone.finditer(probe)):
            raise RulesFailure(f"{where}: it matches where there is nothing.")
    return _compile(
        [_source_text(pattern, rule) for pattern in rule.patterns], f"rules[{position}]"
    )


_PROBES: Final = (b"", b"a", b"a 1", b"-- ")


def _is_empty(match: Any) -> bool:
    return bool(match.start() == match.end())


def _compiled_any(rules: Iterable[Rule]) -> Any | None:
    """Return one pattern for all rules, None where they are too many for one."""
    texts = [_source_text(pattern, rule) for rule in rules for pattern in rule.patterns]
    try:
        return _compile(texts, "rules")
    except RulesFailure:
        return None


def _source_text(pattern: str, rule: Rule) -> str:
    return f"(?i:{pattern})" if rule.ignore_case else f"(?:{pattern})"


def _compile(patterns: Sequence[str], where: str) -> Any:
    try:
        import re2  # here, so that a server without a screen needs no RE2
    except ImportError:
        raise RulesFailure(
            "The rules screen needs google-re2, which is not installed. Install it with: "
            "pip install 'turnwire[screen]'"
        ) from None
    options = re2.Options()
    options.longest_match = True
    options.never_capture = True
    options.log_errors = False
    options.max_mem = _MAX_PROGRAM_BYTES
    try:
        return re2.compile("|".join(patterns), options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        detail = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise RulesFailure(f"{where}: not a pattern of RE2: {detail[:200]}.") from None


def _words(rule: Rule) -> str:
    if rule.action == "refuse":
        return _REFUSAL
    return f"The input was refused by a safety check ({rule.category})."
