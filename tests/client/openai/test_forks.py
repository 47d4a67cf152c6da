"""Requests that go another way from what a session holds: beside a turn, or later."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2 as httpx
import openai
import pytest

import turnwire.openai
from harness.drop_in import is_busy, resent, sdk_over, sessions_of
from harness.server import RunningServer, serving
from harness.stack import running_stack
from harness.waiting import until

WIRES = ("grpc", "websocket")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def begun(sdk: openai.AsyncOpenAI, *, store: bool = False) -> list[Any]:
    """A history of one turn."""
    first = await sdk.responses.create(model="sim", input=[user("One.")], store=store)
    return [user("One."), *resent(first.output)]


@pytest.mark.parametrize("wire", WIRES)
async def test_forks_beside_a_turn_run_on_its_session_and_bring_only_what_is_new(
    wire: str,
) -> None:
    async with running_stack() as stack, serving(stack.services) as server:
        transport = turnwire.openai.Transport(server.url(wire))
        async with sdk_over(transport) as sdk:
            history = await begun(sdk)
            hold = stack.engine.hold("Go on.")

            async def go(text: str) -> Any:
                items = [*history, user(text)]
                stream = await sdk.responses.create(
                    model="sim", input=items, store=False, stream=True
                )
                return [event async for event in stream]

            first = asyncio.ensure_future(go("Go on."))
            await stack.engine.held(hold)
            forks = [asyncio.ensure_future(go("Go on.")) for _ in range(3)]
            for _ in forks:
                await stack.engine.held(hold)
            stack.engine.release(hold)
            for events in [await first, *[await fork for fork in forks]]:
                assert events[-1].type == "response.completed"
                assert [event.sequence_number for event in events] == list(range(len(events)))
                assert not any(hasattr(event, "stream_id") for event in events)
            stats = transport.stats
            assert (stats.sessions_opened, stats.turns, stats.continued) == (1, 5, 4)
            assert (stats.forks, stats.fallbacks) == (3, 0)
            # Two items are the history.
            assert stats.items_given - stats.items_sent == 4 * 2


async def test_a_fork_is_continued_on_its_lane() -> None:
    async with running_stack() as stack, serving(stack.services) as server:
        transport = turnwire.openai.Transport(server.grpc_url)
        async with sdk_over(transport) as sdk:
            history = await begun(sdk)
            hold = stack.engine.hold("This way.")
            main = asyncio.ensure_future(
                sdk.responses.create(model="sim", input=[*history, user("This way.")], store=False)
            )
            await stack.engine.held(hold)
            other = [*history, user("That way.")]
            for text in ("Further.", "And further."):
                fork = await sdk.responses.create(model="sim", input=other, store=False)
                other += [*resent(fork.output), user(text)]
            stack.engine.release(hold)
            this = [*history, user("This way."), *resent((await main).output), user("Further.")]
            assert (await sdk.responses.create(model="sim", input=this, store=False)).output_text
            stats = transport.stats
            assert (stats.sessions_opened, stats.turns, stats.continued) == (1, 5, 4)


async def test_a_named_parent_whose_turn_runs_is_forked_where_it_is() -> None:
    async with running_stack() as stack, serving(stack.services) as server:
        transport = turnwire.openai.Transport(server.grpc_url)
        async with sdk_over(transport) as sdk:
            first = await sdk.responses.create(model="sim", input="One.", store=False)
            hold = stack.engine.hold("Go on.")

            async def go() -> str:
                answer = await sdk.responses.create(
                    model="sim", input="Go on.", store=False, previous_response_id=first.id
                )
                assert answer.previous_response_id == first.id
                return answer.output_text

            asked = [asyncio.ensure_future(go()) for _ in range(2)]
            for _ in asked:
                await stack.engine.held(hold)
            stack.engine.release(hold)
            assert all([await answer for answer in asked])
            assert (transport.stats.sessions_opened, transport.stats.forks) == (1, 1)


async def test_a_fork_that_comes_too_late_is_sent_in_full() -> None:
    async with running_stack() as stack, serving(stack.services) as server:
        transport = turnwire.openai.Transport(server.grpc_url)
        async with sdk_over(transport) as sdk:
            history = await begun(sdk)
            hold = stack.engine.hold("Go on.")
            main = asyncio.ensure_future(
                sdk.responses.create(model="sim", input=[*history, user("Go on.")], store=False)
            )
            await stack.engine.held(hold)
            # The session goes another way before anybody here hears of it.
            (session,) = sessions_of(transport)
            await session.create("Else.", model="sim", store=False, stream_id="x").response()
            stack.engine.release(hold)
            await main
            again = await sdk.responses.create(
                model="sim", input=[*history, user("Another way.")], store=False
            )
            assert again.output_text
            assert (transport.stats.continued, transport.stats.sessions_opened) == (1, 2)


@pytest.mark.parametrize("wire", WIRES)
async def test_what_the_server_keeps_is_continued_from_any_session(
    wire: str, server: RunningServer
) -> None:
    transport = turnwire.openai.Transport(server.url(wire))
    async with sdk_over(transport) as sdk:
        history = await begun(sdk, store=True)
        for text in ("This way.", "That way.", "A third way."):
            # Each goes another way from the same point, which no session's newest response is.
            answer = await sdk.responses.create(model="sim", input=[*history, user(text)])
            assert answer.output_text and answer.previous_response_id is None
        stats = transport.stats
        assert (stats.turns, stats.continued, stats.fallbacks) == (4, 3, 0)
        for session in sessions_of(transport):
            await session.close()
        await sdk.responses.create(model="sim", input=[*history, user("After a loss.")])
        assert (transport.stats.continued, transport.stats.fallbacks) == (4, 0)


async def test_what_was_deleted_is_sent_in_full(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        first = await sdk.responses.create(model="sim", input=[user("One.")])
        history = [user("One."), *resent(first.output)]
        await sdk.responses.create(model="sim", input=[*history, user("This way.")])
        await sdk.responses.delete(first.id)
        await sdk.responses.create(model="sim", input=[*history, user("That way.")])
        stats = transport.stats
        assert (stats.turns, stats.continued, stats.fallbacks) == (3, 1, 0)


async def test_what_the_server_has_forgotten_is_sent_in_full_and_not_asked_for_again(
    server: RunningServer,
) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        first = await sdk.responses.create(model="sim", input=[user("One.")])
        history = [user("One."), *resent(first.output)]
        await sdk.responses.create(model="sim", input=[*history, user("This way.")])
        async with httpx.AsyncClient() as plain:  # somebody else
            gone = await plain.delete(
                f"{server.http_url}/responses/{first.id}", headers={"authorization": "Bearer x"}
            )
        assert gone.status_code == 200
        for text in ("That way.", "A third way."):
            assert (
                await sdk.responses.create(model="sim", input=[*history, user(text)])
            ).output_text
        assert (transport.stats.continued, transport.stats.fallbacks) == (2, 1)


async def test_more_forks_than_a_session_runs_at_once_get_sessions_of_their_own() -> None:
    async with running_stack() as stack, serving(stack.services) as server:
        transport = turnwire.openai.Transport(server.grpc_url)
        async with sdk_over(transport) as sdk:
            history = await begun(sdk)
            hold = stack.engine.hold("Go on.")
            items = [*history, user("Go on.")]
            asked = [
                asyncio.ensure_future(sdk.responses.create(model="sim", input=items, store=False))
                for _ in range(18)
            ]
            for _ in asked:
                await stack.engine.held(hold)
            assert transport.stats.sessions == 3
            stack.engine.release(hold)
            assert all([(await answer).output_text for answer in asked])
            assert (transport.stats.continued, transport.stats.forks) == (16, 15)


async def test_a_session_that_will_be_lost_is_closed_when_its_last_fork_is_over() -> None:
    async with running_stack() as stack, serving(stack.services) as server:
        transport = turnwire.openai.Transport(server.grpc_url)
        async with sdk_over(transport) as sdk:
            history = await begun(sdk)
            hold = stack.engine.hold("Slow.")
            slow = asyncio.ensure_future(
                sdk.responses.create(model="sim", input=[*history, user("Slow.")], store=False)
            )
            await stack.engine.held(hold)
            (held,) = transport._bridges[asyncio.get_running_loop()]._pool._open
            quick = [*history, user("Quick.")]
            await sdk.responses.create(model="sim", input=quick, store=False)
            held.is_retired = True
            assert transport.stats.sessions == 1
            stack.engine.release(hold)
            assert (await slow).output_text
            await until(lambda: transport.stats.sessions == 0)
            assert not is_busy(transport)
