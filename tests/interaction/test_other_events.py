"""Client events beside creates and cancels."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from harness.peers import WebSocketPeer
from harness.reading import arm_of, failure_of, public, response_of, status_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import user


@requirement("events.steer")
@pytest.mark.parametrize("target", ["resp_missing", None], ids=["unknown", "none"])
async def test_a_steer_of_nothing_fails_with_response_not_found(
    connect: Connect, target: str | None
) -> None:
    peer = await connect()
    await peer.send({"type": "response.steer", "previous_response_id": target, "input": "x"})
    shown = public(await peer.receive())
    assert shown["type"] == "response.steer.failed"
    assert shown["error"]["code"] == "response_not_found"
    assert shown["sequence_number"] == 0


@requirement("events.inject")
async def test_an_inject_fails_with_response_not_found_and_its_input(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("talk")
    await peer.create(input="talk")
    response_id = await stack.engine.held(hold)
    output = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
    inject = {"type": "response.inject", "response_id": "resp_missing", "input": [output]}
    await peer.send(inject)
    shown = public(await peer.until("response_inject_failed"))
    assert shown["error"]["code"] == "response_not_found"
    assert shown["response_id"] == "resp_missing"
    assert shown["input"] == [output]
    stack.engine.release(hold)
    assert response_of(await peer.finish()).id == response_id


_MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "role": ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    "number": ({"input": 7}, "input"),
    "no type": ({"input": [{"content": "x"}]}, "input[0].type"),
    "part": (
        {"input": [{"role": "user", "content": [{"type": "input_video"}]}]},
        "input[0].content[0].type",
    ),
    "lane": ({"input": "x", "stream_id": ""}, "stream_id"),
    "lane's type": ({"input": "x", "stream_id": 7}, "stream_id"),
}
_SAYS_IT = {"lane": {"grpc", "memory"}}
"""What a message can say; the rest is JSON's."""


@requirement("events.malformed")
@pytest.mark.parametrize("kind", ["steer", "inject"])
@pytest.mark.parametrize("name", _MALFORMED)
async def test_a_malformed_steer_or_inject_fails_by_itself_in_its_targets_sequence(
    connect: Connect, kind: str, name: str
) -> None:
    members, param = _MALFORMED[name]
    peer = await connect()
    if peer.wire not in {"websocket", *_SAYS_IT.get(name, ())}:
        members, param = {"input": "x", "stream_id": "a b"}, "stream_id"
    stack = await connect.start()
    hold = stack.engine.hold("talk")
    await peer.create(input="talk", stream_id="a")
    target = await stack.engine.held(hold)
    id_member = "previous_response_id" if kind == "steer" else "response_id"
    event = {"type": f"response.{kind}", id_member: target, **members}
    if isinstance(peer, WebSocketPeer):
        await peer.send_raw(orjson.dumps(event))
    else:
        await peer.send(event)
    failed = await peer.until(f"response_{kind}_failed", "a")
    shown = public(failed)
    assert (shown["error"]["code"], shown["error"]["param"]) == ("invalid_input", param)
    assert (shown["steer"] if kind == "steer" else shown)[id_member] == target
    assert failed.sequence_number > 0
    stack.engine.release(hold)
    response = response_of(await peer.finish("a"))
    assert (response.id, status_of(response)) == (target, "completed")


@requirement("events.malformed_json")
async def test_a_steer_that_is_no_json_fails_by_itself_and_keeps_its_target(
    connect: Connect,
) -> None:
    peer = await connect()
    assert isinstance(peer, WebSocketPeer)
    stack = await connect.start()
    hold = stack.engine.hold("talk")
    await peer.create(input="talk")
    target = await stack.engine.held(hold)
    text = f'{{"type":"response.steer","previous_response_id":"{target}","input":"\\ud83d"}}'
    await peer.send_raw(text.encode())
    failed = await peer.until("response_steer_failed")
    assert failed.response_steer_failed.error.code == "invalid_input"
    stack.engine.release(hold)
    assert status_of(response_of(await peer.finish())) == "completed"


@requirement("events.append")
async def test_an_append_without_a_paused_response_is_an_error(connect: Connect) -> None:
    peer = await connect()
    append = {"type": "response.append", "response_id": "resp_x", "input": [user("x")]}
    await peer.send({**append, "event_id": "e1", "stream_id": "a"})
    error = await peer.receive()
    assert failure_of(error) == ("response_not_found", 404, "response_id")
    assert (error.event_id, error.stream_id) == ("e1", "a")
    assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"


@requirement("events.processed")
async def test_an_acknowledgement_is_never_answered(connect: Connect) -> None:
    peer = await connect()
    response = response_of(await peer.turn(input="Hi"))
    await peer.send({"type": "response.processed", "response_id": response.id})
    await peer.send({"type": "response.processed"})
    events = await peer.turn(input="Hi")
    assert arm_of(events[0]) == "response_created"


@requirement("session.start")
async def test_a_session_is_started_by_the_first_event(connect: Connect) -> None:
    peer = await connect()
    await peer.send({"type": "turnwire.session.start"})
    started = public(await peer.receive())
    assert started["type"] == "turnwire.session.started"
    assert started["session_id"].startswith("sess_")
    assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"


@requirement("session.start")
async def test_a_session_cannot_be_started_or_resumed_late(connect: Connect) -> None:
    peer = await connect()
    assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"
    resume = {"type": "turnwire.session.resume", "session_id": "sess_x", "token": "t"}
    for event in ({"type": "turnwire.session.start"}, resume):
        await peer.send({**event, "event_id": "e1"})
        error = await peer.receive()
        assert failure_of(error) == ("invalid_value", 400, "type")
        assert error.event_id == "e1"
    assert status_of(response_of(await peer.turn(input="Hi"))) == "completed"
