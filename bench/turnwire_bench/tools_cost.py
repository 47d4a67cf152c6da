"""What tools cost: the first create with them against the second with the same ones.

Run `python -m turnwire_bench.tools_cost`. Decode is the edge (JSON to checked messages), validate
and render are what `turnwire.timing` calls so. No network and no engine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson

from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.sim import SimEngine, SimSettings
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.codec.requests import RequestDecoder
from turnwire_server.ports.renderer import Renderer
from turnwire_server.runtime.prepare import Ready, prepare
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.resolve import Parent
from turnwire_server.runtime.services import random_id
from turnwire_server.runtime.validate import CheckedCreate, Validator

__all__ = ["main", "measure"]

Result = TypeVar("Result")

STAGES = ("decode", "validate", "render")


def tools_of(size: int) -> list[dict[str, Any]]:
    """Return function tools whose JSON is about `size` bytes."""
    tools: list[dict[str, Any]] = []
    while len(orjson.dumps(tools)) < size:
        number = len(tools)
        properties = {
            f"argument_{index}": {
                "type": "string",
                "description": f"What the tool number {number} needs in its place {index}.",
            }
            for index in range(8)
        }
        tools.append(
            {
                "type": "function",
                "name": f"tool_{number}",
                "description": "Does something that a model may want to have done. " * 4,
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": list(properties),
                    "additionalProperties": False,
                },
            }
        )
    return tools


def renderer_of(path: Path | None) -> Renderer:
    """Return the renderer of a GGUF file, the simulated model's when there is none."""
    if path is None:
        return SimRenderer()
    # Imported here: the simulated model needs none of what these do.
    from turnwire_server.adapters.renderers.chat_model import model_of_gguf
    from turnwire_server.adapters.renderers.chat_template import ChatTemplateRenderer
    from turnwire_server.adapters.renderers.gguf import read_gguf

    return ChatTemplateRenderer(model_of_gguf(read_gguf(path)))


def measure(size: int, creates: int, renderer: Renderer) -> list[dict[str, float]]:
    """Return the milliseconds of each stage, one entry per create with the same tools."""
    engine = SimEngine(SimSettings(), SystemClock())
    model = ServedModel("sim", engine, renderer)
    validator = Validator(ModelRegistry([model]), random_id, strict_content=False)
    decoder = RequestDecoder()
    tools = tools_of(size)
    costs = []
    for number in range(creates):
        body = {"type": "response.create", "model": "sim", "input": f"Hi {number}", "tools": tools}
        data = orjson.dumps(body)
        cost: dict[str, float] = {}
        event = timed(cost, "decode", partial(decoder.client_event, data))
        assert isinstance(event, ClientEvent)
        create = event.response_create
        checked = timed(cost, "validate", partial(checked_of, validator, create))
        ready = timed(cost, "render", partial(prepare, checked, Parent()))
        assert isinstance(ready, Ready)
        costs.append(cost)
    return costs


def checked_of(validator: Validator, create: ResponseCreate) -> CheckedCreate:
    """Return the checked create."""
    checked = validator.check(
        create,
        Parent(),
        find_item=lambda _: None,
        stream_id=None,
        is_persistent=True,
        is_warm_up=False,
    )
    assert isinstance(checked, CheckedCreate)
    return checked


def timed(cost: dict[str, float], stage: str, call: Callable[[], Result]) -> Result:
    """Return what `call` returns; its milliseconds are put into `cost`."""
    begin = time.perf_counter()
    result = call()
    cost[stage] = (time.perf_counter() - begin) * 1e3
    return result


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=60_000, help="size of the tools")
    parser.add_argument("--creates", type=int, default=20, help="creates with the same tools")
    parser.add_argument("--model", type=Path, help="GGUF file whose template renders")
    arguments = parser.parse_args()
    renderer = renderer_of(arguments.model)
    measure(1_000, 2, renderer)  # what is loaded or compiled once is not what is measured
    costs = measure(arguments.bytes, arguments.creates, renderer)
    first = costs[0]
    later = {stage: statistics.median(cost[stage] for cost in costs[1:]) for stage in STAGES}
    print(f"tools of {arguments.bytes} bytes, first create and median of the later ones, in ms")
    rows = [(stage, first[stage], later[stage]) for stage in STAGES]
    both = ("validate", "render")
    rows.append(("validate + render", sum(map(first.get, both)), sum(map(later.get, both))))  # type: ignore[arg-type]
    for name, once, again in rows:
        print(f"{name:18} {once:9.3f} {again:9.3f}  {once / again:6.1f} x")


if __name__ == "__main__":
    main()
