"""Bounds that the edge and the session must agree on."""

from __future__ import annotations

__all__ = ["MAX_INPUT_ITEMS"]

MAX_INPUT_ITEMS = 10_000
"""Items in one input. An item costs about 50 µs on the event loop whatever is in it."""
