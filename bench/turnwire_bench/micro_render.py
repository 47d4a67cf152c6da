"""The pieces of `turnwire bench micro` that make prompts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import orjson

from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.content_pb2 import Content
from turnwire.v1.item_pb2 import Item, MessageItem
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.adapters.engines.sim import SimEngine, SimSettings
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.codec.requests import RequestDecoder
from turnwire_server.ports.renderer import Renderer, RenderRequest
from turnwire_server.runtime.prepare import Ready, prepare
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.resolve import Parent
from turnwire_server.runtime.services import random_id
from turnwire_server.runtime.validate import CheckedCreate, Validator
from turnwire_server.session.prompt import Prompt

__all__ = ["render_pieces", "tools_of"]

_NEW_TOKENS: Final = 200
_HISTORIES: Final = (0, 30_000, 100_000)
_MESSAGE_TOKENS: Final = 300

Call = Callable[[], object]


def render_pieces(tools_bytes: int) -> Iterable[tuple[str, Call]]:
    """Yield the name of each piece and what it does.

    Args:
        tools_bytes: Size of the tools that come again.
    """
    renderer = SimRenderer()
    for history in _HISTORIES:
        prompt = _prompt(renderer, history) if history else None
        yield (
            f"{_NEW_TOKENS} new tokens on {history:,}",
            partial(_render_new, renderer, prompt, itertools.count()),
        )
    for history in _HISTORIES[1:]:
        yield f"{history:,} tokens from scratch", partial(_prompt, renderer, history)
    yield from _tool_pieces(renderer, tools_bytes)


def _render_new(renderer: Renderer, previous: Prompt | None, numbers: Iterable[int]) -> None:
    """Render one message behind a prompt; each time from there, as a fork does not copy twice."""
    items = [_message(_NEW_TOKENS, next(iter(numbers)))]
    renderer.render(RenderRequest(items, history=list, previous=previous, generate=False))


def _prompt(renderer: Renderer, tokens: int) -> Prompt:
    items = [_message(_MESSAGE_TOKENS, number) for number in range(tokens // _MESSAGE_TOKENS)]
    return renderer.render(RenderRequest(items, history=list, generate=False)).prompt


def _message(tokens: int, number: int) -> Item:
    text = f"{number}" + " word" * (tokens - 2)
    return Item(message=MessageItem(role="user", content=Content(text=text)))


# Tools.


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


def _tool_pieces(renderer: Renderer, size: int) -> Iterable[tuple[str, Call]]:
    """Yield what a create with tools costs when they are new, and when they come again."""
    body = {"type": "response.create", "model": "sim", "input": "Hi", "tools": tools_of(size)}
    data = orjson.dumps(body)
    decoder = RequestDecoder()
    event = decoder.client_event(data)
    assert isinstance(event, ClientEvent)
    create = event.response_create
    validator = _validator(renderer)
    name = f"tools of {len(orjson.dumps(body['tools']))} bytes"
    yield f"{name}: decode, new", lambda: RequestDecoder().client_event(data)
    yield f"{name}: decode, again", lambda: decoder.client_event(data)

    def new() -> None:
        fresh = SimRenderer()
        _prepare(_validator(fresh), create)

    yield f"{name}: validate and render, new", new
    yield f"{name}: validate and render, again", partial(_prepare, validator, create)


def _validator(renderer: Renderer) -> Validator:
    engine = SimEngine(SimSettings(), SystemClock())
    registry = ModelRegistry([ServedModel("sim", engine, renderer)])
    return Validator(registry, random_id, strict_content=False)


def _prepare(validator: Validator, create: ResponseCreate) -> None:
    checked = validator.check(
        create,
        Parent(),
        find_item=lambda _: None,
        stream_id=None,
        is_persistent=True,
        is_warm_up=False,
    )
    assert isinstance(checked, CheckedCreate)
    assert isinstance(prepare(checked, Parent()), Ready)
