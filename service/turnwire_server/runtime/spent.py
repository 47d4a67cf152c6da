"""Tokens of generations that are not the answer itself."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Spent"]


@dataclass(slots=True)
class Spent:
    """What summaries of the conversation used."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
