"""What becomes of responses whose server process is killed: a real one, on a database."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from faults.server import FaultServer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="journals need POSIX locks")

WAIT_S = 20.0
CONFIG = """
[[models]]
name = "sim"
engine = "sim"
tokens_per_second = 20

[runtime]
drain_grace_s = 1
"""
LONG = {"turnwire.sim": json.dumps({"tokens": 2000})}
SHORT = {"turnwire.sim": json.dumps({"tokens": 2})}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FaultServer]:
    made = FaultServer(tmp_path, CONFIG)
    await made.start()
    try:
        yield made
    finally:
        await made.abandon()


def client_of(server: FaultServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.http_url, api_key="x", max_retries=0, timeout=WAIT_S)


def usage_of(server: FaultServer, response_id: str) -> list[str]:
    with sqlite3.connect(server.database) as database:
        query = "SELECT status FROM usage_records WHERE response_id = ?"
        return [status for (status,) in database.execute(query, (response_id,))]


async def test_a_background_response_of_a_killed_server_has_failed_and_is_not_billed_twice(
    server: FaultServer,
) -> None:
    async with client_of(server) as sdk:
        done = await sdk.responses.create(model="sim", input="Hi", background=True, metadata=SHORT)
        async with asyncio.timeout(WAIT_S):
            while (await sdk.responses.retrieve(done.id)).status == "in_progress":
                pass  # another process: nothing tells of it
        stream = await sdk.responses.create(
            model="sim", input="Hi", background=True, stream=True, metadata=LONG
        )
        seen = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        response_id = seen[0].response.id
        assert (await sdk.responses.retrieve(response_id)).status == "in_progress"
        await server.kill()
        lost = await sdk.responses.retrieve(response_id)
        assert (lost.status, lost.background) == ("failed", True)
        assert lost.error is not None and lost.error.code == "server_error"
        assert usage_of(server, response_id) == ["interrupted"]
        assert (await sdk.responses.retrieve(done.id)).status == "completed"
        assert usage_of(server, done.id) == ["completed"]
        with pytest.raises(openai.ConflictError) as gone:
            await sdk.responses.retrieve(
                response_id, stream=True, starting_after=seen[-1].sequence_number
            )
        assert gone.value.code == "resume_gap"
        again = await sdk.responses.retrieve(response_id, stream=True)
        async with asyncio.timeout(WAIT_S):
            events = [event async for event in again]
        assert events[-1].type == "response.failed"
        with pytest.raises(openai.BadRequestError) as unusable:
            await sdk.responses.create(model="sim", input="And?", previous_response_id=response_id)
        assert unusable.value.code == "previous_response_not_found"
        await server.kill()  # a second start has nothing left to clear up
        assert (await sdk.responses.retrieve(response_id)).to_dict() == lost.to_dict()


async def test_a_key_of_a_killed_server_brings_what_became_of_its_response(
    server: FaultServer,
) -> None:
    async with client_of(server) as sdk:
        answered = await sdk.responses.create(
            model="sim", input="Hi", metadata=SHORT, extra_headers={"Idempotency-Key": "done"}
        )
        cut = asyncio.ensure_future(
            sdk.responses.create(
                model="sim",
                input="Hi",
                metadata=LONG,
                stream=True,
                extra_headers={"Idempotency-Key": "cut"},
            )
        )
        first = await anext(aiter(await cut))
        await server.kill()
        again = await sdk.responses.create(
            model="sim", input="Hi", metadata=SHORT, extra_headers={"Idempotency-Key": "done"}
        )
        assert again.to_dict() == answered.to_dict()
        failed = await sdk.responses.create(
            model="sim", input="Hi", metadata=LONG, extra_headers={"Idempotency-Key": "cut"}
        )
        assert (failed.id, failed.status) == (first.response.id, "failed")
        with pytest.raises(openai.UnprocessableEntityError):
            await sdk.responses.create(
                model="sim", input="Other", extra_headers={"Idempotency-Key": "done"}
            )
        assert usage_of(server, answered.id) == ["completed"]


async def test_a_server_that_is_stopped_fails_its_background_responses_itself(
    server: FaultServer,
) -> None:
    async with client_of(server) as sdk:
        created = await sdk.responses.create(
            model="sim", input="Hi", background=True, metadata=LONG
        )
        await server.drain()
        lost = await sdk.responses.retrieve(created.id)
        assert (lost.status, lost.background) == ("failed", True)
        assert usage_of(server, created.id) == ["failed"]
