"""Why a benchmark cannot go on."""

from __future__ import annotations

__all__ = ["BenchFailure"]


class BenchFailure(Exception):
    """Something cannot be measured. `str()` is a sentence or two for whoever runs it."""
