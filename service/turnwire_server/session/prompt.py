"""The ids that an engine has seen for a conversation."""

from __future__ import annotations

from dataclasses import dataclass

from turnwire_server.session.tokens import TokenIds

__all__ = ["Prompt"]


@dataclass(slots=True)  # not frozen: two are made per turn, and that takes thrice as long
class Prompt:
    """Rendered prompt plus sampled ids. Never rendered again: a child starts from these ids."""

    fingerprint: str
    """Of model, tokenizer, template, instructions and tools: ids are valid under it alone."""
    ids: TokenIds
    head_length: int
    """Ids of the head (instructions and tools), at the front of `ids`."""
    tail: tuple[int, ...] = ()
    """Ids that close the last assistant turn and go before the next items; () if none."""
