"""What applications do with Agno and the Responses API.

Run by the client's own Python: `agno_python.py http --base-url URL`. Fails by an exception.
"""

from __future__ import annotations

import argparse
import importlib.metadata

from agno.agent import Agent
from agno.models.openai import OpenAIResponses

asked: list[str] = []


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    asked.append(city)
    return "sunny"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("http",))
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--grpc")
    arguments = parser.parse_args()
    print("agno", importlib.metadata.version("agno"), arguments.transport)
    model = OpenAIResponses(
        id="some-model", base_url=arguments.base_url, api_key="sk-local-test", max_retries=0
    )
    agent = Agent(model=model, tools=[get_weather], telemetry=False)
    run = agent.run("How is the weather in Paris?")
    assert run.content and asked, run
    print("ok run with a tool:", run.content[:60])
    events = list(agent.run("And now?", stream=True))
    said = "".join(getattr(event, "content", None) or "" for event in events)
    assert said
    print("ok streamed run:", said[:60])


main()
