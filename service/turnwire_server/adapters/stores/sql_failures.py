"""What a store says when its database fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from turnwire_server.ports.store import StoreFailure

__all__ = ["store_failures"]


@contextmanager
def store_failures(what: str) -> Iterator[None]:
    """Turn what the database raises into a StoreFailure that names the kind of it.

    Args:
        what: What could not be done.
    """
    try:
        yield
    except (SQLAlchemyError, OSError, TimeoutError, ValueError) as error:
        original = error.orig if isinstance(error, DBAPIError) and error.orig else error
        # The texts of the drivers may hold values: the kind alone is said.
        raise StoreFailure(f"{what}: {type(original).__name__}") from None
