"""What applications do with Haystack and the Responses API.

Run by the client's own Python: `haystack_python.py http --base-url URL`. Fails by an exception.
"""

from __future__ import annotations

import argparse
import importlib.metadata
from typing import Any

from haystack.components.generators.chat import OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return "sunny"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("http",))
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--grpc")
    arguments = parser.parse_args()
    print("haystack", importlib.metadata.version("haystack-ai"), arguments.transport)
    generator = OpenAIResponsesChatGenerator(
        model="some-model",
        api_key=Secret.from_token("sk-local-test"),
        api_base_url=arguments.base_url,
        tools=[create_tool_from_function(get_weather)],
        max_retries=0,
    )
    messages = [ChatMessage.from_user("How is the weather in Paris?")]
    (asking,) = generator.run(messages)["replies"]
    assert asking.tool_calls, asking
    outputs = [
        ChatMessage.from_tool(tool_result="sunny", origin=call) for call in asking.tool_calls
    ]
    (answer,) = generator.run([*messages, asking, *outputs])["replies"]
    assert answer.text, answer
    print("ok tool:", answer.text[:60])
    chunks: list[Any] = []
    generator.run([ChatMessage.from_user("Say hello.")], streaming_callback=chunks.append)
    assert chunks
    print("ok stream:", len(chunks), "chunks")


main()
