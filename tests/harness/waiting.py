"""Waiting for what other tasks do, where no event tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["until"]


async def until(condition: Callable[[], object], *, within_s: float = 20.0) -> None:
    """Let other tasks run until `condition` holds.

    Raises:
        TimeoutError: It does not within `within_s` seconds.
    """
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  # what is waited for is many tasks away
            await asyncio.sleep(0)
