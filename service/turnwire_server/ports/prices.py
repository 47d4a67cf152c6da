"""What tokens cost: values that the configuration gives and the ledger's readers use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Final

__all__ = ["EVERY_MODEL", "Price", "PriceList"]

EVERY_MODEL: Final = "*"
"""Name of the price of models that have none of their own."""
_PER: Final = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens of a model cost."""

    input: Decimal
    """Of input that the engine had not cached."""
    output: Decimal
    """Of output that is no reasoning."""
    cached_input: Decimal
    reasoning: Decimal

    def cost(
        self, *, input_tokens: int, cached_tokens: int, output_tokens: int, reasoning_tokens: int
    ) -> Decimal:
        """Return the exact cost of tokens; cached and reasoning ones are part of their sums."""
        return (
            self.input * (input_tokens - cached_tokens)
            + self.cached_input * cached_tokens
            + self.output * (output_tokens - reasoning_tokens)
            + self.reasoning * reasoning_tokens
        ) / _PER


@dataclass(frozen=True, slots=True)
class PriceList:
    """The prices of all models."""

    currency: str = ""
    """What they are in, "" when there are none."""
    models: Mapping[str, Price] = field(default_factory=lambda: MappingProxyType({}))
    """Model -> price; `*` is for every other one."""

    def price(self, model: str) -> Price | None:
        """Return a model's price, None when it has none."""
        return self.models.get(model) or self.models.get(EVERY_MODEL)
