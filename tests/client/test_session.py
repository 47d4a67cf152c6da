from __future__ import annotations

import asyncio
import gc

import pytest

import turnwire
from harness.client_events import (
    call_item,
    call_turn,
    cancelled,
    failed_turn,
    opening,
    rejected,
    text_turn,
)
from harness.client_wires import MemoryWire, memory_session
from turnwire._event import Event
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ServerEvent, TurnwireGoAway


async def test_a_turn_yields_its_events_in_order_and_then_its_response() -> None:
    wire = MemoryWire(lambda event: text_turn(event, "resp_1", "Hel", "lo"))
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("Hi")
        events = [event async for event in turn]
        response = await turn.response()
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(7))
    assert "".join(event.delta or "" for event in events) == "Hello"
    assert (response.id, response.status, response.output_text) == ("resp_1", "completed", "Hello")
    assert response.usage == turnwire.Usage(40, 33, 5, 0, 45)
    assert events[-1].response is not None and events[-1].response.id == "resp_1"
    assert events[2].item is not None and events[3].item is None


async def test_a_create_carries_model_input_and_an_event_id_of_its_own() -> None:
    wire = MemoryWire(lambda event: text_turn(event, "resp_1", "x"))
    async with asyncio.timeout(20), memory_session(wire) as session:
        await session.create(
            [{"role": "user", "content": "Hi"}],
            previous_response_id="resp_0",
            store=False,
            instructions=None,
            tools=[{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        ).response()
        await session.create("again", model="other").response()
    first, second = (event.response_create for event in wire.sent)
    assert first.model == "m"
    assert first.input.items.items[0].message.content.text == "Hi"
    assert first.previous_response_id == "resp_0"
    assert first.HasField("store") and not first.store
    assert not first.HasField("instructions")
    assert first.tools[0].function.parameters == '{"type":"object"}'
    assert second.model == "other"
    ids = {event.event_id for event in wire.sent}
    assert len(ids) == 2 and all(ids)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"tools": [{"type": "function", "name": 3}]}, "tools[0].name"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
    ],
)
async def test_a_value_without_a_place_in_a_create_is_a_value_error_with_its_path(
    options: dict[str, object], path: str
) -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        with pytest.raises(ValueError, match=path.replace("[", r"\[")):
            session.create(**options)  # type: ignore[arg-type]
    assert wire.sent == []


async def test_lanes_run_side_by_side_and_each_keeps_its_order() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turns = [session.create("x", stream_id=lane) for lane in ("a", "a", "b", None)]
        await wire.sent_count(4)
        answers = [
            text_turn(event, f"resp_{number}", "t") for number, event in enumerate(wire.sent)
        ]
        # The lanes b and default run between the events of a; the second of a comes last.
        for events in zip(answers[0], answers[2], answers[3], strict=True):
            wire.push(*events)
        wire.push(*answers[1])
        responses = [await turn.response() for turn in turns]
    assert [response.id for response in responses] == ["resp_0", "resp_1", "resp_2", "resp_3"]


async def test_a_refusal_goes_to_the_create_that_its_event_id_names() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        first, second = session.create("x"), session.create("y")
        await wire.sent_count(2)
        wire.push(rejected(wire.sent[1], "rate_limit_exceeded", 429))
        with pytest.raises(turnwire.RateLimited) as refused:
            await second.response()
        wire.push(*text_turn(wire.sent[0], "resp_1", "x"))
        assert (await first.response()).id == "resp_1"
    assert refused.value.retryable
    assert second.stats is not None and second.stats.status == "rejected"


async def test_a_refusal_without_an_event_id_goes_to_the_head_of_its_lane() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("x", stream_id="a", previous_response_id="resp_0")
        await wire.sent_count(1)
        bare = ClientEvent(stream_id="a")
        wire.push(rejected(bare, "previous_response_not_found", 400, "previous_response_id"))
        with pytest.raises(turnwire.PreviousResponseNotFound) as refused:
            async for _ in turn:
                pass
    assert (refused.value.status, refused.value.param) == (400, "previous_response_id")
    assert not refused.value.retryable


async def test_a_failed_turn_yields_its_last_event_and_then_raises() -> None:
    wire = MemoryWire(lambda event: failed_turn(event, "resp_1", "server_error"))
    types = []
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("x")
        with pytest.raises(turnwire.TurnFailed) as failure:
            async for event in turn:
                types.append(event.type)
        with pytest.raises(turnwire.TurnFailed):
            await turn.response()
    assert types[-1] == "response.failed"
    assert failure.value.code == "server_error"
    assert failure.value.response.id == "resp_1"


async def test_an_empty_terminal_output_is_made_of_the_items_that_were_done() -> None:
    calls = (call_item("f", "{}", "call_1"), call_item("g", "{}", "call_2"))
    wire = MemoryWire(lambda event: call_turn(event, "resp_1", *calls, whole_output=False))
    async with asyncio.timeout(20), memory_session(wire) as session:
        response = await session.create("x").response()
    assert [(call.name, call.call_id) for call in response.function_calls] == [
        ("f", "call_1"),
        ("g", "call_2"),
    ]


async def test_an_event_of_a_later_version_is_skipped() -> None:
    def script(event: ClientEvent) -> list[ServerEvent]:
        events = text_turn(event, "resp_1", "x")
        return [*events[:3], ServerEvent(sequence_number=99), *events[3:]]

    wire = MemoryWire(script)
    async with asyncio.timeout(20), memory_session(wire) as session:
        events = [event async for event in session.create("x")]
    assert len(events) == 6


async def test_a_repeated_sequence_number_is_a_protocol_violation_of_its_turn_alone() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("x")
        await wire.sent_count(1)
        events = text_turn(wire.sent[0], "resp_1", "x")
        wire.push(events[0], events[0], *events[1:])
        with pytest.raises(turnwire.ProtocolViolation):
            await turn.response()
        following = session.create("y")
        await wire.sent_count(2)
        wire.push(*text_turn(wire.sent[1], "resp_2", "y"))
        assert (await following.response()).id == "resp_2"


async def test_a_turn_that_begins_out_of_order_ends_the_session() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turns = [session.create("x"), session.create("y")]
        await wire.sent_count(2)
        wire.push(*opening(wire.sent[1], "resp_2"))
        for turn in turns:
            with pytest.raises(turnwire.ProtocolViolation):
                await turn.response()
        assert not session.is_open


async def test_a_lost_connection_ends_all_turns_and_refuses_more() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turns = [session.create("x"), session.create("y", stream_id="b")]
        await wire.sent_count(2)
        wire.lose(turnwire.ConnectionLost("gone", close_code=1012))
        for turn in turns:
            with pytest.raises(turnwire.ConnectionLost) as lost:
                await turn.response()
            assert lost.value.close_code == 1012
            assert turn.stats is not None and turn.stats.status == "lost"
        with pytest.raises(turnwire.ConnectionLost):
            session.create("z")


async def test_cancelling_a_running_turn_names_its_response_and_waits_for_the_end() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("x", stream_id="a")
        await wire.sent_count(1)
        wire.push(*opening(wire.sent[0], "resp_1"))
        assert await turn.started() == "resp_1"
        cancelling = asyncio.create_task(turn.cancel())
        await wire.sent_count(2)
        assert not cancelling.done()
        wire.push(cancelled(wire.sent[0], "resp_1"))
        await cancelling
        await turn.cancel()
        response = await turn.response()
    assert wire.sent[1].response_cancel.response_id == "resp_1"
    assert wire.sent[1].stream_id == "a"
    assert len(wire.sent) == 2
    assert response.status == "cancelled"


async def test_cancelling_a_queued_turn_names_its_create() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("x")
        cancelling = asyncio.create_task(turn.cancel())
        await wire.sent_count(2)
        wire.push(rejected(wire.sent[0], "request_cancelled"))
        await cancelling
        with pytest.raises(turnwire.RequestCancelled):
            await turn.response()
    assert wire.sent[1].event_id == wire.sent[0].event_id
    assert not wire.sent[1].response_cancel.HasField("response_id")


async def test_a_cancel_that_crosses_the_start_is_sent_again_by_response_id() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("x")
        cancelling = asyncio.create_task(turn.cancel())
        await wire.sent_count(2)
        wire.push(*opening(wire.sent[0], "resp_1"))
        await wire.sent_count(3)
        wire.push(cancelled(wire.sent[0], "resp_1"))
        await cancelling
    assert wire.sent[2].response_cancel.response_id == "resp_1"


async def test_leaving_the_block_of_a_turn_cancels_it() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        async with session.create("x"):
            await wire.sent_count(1)
        await wire.sent_count(2)
    assert wire.sent[1].WhichOneof("event") == "response_cancel"


async def test_cancelling_a_turn_whose_events_nobody_reads_ends() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire, max_buffered_events=4) as session:
        turn = session.create("x")
        await wire.sent_count(1)
        wire.push(*text_turn(wire.sent[0], "resp_1", *"abcdefgh"))
        await turn.cancel()
        assert len([event async for event in turn]) == 13


async def test_cancelling_the_task_that_reads_does_not_end_the_turn() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("x")
        reading = asyncio.create_task(anext(aiter(turn)))
        await wire.sent_count(1)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        wire.push(*text_turn(wire.sent[0], "resp_1", "x"))
        assert (await turn.response()).id == "resp_1"
    assert len(wire.sent) == 1


async def test_silence_on_a_lane_is_a_timeout_and_cancels_the_turn() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire, silence_timeout_s=0.02) as session:
        turn = session.create("x")
        with pytest.raises(turnwire.Timeout) as silence:
            await turn.response()
        await wire.sent_count(2)
        # What comes late is swallowed, and the lane goes on with its next turn.
        wire.push(*text_turn(wire.sent[0], "resp_1", "late"))
        following = session.create("y", event_id="mine")
        await wire.sent_count(3)
        wire.push(*text_turn(wire.sent[2], "resp_2", "y"))
        assert (await following.response()).id == "resp_2"
        assert following.event_id == "mine"
    assert isinstance(silence.value, TimeoutError)


async def test_a_turn_that_nobody_reads_holds_up_the_connection_until_it_is_read() -> None:
    wire = MemoryWire(lambda event: text_turn(event, event.event_id, *"abcdefgh"))
    async with asyncio.timeout(20), memory_session(wire, max_buffered_events=4) as session:
        first = session.create("x", event_id="1")
        second = session.create("y", event_id="2", stream_id="b")
        await first.started()
        await wire.sent_count(2)
        assert second.response_id is None
        assert len([event async for event in first]) == 13
        assert (await second.response()).output_text == "abcdefgh"


async def test_a_turn_that_nobody_refers_to_does_not_hold_up_the_connection() -> None:
    wire = MemoryWire(lambda event: text_turn(event, event.event_id, *"abcdefgh"))
    async with asyncio.timeout(20), memory_session(wire, max_buffered_events=4) as session:
        session.create("x", event_id="1")
        gc.collect()
        second = session.create("y", event_id="2", stream_id="b")
        assert (await second.response()).output_text == "abcdefgh"


async def test_closing_while_turns_run_cuts_them_and_tells_the_server() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn, queued = session.create("x", stream_id="a"), session.create("y", stream_id="a")
        await wire.sent_count(2)
        wire.push(*opening(wire.sent[0], "resp_1"))
        await turn.started()
        await session.close()
        for one in (turn, queued):
            with pytest.raises(turnwire.SessionClosed):
                await one.response()
        with pytest.raises(turnwire.SessionClosed):
            session.create("y")
    first, second = wire.sent[2:]
    assert first.response_cancel.response_id == "resp_1"
    assert second.HasField("response_cancel") and second.event_id == queued.event_id
    assert wire.closed and wire.aborted


async def test_closing_a_wire_that_takes_nothing_more_ends_by_its_bound() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire, close_timeout_s=0.05) as session:
        turn = session.create("x")
        await wire.sent_count(1)
        wire.is_stuck = True
        await session.close()
        with pytest.raises(turnwire.SessionClosed):
            await turn.response()
    assert wire.aborted and not wire.closed


async def test_closing_an_idle_session_says_good_bye_first() -> None:
    wire = MemoryWire(lambda event: text_turn(event, "resp_1", "x"))
    async with asyncio.timeout(20), memory_session(wire) as session:
        await session.create("x").response()
    assert wire.closed and wire.aborted


async def test_closing_with_finish_waits_for_the_turns() -> None:
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("x")
        await wire.sent_count(1)
        closing = asyncio.create_task(session.close(finish=True))
        wire.push(*text_turn(wire.sent[0], "resp_1", "x"))
        await closing
        assert (await turn.response()).id == "resp_1"
    assert wire.closed


async def test_events_of_the_session_go_to_on_notice() -> None:
    notices: list[Event] = []
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire, on_notice=notices.append) as session:
        turn = session.create("x")
        await wire.sent_count(1)
        wire.push(ServerEvent(turnwire_go_away=TurnwireGoAway(reason="drain", time_left_s=9)))
        wire.push(*text_turn(wire.sent[0], "resp_1", "x"))
        await turn.response()
    assert [notice.type for notice in notices] == ["turnwire.go_away"]


async def test_a_refusal_of_the_connection_is_a_notice_and_not_the_end_of_a_turn() -> None:
    notices: list[Event] = []
    wire = MemoryWire()
    async with asyncio.timeout(20), memory_session(wire, on_notice=notices.append) as session:
        turn = session.create("x")
        await wire.sent_count(1)
        wire.push(rejected(ClientEvent(), "websocket_connection_limit_reached"))
        wire.push(*text_turn(wire.sent[0], "resp_1", "x"))
        assert (await turn.response()).id == "resp_1"
    assert [notice.type for notice in notices] == ["error"]


async def test_a_warm_up_asks_for_no_output() -> None:
    wire = MemoryWire(lambda event: text_turn(event, "resp_w"))
    async with asyncio.timeout(20), memory_session(wire) as session:
        assert (await session.warm_up(instructions="Be brief.")).id == "resp_w"
    create = wire.sent[0].response_create
    assert create.HasField("generate") and not create.generate
    assert not create.HasField("input")


async def test_stats_have_times_tokens_and_bytes() -> None:
    wire = MemoryWire(lambda event: text_turn(event, "resp_1", "x"))
    async with asyncio.timeout(20), memory_session(wire) as session:
        turn = session.create("x", include=["turnwire.timing"])
        assert turn.stats is None
        await turn.response()
        stats = turn.stats
        assert stats is not None
        assert stats.bytes_up == session.bytes_up == wire.sent[0].ByteSize()
        assert stats.bytes_down == session.bytes_down > 0
    assert (stats.response_id, stats.status, stats.input_items) == ("resp_1", "completed", 1)
    assert (stats.tokens_input, stats.tokens_cached, stats.tokens_output) == (40, 33, 5)
    assert (stats.tokens_sent, stats.tokens_rendered) == (7, 7)
    assert stats.ttft_s is not None and 0 <= stats.ttft_s <= stats.total_s
    assert stats.overhead_ms == max(0.0, stats.total_s * 1000 - 0.5)
