from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.session_driver import assistant, call, call_output, user
from turnwire.v1.item_pb2 import AdditionalToolsItem, Item, MessageItem
from turnwire_server.session.conversation import EMPTY, OpenCalls
from turnwire_server.session.truncation import kept_items, turn_starts

DEVELOPER = Item(message=MessageItem(role="developer"))
SYSTEM = Item(message=MessageItem(role="system"))
OFFER = Item(additional_tools=AdditionalToolsItem())


def test_a_turn_begins_with_what_the_user_says_after_anything_else():
    items = [user("a"), user("b"), assistant(), user("c"), assistant()]
    assert turn_starts(items) == [0, 3]


def test_the_head_is_what_stands_before_the_first_turn():
    items = [SYSTEM, DEVELOPER, OFFER, user("a"), assistant(), DEVELOPER, user("b")]
    assert turn_starts(items) == [3, 6]
    assert kept_items(items, [3, 6], 1) == [SYSTEM, DEVELOPER, OFFER, user("b")]


def test_a_history_may_begin_with_the_assistant():
    assert turn_starts([assistant(), user("a"), assistant()]) == [0, 1]


def test_a_call_that_waits_keeps_its_turn_together():
    items = [user("a"), call("1"), user("b"), call_output("1"), user("c")]
    assert turn_starts(items) == [0, 4]


def test_nothing_has_no_turns():
    assert turn_starts([]) == []
    assert turn_starts([SYSTEM]) == []


def test_nothing_dropped_is_everything():
    items = [user("a")]
    assert kept_items(items, [0], 0) == items


@given(st.lists(st.sampled_from(["user", "assistant", "call", "output", "system"]), max_size=30))
def test_what_is_left_has_no_output_without_its_call(kinds):
    items, waiting, number = [], [], 0
    for kind in kinds:
        number += 1
        if kind == "call":
            waiting.append(str(number))
            items.append(call(str(number)))
        elif kind == "output" and waiting:
            items.append(call_output(waiting.pop()))
        elif kind == "system":
            items.append(SYSTEM)
        else:
            items.append(user("x") if kind == "user" else assistant())
    starts = turn_starts(items)
    for dropped in range(len(starts)):
        calls = OpenCalls(EMPTY)
        assert all(calls.read(item) for item in kept_items(items, starts, dropped))
