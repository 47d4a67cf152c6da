from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from harness.client_events import text_turn
from turnwire import _codec
from turnwire._event import Event
from turnwire._lineage import Lineage
from turnwire._reading import EventReader
from turnwire._response import Response
from turnwire._transcript import Transcript
from turnwire._turn_state import TurnState
from turnwire.v1.client_event_pb2 import ClientEvent


def pickled(event: Event) -> Event:
    restored = pickle.loads(pickle.dumps(event))
    assert isinstance(restored, Event)
    return restored


def built() -> list[Event]:
    return [Event(event, 7) for event in text_turn(ClientEvent(stream_id="a"), "resp_1", "Hé")]


def read() -> list[Event]:
    """Return the same events as JSON wires read them."""
    reader = EventReader()
    return [reader.read(_codec.dumps(event.whole).decode(), 7) for event in built()]


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("events", [built, read])
async def test_a_copy_is_equal_and_independent(
    copied: Callable[[Event], Event], events: Callable[[], list[Event]]
) -> None:
    lineage = Lineage(Transcript(1 << 20), is_persistent=True)
    state = TurnState("evt_1", "a", 1, 100, ClientEvent())
    for event, expected in zip(events(), built(), strict=True):
        state.feed(event)
        if state.is_over:
            lineage.note(state, event)  # From here on the event knows of its session.
        other = copied(event)
        assert other.whole == event.whole == expected.whole
        for name in ("type", "size", "number", "stream_id", "delta", "create_id"):
            assert getattr(other, name) == getattr(expected, name)
        other.whole.stream_id = "changed"
        assert event.whole == expected.whole
    assert other.response_id == "resp_1"
    assert other.response is not None
    other.response.message.output.clear()
    assert isinstance(state.outcome, Response)
    assert state.outcome.output_text == "Hé"
