"""Why a database cannot be used. Apart, so that it can be caught without SQLAlchemy."""

from __future__ import annotations

__all__ = ["DatabaseFailure"]


class DatabaseFailure(Exception):
    """The database cannot be used. `str()` is one sentence for the operator, without secrets."""
