"""A random walk: a session, its assemblers and conversations against a small model of the rules."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from harness.checker import StreamChecker
from harness.session_driver import BAD_SHAPE, as_message, cancel, create, new_ids, user
from turnwire.v1 import error_pb2
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseProcessed, ResponseSteer
from turnwire.v1.server_event_pb2 import ServerEvent
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import EMPTY, Conversation, item_text
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import TERMINAL_ARMS
from turnwire_server.session.output import (
    CallDelta,
    CallEnded,
    CallStarted,
    ReasoningDelta,
    TextDelta,
)
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.responses import new_response, usage_of
from turnwire_server.session.session import Session
from turnwire_server.session.settings import SessionSettings
from turnwire_server.session.tokens import TokenIds
from turnwire_server.session.turns import Turn

GONE = Rejection(error_pb2.ERROR_REASON_SERVER_ERROR, "The server goes away.")
TURNED_AWAY = {"rate_limit_exceeded", "websocket_stream_limit_reached"}
PIECES = [
    [TextDelta("a")],
    [TextDelta("b"), ReasoningDelta("c"), TextDelta("d")],
    [CallStarted("x"), CallDelta("{}"), CallEnded()],
    [CallStarted("y", custom=True), CallDelta("z")],
]


@dataclass
class Asked:
    """A create as the client remembers it."""

    event_id: str
    lane: str | None
    parent: str | None
    number: int
    is_warm_up: bool
    is_refused: bool
    pinned: str | None = None
    """The parent, if it was cached when the create was received."""
    awaited: str | None = None
    """The parent, if it was running then."""
    has_started: bool = False
    terminals: int = 0
    is_accepted: bool = True

    @property
    def is_waiting(self) -> bool:
        return self.is_accepted and not self.has_started and not self.terminals


@dataclass
class Running:
    """A turn in the driver's hands."""

    turn: Turn = field(repr=False)
    asked: Asked
    conversation: Conversation = field(repr=False)
    ids: TokenIds
    assembler: ResponseAssembler | None = None


LANES = st.sampled_from([None, "a", "b", "c"]) | st.integers(0, 40).map("lane{}".format)


# Named, not lambdas: hypothesis looks up the source of a lambda at every step.


def connected(walk: SessionWalk) -> object:
    return not walk.is_gone


def has_heads(walk: SessionWalk) -> object:
    return not walk.is_gone and walk.heads


def knows_responses(walk: SessionWalk) -> object:
    return not walk.is_gone and walk.known_ids


def sees_a_response_run(walk: SessionWalk) -> object:
    return not walk.is_gone and any(r.assembler for r in walk.running.values())


def has_asked(walk: SessionWalk) -> object:
    return not walk.is_gone and walk.asked


def has_asked_a_lot(walk: SessionWalk) -> object:
    return not walk.is_gone and len(walk.asked) > 20


def is_over(walk: SessionWalk) -> object:
    return walk.is_gone and not walk.running


def can_begin(walk: SessionWalk) -> object:
    return any(r.assembler is None for r in walk.running.values())


def can_go_on(walk: SessionWalk) -> object:
    return any(r.assembler is not None for r in walk.running.values())


def runs_something(walk: SessionWalk) -> object:
    return walk.running


class SessionWalk(RuleBasedStateMachine):
    @initialize(
        in_flight=st.sampled_from([1, 2, 16]),
        named=st.sampled_from([2, 32]),
        queued=st.sampled_from([0, 3, 64]),
        warm_ups=st.sampled_from([0, 2]),
    )
    def begin(self, in_flight, named, queued, warm_ups):
        self.settings = SessionSettings(
            max_in_flight=in_flight,
            max_named_lanes=named,
            max_queued=queued,
            max_warm_ups=warm_ups,
        )
        self.new_id = new_ids()
        self.connect()

    def connect(self):
        self.session = Session(self.settings, new_id=self.new_id)
        self.checker = StreamChecker()
        self.asked: dict[str, Asked] = {}
        self.running: dict[str, Running] = {}
        self.answers: dict[str, ServerEvent] = {}
        """`event_id` -> what ended the create."""
        self.known_ids: list[str] = []
        self.order: dict[str | None, list[int]] = defaultdict(list)
        """Numbers of the creates that each lane got to, in order."""
        self.said: dict[str, list[str]] = {}
        """Response id -> what its conversation must say, by the client's own books."""
        self.tokens: dict[str, list[int]] = {}
        self.heads: dict[str | None, str] = {}
        self.warm: dict[str, str | None] = {}
        """Warm-ups that must be kept -> their lane, least recently used first."""
        self.is_gone = False

    # The client.

    def ask(self, lane, parent, *, is_warm_up, is_refused, event_id=None):
        number = len(self.asked)
        event_id = event_id or f"e{number}"
        if event_id not in self.asked:
            asked = Asked(event_id, lane, parent, number, is_warm_up, is_refused)
            self.asked[event_id] = asked
            if not is_refused:
                self.expect_parent(asked)
        event = create(
            parent, stream_id=lane, event_id=event_id, generate=False if is_warm_up else None
        )
        if is_refused:
            self.session.refuse(
                BAD_SHAPE,
                event=event,
                stream_id=lane,
                event_id=event_id,
                size=50,
                now=0.0,
            )
        else:
            self.session.receive(event, size=50, now=0.0)
        self.pull()

    def expect_parent(self, asked):
        """A cached parent is pinned with the create; one that runs is taken when it ends."""
        if asked.parent in self.warm:
            self.warm[asked.parent] = self.warm.pop(asked.parent)  # used last
        if asked.parent in {*self.heads.values(), *self.warm}:
            asked.pinned = asked.parent
        elif asked.parent in self.running:
            asked.awaited = asked.parent

    @precondition(connected)
    @rule(lane=LANES, is_warm_up=st.booleans())
    def begin_a_conversation(self, lane, is_warm_up):
        self.ask(lane, None, is_warm_up=is_warm_up, is_refused=False)

    @precondition(has_heads)
    @rule(data=st.data(), count=st.integers(1, 3), is_refused=st.booleans())
    def continue_a_lane(self, data, count, is_refused):
        lane = data.draw(st.sampled_from(list(self.heads)))
        parent = self.heads[lane]
        for index in range(count):
            self.ask(lane, parent, is_warm_up=False, is_refused=is_refused and index == 0)

    @precondition(knows_responses)
    @rule(lane=LANES, data=st.data(), is_refused=st.booleans())
    def continue_anything(self, lane, data, is_refused):
        choices = ["resp_unknown", *self.known_ids[-8:], *self.heads.values(), *self.warm]
        parent = data.draw(st.sampled_from(choices))
        self.ask(lane, parent, is_warm_up=False, is_refused=is_refused)

    @precondition(sees_a_response_run)
    @rule(lane=LANES, data=st.data())
    def continue_what_still_runs(self, lane, data):
        parent = self.some_running(data, is_open=True)
        self.ask(lane, parent.turn.response_id, is_warm_up=False, is_refused=False)
        self.ask(parent.turn.lane, parent.turn.response_id, is_warm_up=True, is_refused=False)

    @precondition(has_asked)
    @rule(lane=LANES, data=st.data())
    def send_the_same_create_again(self, lane, data):
        event_id = data.draw(st.sampled_from(sorted(self.asked)))
        asked = self.asked[event_id]
        if asked.is_accepted and not asked.terminals:
            self.ask(lane, None, is_warm_up=False, is_refused=False, event_id=event_id)
        elif asked.is_accepted:
            again = create(stream_id=lane, event_id=event_id)
            self.session.receive(again, size=50, now=0.0)
            assert self.session.events_to_send() == [self.answers[event_id]]
            assert self.session.turns_to_start() == []

    @precondition(knows_responses)
    @rule(data=st.data())
    def cancel_a_response(self, data):
        self.send(cancel(response_id=data.draw(st.sampled_from(self.known_ids))))

    @precondition(connected)
    @rule(lane=LANES)
    def cancel_a_lane(self, lane):
        self.send(cancel(stream_id=lane))

    @precondition(has_asked)
    @rule(data=st.data())
    def cancel_a_create(self, data):
        self.send(cancel(event_id=data.draw(st.sampled_from(sorted(self.asked)))))

    @precondition(connected)
    @rule(lane=LANES)
    def send_something_else(self, lane):
        self.send(ClientEvent(stream_id=lane, response_processed=ResponseProcessed()))
        for target in ("no such response", *self.running):
            self.send(ClientEvent(response_steer=ResponseSteer(previous_response_id=target)))
        self.send(ClientEvent(stream_id=lane, event_id="no arm"))

    @precondition(has_asked_a_lot)
    @rule(is_answered=st.booleans())
    def go_away(self, is_answered):
        self.is_gone = True
        waiting = [asked for asked in self.asked.values() if asked.is_waiting]
        self.session.cancel_all(GONE if is_answered else None)
        if not is_answered:
            for asked in waiting:
                del self.asked[asked.event_id]
        self.pull()
        assert all(running.turn.is_cancelled for running in self.running.values())

    @precondition(is_over)
    @rule()
    def connect_again(self):
        self.check_the_end()
        self.connect()

    # The driver.

    def send(self, event):
        self.session.receive(event, size=1, now=0.0)
        self.pull()

    def pull(self):
        for turn in self.session.turns_to_cancel():
            assert turn.response_id in self.running
        for event in self.session.events_to_send():
            target = self.running.get(event.response_steer_failed.steer.previous_response_id)
            if target is not None and target.assembler is not None:
                target.assembler.number(event)
            self.see(event)
        for turn in self.session.turns_to_start():
            self.start(turn)

    def see(self, event):
        self.checker.feed(event)
        arm = event.WhichOneof("event")
        if arm == "response_created":
            self.known_ids.append(event.response_created.response.id)
        if arm == "error" and event.event_id != "no arm":
            asked = self.asked[event.event_id]
            assert (event.stream_id or None) == asked.lane
            code = event.error.error.code
            if code in TURNED_AWAY:
                # It never got in line: the same create may be sent again.
                asked.is_accepted = False
                del self.asked[event.event_id]
                self.asked[f"turned away {asked.number}"] = asked
            if asked.is_refused and code not in {*TURNED_AWAY, "request_cancelled"}:
                if code == BAD_SHAPE.code:
                    self.order[asked.lane].append(asked.number)
                    self.forget_parent(asked)
            asked.terminals += 1
            self.answers[event.event_id] = event
        elif arm in TERMINAL_ARMS and arm != "error":
            response = getattr(event, arm).response
            self.asked[response.turnwire.event_id].terminals += 1
            self.answers[response.turnwire.event_id] = event

    def start(self, turn):
        asked = self.asked[turn.event_id]
        assert not asked.is_refused, "a refused create was started"
        assert turn.lane == asked.lane
        assert turn.is_warm_up == asked.is_warm_up
        self.order[asked.lane].append(asked.number)
        asked.has_started = True
        assert asked.awaited not in self.running
        expected = asked.pinned or (asked.awaited if asked.awaited in self.said else None)
        assert (turn.parent.response_id if turn.parent else None) == expected
        assert all(other.turn.lane != turn.lane for other in self.running.values())
        conversation, ids = EMPTY, TokenIds()
        if turn.parent is not None:
            conversation, ids = turn.parent.conversation, turn.parent.prompt.ids
            assert self.texts(conversation) == self.said[asked.parent]
            assert list(ids) == self.tokens[asked.parent]
        conversation = conversation.extended([user(asked.event_id, id=asked.event_id)])
        ids = ids.extended([asked.number])
        self.running[turn.response_id] = Running(turn, asked, conversation, ids)

    def texts(self, conversation):
        return [
            item_text(item.message.content)
            for item in conversation.items()
            if item.WhichOneof("item") == "message"
        ]

    def some_running(self, data, *, is_open=None):
        return data.draw(
            st.sampled_from(
                [
                    running
                    for running in self.running.values()
                    if is_open is None or (running.assembler is not None) is is_open
                ]
            )
        )

    @precondition(can_begin)
    @rule(data=st.data())
    def begin_a_response(self, data):
        self.begin_response(self.some_running(data, is_open=False))

    def begin_response(self, running):
        turn = running.turn
        response = new_response(
            turn.create,
            response_id=turn.response_id,
            created_at=1,
            event_id=turn.event_id,
        )
        running.assembler = ResponseAssembler(response, stream_id=turn.lane, new_id=self.new_id)
        self.emit(running.assembler.begin())

    @precondition(can_go_on)
    @rule(data=st.data(), pieces=st.sampled_from(PIECES), keepalive=st.booleans())
    def hear_from_the_model(self, data, pieces, keepalive):
        running = self.some_running(data, is_open=True)
        if not running.asked.is_warm_up:
            self.emit(running.assembler.add(pieces))
        if keepalive:
            self.emit(running.assembler.keepalive())

    @precondition(runs_something)
    @rule(data=st.data(), hows=st.lists(st.sampled_from(["well", "cut", "broken"]), max_size=4))
    def end_turns(self, data, hows):
        for how in hows:
            if self.running:
                self.end(self.some_running(data), how)

    def end(self, running, how):
        if running.assembler is None and how == "broken":
            rejection = Rejection(error_pb2.ERROR_REASON_INVALID_VALUE, "No.")
            self.give_back(
                running, None, [rejection.event(running.turn.lane, running.turn.event_id)]
            )
            return
        if running.assembler is None:
            self.begin_response(running)
        assembler, usage = running.assembler, usage_of(input_tokens=1)
        if how == "broken":
            self.give_back(running, None, assembler.fail("server_error", "It broke."))
            return
        if running.turn.is_cancelled:
            events = assembler.cancelled(usage)
        elif running.asked.is_warm_up:
            events = assembler.complete_warm_up(usage, completed_at=2)
        elif how == "cut":
            events = assembler.incomplete("max_output_tokens", usage)
        else:
            events = assembler.complete(usage, completed_at=2)
        conversation = running.conversation.extended(assembler.response.output)
        outcome = CachedResponse(
            running.turn.response_id,
            conversation,
            Prompt("f", running.ids.extended([1_000_000 + running.asked.number]), 0),
            running.turn.lane,
            warm_up=running.asked.is_warm_up,
        )
        self.give_back(running, outcome, events)

    def give_back(self, running, outcome, events):
        turn, asked = running.turn, running.asked
        del self.running[turn.response_id]
        if outcome is None:
            self.forget_parent(asked)
        else:
            has_parent = turn.parent is not None
            before = self.said[asked.parent] if has_parent else []
            own = self.texts(EMPTY.extended(running.assembler.response.output))
            self.said[turn.response_id] = [*before, asked.event_id, *own]
            tokens = self.tokens[asked.parent] if has_parent else []
            self.tokens[turn.response_id] = [*tokens, asked.number, 1_000_000 + asked.number]
            self.heads[turn.lane] = turn.response_id
            if asked.is_warm_up:
                self.warm[turn.response_id] = turn.lane
                while len(self.warm) > self.settings.max_warm_ups:
                    del self.warm[next(iter(self.warm))]
        self.session.end_turn(turn, outcome, events[-1])
        self.emit(events)
        self.pull()

    def emit(self, events):
        for event in events:
            self.see(as_message(event))

    def forget_parent(self, asked):
        """A failed continuation evicts its parent, if it is its own lane's."""
        if self.heads.get(asked.lane) == asked.parent:
            self.heads.pop(asked.lane, None)
        if self.warm.get(asked.parent, "none of its own") == asked.lane:
            del self.warm[asked.parent]

    # What always holds.

    @invariant()
    def limits_are_kept(self):
        if not hasattr(self, "session"):
            return
        assert self.session.in_flight == len(self.session.running) <= self.settings.max_in_flight
        named = [lane for lane in self.order if lane is not None]
        assert len(named) <= self.settings.max_named_lanes
        waiting = [asked for asked in self.asked.values() if asked.is_waiting]
        assert len(waiting) <= self.settings.max_queued

    @invariant()
    def lanes_are_first_in_first_out(self):
        for numbers in getattr(self, "order", {}).values():
            assert numbers == sorted(numbers)

    @invariant()
    def the_cache_holds_what_the_rules_say(self):
        if hasattr(self, "session"):
            cached = {entry.response_id for entry in self.session.cached}
            assert cached == {*self.heads.values(), *self.warm}

    @invariant()
    def nobody_is_answered_twice(self):
        for asked in getattr(self, "asked", {}).values():
            assert asked.terminals <= 1

    def teardown(self):
        if not hasattr(self, "session"):
            return
        while self.running:
            self.end(next(iter(self.running.values())), "well")
        self.check_the_end()

    def check_the_end(self):
        assert self.session.is_idle
        self.checker.finish()
        for asked in self.asked.values():
            assert asked.terminals == 1, f"{asked} got no answer"


def test_whatever_happens_in_whatever_order_the_rules_hold():
    run_state_machine_as_test(
        SessionWalk,
        settings=settings(
            max_examples=150,
            stateful_step_count=60,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),  # they judge the machine's speed
        ),
    )
