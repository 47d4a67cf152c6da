"""What applications do with LiteLLM and a server of the Responses API.

Run by the client's own Python: `litellm_python.py http --base-url URL`. Fails by an exception.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
from typing import Any

import litellm

FUNCTION: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


async def responses(options: dict[str, Any]) -> None:
    tools = [{"type": "function", **FUNCTION}]
    first = await litellm.aresponses(input="How is it in Paris?", tools=tools, **options)
    calls = [item for item in first.output if item.type == "function_call"]
    assert calls and json.loads(calls[0].arguments)
    print("ok responses with a tool:", calls[0].name)
    outputs = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        for call in calls
    ]
    stream = await litellm.aresponses(
        input=outputs, tools=tools, previous_response_id=first.id, stream=True, **options
    )
    kinds = [event.type async for event in stream]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    print("ok streamed responses with a parent:", len(kinds), "events")
    kept = await litellm.aget_responses(response_id=first.id, **without_model(options))
    assert kept.status == "completed"
    print("ok get")


async def completion(options: dict[str, Any]) -> None:
    """Chat completions, which LiteLLM makes responses of."""
    bridged = {**options, "model": options["model"].replace("openai/", "openai/responses/")}
    messages: list[Any] = [{"role": "user", "content": "How is it in Paris?"}]
    tools = [{"type": "function", "function": FUNCTION}]
    answer = (await litellm.acompletion(messages=messages, tools=tools, **bridged)).choices[0]
    assert answer.message.tool_calls, answer
    messages.append(answer.message.model_dump())
    for call in answer.message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    said = ""
    stream = await litellm.acompletion(messages=messages, tools=tools, stream=True, **bridged)
    async for chunk in stream:
        said += chunk.choices[0].delta.content or ""
    assert said
    print("ok completions by way of responses:", said[:60])


def without_model(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "custom_llm_provider": "openai",
        **{name: value for name, value in options.items() if name != "model"},
    }


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("http",))
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--grpc")
    arguments = parser.parse_args()
    print("litellm", importlib.metadata.version("litellm"), arguments.transport)
    options: dict[str, Any] = {
        "model": "openai/some-model",
        "api_base": arguments.base_url,
        "api_key": "sk-local-test",
        "timeout": 60,
    }
    async with asyncio.timeout(120):
        await responses(options)
        await completion(options)


asyncio.run(main())
