"""What a client may rely on, behaviour by behaviour.

Each behaviour has an id, its source and a sentence. `test_requirements.py` checks both ways that
every one is proven by a test of this folder and that every test names one. A behaviour that a
wire cannot have says so here, by `wires` and `why`, and its tests are not run there.

Sources: `api` is the public API's guide and types; `turnwire` our own decisions (docs/protocol);
`case` a fault that users of comparable systems reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pytest
from harness.peers import Wire

__all__ = ["EVERY_WIRE", "REQUIREMENTS", "Requirement", "requirement"]

EVERY_WIRE: tuple[Wire, ...] = ("memory", "grpc", "websocket", "http")
_PERSISTENT: tuple[Wire, ...] = ("memory", "grpc", "websocket")
_ONE_TURN = "An HTTP request carries one turn and has no session."
_HALF_CLOSE: tuple[Wire, ...] = ("memory", "grpc")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One behaviour."""

    source: str
    sentence: str
    wires: tuple[Wire, ...] = EVERY_WIRE
    why: str = ""
    """Why it is not on every wire; "" when it is."""


def _persistent(source: str, sentence: str) -> Requirement:
    return Requirement(source, sentence, _PERSISTENT, _ONE_TURN)


REQUIREMENTS: Mapping[str, Requirement] = MappingProxyType(
    {
        # Sequences.
        "sequence.text": Requirement("api", "A text answer has the canonical event sequence."),
        "sequence.function_call": Requirement(
            "api", "A function call has the canonical event sequence."
        ),
        "sequence.custom_call": Requirement(
            "api", "A call of a custom tool has the canonical event sequence."
        ),
        "sequence.reasoning": Requirement(
            "api", "Raw reasoning is an item with a part of its own, before what it led to."
        ),
        "sequence.mixed": Requirement(
            "case 29", "Text and calls in one response keep order and indices."
        ),
        "sequence.warm_up": _persistent(
            "api", "A warm-up is created, in progress and completed, with usage and no output."
        ),
        "sequence.empty": Requirement(
            "case 15", "An empty answer is a completed response of one message with empty text."
        ),
        "sequence.incomplete": Requirement(
            "case 37", "Out of tokens is `response.incomplete`, and the open item is incomplete."
        ),
        "sequence.failed": Requirement(
            "case 38", "An engine that breaks gives one `response.failed` and frees the lane."
        ),
        "sequence.numbers": Requirement(
            "case 28", "Sequence numbers start at 0 in every response and have no gap."
        ),
        "sequence.ids": Requirement(
            "case 33", "Ids of items are the same in every event and in the terminal response."
        ),
        "response.members": Requirement(
            "api", "A response has every member that strict clients ask for."
        ),
        "usage.sum": Requirement(
            "case 102", "Usage counts the whole context, once, and its parts add up."
        ),
        "usage.reasoning": Requirement("case 98", "Usage says how many tokens were reasoning."),
        "usage.ledger": Requirement(
            "case 98", "Every response that began leaves one usage record, failed ones too."
        ),
    }
)


def requirement(identifier: str) -> pytest.MarkDecorator:
    """Return the mark of a test that proves a requirement."""
    if identifier not in REQUIREMENTS:
        raise KeyError(identifier)
    return pytest.mark.requirement(identifier)
