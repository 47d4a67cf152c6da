from __future__ import annotations

from collections.abc import Iterator

from harness.clock import ManualClock
from harness.memory import MemoryPeer
from harness.server import make_sim_services
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire_server.runtime.resting import REST_S, RestingSessions


class Session:
    def __init__(self) -> None:
        self.is_idle = True
        self.rested = 0

    def rest(self) -> Iterator[None]:
        self.rested += 1
        yield


class Host:
    def __init__(self) -> None:
        self.session = Session()


def test_a_session_rests_some_time_after_its_newest_turn() -> None:
    clock, first, second = ManualClock(), Host(), Host()
    resting = RestingSessions(clock)
    assert not resting.rest_one()
    resting.note(first)
    clock.advance(REST_S - 1)
    assert not resting.rest_one()
    resting.note(second)
    resting.note(first)
    clock.advance(REST_S)
    assert [resting.rest_one() for _ in range(5)] == [True] * 4 + [False]  # a step, and its end
    assert (first.session.rested, second.session.rested) == (1, 1)


def test_a_session_that_runs_again_or_is_over_does_not_rest() -> None:
    clock, running, over = ManualClock(), Host(), Host()
    resting = RestingSessions(clock)
    resting.note(running)
    resting.note(over)
    resting.forget(over)
    resting.forget(over)
    running.session.is_idle = False
    clock.advance(REST_S)
    assert [resting.rest_one() for _ in range(2)] == [True, False]
    assert (running.session.rested, over.session.rested) == (0, 0)


async def test_a_session_that_rested_goes_on_where_it_was() -> None:
    clock = ManualClock()
    services = make_sim_services()
    services.resting = RestingSessions(clock)
    await services.start()
    peer = MemoryPeer(services)

    async def turn(text: str, parent: str | None) -> tuple[str, int, int]:
        create = ResponseCreate(
            model="sim", input={"text": text}, store=False, previous_response_id=parent
        )
        await peer.send(ClientEvent(response_create=create))
        while not (event := await peer.receive()).HasField("response_completed"):
            pass
        response = event.response_completed.response
        usage = response.usage
        return response.id, usage.input_tokens, usage.input_tokens_details.cached_tokens

    first, tokens, _ = await turn("seven different words make a long text " * 500, None)
    (entry,) = peer.connection.session.cached
    clock.advance(REST_S)
    while services.resting.rest_one():
        pass
    packed = [entry.conversation.parent.own_items._packed, entry.prompt.ids._buffer._packed]
    assert all(0 < len(each) < 2_000 for each in packed)
    _, all_tokens, cached = await turn("And then?", first)
    assert all_tokens > tokens
    assert cached >= tokens
    await peer.close()
    await services.close()
    assert not services.resting.rest_one()
