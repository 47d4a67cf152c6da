"""What a chat template does to a conversation as it grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["HistoryRule", "TemplateClass"]

HistoryRule = Literal["kept", "exact"]
"""`kept`: what the engine saw stays as it is, whatever the template would make of it.
`exact`: a template that rewrites history does so when the user speaks again, and the ids of
the longest common prefix are reused."""


@dataclass(frozen=True, slots=True)
class TemplateClass:
    """The facts that decide how a prompt may be continued."""

    keeps_prefixes: bool
    """Each prompt begins with the one before it: continuing gives what a cold render gives."""
    strips_reasoning: bool = False
    """Earlier reasoning is left out once the user speaks again."""
    inserts_in_generation_prompt: bool = False
    """The generation prompt has something that history has not, such as an empty thought."""
    moves_tools: bool = False
    """The tools stand before the last turn, not at the front."""

    def rewrites_history(self, *, user_speaks: bool) -> bool:
        """Return whether the template would write earlier turns otherwise than they were.

        Args:
            user_speaks: Whether the new items are more than outputs of tools.
        """
        if self.keeps_prefixes:
            return False
        return user_speaks or self.inserts_in_generation_prompt

    def describe(self) -> str:
        """Return the facts in words."""
        facts = {
            "strips reasoning at a new user turn": self.strips_reasoning,
            "inserts in the generation prompt": self.inserts_in_generation_prompt,
            "moves tools": self.moves_tools,
        }
        words = [fact for fact, holds in facts.items() if holds]
        if self.keeps_prefixes:
            return "; ".join(["keeps prefixes", *words])
        return "; ".join(words or ["rewrites history"])
