"""What the suite does with a server, by section of the protocol."""

from __future__ import annotations

from typing import Final

from turnwire_server.conformance.checks import Check
from turnwire_server.conformance.scenarios import (
    chains,
    edges,
    errors,
    extensions,
    lanes,
    sequences,
    stored,
)

__all__ = ["SCENARIOS"]

SCENARIOS: Final[tuple[Check, ...]] = (
    *sequences.SCENARIO.checks,
    *chains.SCENARIO.checks,
    *lanes.SCENARIO.checks,
    *errors.SCENARIO.checks,
    *edges.SCENARIO.checks,
    *stored.SCENARIO.checks,
    *extensions.SCENARIO.checks,
)
