"""The official SDK over sessions: what it does over HTTP, with only what is new on the wire."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from typing import Any

import httpx2 as httpx
import openai
import pytest

import turnwire.openai
from harness.drop_in import is_busy, resent, sdk_over, sessions_of
from harness.server import RunningServer, running_server, serving
from harness.stack import running_stack
from harness.waiting import until
from turnwire_server.adapters.engines.sim import SimSettings

WIRES = ("grpc", "websocket")
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.mark.parametrize("wire", WIRES)
async def test_a_resent_history_goes_over_the_wire_once(wire: str, server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.url(wire))
    history: list[Any] = []
    tokens = []
    async with sdk_over(transport) as sdk:
        for number in range(6):
            history.append({"role": "user", "content": f"Message {number}."})
            response = await sdk.responses.create(
                model="sim",
                input=resent(history),
                store=False,
                include=["turnwire.timing"],  # type: ignore[list-item]  # our own extra
            )
            history += response.output
            tokens.append(response.turnwire["timing"]["tokens"])  # type: ignore[attr-defined]
        stats = transport.stats
    assert (stats.turns, stats.continued, stats.fallbacks) == (6, 5, 0)
    assert (stats.items_given, stats.items_sent) == (1 + 3 + 5 + 7 + 9 + 11, 6)
    assert stats.sessions_opened == 1
    assert all(turn["rendered"] == turn["sent"] for turn in tokens[1:])
    assert tokens[5]["input"] > tokens[4]["input"] > tokens[0]["input"]


async def test_a_tool_loop_with_a_stateless_history_continues(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    history: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    async with sdk_over(transport) as sdk:
        for _ in range(2):
            response = await sdk.responses.create(model="sim", input=history, tools=[TOOL])  # type: ignore[list-item]
            history += resent(response.output)
            history += [
                {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
                for item in response.output
                if item.type == "function_call"
            ]
        assert [item["type"] for item in history[1:]] == [
            "function_call",
            "function_call_output",
            "message",
        ]
        assert (transport.stats.continued, transport.stats.items_sent) == (1, 2)


async def test_an_answer_is_the_one_of_http(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    body = {"model": "sim", "input": "Say hello.", "metadata": {"a": "b"}, "store": False}
    async with (
        asyncio.timeout(20),
        httpx.AsyncClient() as plain,
        httpx.AsyncClient(transport=transport) as over,
    ):
        for stream in (False, True):
            sent = {**body, "stream": stream}
            there = await plain.post(f"{server.http_url}/responses", json=sent)
            here = await over.post("http://turnwire.invalid/v1/responses", json=sent)
            assert here.status_code == there.status_code == 200
            assert here.headers["content-type"] == there.headers["content-type"].replace(
                "; charset=utf-8" if not stream else "", ""
            )
            assert here.headers["x-request-id"]
            assert shape(here.text) == shape(there.text)


def shape(text: str) -> object:
    """An answer without what differs from one turn to the next."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            varying = {"id", "item_id", "created_at", "completed_at", "delta"}
            return {
                name: "…" if name in varying else plain(content) for name, content in value.items()
            }
        return [plain(content) for content in value] if isinstance(value, list) else value

    if not text.startswith("event:"):
        return plain(json.loads(text))
    events = [block.split("\n") for block in text.strip().split("\n\n")]
    assert events.pop() == ["data: [DONE]"]
    return [
        (name, plain(json.loads(data.removeprefix("data: "))))
        for name, data in events
        if "delta" not in name  # How the text is cut depends on time.
    ]


async def test_a_continued_turn_does_not_show_the_parent_that_nobody_named(
    server: RunningServer,
) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        first = await sdk.responses.create(model="sim", input="One.")
        history = [{"role": "user", "content": "One."}, *resent(first.output)]
        history.append({"role": "user", "content": "Two."})
        stream = await sdk.responses.create(model="sim", input=history, stream=True)
        events = [event async for event in stream]
        assert transport.stats.continued == 1
        responses = [event.response for event in events if hasattr(event, "response")]
        assert {response.previous_response_id for response in responses} == {None}
        named = await sdk.responses.create(
            model="sim", input="Three.", previous_response_id=responses[-1].id
        )
        assert named.previous_response_id == responses[-1].id


async def test_a_parent_that_the_client_names_lives_in_its_session(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        others = await asyncio.gather(
            *(sdk.responses.create(model="sim", input=f"{n}", store=False) for n in range(3))
        )
        second = await sdk.responses.create(
            model="sim", input="More.", previous_response_id=others[1].id, store=False
        )
        # Found again by its items too, since those of the parent are known.
        history = [
            {"role": "user", "content": "1"},
            *resent(others[1].output),
            {"role": "user", "content": "More."},
            *resent(second.output),
            {"role": "user", "content": "And?"},
        ]
        await sdk.responses.create(model="sim", input=history, store=False)
        assert (transport.stats.continued, transport.stats.sessions) == (1, 3)


async def test_a_session_that_has_moved_on_gets_the_full_input(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        first = await sdk.responses.create(model="sim", input="One.", store=False)
        (session,) = sessions_of(transport)
        await session.create("Behind its back.", model="sim", store=False).response()
        history = [{"role": "user", "content": "One."}, *resent(first.output)]
        history.append({"role": "user", "content": "Two."})
        for stream in (False, True):
            answer = await sdk.responses.create(
                model="sim", input=history, store=False, stream=stream
            )
            if stream:
                assert [event async for event in answer][-1].type == "response.completed"
            else:
                assert answer.output_text
                history += [*resent(answer.output), {"role": "user", "content": "Three."}]
                await session.create("Again.", model="sim", store=False).response()
        assert transport.stats.fallbacks == 2
        assert transport.stats.sessions_opened == 1


async def test_a_lost_session_is_replaced(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        first = await sdk.responses.create(model="sim", input="One.", store=False)
        (session,) = sessions_of(transport)
        await session.close()
        history = [{"role": "user", "content": "One."}, *resent(first.output)]
        history.append({"role": "user", "content": "Two."})
        assert (await sdk.responses.create(model="sim", input=history, store=False)).output_text
        stats = transport.stats
    assert (stats.sessions_opened, stats.sessions, stats.continued) == (2, 1, 0)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "sim", "input": "x", "previous_response_id": "resp_none"},
        {"model": "nobody", "input": "x"},
        {"input": "x"},
        {"model": "sim", "input": [{"type": "nothing"}]},
        {"model": "sim", "input": [{"role": "user"}]},
        {"model": "sim", "input": 5},
        {"model": "sim", "input": "x", "temperature": 7},
        {"model": "sim", "input": "x", "max_output_tokens": "many"},
        {"model": "sim", "input": "x", "tools": [{"type": "function"}]},
        [1],
    ],
)
async def test_a_refusal_is_the_one_of_http(body: object, server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with (
        asyncio.timeout(20),
        httpx.AsyncClient() as plain,
        httpx.AsyncClient(transport=transport) as over,
    ):
        there = await plain.post(f"{server.http_url}/responses", json=body)
        here = await over.post("http://turnwire.invalid/v1/responses", json=body)
    assert here.status_code == there.status_code >= 400
    error, expected = here.json()["error"], there.json()["error"]
    assert error.pop("message") and expected.pop("message")
    assert error == expected


async def test_a_refused_turn_leaves_its_session_usable(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        for _ in range(3):
            with pytest.raises(openai.NotFoundError) as refused:
                await sdk.responses.create(model="nobody", input="x")
            assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
        await sdk.responses.create(model="sim", input="x")
        assert transport.stats.sessions_opened == 1


async def test_a_fault_in_the_new_items_is_named_by_its_place_in_the_request(
    server: RunningServer,
) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        first = await sdk.responses.create(model="sim", input="One.")
        held = [{"role": "user", "content": "One."}, *resent(first.output)]
        # The first is found on this side, and leaves the session as it was; the second is not.
        for fault, param in (({"type": "nothing"}, "type"), ({"role": "user"}, "content")):
            with pytest.raises(openai.BadRequestError) as refused:
                await sdk.responses.create(model="sim", input=[*held, fault])  # type: ignore[list-item]
            assert refused.value.param == f"input[2].{param}"
        assert transport.stats.fallbacks == 1


async def test_stored_responses_are_looked_after(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        made = await sdk.responses.create(model="sim", input="Remember this.")
        assert (await sdk.responses.retrieve(made.id)).output_text == made.output_text
        items = await sdk.responses.input_items.list(made.id, order="asc", limit=5)
        assert items.data[0].content[0].text == "Remember this."  # type: ignore[union-attr]
        assert (await sdk.responses.cancel(made.id)).id == made.id
        counted = await sdk.responses.input_tokens.count(model="sim", input="Remember this.")
        assert made.usage is not None and counted.input_tokens == made.usage.input_tokens
        assert [model.id for model in (await sdk.models.list()).data] == ["sim"]
        assert (await sdk.models.retrieve("sim")).id == "sim"
        with pytest.raises(openai.NotFoundError):
            await sdk.models.retrieve("nobody")
        await sdk.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError) as gone:
            await sdk.responses.retrieve(made.id)
        assert gone.value.code == "response_not_found"
        with pytest.raises(openai.NotFoundError) as refused:
            await sdk.responses.retrieve(made.id, stream=True)
        assert refused.value.code == "not_found"  # There is no call for that on gRPC.
        assert transport.stats.sessions_opened == 1


async def test_events_come_while_the_turn_runs_and_leaving_ends_it() -> None:
    async with running_stack() as stack, serving(stack.services) as server:
        transport = turnwire.openai.Transport(server.grpc_url)
        hold = stack.engine.hold("Stop here.", after_steps=1)
        async with sdk_over(transport) as sdk:
            stream = await sdk.responses.create(
                model="sim", input="Stop here.", stream=True, store=False
            )
            async for event in stream:
                if event.type == "response.output_text.delta":
                    break
            response_id = await stack.engine.held(hold)
            await stream.close()
            await until(lambda: response_id not in stack.engine.running)
            assert ("cancel", response_id) in stack.engine.log
            await until(lambda: not is_busy(transport))
            await sdk.responses.create(model="sim", input="Go on.", store=False)
            assert transport.stats.sessions_opened == 1


async def test_a_turn_whose_request_is_given_up_is_ended() -> None:
    async with running_stack() as stack, serving(stack.services) as server:
        transport = turnwire.openai.Transport(server.grpc_url)
        hold = stack.engine.hold("Stop here.")
        async with sdk_over(transport) as sdk:
            request = asyncio.ensure_future(
                sdk.responses.create(model="sim", input="Stop here.", store=False)
            )
            response_id = await stack.engine.held(hold)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            await until(lambda: response_id not in stack.engine.running)
            await until(lambda: not is_busy(transport))
            await sdk.responses.create(model="sim", input="Go on.", store=False)
            assert transport.stats.sessions_opened == 1


async def test_a_stream_that_nobody_reads_or_closes_gives_its_session_back() -> None:
    async with running_stack() as stack, serving(stack.services) as server:
        transport = turnwire.openai.Transport(server.grpc_url, max_sessions=1)
        hold = stack.engine.hold("Stop here.", after_steps=1)
        async with sdk_over(transport) as sdk:
            stream = await sdk.responses.create(
                model="sim", input="Stop here.", stream=True, store=False
            )
            await stack.engine.held(hold)
            del stream
            gc.collect()
            assert (await sdk.responses.create(model="sim", input="Go on.")).output_text


async def test_the_clients_timeouts_hold() -> None:
    async with running_stack() as stack, serving(stack.services) as server:
        transport = turnwire.openai.Transport(server.grpc_url, max_sessions=1)
        hold = stack.engine.hold("Stop here.", after_steps=1)
        timeout = httpx.Timeout(5.0, read=0.05, pool=0.05)
        async with sdk_over(transport, timeout=timeout) as sdk:
            with pytest.raises(openai.APITimeoutError) as late:
                await sdk.responses.create(model="sim", input="Stop here.")
            assert isinstance(late.value.__cause__, httpx.ReadTimeout)
            held = asyncio.ensure_future(
                sdk.responses.create(model="sim", input="Stop here.", timeout=20.0)
            )
            await stack.engine.held(hold)
            await stack.engine.held(hold)
            with pytest.raises(openai.APITimeoutError) as none_free:
                await sdk.responses.create(model="sim", input="Second.")
            assert isinstance(none_free.value.__cause__, httpx.PoolTimeout)
            stack.engine.release(hold)
            assert (await held).output_text


async def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    async with running_server() as server:
        url = server.grpc_url
    async with sdk_over(turnwire.openai.Transport(url)) as sdk:
        with pytest.raises(openai.APIConnectionError) as failed:
            await sdk.responses.create(model="sim", input="x")
    assert isinstance(failed.value.__cause__, httpx.ConnectError)


async def test_a_server_that_goes_in_the_middle_cuts_the_stream() -> None:
    async with running_stack() as stack:
        async with serving(stack.services) as server:
            transport = turnwire.openai.Transport(server.grpc_url)
            hold = stack.engine.hold("Stop here.", after_steps=1)
            async with sdk_over(transport) as sdk:
                stream = await sdk.responses.create(model="sim", input="Stop here.", stream=True)
                await stack.engine.held(hold)
                (session,) = sessions_of(transport)
                session._connection._lose(turnwire.ConnectionLost("cut"))
                with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
                    async for _ in stream:
                        pass
                stack.engine.release(hold)


async def test_conversations_side_by_side_have_sessions_of_their_own(
    server: RunningServer,
) -> None:
    transport = turnwire.openai.Transport(server.grpc_url, max_sessions=4)
    async with sdk_over(transport) as sdk:

        async def converse(name: str) -> str:
            history: list[Any] = []
            for number in range(3):
                history.append({"role": "user", "content": f"{name} {number}"})
                response = await sdk.responses.create(model="sim", input=history, store=False)
                history += resent(response.output)
            return response.output_text

        answers = await asyncio.gather(*(converse(f"Conversation {n}") for n in range(4)))
        stats = transport.stats
        assert all(answers)
        assert (stats.turns, stats.continued, stats.sessions_opened) == (12, 8, 4)
        # A fifth takes over the session that was idle longest.
        await converse("One more")
        assert (transport.stats.sessions_opened, transport.stats.sessions) == (4, 4)


async def test_keys_do_not_share_sessions(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url, max_sessions=2)
    async with sdk_over(transport) as sdk:
        first = await sdk.responses.create(model="sim", input="One.", store=False)
        history = [{"role": "user", "content": "One."}, *resent(first.output)]
        history.append({"role": "user", "content": "Two."})
        other = sdk.with_options(api_key="y")
        await other.responses.create(model="sim", input=history, store=False)
        assert (transport.stats.continued, transport.stats.sessions_opened) == (0, 2)
        third = sdk.with_options(api_key="z")
        await third.responses.create(model="sim", input="x", store=False)
        assert (transport.stats.sessions_opened, transport.stats.sessions) == (3, 2)


async def test_an_idle_session_is_closed(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url, idle_expiry_s=0.01)
    async with sdk_over(transport) as sdk:
        await sdk.responses.create(model="sim", input="One.", store=False)
        await until(lambda: transport.stats.sessions == 0)
        await until(lambda: server.services.connection_count == 0)
        await sdk.responses.create(model="sim", input="Two.", store=False)
        assert transport.stats.sessions_opened == 2


async def test_closing_the_client_closes_the_sessions(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        await sdk.responses.create(model="sim", input="One.")
        assert server.services.connection_count == 1
    await until(lambda: server.services.connection_count == 0)


async def test_other_paths_go_to_the_fallback(server: RunningServer) -> None:
    async with sdk_over(turnwire.openai.Transport(server.grpc_url)) as sdk:
        with pytest.raises(openai.NotFoundError) as refused:
            await sdk.embeddings.create(model="sim", input="x")
        assert refused.value.code == "not_found"

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/files"
        return httpx.Response(200, json={"data": [], "object": "list", "has_more": False})

    fallback = httpx.MockTransport(answer)
    async with sdk_over(turnwire.openai.Transport(server.grpc_url, fallback=fallback)) as sdk:
        assert (await sdk.files.list()).data == []


async def test_a_conversation_of_the_server_is_not_followed(server: RunningServer) -> None:
    transport = turnwire.openai.Transport(server.grpc_url)
    async with sdk_over(transport) as sdk:
        first = await sdk.responses.create(model="sim", input="One.")
        history = [{"role": "user", "content": "One."}, *resent(first.output)]
        history.append({"role": "user", "content": "Two."})
        with pytest.raises(openai.APIStatusError):
            await sdk.responses.create(model="sim", input=history, conversation="conv_none")
        assert transport.stats.continued == 0


async def test_the_sync_twin_does_the_same(server: RunningServer) -> None:
    async with asyncio.timeout(20):
        await asyncio.to_thread(converse_in_sync, server.grpc_url)
    await until(lambda: server.services.connection_count == 0)


def converse_in_sync(url: str) -> None:
    transport = turnwire.openai.SyncTransport(url)
    with openai.OpenAI(
        api_key="x",
        base_url="http://turnwire.invalid/v1",
        max_retries=0,
        timeout=20.0,
        http_client=httpx.Client(transport=transport),
    ) as sdk:
        history: list[Any] = []
        for number in range(3):
            history.append({"role": "user", "content": f"Message {number}."})
            with sdk.responses.stream(model="sim", input=history, store=False) as stream:
                types = [event.type for event in stream]
                history += resent(stream.get_final_response().output)
            assert types[-1] == "response.completed"
        assert (transport.stats.turns, transport.stats.continued) == (3, 2)
        stream = sdk.responses.create(model="sim", input="Left early.", stream=True)
        next(iter(stream))
        stream.close()
        with pytest.raises(openai.NotFoundError):
            sdk.responses.retrieve("resp_none")
        assert sdk.responses.create(model="sim", input="Bye.").output_text
    with pytest.raises(RuntimeError, match="closed"):
        sdk.responses.create(model="sim", input="x")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "127.0.0.1:1", "ftp://x"])
def test_a_url_without_a_session_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        turnwire.openai.Transport(url)
    with pytest.raises(ValueError):
        turnwire.openai.SyncTransport("grpc://x", max_sessions=0)


def test_without_the_library_the_import_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['httpx'] = sys.modules['httpx2'] = None\n"
        "try: import turnwire.openai\n"
        "except ImportError as error: print(error)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert "pip install 'turnwire[openai]'" in shown.stdout


async def test_a_slow_reader_holds_up_the_engine() -> None:
    # As many events as there are tokens, far more than any buffer holds.
    sim = SimSettings(step_tokens=1)
    async with running_server(sim=sim, script=lambda _: "word " * 20_000) as server:
        transport = turnwire.openai.Transport(server.grpc_url)
        async with sdk_over(transport) as sdk:
            stream = await sdk.responses.create(
                model="sim", input="Write.", stream=True, store=False
            )
            iterator = aiter(stream)
            await anext(iterator)
            (session,) = sessions_of(transport)
            await until(lambda: session._connection.keeper.held_up_by is not None)
            await stream.close()
            assert (await sdk.responses.create(model="sim", input="x")).output_text
