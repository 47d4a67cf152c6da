"""A create that cannot fit its model is refused before it is rendered."""

from __future__ import annotations

from typing import Any

import pytest

from harness.clock import ManualClock
from turnwire.v1.client_event_pb2 import Input, ResponseCreate
from turnwire.v1.item_pb2 import Item, ItemList, ReasoningItem
from turnwire_server.adapters.engines.sim import SimEngine, SimSettings
from turnwire_server.adapters.renderers.sim_chatml import SimRenderer
from turnwire_server.ports.renderer import Rendered, RenderRequest
from turnwire_server.runtime.prepare import Ready, prepare
from turnwire_server.runtime.prompts import StoredPrompt
from turnwire_server.runtime.registry import ModelRegistry, ServedModel
from turnwire_server.runtime.resolve import Parent
from turnwire_server.runtime.validate import CheckedCreate, Validator
from turnwire_server.session.errors import Rejection

CONTEXT = 1000


class WatchedRenderer(SimRenderer):
    """Counts what it renders."""

    def __init__(self) -> None:
        super().__init__()
        self.renders = 0

    def render(self, request: RenderRequest) -> Rendered:
        self.renders += 1
        return super().render(request)


def checked(create: ResponseCreate, parent: Parent, **parts: Any) -> CheckedCreate:
    engine = SimEngine(SimSettings(context_length=CONTEXT), ManualClock())
    models = ModelRegistry([ServedModel("sim", engine, WatchedRenderer())])
    rules = Validator(models, lambda prefix: prefix + "0" * 48, strict_content=False, **parts)
    result = rules.check(
        create,
        parent,
        find_item=lambda item_id: None,
        stream_id=None,
        is_persistent=True,
        is_warm_up=False,
    )
    assert isinstance(result, CheckedCreate)
    return result


def outcome(
    create: ResponseCreate, *, wire_bytes: int | None, **parts: Any
) -> tuple[Ready | Rejection, int]:
    """Return what `prepare` says, and how often it rendered."""
    parent = Parent()
    create.model = "sim"
    given = checked(create, parent, **parts)
    ready = prepare(given, parent, wire_bytes=wire_bytes)
    renderer = given.model.renderer
    assert isinstance(renderer, WatchedRenderer)
    return ready, renderer.renders


@pytest.mark.parametrize("is_measured", [False, True])
def test_what_is_far_too_long_is_refused_without_being_rendered(is_measured: bool) -> None:
    create = ResponseCreate(input=Input(text="x" * 32 * CONTEXT))
    size = len(create.SerializeToString()) if is_measured else None
    refused, renders = outcome(create, wire_bytes=size)
    assert isinstance(refused, Rejection) and renders == 0
    assert refused.code == "context_length_exceeded" and "bytes" in refused.message


def test_what_a_template_makes_far_too_long_is_refused_without_being_rendered() -> None:
    long = StoredPrompt("pmpt_1", instructions="x" * 32 * CONTEXT)
    create = ResponseCreate(input=Input(text="Hi"))
    create.prompt.id = long.id
    refused, renders = outcome(create, wire_bytes=20, prompts=[long])
    assert isinstance(refused, Rejection) and renders == 0


def test_nothing_so_short_that_its_size_is_not_looked_at_grows_beyond_what_fits() -> None:
    items = [Item(reasoning=ReasoningItem())] * (CONTEXT // 4 - 10)  # no item is shorter
    create = ResponseCreate(model="sim", input=Input(items=ItemList(items=items)))
    create.input.items.items.add().message.role = "user"
    create.input.items.items[-1].message.content.text = "Hi"
    wire_bytes = len(create.SerializeToString())
    assert wire_bytes <= CONTEXT
    ready, _ = outcome(create, wire_bytes=wire_bytes)
    assert isinstance(ready, Ready)
    assert wire_bytes * 10 < create.ByteSize() < 32 * CONTEXT
