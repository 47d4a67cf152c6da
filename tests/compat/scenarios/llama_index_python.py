"""What applications do with LlamaIndex and the Responses API.

Run by the client's own Python: `llama_index_python.py http --base-url URL`. Fails by an exception.
"""

from __future__ import annotations

import argparse
import importlib.metadata

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("http",))
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--grpc")
    arguments = parser.parse_args()
    print("llama-index", importlib.metadata.version("llama-index-llms-openai"), "http")
    model = OpenAIResponses(
        model="gpt-4.1",  # it must know the name: how long its context is
        api_base=arguments.base_url,
        api_key="sk-local-test",
        max_retries=0,
        timeout=60,
    )
    assert model.complete("Say hello.").text
    print("ok complete")
    messages = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Say hello."),
    ]
    assert model.chat(messages).message.content
    said = "".join(chunk.delta or "" for chunk in model.stream_chat(messages))
    assert said
    print("ok chat and its stream:", said[:60])
    tool = FunctionTool.from_defaults(get_weather)
    answer = model.predict_and_call([tool], "How is the weather in Paris?")
    assert answer.sources and answer.sources[0].tool_name == "get_weather"
    print("ok tool:", str(answer)[:60])


main()
