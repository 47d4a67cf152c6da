"""How a command fails."""

from __future__ import annotations

__all__ = ["CommandFailure"]


class CommandFailure(Exception):
    """A command cannot do what it was asked for. `str()` is what the user reads."""
