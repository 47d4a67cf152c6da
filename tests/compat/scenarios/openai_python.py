"""What applications do with the official Python SDK; the transport is all that differs.

Run by the client's own Python: `openai_python.py TRANSPORT --base-url URL [--grpc URL]`. Fails by
an exception.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
QUESTION = "How is the weather in Paris? Use get_weather, then answer."
NOBODY = "resp_0000000000000000000000000000000000000000000000ff"
MAX_ROUNDS = 6
# A small model may go on and on: then its answers are cut, and that is no failure.
MAX_OUTPUT_TOKENS = 48


class Events:
    """The events of one response, checked as they come."""

    def __init__(self, lane: str | None = None) -> None:
        self.lane = lane
        self.final: Any = None
        self._count = 0
        self._text: dict[tuple[int, int], str] = {}
        self._arguments: dict[int, str] = {}
        self._last_number = -1

    def add(self, event: Any) -> bool:
        """Take one event; true for the last one."""
        assert event.type != "error", event
        assert getattr(event, "stream_id", None) == self.lane, event
        assert event.sequence_number > self._last_number, event
        self._last_number = event.sequence_number
        if self._count == 0:
            assert event.type == "response.created", event
            self.response_id = event.response.id
        self._count += 1
        match event.type:
            case "response.output_text.delta":
                place = (event.output_index, event.content_index)
                self._text[place] = self._text.get(place, "") + event.delta
            case "response.output_text.done":
                place = (event.output_index, event.content_index)
                assert self._text.get(place, "") == event.text
            case "response.function_call_arguments.delta":
                before = self._arguments.get(event.output_index, "")
                self._arguments[event.output_index] = before + event.delta
            case "response.function_call_arguments.done":
                assert self._arguments.get(event.output_index, "") == event.arguments
            case "response.completed" | "response.failed" | "response.incomplete":
                self.final = event.response
                assert event.type == f"response.{check(self.final).status}", event
                assert self.final.id == self.response_id
                assert "".join(self._text.values()) == self.final.output_text
                return True
        return False

    def read(self, events: Iterable[Any]) -> Any:
        for event in events:
            if self.add(event):
                return self.final
        raise AssertionError("the stream ended before its response")

    async def read_async(self, events: AsyncIterator[Any]) -> Any:
        async for event in events:
            if self.add(event):
                return self.final
        raise AssertionError("the stream ended before its response")


def check(response: Any) -> Any:
    is_cut = response.status == "incomplete" and response.max_output_tokens == MAX_OUTPUT_TOKENS
    assert response.status == "completed" or is_cut, response
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    return response


def calls_of(response: Any) -> list[Any]:
    calls = [
        item
        for item in response.output
        if item.type == "function_call" and item.status == "completed"
    ]
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
    return calls


def outputs_for(response: Any) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 21 degrees"}
        for call in calls_of(response)
    ]


class Run:
    """One run of the scenarios."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.model: str = arguments.model
        self.needs_tool: bool = not arguments.no_tool
        self.asked: dict[str, Any] = {"model": self.model}
        if arguments.no_tool:
            self.asked["max_output_tokens"] = MAX_OUTPUT_TOKENS
        self._arguments = arguments
        self._transports: list[Any] = []

    def sync_client(self) -> OpenAI:
        return OpenAI(**self._options(), http_client=self._http_client("sync"))

    def async_client(self) -> AsyncOpenAI:
        return AsyncOpenAI(**self._options(), http_client=self._http_client("async"))

    def _options(self) -> dict[str, Any]:
        return {
            "base_url": self._arguments.base_url,
            "api_key": self._arguments.api_key,
            "max_retries": 0,
            "timeout": 60.0 if self.needs_tool else 300.0,
        }

    def _http_client(self, kind: str) -> Any:
        if self._arguments.transport != "drop-in":
            return None
        import turnwire.openai

        try:
            import httpx2 as httpx
        except ImportError:
            import httpx  # type: ignore[import-not-found, no-redef]
        if kind == "sync":
            sync = turnwire.openai.SyncTransport(self._arguments.grpc)
            self._transports.append(sync)
            return httpx.Client(transport=sync)
        transport = turnwire.openai.Transport(self._arguments.grpc)
        self._transports.append(transport)
        return httpx.AsyncClient(transport=transport)

    def check_continued(self, at_least: int) -> None:
        """What a drop-in is for: the history did not go over the wire again."""
        for transport in self._transports:
            stats = transport.stats
            assert stats.continued >= at_least, stats
            assert stats.items_sent < stats.items_given, stats

    # Over HTTP, or what stands for it.

    def answers_and_streams(self) -> str:
        with self.sync_client() as client:
            made = check(client.responses.create(**self.asked, input="Say hello."))
            assert made.output_text
            stream = client.responses.create(**self.asked, input="Say hello.", stream=True)
            streamed = Events().read(stream)
            assert streamed.output_text
            again = client.responses.create(
                **self.asked, input="And again.", previous_response_id=made.id
            )
            assert check(again).previous_response_id == made.id
            return str(again.output_text)

    def runs_a_tool_by_parent(self) -> str:
        with self.sync_client() as client:
            sent: Any = QUESTION
            parent: Any = openai.NOT_GIVEN
            rounds = 0
            while rounds < MAX_ROUNDS:
                with client.responses.stream(
                    **self.asked, input=sent, tools=[WEATHER], previous_response_id=parent
                ) as stream:
                    for event in stream:
                        last = event
                    # The helper knows whole answers only.
                    whole = self.needs_tool or last.type == "response.completed"
                    response = check(stream.get_final_response() if whole else last.response)
                parent, sent = response.id, outputs_for(response)
                if not sent:
                    break
                rounds += 1
            assert response.output_text
            assert rounds > 0 or not self.needs_tool, "no tool was called"
            return str(response.output_text)

    def runs_a_tool_with_the_whole_history(self) -> str:
        with self.sync_client() as client:
            history: list[Any] = [{"role": "user", "content": QUESTION}]
            rounds = 0
            for number in range(3):
                for _ in range(MAX_ROUNDS):
                    response = check(
                        client.responses.create(
                            **self.asked, input=history, tools=[WEATHER], store=False
                        )
                    )
                    history += response.output
                    if not (outputs := outputs_for(response)):
                        break
                    history += outputs
                    rounds += 1
                history.append({"role": "user", "content": f"And on day {number + 1}?"})
            assert rounds > 0 or not self.needs_tool, "no tool was called"
            self.check_continued(at_least=2)
            return str(response.output_text)

    async def async_conversations_side_by_side(self) -> str:
        async with self.async_client() as client:

            async def converse(name: str) -> str:
                history: list[Any] = []
                for number in range(3):
                    history.append({"role": "user", "content": f"{name}, message {number}."})
                    stream = await client.responses.create(
                        **self.asked, input=history, store=False, stream=True
                    )
                    async with stream:
                        response = await Events().read_async(aiter(stream))
                    history += response.output
                return str(response.output_text)

            answers = await asyncio.gather(*(converse(f"Thread {n}") for n in range(4)))
            assert all(answers)
            self.check_continued(at_least=8)
            return f"{len(answers)} conversations"

    async def leaves_a_stream_early(self) -> str:
        async with self.async_client() as client:
            stream = await client.responses.create(
                **self.asked, input="Count to a thousand.", stream=True, store=False
            )
            async for event in stream:
                if event.type == "response.output_item.added":
                    break
            await stream.close()
            made = await client.responses.create(**self.asked, input="Say hello.")
            return str(check(made).output_text)

    def looks_after_stored_responses(self) -> str:
        with self.sync_client() as client:
            made = client.responses.create(**self.asked, input="Remember this.")
            assert client.responses.retrieve(made.id).output_text == made.output_text
            assert client.responses.input_items.list(made.id).data[0].role == "user"  # type: ignore[union-attr]
            assert client.models.list().data
            client.responses.delete(made.id)
            try:
                client.responses.retrieve(made.id)
            except openai.NotFoundError as error:
                return f"{error.status_code} {error.code}"
            raise AssertionError("a deleted response is still there")

    def refuses_an_unknown_parent(self) -> str:
        with self.sync_client() as client:
            try:
                client.responses.create(**self.asked, input="x", previous_response_id=NOBODY)
            except openai.BadRequestError as error:
                assert error.code == "previous_response_not_found", error
                return f"{error.status_code} {error.code}"
            raise AssertionError("no error")

    # Over a WebSocket.

    def one_socket_for_a_tool_loop(self) -> str:
        with self.sync_client() as client, client.responses.connect() as connection:

            def turn(**options: Any) -> Any:
                connection.response.create(**self.asked, store=False, **options)
                return Events().read(connection)

            prepared = turn(
                input=[{"type": "message", "role": "developer", "content": "Be brief."}],
                tools=[WEATHER],
                generate=False,
            )
            assert prepared.output == []
            response = turn(
                input=[{"type": "message", "role": "user", "content": QUESTION}],
                tools=[WEATHER],
                previous_response_id=prepared.id,
            )
            rounds = 0
            while (outputs := outputs_for(response)) and rounds < MAX_ROUNDS:
                rounds += 1
                response = turn(input=outputs, tools=[WEATHER], previous_response_id=response.id)
            assert rounds > 0 or not self.needs_tool, "no tool was called"
            assert response.output_text
            return str(response.output_text)

    async def one_async_socket_with_an_error(self) -> str:
        async with self.async_client() as client, client.responses.connect() as connection:
            await connection.response.create(**self.asked, input="x", previous_response_id=NOBODY)
            refused = await connection.recv()
            assert refused.type == "error", refused
            assert refused.error.code == "previous_response_not_found", refused
            await connection.response.create(**self.asked, input="Still there?", store=False)
            first = await Events().read_async(aiter(connection))
            await connection.response.create(
                **self.asked, input="Good.", store=False, previous_response_id=first.id
            )
            second = await Events().read_async(aiter(connection))
            assert second.previous_response_id == first.id
            return str(second.output_text)

    # Lanes.

    async def lanes_side_by_side(self) -> str:
        names = ("a", "b", "c", "d")
        async with self.async_client() as client, client.responses.connect() as connection:
            lanes = {name: Events(name) for name in names}
            for name in names:
                await connection.response.create(
                    **self.asked, input=f"Hello from {name}.", stream_id=name, store=False
                )
            waiting = set(names)
            async for event in connection:
                name = getattr(event, "stream_id", None)
                assert name in waiting, event
                if lanes[name].add(event):
                    waiting.remove(name)
                if not waiting:
                    break
            assert len({lane.final.id for lane in lanes.values()}) == len(names)
            return f"{len(names)} lanes"

    async def lanes_of_the_sdk_fork(self) -> str:
        from openai.lib import responses_websocket as lib

        limits = lib.ResponsesWebSocketLimits(
            max_lanes=8,
            max_events_per_lane=10_000,
            max_events=20_000,
            max_bytes_per_lane=1 << 26,
            max_bytes=1 << 27,
        )

        def create(**options: Any) -> Any:
            return {
                "type": "response.create",
                **self.asked,
                "store": False,
                **options,
            }

        async with (
            self.async_client() as client,
            client.responses.connect() as connection,
            lib.AsyncResponsesWebSocketSession(connection, limits=limits) as session,
        ):
            trunk, branch = session.lane("trunk"), session.lane("branch")
            await trunk.send(create(input="Begin."))
            first = await trunk.get_final_response()
            await branch.send(create(input="This way.", previous_response_id=first.id))
            await trunk.send(create(input="That way.", previous_response_id=first.id))
            one, other = await asyncio.gather(
                branch.get_final_response(), trunk.get_final_response()
            )
            assert one.previous_response_id == other.previous_response_id == first.id
            await branch.send(create(input="x", previous_response_id=NOBODY))
            try:
                await branch.get_final_response()
            except lib.ResponsesWebSocketError as error:
                assert error.event.error.code == "previous_response_not_found", error.event
                assert error.event.stream_id == "branch", error.event
            else:
                raise AssertionError("no error on its lane")
            await session.default.send(create(input="Without a lane."))
            return str((await session.default.get_final_response()).output_text)


HTTP = (
    Run.answers_and_streams,
    Run.runs_a_tool_by_parent,
    Run.runs_a_tool_with_the_whole_history,
    Run.async_conversations_side_by_side,
    Run.leaves_a_stream_early,
    Run.looks_after_stored_responses,
    Run.refuses_an_unknown_parent,
)
SCENARIOS: dict[str, tuple[Callable[[Run], str | Awaitable[str]], ...]] = {
    "http": HTTP,
    "websocket": (Run.one_socket_for_a_tool_loop, Run.one_async_socket_with_an_error),
    "lanes": (Run.lanes_side_by_side, Run.lanes_of_the_sdk_fork),
    "drop-in": HTTP,
}


async def bounded(work: Awaitable[str], seconds: float) -> str:
    async with asyncio.timeout(seconds):
        return await work


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=SCENARIOS)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--grpc")
    parser.add_argument("--model", default="some-model")
    parser.add_argument("--api-key", default="sk-local-test")
    parser.add_argument("--no-tool", action="store_true")
    arguments = parser.parse_args()
    print("openai", openai.__version__, arguments.transport)
    seconds = 600 if arguments.no_tool else 90  # A model that computes takes its time.
    for scenario in SCENARIOS[arguments.transport]:
        result = scenario(Run(arguments))
        text = asyncio.run(bounded(result, seconds)) if inspect.isawaitable(result) else result
        print(f"ok {scenario.__name__}: {text[:80]}")


main()
