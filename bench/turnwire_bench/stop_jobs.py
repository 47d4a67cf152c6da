"""How long it takes to stop: a cancel, and a client that is gone."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any, Final

import aiohttp

import turnwire
from turnwire_bench.failure import BenchFailure
from turnwire_bench.lean import LeanSession, create_of, open_lean

__all__ = ["stop"]

_SCRIPT: Final = json.dumps({"tokens": 50_000, "tokens_per_second": 1000})
_RUNNING: Final = re.compile(rb"^turnwire_turns_running (\S+)$", re.MULTILINE)
_TIMEOUT_S: Final = 20.0
_LOOK_S: Final = 0.002
"""Between two looks at the server's metrics."""


async def stop(job: dict[str, Any]) -> dict[str, Any]:
    """Cancel, and cut the connection of, `repeats` running turns.

    Returns:
        Milliseconds from the cancel to the terminal event, and from the cut until the server
        says that no turn runs; the latter includes asking for it.
    """
    cancels, cuts = [], []
    async with aiohttp.ClientSession() as client, asyncio.timeout(_TIMEOUT_S * job["repeats"]):
        for _ in range(job["repeats"]):
            cancels.append(await _cancel(job["url"]) * 1e3)
            cuts.append(await _cut(job, client) * 1e3)
    return {"cancel_ms": cancels, "disconnect_ms": cuts}


async def _cancel(url: str) -> float:
    async with turnwire.connect(url, model="sim") as session:
        is_persistent = not url.startswith("http")
        turn = session.create(
            "Go on.",
            store=False if is_persistent else None,
            metadata={"turnwire.sim": _SCRIPT},
        )
        async for event in turn:
            if event.delta is not None:
                break
        began = time.perf_counter()
        await turn.cancel()
        return time.perf_counter() - began


async def _cut(job: dict[str, Any], client: aiohttp.ClientSession) -> float:
    if job["transport"] == "http":
        body = {"model": "sim", "input": "Go on.", "stream": True, "store": False}
        body["metadata"] = {"turnwire.sim": _SCRIPT}
        answer = await client.post(f"{job['url']}/responses", json=body)
        await _until_running(job["metrics"], client, 1)
        began = time.perf_counter()
        answer.close()
    else:
        session = LeanSession(job["transport"])
        session.link = await open_lean(job["transport"], job["port"], session.take)
        session.send(create_of(job["transport"], "Go on.", _SCRIPT))
        await _until_running(job["metrics"], client, 1)
        began = time.perf_counter()
        session.link.transport.abort()
    await _until_running(job["metrics"], client, 0)
    return time.perf_counter() - began


async def _until_running(url: str, client: aiohttp.ClientSession, count: int) -> None:
    while True:
        async with client.get(url) as answer:
            found = _RUNNING.search(await answer.read())
        if found is None:
            raise BenchFailure("The server does not tell how many turns run.")
        if int(float(found[1])) == count:
            return
        await asyncio.sleep(_LOOK_S)
