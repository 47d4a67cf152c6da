"""A server whose engine stops where a test says, and the official SDK in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import grpc
import openai

from harness.held_engine import HeldEngine
from harness.server import RunningServer, serving
from harness.stack import MODEL, Parts, Stack, running_stack
from turnwire_server.runtime.services import Services

__all__ = ["WAIT_S", "Bench", "bench", "message"]

WAIT_S = 20.0
"""Bound on every wait, in seconds."""


def message(text: str) -> list[dict[str, Any]]:
    """Return the input of one user message; the engine's holds go by its text."""
    return [{"type": "message", "role": "user", "content": text}]


@dataclass(slots=True)
class Bench:
    """One server and its clients."""

    stack: Stack
    server: RunningServer
    sdk: openai.AsyncOpenAI
    http: aiohttp.ClientSession
    channel: grpc.aio.Channel

    @property
    def engine(self) -> HeldEngine:
        """The engine."""
        return self.stack.engine

    @property
    def services(self) -> Services:
        """The services."""
        return self.stack.services

    async def create(self, text: str = "Hi", **members: Any) -> Any:
        """Create a response through the SDK."""
        async with asyncio.timeout(WAIT_S):
            return await self.sdk.responses.create(
                model=MODEL,
                input=message(text),
                **members,
            )

    async def events(self, stream: Any) -> list[Any]:
        """Read a stream of the SDK to its end."""
        async with asyncio.timeout(WAIT_S):
            return [event async for event in stream]

    async def over(self, response_id: str) -> Any:
        """Poll a response until it is over."""
        async with asyncio.timeout(WAIT_S):
            while True:
                response = await self.sdk.responses.retrieve(response_id)
                if response.status not in ("queued", "in_progress"):
                    return response

    def post(self, body: Any, **headers: str) -> Any:
        """Post a create as any HTTP client would; an answer to be entered."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"model": MODEL, **body}
        return self.http.post(f"{self.server.http_url}/responses", json=body, headers=named)

    def get(self, path: str) -> Any:
        """Get something below `/v1/responses/`."""
        return self.http.get(f"{self.server.http_url}/responses/{path}")

    def statuses(self) -> list[str]:
        """Return the status of every closed usage record."""
        return [record.status for record in self.stack.ledger.closed.values()]


@asynccontextmanager
async def bench(parts: Parts | None = None) -> AsyncIterator[Bench]:
    """Run a server made of `parts`, without retries in the SDK."""
    parts = parts or Parts()
    parts.sim = replace(parts.sim, step_tokens=2)
    async with AsyncExitStack() as exits:
        stack = await exits.enter_async_context(running_stack(parts))
        server = await exits.enter_async_context(serving(stack.services))
        sdk = openai.AsyncOpenAI(base_url=server.http_url, api_key="x", max_retries=0)
        yield Bench(
            stack,
            server,
            await exits.enter_async_context(sdk),
            await exits.enter_async_context(aiohttp.ClientSession()),
            await exits.enter_async_context(grpc.aio.insecure_channel(server.grpc_target)),
        )
