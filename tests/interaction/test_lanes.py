"""Lanes: FIFO within, side by side across, and their limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from harness.reading import arm_of, code_of, response_of, status_of, text_of
from interaction.conftest import Connect
from interaction.requirements import requirement
from interaction.scripts import said
from turnwire_server.adapters.engines.sim import SimSettings


@requirement("lanes.fifo")
async def test_creates_of_one_lane_run_one_after_the_other_in_order(connect: Connect) -> None:
    peer = await connect()
    for number in range(5):
        await peer.create(input=f"turn {number}", metadata=said(f"answer {number}"))
    for number in range(5):
        # The checker refuses a second response on the lane before the first one ended.
        assert text_of(response_of(await peer.finish())) == f"answer {number}"
    log = connect.stack.engine.log
    started = [what for what, _ in log if what in ("generate", "end")]
    assert started == ["generate", "end"] * 5


@requirement("lanes.parallel")
async def test_lanes_run_side_by_side(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    holds = [stack.engine.hold(text, after_steps=1) for text in ("a", "b", "none")]
    await peer.create(input="a", stream_id="lane-a")
    await peer.create(input="b", stream_id="lane_b")
    await peer.create(input="none")
    for hold in holds:  # all three are in the middle of their answers at once
        await stack.engine.held(hold)
    assert len(stack.engine.running) == 3
    for hold in reversed(holds):
        stack.engine.release(hold)
    for lane in ("lane-a", "lane_b", None):
        assert status_of(response_of(await peer.finish(lane))) == "completed"


@requirement("lanes.tagged")
async def test_every_event_names_its_lane_and_the_default_lane_has_no_name(
    connect: Connect,
) -> None:
    connect.parts.sim = SimSettings(step_tokens=1)
    peer = await connect()
    for lane in ("a", "b", None):
        await peer.create(input="Hi", **({} if lane is None else {"stream_id": lane}))
    await peer.create(input="Hi", temperature=9, stream_id="c")
    open_lanes: set[str | None] = {"a", "b", "c", None}
    order: list[str | None] = []
    while open_lanes:
        event = await peer.receive()
        lane = event.stream_id if event.HasField("stream_id") else None
        order.append(lane)
        if arm_of(event) in ("response_completed", "error"):
            open_lanes.remove(lane)
    changes = sum(1 for before, after in pairwise(order) if before != after)
    assert changes > 6, "the lanes were served one after the other"
    assert order.count("c") == 1


@requirement("lanes.in_flight")
async def test_the_17th_turn_waits_until_one_of_16_is_over(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("long")
    for number in range(16):
        await peer.create(input="long", stream_id=f"lane{number}")
    running = [await stack.engine.held(hold) for _ in range(16)]
    await peer.create(input="late", stream_id="lane16")
    # A round trip on the same connection: the server has seen the create and not started it.
    await peer.send({"type": "response.steer", "previous_response_id": "resp_none", "input": "x"})
    await peer.until("response_steer_failed")
    assert len(stack.engine.requests) == 16
    await peer.send({"type": "response.cancel", "response_id": running[3]})
    assert status_of(response_of(await peer.finish("lane16"))) == "completed"
    stack.engine.release(hold)
    ended = [response_of(await peer.finish(f"lane{number}")) for number in range(16)]
    assert sorted(status_of(one) for one in ended) == ["cancelled"] + ["completed"] * 15


@requirement("lanes.names")
async def test_the_33rd_name_is_refused_and_known_names_go_on(connect: Connect) -> None:
    peer = await connect()
    for number in range(32):
        await peer.turn(input="Hi", generate=False, stream_id=f"lane{number}")
    await peer.create(input="Hi", stream_id="one.too-many")
    error = await peer.receive()
    assert code_of(error) == "websocket_stream_limit_reached"
    assert error.stream_id == "one.too-many"
    assert (error.error.status, error.error.error.param) == (400, "stream_id")
    assert "32" in error.error.error.message
    for lane in ("lane7", None):
        more = {} if lane is None else {"stream_id": lane}
        assert status_of(response_of(await peer.turn(input="Hi", **more))) == "completed"


@requirement("lanes.overflow")
async def test_a_create_beyond_the_queue_is_refused_on_its_lane(connect: Connect) -> None:
    settings = connect.parts.settings
    session = replace(settings.session, max_queued=3)
    connect.parts.settings = replace(settings, session=session)
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("first")
    await peer.create(input="first", stream_id="a")
    await stack.engine.held(hold)
    for number in range(4):
        await peer.create(input=f"more {number}", stream_id="a", metadata=said(f"{number}"))
    error = await peer.until("error", "a")
    assert code_of(error) == "rate_limit_exceeded"
    assert error.error.status == 429
    # Other lanes do not queue, and what waits is not lost or reordered.
    assert status_of(response_of(await peer.turn(input="Hi", stream_id="b"))) == "completed"
    stack.engine.release(hold)
    texts = [text_of(response_of(await peer.finish("a"))) for _ in range(4)]
    assert texts[1:] == ["0", "1", "2"]


@requirement("lanes.overflow")
async def test_the_queue_is_bounded_in_bytes_too(connect: Connect) -> None:
    settings = connect.parts.settings
    session = replace(settings.session, max_queued_bytes=2_000)
    connect.parts.settings = replace(settings, session=session)
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("first")
    await peer.create(input="first")
    await stack.engine.held(hold)
    await peer.create(input="x" * 1_500, metadata=said("kept"))
    await peer.create(input="y" * 1_500)
    assert code_of(await peer.until("error")) == "rate_limit_exceeded"
    stack.engine.release(hold)
    await peer.finish()
    assert text_of(response_of(await peer.finish())) == "kept"


@requirement("lanes.fresh")
async def test_a_lane_without_a_parent_starts_a_new_conversation(connect: Connect) -> None:
    peer = await connect()
    first = response_of(await peer.turn(input="Hi", stream_id="a", metadata=said("x")))
    second = response_of(await peer.turn(input="Hi", stream_id="a", metadata=said("x")))
    engine = connect.stack.engine
    assert list(engine.request(first.id).ids) == list(engine.request(second.id).ids)


@requirement("lanes.errors_apart")
async def test_an_error_on_one_lane_does_not_touch_another(connect: Connect) -> None:
    peer = await connect()
    stack = await connect.start()
    hold = stack.engine.hold("long", after_steps=1)
    await peer.create(input="long", stream_id="a")
    await stack.engine.held(hold)
    (error,) = await peer.turn(input="x", temperature=9, stream_id="b")
    assert code_of(error) == "invalid_value"
    stack.engine.release(hold)
    assert status_of(response_of(await peer.finish("a"))) == "completed"
