"""The official SDK over the drop-in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import openai

import turnwire.openai

__all__ = ["is_busy", "resent", "sdk_over", "sessions_of"]


@asynccontextmanager
async def sdk_over(
    transport: httpx.AsyncBaseTransport, **options: Any
) -> AsyncIterator[openai.AsyncOpenAI]:
    """Give an SDK on a transport, for at most 20 s."""
    options = {"api_key": "x", "max_retries": 0, **options}
    http_client = httpx.AsyncClient(transport=transport)
    async with (
        asyncio.timeout(20),
        openai.AsyncOpenAI(
            base_url="http://turnwire.invalid/v1", http_client=http_client, **options
        ) as client,
    ):
        yield client


def sessions_of(transport: turnwire.openai.Transport) -> list[turnwire.Session]:
    """Return the sessions that are open on the running loop."""
    bridge = transport._bridges[asyncio.get_running_loop()]
    return [held.session for held in bridge._pool._open]


def is_busy(transport: turnwire.openai.Transport) -> bool:
    """Return whether a turn runs."""
    bridge = transport._bridges[asyncio.get_running_loop()]
    return any(held.is_busy for held in bridge._pool._open)


def resent(items: list[Any]) -> list[Any]:
    """Return a history as an application keeps it: plain JSON, out of what the SDK returned."""
    return [
        item if isinstance(item, dict) else item.model_dump(exclude_unset=True) for item in items
    ]
