"""What tests of rollouts and of steering do with a peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.peers import Peer, ends_turn
from harness.reading import arm_of
from turnwire.v1.server_event_pb2 import RequiredOutput, ServerEvent

__all__ = ["append", "outputs_for", "required", "round_of", "steer"]


async def round_of(peer: Peer, lane: str | None = None) -> list[ServerEvent]:
    """Return a lane's events up to the next pause, or to the end of its turn."""
    events: list[ServerEvent] = []
    while not events or not (ends_turn(events[-1]) or arm_of(events[-1]) == "response_done"):
        events.append(await peer._next_on(lane))
    return events


def required(event: ServerEvent) -> list[RequiredOutput]:
    """Return what a `response.done` or a `response.steer.pending` asks for."""
    body = getattr(event, arm_of(event))
    stubs = []
    for one in body.required_input:
        arm = one.WhichOneof("input")
        assert arm in ("function_call_output", "custom_tool_call_output")
        stubs.append(getattr(one, arm))
    return stubs


def outputs_for(event: ServerEvent, text: str = "hello") -> list[dict[str, Any]]:
    """Return an output for each call that an event asks for."""
    body = getattr(event, arm_of(event))
    return [
        {"type": one.WhichOneof("input"), "call_id": stub.call_id, "output": text}
        for one, stub in zip(body.required_input, required(event), strict=True)
    ]


async def append(
    peer: Peer, done: ServerEvent, input: Sequence[dict[str, Any]] | None = None, **more: Any
) -> None:
    """Answer a `response.done`, with outputs for all its calls unless others are given."""
    assert arm_of(done) == "response_done", done
    await peer.send(
        {
            "type": "response.append",
            "response_id": done.response_done.response_id,
            "input": outputs_for(done) if input is None else input,
            **more,
        }
    )


async def steer(peer: Peer, response_id: str, input: Any, **more: Any) -> None:
    """Steer a response."""
    event = {"type": "response.steer", "previous_response_id": response_id, "input": input}
    await peer.send({**event, **more})
