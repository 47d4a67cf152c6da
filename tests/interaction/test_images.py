"""Images: taken by the models that take them, refused by the others."""

from __future__ import annotations

from typing import Any

import pytest

from harness.reading import failure_of, public, response_of, status_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import user
from turnwire.v1 import responses_service_pb2
from turnwire_server.adapters.engines.sim import SimSettings
from turnwire_server.runtime.unary import UnaryApi

TEXT = {"type": "input_text", "text": "What is this?"}
IMAGE = {
    "type": "input_image",
    "detail": "low",
    "image_url": "data:image/gif;base64,R0lGODlhAQACAIAAAP///wAAACwAAAAAAQACAAACAkQBADs=",
}
FAR = {"type": "input_image", "image_url": "https://example.com/cat.png"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
SEEN = {"type": "function_call_output", "call_id": "call_1", "output": [TEXT, IMAGE]}
CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "call_1", "name": "f", "input": "x"}
CUSTOM_SEEN = {**SEEN, "type": "custom_tool_call_output"}


def shown(*parts: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [*parts]}


@requirement("input.images")
@pytest.mark.parametrize(
    "items",
    [
        [shown(TEXT, IMAGE)],
        [shown(IMAGE)],
        [shown(FAR, FAR, TEXT)],
        [shown(IMAGE, role="developer"), user("Hi")],
        [user("Look."), CALL, SEEN],
        [user("Look."), CUSTOM_CALL, CUSTOM_SEEN],
    ],
    ids=["beside text", "alone", "somewhere else", "of a developer", "of a tool", "of a custom"],
)
async def test_an_image_is_taken_wherever_text_is(
    connect: Connect, items: list[dict[str, Any]]
) -> None:
    peer = await connect()
    response = response_of(await peer.turn(input=items))
    assert status_of(response) == "completed"
    # It goes on from there: what was shown is part of the conversation.
    following = response_of(await peer.turn(input="And now?", previous_response_id=response.id))
    assert status_of(following) == "completed"
    assert following.usage.input_tokens > response.usage.input_tokens


@requirement("input.images")
async def test_a_large_image_costs_as_much_context_as_a_small_one(connect: Connect) -> None:
    peer = await connect()
    large = {**IMAGE, "image_url": IMAGE["image_url"] + "A" * (8 << 20)}
    small = response_of(await peer.turn(input=[shown(TEXT, IMAGE)]))
    response = response_of(await peer.turn(input=[shown(TEXT, large)]))
    assert status_of(response) == "completed"
    assert abs(response.usage.input_tokens - small.usage.input_tokens) < 12


@requirement("input.images")
async def test_an_image_comes_back_as_it_was_given(connect: Connect) -> None:
    peer = await connect()
    response = response_of(await peer.turn(input=[shown(TEXT, IMAGE)]))
    asked = responses_service_pb2.ListInputItemsRequest(response_id=response.id)
    listed = await UnaryApi(connect.stack.services).list_input_items(asked, tenant="default")
    assert public(listed)["data"][0]["content"] == [TEXT, IMAGE]


@requirement("errors.images")
@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([shown(TEXT, IMAGE)], "input[0].content[1]"),
        ([user("Look."), CALL, SEEN], "input[2].output[1]"),
    ],
)
async def test_a_model_of_text_refuses_an_image(
    connect: Connect, items: list[dict[str, Any]], param: str
) -> None:
    connect.parts.sim = SimSettings(images=False)
    peer = await connect()
    (error,) = await peer.turn(input=items)
    assert failure_of(error) == ("unsupported_value", 400, param)
    assert "text only" in str(public(error))
    assert status_of(response_of(await peer.turn(input="Still there?"))) == "completed"
