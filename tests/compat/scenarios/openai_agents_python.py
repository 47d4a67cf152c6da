"""What applications do with openai-agents; the transport is all that differs.

Run by the client's own Python: `openai_agents_python.py TRANSPORT --base-url URL [--grpc URL]`.
Fails by an exception.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
from contextlib import AsyncExitStack
from typing import Any

import agents
from agents import Agent, RunConfig, Runner, SQLiteSession, function_tool
from openai import AsyncOpenAI

asked: list[str] = []


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    asked.append(city)
    return "sunny, 21 degrees"


@function_tool
def get_time(zone: str, offset_h: int = 0) -> str:
    """Get the time in a zone."""
    asked.append(zone)
    return "12:00"


async def converse(arguments: argparse.Namespace, config: RunConfig | None) -> None:
    helper = Agent(
        name="Helper",
        instructions="Use the tools, then answer.",
        tools=[get_weather, get_time],
        model=arguments.model,
    )
    options: dict[str, Any] = {"max_turns": 8, "run_config": config}

    first = await Runner.run(helper, "Weather in Paris, and the time there?", **options)
    assert first.final_output
    assert asked or arguments.no_tool, "no tool was called"
    print("ok run:", str(first.final_output)[:80])

    follow = Runner.run_streamed(
        helper, "And tomorrow?", previous_response_id=first.last_response_id, **options
    )
    kinds = [event.type async for event in follow.stream_events()]
    assert follow.final_output and "raw_response_event" in kinds
    print("ok streamed run with a parent:", len(kinds), "events")

    history = [*first.to_input_list(), {"role": "user", "content": "Once more, please."}]
    resent = Runner.run_streamed(helper, history, **options)  # type: ignore[arg-type]
    async for _ in resent.stream_events():
        pass
    assert resent.final_output
    print("ok streamed run with the whole history")

    chained = await Runner.run(helper, "Hello.", auto_previous_response_id=True, **options)
    assert chained.final_output
    print("ok run that chains by itself")

    memory = SQLiteSession("compat")
    for text in ("Hello.", "And now?", "Bye."):
        remembered = await Runner.run(helper, text, session=memory, **options)
        assert remembered.final_output
    memory.close()
    print("ok runs with a memory")

    specialist = Agent(
        name="Specialist",
        handoff_description="Knows everything about trains.",
        instructions="Answer.",
        model=arguments.model,
    )
    desk = Agent(name="Desk", handoffs=[specialist], model=arguments.model)
    handed = await Runner.run(desk, "When does the train leave?", **options)
    assert handed.final_output
    assert handed.last_agent is specialist or arguments.no_tool, "no handoff"
    print("ok handoff" if handed.last_agent is specialist else "ok run that may hand off")

    if arguments.transport == "websocket":
        async with agents.responses_websocket_session() as session:
            parent = None
            for text in ("Hello.", "Again."):
                shared = session.run_streamed(
                    helper, text, previous_response_id=parent, max_turns=8
                )
                async for _ in shared.stream_events():
                    pass
                assert shared.final_output
                parent = shared.last_response_id
        print("ok runs on one socket")


async def run(arguments: argparse.Namespace) -> None:
    agents.set_tracing_disabled(True)
    async with asyncio.timeout(arguments.timeout), AsyncExitStack() as exits:
        if arguments.transport == "provider":
            from turnwire.agents import Provider

            provider = await exits.enter_async_context(
                Provider(arguments.grpc, api_key=arguments.api_key, timeout_s=arguments.timeout)
            )
            await converse(arguments, RunConfig(model_provider=provider))
            stats = provider.stats
            assert stats.continued > 0 and stats.items_sent < stats.items_given, stats
            return
        client = AsyncOpenAI(
            base_url=arguments.base_url,
            api_key=arguments.api_key,
            timeout=arguments.timeout,
            max_retries=0,
        )
        agents.set_default_openai_client(client, use_for_tracing=False)
        agents.set_default_openai_responses_transport(arguments.transport)
        await converse(arguments, None)
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("http", "websocket", "provider"))
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--grpc")
    parser.add_argument("--model", default="some-model")
    parser.add_argument("--api-key", default="sk-local-test")
    parser.add_argument("--no-tool", action="store_true", help="the model may not call a tool")
    arguments = parser.parse_args()
    # A model that computes takes its time.
    arguments.timeout = 900 if arguments.no_tool else 150
    print("openai-agents", importlib.metadata.version("openai-agents"), arguments.transport)
    asyncio.run(run(arguments))


main()
