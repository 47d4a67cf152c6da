"""`openai-agents` on a session: runs, streams and histories, with only what is new on the wire."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import openai
import pytest
from agents import Agent, ModelSettings, RunConfig, Runner, SQLiteSession, function_tool

from harness.server import RunningServer, serving
from harness.stack import running_stack
from harness.waiting import until
from turnwire.agents import Provider

asked: list[str] = []


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: The city.
    """
    asked.append(city)
    return "sunny"


HELPER = Agent(name="Helper", instructions="Use the tools.", tools=[get_weather])


@pytest.fixture
async def provider(server: RunningServer) -> AsyncIterator[Provider]:
    async with asyncio.timeout(20), Provider(server.grpc_url, model="sim") as opened:
        yield opened


def on(provider: Provider) -> RunConfig:
    return RunConfig(model_provider=provider, tracing_disabled=True)


async def test_a_run_with_a_tool_sends_only_what_is_new(provider: Provider) -> None:
    asked.clear()
    result = await Runner.run(HELPER, "How is the weather in Paris?", run_config=on(provider))
    assert result.final_output
    assert len(asked) == 1
    first, second = result.raw_responses
    assert [item.type for item in first.output] == ["function_call"]
    assert second.usage.input_tokens > first.usage.input_tokens > 0
    assert second.response_id is not None
    stats = provider.stats
    assert (stats.turns, stats.continued, stats.items_sent) == (2, 1, 2)


async def test_a_streamed_run_continues_the_history_of_an_earlier_one(provider: Provider) -> None:
    first = await Runner.run(HELPER, "Hello.", run_config=on(provider))
    history = [*first.to_input_list(), {"role": "user", "content": "And the weather?"}]
    streamed = Runner.run_streamed(HELPER, history, run_config=on(provider))  # type: ignore[arg-type]
    kinds = [
        event.data.type
        async for event in streamed.stream_events()
        if event.type == "raw_response_event"
    ]
    assert kinds[0] == "response.created"
    assert kinds.count("response.completed") == len(streamed.raw_responses)
    assert "response.output_text.delta" in kinds
    assert streamed.final_output
    stats = provider.stats
    assert stats.continued == stats.turns - 1
    assert stats.sessions_opened == 1


async def test_a_memory_of_the_runner_and_a_named_parent_work(provider: Provider) -> None:
    memory = SQLiteSession("memory")
    config = on(provider)
    await Runner.run(HELPER, "Hello.", session=memory, run_config=config)
    second = await Runner.run(HELPER, "And now?", session=memory, run_config=config)
    assert provider.stats.continued == provider.stats.turns - 1
    named = await Runner.run(
        HELPER, "Go on.", previous_response_id=second.last_response_id, run_config=config
    )
    assert named.final_output
    memory.close()


async def test_leaving_a_streamed_run_ends_its_turn() -> None:
    async with running_stack() as stack, serving(stack.services) as server:
        hold = stack.engine.hold("Stop here.", after_steps=1)
        async with asyncio.timeout(20), Provider(server.grpc_url, model="sim") as provider:
            agent = Agent(name="Plain", model_settings=ModelSettings(store=False))
            streamed = Runner.run_streamed(agent, "Stop here.", run_config=on(provider))
            response_id = await stack.engine.held(hold)
            streamed.cancel()
            async for _ in streamed.stream_events():
                pass
            await until(lambda: response_id not in stack.engine.running)


async def test_a_refusal_reaches_the_caller_as_the_sdks_error(provider: Provider) -> None:
    agent = Agent(name="Lost", model="nobody")
    with pytest.raises(openai.NotFoundError) as refused:
        await Runner.run(agent, "Hello.", run_config=on(provider))
    assert refused.value.code == "model_not_found"


async def test_leaving_the_provider_closes_its_sessions(server: RunningServer) -> None:
    async with asyncio.timeout(20), Provider(server.grpc_url, model="sim") as provider:
        await Runner.run(HELPER, "Hello.", run_config=on(provider))
        assert server.services.connection_count == 1
    await until(lambda: server.services.connection_count == 0)


async def test_a_model_must_be_named_somewhere(server: RunningServer) -> None:
    async with Provider(server.grpc_url) as provider:
        with pytest.raises(ValueError, match="names a model"):
            provider.get_model(None)
        assert provider.get_model("sim") is not None


def test_without_the_package_the_import_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['agents'] = None\n"
        "try: import turnwire.agents\n"
        "except ImportError as error: print(error)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert "pip install 'turnwire[agents]'" in shown.stdout
