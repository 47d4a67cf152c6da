"""Exchanges that break over HTTP, where each turn has one of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from aiohttp import web

import turnwire
from harness.client_events import opening, text_turn
from turnwire import _codec, _connect
from turnwire._recovery import RecoverySettings
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.server_event_pb2 import ServerEvent


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connect, "RecoverySettings", partial(RecoverySettings, first_delay_s=0.01))


class BreakingServer:
    """Answers creates with the next of its answers, which may break off, and knows what it is told
    to have stored."""

    def __init__(self) -> None:
        self.answers: deque[tuple[list[ServerEvent], bool] | int] = deque()
        """Events, and whether they are all; or the status of a refusal for a missing parent."""
        self.creates: list[ResponseCreate] = []
        self.stored: dict[str, str] = {}
        """Response -> its status."""

    async def create(self, request: web.Request) -> web.StreamResponse:
        self.creates.append(_codec.loads(ResponseCreate, await request.read()))
        answer = self.answers.popleft()
        if isinstance(answer, int):
            error = {"code": "previous_response_not_found", "message": "No.", "param": None}
            return web.json_response({"error": error}, status=answer)
        events, is_whole = answer
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)
        for event in events:
            await stream.write(b"data: " + _codec.dumps(event) + b"\n\n")
        if not is_whole and request.transport is not None:
            request.transport.abort()
        return stream

    async def get(self, request: web.Request) -> web.Response:
        response_id = request.match_info["id"]
        status = self.stored.get(response_id)
        if status is None:
            return web.json_response({"error": {"code": "response_not_found"}}, status=404)
        return web.json_response({"id": response_id, "status": status, "output": []})


@asynccontextmanager
async def breaking(port: int = 0) -> AsyncIterator[tuple[BreakingServer, str]]:
    server = BreakingServer()
    application = web.Application()
    application.add_routes(
        [web.post("/v1/responses", server.create), web.get("/v1/responses/{id}", server.get)]
    )
    runner = web.AppRunner(application, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield server, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def text(response_id: str, *deltas: str) -> list[ServerEvent]:
    return text_turn(ClientEvent(), response_id, *deltas)


async def test_an_exchange_that_breaks_before_output_is_begun_again() -> None:
    async with asyncio.timeout(10), breaking() as (server, url):
        server.answers.extend(
            [(opening(ClientEvent(), "resp_1"), False), (text("resp_2", "Hello"), True)]
        )
        async with turnwire.connect(url, model="m") as session:
            turn = session.create("Hi")
            text_seen = "".join([event.delta or "" async for event in turn])
            assert (text_seen, turn.response_id) == ("Hello", "resp_2")
    assert server.creates[0] == server.creates[1]


async def test_an_exchange_that_breaks_within_seen_output_is_lost() -> None:
    async with asyncio.timeout(10), breaking() as (server, url):
        server.answers.append((text("resp_1", "Hel", "lo")[:4], False))
        server.stored["resp_1"] = "cancelled"
        async with turnwire.connect(url, model="m") as session:
            turn = session.create("Hi")
            with pytest.raises(turnwire.OutputLost) as lost:
                async for _ in turn:
                    pass
            assert lost.value.response is not None
            assert lost.value.response.status == "cancelled"
            server.answers.append((text("resp_2", "x"), True))
            assert (await session.create("Ho").response()).id == "resp_2"


async def test_a_response_that_was_finished_before_its_exchange_broke_is_fetched() -> None:
    async with asyncio.timeout(10), breaking() as (server, url):
        server.answers.append((text("resp_1", "Hel", "lo")[:4], False))
        server.stored["resp_1"] = "completed"
        async with turnwire.connect(url, model="m") as session:
            events = [event async for event in session.create("Hi")]
    assert events[-1].type == "response.completed" and events[-1].sequence_number is None
    assert len(server.creates) == 1


async def test_a_server_that_is_away_for_a_moment_is_waited_for() -> None:
    async with asyncio.timeout(10):
        async with breaking() as (server, url):
            server.answers.append((text("resp_1", "a"), True))
            opened = turnwire.connect(url, model="m")
            session = await opened.__aenter__()
            first = await session.create("Hi").response()
        port = int(url.rpartition(":")[2])
        turn = session.create("Ho", previous_response_id=first.id)
        waiting = asyncio.create_task(turn.response())
        await asyncio.sleep(0)
        async with breaking(port) as (server, _):
            # Its store is gone: the conversation is told in full.
            server.answers.extend([400, (text("resp_2", "b"), True)])
            assert (await waiting).id == "resp_2"
            await opened.__aexit__(None, None, None)
    named, whole = server.creates
    assert named.previous_response_id == "resp_1"
    assert not whole.HasField("previous_response_id") and len(whole.input.items.items) == 3


async def test_a_turn_that_waits_to_be_begun_again_can_be_cancelled() -> None:
    async with asyncio.timeout(10), breaking() as (server, url):
        server.answers.append((text("resp_1", "a"), True))
        opened = turnwire.connect(url, model="m")
        session = await opened.__aenter__()
        await session.create("Hi").response()
    turn = session.create("Ho")
    await turn.cancel()
    with pytest.raises(turnwire.RequestCancelled):
        await turn.response()
    await opened.__aexit__(None, None, None)
