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
from harness.client_events import failed_turn, opening, text_turn
from harness.cutting_proxy import CuttingProxy, cutting_proxy
from harness.stack import Stack, running_stack
from harness.waiting import until
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
        self.answers: deque[tuple[list[ServerEvent], bool] | tuple[int, str]] = deque()
        """Events, and whether they are all; or the status and code of a refusal."""
        self.keys: list[str | None] = []
        """Idempotency keys of the creates."""
        self.creates: list[ResponseCreate] = []
        self.stored: dict[str, str] = {}
        """Response -> its status."""

    async def create(self, request: web.Request) -> web.StreamResponse:
        self.creates.append(_codec.loads(ResponseCreate, await request.read()))
        key = request.headers.get("idempotency-key")
        headers = {"idempotent-replayed": "true"} if key in self.keys else {}
        self.keys.append(key)
        first, second = self.answers.popleft()
        if isinstance(first, int):
            error = {"code": second, "message": "No.", "param": None}
            return web.json_response({"error": error}, status=first)
        events, is_whole = first, second
        headers["content-type"] = "text/event-stream"
        stream = web.StreamResponse(headers=headers)
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
    async with asyncio.timeout(20), breaking() as (server, url):
        server.answers.extend(
            [(opening(ClientEvent(), "resp_1"), False), (text("resp_2", "Hello"), True)]
        )
        async with turnwire.connect(url, model="m") as session:
            turn = session.create("Hi")
            text_seen = "".join([event.delta or "" async for event in turn])
            assert (text_seen, turn.response_id) == ("Hello", "resp_2")
    assert server.creates[0] == server.creates[1]


async def test_an_exchange_that_breaks_within_seen_output_is_lost() -> None:
    async with asyncio.timeout(20), breaking() as (server, url):
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
    async with asyncio.timeout(20), breaking() as (server, url):
        server.answers.append((text("resp_1", "Hel", "lo")[:4], False))
        server.stored["resp_1"] = "completed"
        async with turnwire.connect(url, model="m") as session:
            events = [event async for event in session.create("Hi")]
    assert events[-1].type == "response.completed" and events[-1].sequence_number is None
    assert len(server.creates) == 1


async def test_a_server_that_is_away_for_a_moment_is_waited_for() -> None:
    async with asyncio.timeout(20):
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
            refusal = (400, "previous_response_not_found")
            server.answers.extend([refusal, (text("resp_2", "b"), True)])
            assert (await waiting).id == "resp_2"
            await opened.__aexit__(None, None, None)
    named, whole = server.creates
    assert named.previous_response_id == "resp_1"
    assert not whole.HasField("previous_response_id") and len(whole.input.items.items) == 3


async def test_a_turn_that_waits_to_be_begun_again_can_be_cancelled() -> None:
    async with asyncio.timeout(20), breaking() as (server, url):
        server.answers.append((text("resp_1", "a"), True))
        opened = turnwire.connect(url, model="m")
        session = await opened.__aenter__()
        await session.create("Hi").response()
    turn = session.create("Ho")
    await turn.cancel()
    with pytest.raises(turnwire.RequestCancelled):
        await turn.response()
    await opened.__aexit__(None, None, None)


# Keys: what was sent again does not run again.


async def test_a_create_that_may_not_have_arrived_is_sent_again_under_its_key() -> None:
    async with asyncio.timeout(20), breaking() as (server, url):
        server.answers.extend([([], False), ([], False), (text("resp_1", "Hello"), True)])
        server.answers.append((text("resp_2", "Ho"), True))
        async with turnwire.connect(url, model="m") as session:
            await session.create("Hi", event_id="mine").response()
            await session.create("Hi", event_id="mine").response()
    first, again, last, other = server.keys
    assert first and first == again == last
    assert other and other != first  # another turn, whatever its user calls it


@pytest.mark.parametrize("store", [True, False])
async def test_once_it_is_known_that_a_stored_response_is_of_no_use_the_key_is_another(
    store: bool,
) -> None:
    async with asyncio.timeout(20), breaking() as (server, url):
        server.answers.append((opening(ClientEvent(), "resp_1"), False))
        server.answers.append((text("resp_2", "Hello"), True))
        server.stored["resp_1"] = "failed"
        async with turnwire.connect(url, model="m") as session:
            await session.create("Hi", store=store).response()
    first, again = server.keys
    assert (first != again) is store


@pytest.mark.parametrize(
    "gone",
    [(failed_turn(ClientEvent(), "resp_1", "server_error"), True), (400, "request_cancelled")],
    ids=["failed", "cancelled"],
)
async def test_what_ended_under_its_key_while_nobody_was_there_begins_again(gone) -> None:
    async with asyncio.timeout(20), breaking() as (server, url):
        server.answers.extend([([], False), gone, (text("resp_2", "Hello"), True)])
        server.stored["resp_1"] = "failed"
        async with turnwire.connect(url, model="m") as session:
            assert (await session.create("Hi").response()).id == "resp_2"
    first, again, other = server.keys
    assert first == again != other


async def test_a_response_that_is_no_longer_kept_is_an_error_and_does_not_run_again() -> None:
    async with asyncio.timeout(20), breaking() as (server, url):
        server.answers.extend([([], False), (400, "response_already_completed")])
        async with turnwire.connect(url, model="m") as session:
            with pytest.raises(turnwire.ResponseRejected) as refused:
                await session.create("Hi", store=False).response()
    assert refused.value.code == "response_already_completed"
    assert server.keys[0] == server.keys[1]


@pytest.mark.parametrize("off", [{"resume": False}, {"reconnect_s": 0}], ids=str)
async def test_without_resume_creates_have_no_key(off) -> None:
    async with asyncio.timeout(20), breaking() as (server, url):
        server.answers.append((text("resp_1", "Hello"), True))
        async with turnwire.connect(url, model="m", **off) as session:
            await session.create("Hi").response()
    assert server.keys == [None]


@asynccontextmanager
async def cuttable() -> AsyncIterator[tuple[Stack, CuttingProxy, str]]:
    """The real server, whose generations can be held, behind a proxy."""
    async with asyncio.timeout(20), running_stack() as stack:
        server = await stack._serving()
        async with cutting_proxy(server.http_port, wire="websocket") as proxy:
            yield stack, proxy, f"http://127.0.0.1:{proxy.port}"


@pytest.mark.parametrize("store", [True, False])
async def test_a_turn_whose_connection_is_cut_runs_once(store: bool) -> None:
    async with cuttable() as (stack, proxy, url):
        hold = stack.engine.hold("Hi", after_steps=1)
        async with turnwire.connect(url, model="sim") as session:
            turn = session.create("Hi", store=store)
            waiting = asyncio.create_task(turn.response())
            response_id = await stack.engine.held(hold)
            await turn.started()
            proxy.hang_up()
            await until(lambda: proxy.connections > 1)
            stack.engine.release(hold)
            response = await waiting
        assert (response.id, response.status) == (response_id, "completed")
        assert len(stack.engine.requests) == 1


async def test_a_turn_that_is_lost_ends_on_the_server_too() -> None:
    async with cuttable() as (stack, proxy, url):
        hold = stack.engine.hold("Hi", after_steps=1)
        async with turnwire.connect(url, model="sim") as session:
            turn = session.create("Hi", store=False)
            response_id = await stack.engine.held(hold)
            async for event in turn:
                if event.delta:
                    break
            proxy.hang_up()
            with pytest.raises(turnwire.OutputLost):
                async for _ in turn:
                    pass
            await until(lambda: ("cancel", response_id) in stack.engine.log)


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_turn_that_its_client_leaves_ends_at_once(how: str) -> None:
    async with cuttable() as (stack, _, url):
        hold = stack.engine.hold("Hi", after_steps=1)
        async with turnwire.connect(url, model="sim") as session:
            turn = session.create("Hi", store=False)
            if how == "cancel":
                await turn.cancel()  # before it can be known which response it is
                assert (await turn.response()).status == "cancelled"
            else:
                response_id = await stack.engine.held(hold)
                await turn.started()
        ends = {what for what, _ in stack.engine.log}
        assert "cancel" in ends or not stack.engine.requests
        if how == "close":
            assert ("cancel", response_id) in stack.engine.log


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "not named yet"])
async def test_closing_ends_what_runs_and_begins_nothing_that_waited(is_named: bool) -> None:
    async with asyncio.timeout(20), running_stack() as stack:
        server = await stack._serving()
        hold = stack.engine.hold("Hi", after_steps=1)
        url = f"http://127.0.0.1:{server.http_port}"
        async with turnwire.connect(url, model="sim") as session:
            turn = session.create("Hi", store=False)
            session.create("Ho", store=False)
            await stack.engine.held(hold)
            if is_named:
                await turn.started()
        await until(lambda: not stack.services.running)
        assert len(stack.engine.requests) == 1


async def test_closing_ends_a_turn_whose_exchange_is_broken() -> None:
    async with asyncio.timeout(20), running_stack() as stack:
        server = await stack._serving()
        async with cutting_proxy(server.http_port, wire="websocket") as proxy:
            hold = stack.engine.hold("Hi", after_steps=1)
            async with turnwire.connect(f"http://127.0.0.1:{proxy.port}", model="sim") as session:
                turn = session.create("Hi", store=False)
                await stack.engine.held(hold)
                await turn.started()
                proxy.hang_up()
            await until(lambda: not stack.services.running)


@pytest.mark.parametrize("refusal", [(503, "server_is_overloaded"), (502, "")], ids=["503", "502"])
async def test_a_resend_that_is_put_off_keeps_its_key(refusal: tuple[int, str]) -> None:
    async with asyncio.timeout(20), breaking() as (server, url):
        server.answers.extend([([], False), refusal, (text("resp_1", "Hello"), True)])
        async with turnwire.connect(url, model="m") as session:
            assert (await session.create("Hi").response()).id == "resp_1"
    assert len(server.keys) == 3 and len(set(server.keys)) == 1
