"""What applications do with pydantic-ai and the Responses API.

Run by the client's own Python: `pydantic_ai_python.py http --base-url URL`. Fails by an exception.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(BaseModel):
    """The weather."""

    city: str
    degrees: int


async def converse(model: OpenAIResponsesModel, settings: OpenAIResponsesModelSettings) -> None:
    agent = Agent(model, instructions="Use the tools, then answer.", model_settings=settings)
    asked: list[str] = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return "sunny"

    first = await agent.run("How is the weather in Paris?")
    assert first.output and asked, first
    print("ok run:", first.output[:60])

    async with agent.run_stream("And now?", message_history=first.all_messages()) as stream:
        said = "".join([text async for text in stream.stream_text(delta=True)])
    assert said
    print("ok streamed run with a history")

    structured = Agent(model, output_type=Weather, model_settings=settings)
    weather = (await structured.run("How is the weather in Paris?")).output
    assert isinstance(weather, Weather)
    print("ok output type:", weather)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("http",))
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--grpc")
    arguments = parser.parse_args()
    version = importlib.metadata.version("pydantic-ai-slim")
    print("pydantic-ai", version, arguments.transport)
    client = AsyncOpenAI(
        base_url=arguments.base_url, api_key="sk-local-test", timeout=60, max_retries=0
    )
    model = OpenAIResponsesModel("some-model", provider=OpenAIProvider(openai_client=client))
    async with asyncio.timeout(120):
        await converse(model, OpenAIResponsesModelSettings())
        await converse(model, OpenAIResponsesModelSettings(openai_previous_response_id="auto"))
    await client.close()


asyncio.run(main())
