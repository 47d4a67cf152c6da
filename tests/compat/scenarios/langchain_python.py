"""What applications do with langchain-openai and the Responses API.

Run by the client's own Python: `langchain_python.py http --base-url URL`. Fails by an exception.
"""

from __future__ import annotations

import argparse
import importlib.metadata
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


class Weather(BaseModel):
    """The weather."""

    city: str
    degrees: int


def converse(model: ChatOpenAI) -> None:
    first = model.invoke("Say hello.")
    assert first.text and first.response_metadata["id"].startswith("resp_"), first
    assert first.usage_metadata and first.usage_metadata["total_tokens"] > 0
    print("ok invoke:", str(first.text)[:60])

    said = "".join(str(chunk.text) for chunk in model.stream("Say hello."))
    assert said
    print("ok stream")

    with_tools = model.bind_tools([get_weather])
    messages: list[Any] = [HumanMessage("How is the weather in Paris?")]
    asked = with_tools.invoke(messages)
    assert asked.tool_calls, asked
    messages.append(asked)
    for call in asked.tool_calls:
        messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
    answer = with_tools.invoke(messages)
    assert answer.text and not answer.tool_calls, answer
    print("ok tool:", str(answer.text)[:60])

    follow = model.invoke("And now?", previous_response_id=first.response_metadata["id"])
    assert follow.text
    print("ok parent")

    weather = model.with_structured_output(Weather, method="json_schema").invoke("Paris?")
    assert isinstance(weather, Weather), weather
    print("ok structured output:", weather)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("http",))
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--grpc")
    arguments = parser.parse_args()
    print("langchain-openai", importlib.metadata.version("langchain-openai"), arguments.transport)
    options: dict[str, Any] = {
        "model": "some-model",
        "base_url": arguments.base_url,
        "api_key": "sk-local-test",
        "use_responses_api": True,
        "max_retries": 0,
        "timeout": 60,
    }
    converse(ChatOpenAI(**options))
    # Only what is new, behind the newest response among the messages.
    converse(ChatOpenAI(**options, use_previous_response_id=True))


main()
