"""A report of usage: sums of the database, grouped and priced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Literal, get_args

from turnwire_server.ports.prices import PriceList

__all__ = ["GROUPINGS", "GroupUsage", "Grouping", "UsageSums", "grouped"]

Grouping = Literal["key", "model", "day"]
GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)


@dataclass(frozen=True, slots=True)
class UsageSums:
    """Sums over the records of one group, model and status."""

    group: str | int
    """A tenant or a model; with `day` the Unix seconds of its midnight, UTC."""
    model: str
    status: str
    responses: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


@dataclass(slots=True)
class GroupUsage:
    """What one group used, of all models and statuses."""

    group: str | int
    statuses: dict[str, int] = field(default_factory=dict)
    """Status -> responses."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost: Decimal = Decimal(0)
    """Exact, of the responses whose model has a price."""
    unpriced: int = 0
    """Responses whose model has none."""

    @property
    def responses(self) -> int:
        """All responses."""
        return sum(self.statuses.values())

    def add(self, sums: UsageSums, prices: PriceList) -> None:
        """Count sums in."""
        self.statuses[sums.status] = self.statuses.get(sums.status, 0) + sums.responses
        self.input_tokens += sums.input_tokens
        self.cached_tokens += sums.cached_tokens
        self.output_tokens += sums.output_tokens
        self.reasoning_tokens += sums.reasoning_tokens
        price = prices.price(sums.model)
        if price is None:
            self.unpriced += sums.responses
        else:
            self.cost += price.cost(
                input_tokens=sums.input_tokens,
                cached_tokens=sums.cached_tokens,
                output_tokens=sums.output_tokens,
                reasoning_tokens=sums.reasoning_tokens,
            )


def grouped(
    sums: Sequence[UsageSums], prices: PriceList
) -> tuple[Sequence[GroupUsage], GroupUsage]:
    """Return what each group used, in the order of `sums`, and what all of them did."""
    groups: dict[str | int, GroupUsage] = {}
    total = GroupUsage("total")
    for each in sums:
        groups.setdefault(each.group, GroupUsage(each.group)).add(each, prices)
        total.add(each, prices)
    return list(groups.values()), total
