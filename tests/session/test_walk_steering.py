"""A random walk of rollouts and steers: every steer has one fate, and every pause one end."""

from __future__ import annotations

from dataclasses import dataclass

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
from harness.session_driver import as_message, call_output, cancel, create, given, new_ids, user
from turnwire.v1 import error_pb2
from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseAppend, ResponseSteer
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.cache import CachedResponse
from turnwire_server.session.conversation import EMPTY, Conversation, item_text
from turnwire_server.session.errors import Rejection
from turnwire_server.session.output import CallDelta, CallEnded, CallStarted, TextDelta
from turnwire_server.session.responses import new_response, usage_of
from turnwire_server.session.session import Session
from turnwire_server.session.settings import SessionSettings
from turnwire_server.session.steering import refusal_events
from turnwire_server.session.turns import Turn

LANES = st.sampled_from([None, "a", "b"])
GONE = Rejection(error_pb2.ERROR_REASON_SERVER_ERROR, "The server goes away.")
CALL = [CallStarted("shell"), CallDelta("{}"), CallEnded()]
USAGE = usage_of(input_tokens=1)


@dataclass(repr=False)
class Running:
    """A turn in the driver's hands."""

    turn: Turn
    conversation: Conversation
    assembler: ResponseAssembler | None = None

    def __repr__(self):
        return f"<{self.turn.response_id} {self.turn.state.name}>"


class SteeringWalk(RuleBasedStateMachine):
    @initialize(in_flight=st.sampled_from([1, 16]), most=st.sampled_from([1, 3]))
    def begin(self, in_flight, most):
        self.settings = SessionSettings(max_in_flight=in_flight, max_pending_steers=most)
        self.new_id = new_ids()
        self.connect()

    def connect(self):
        self.session = Session(self.settings, new_id=self.new_id)
        self.checker = StreamChecker()
        self.running: dict[str, Running] = {}
        self.woken: list[Turn] = []
        self.steers: dict[str, str] = {}
        """Steer id -> what became of it: accepted, pending, applied or failed."""
        self.targets: dict[str, str] = {}
        """Steer id -> the response that it steers."""
        self.known: list[str] = []
        """Responses that the client knows."""
        self.parents: list[str] = []
        """Responses that can be continued, some time ago at least."""
        self.creates = 0
        self.started = 0
        self.answers: dict[str, int] = {}
        """`event_id` -> how often a create or append was answered by an end or an error."""
        self.is_input_closed = False

    # The client.

    def send(self, event):
        self.session.receive(event, size=1, now=0.0)
        self.pull()

    @precondition(lambda self: not self.is_input_closed)
    @rule(lane=LANES, data=st.data(), rollout=st.booleans())
    def create(self, lane, data, rollout):
        parents = [None, *self.parents[-4:], *[one for one in self.running if one in self.known]]
        parent = data.draw(st.sampled_from(parents))
        self.creates += 1
        self.answers[f"e{self.creates}"] = 0
        self.send(
            create(parent, stream_id=lane, event_id=f"e{self.creates}", rollout=rollout or None)
        )

    @precondition(lambda self: not self.is_input_closed and self.some(has_begun=True))
    @rule(data=st.data(), is_good=st.sampled_from([True, True, True, False]))
    def steer(self, data, is_good):
        open_ids = [one.turn.response_id for one in self.some(has_begun=True)]
        others = [] if is_good else [self.known[-1], "resp_x"]
        target = data.draw(st.sampled_from([*open_ids, *others]))
        text = f"steer {len(self.steers)}" if is_good else ""
        steer = ResponseSteer(previous_response_id=target, input=Input(text=text))
        self.send(ClientEvent(response_steer=steer))

    @precondition(lambda self: not self.is_input_closed and self.creates % 5 == 4)
    @rule(lane=LANES)
    def cancel(self, lane):
        self.send(cancel(stream_id=lane))

    @precondition(lambda self: not self.is_input_closed and self.some(is_paused=True))
    @rule(data=st.data(), is_good=st.booleans())
    def append(self, data, is_good):
        running = data.draw(st.sampled_from(self.some(is_paused=True)))
        if not is_good:
            self.append_to_nothing(running)
        before = len(self.woken)
        outputs = [call_output(one) for one in running.turn.paused_at.open_calls]
        items = outputs if is_good else [user("no outputs")]
        body = ResponseAppend(response_id=running.turn.response_id, input=given(*items))
        self.send(ClientEvent(response_append=body))
        assert (len(self.woken) > before) == is_good
        assert running.turn.is_paused == (not is_good)

    @precondition(lambda self: self.creates > 12)
    @rule(how=st.sampled_from(["half-close", "gone", "drained"]))
    def leave(self, how):
        self.is_input_closed = True
        if how == "half-close":
            self.session.close_input()
        else:
            self.session.cancel_all(GONE if how == "drained" else None)
        self.pull()
        for running in self.some(is_paused=True):
            raise AssertionError(f"{running} waits for what cannot come")

    @precondition(lambda self: self.is_input_closed and not self.running)
    @rule()
    def connect_again(self):
        self.check_the_end()
        self.connect()

    def append_to_nothing(self, paused):
        for target in ("resp_x", *self.running):
            if target != paused.turn.response_id:
                body = ResponseAppend(response_id=target, input=given(user("x")))
                self.send(ClientEvent(response_append=body))

    # The driver.

    def some(self, *, is_paused=None, has_begun=None):
        return [
            running
            for running in self.running.values()
            if (is_paused is None or running.turn.is_paused is is_paused)
            and (has_begun is None or running.turn.has_begun is has_begun)
        ]

    def talking(self):
        """Return the turns whose model may say something."""
        return [one for one in self.some(has_begun=True) if not self.waits(one)]

    def pull(self, ended=None):
        for turn in self.session.turns_to_cancel():
            assert turn.is_cancelled
        self.woken += self.session.turns_to_wake()
        for event in self.session.events_to_send():
            arm = event.WhichOneof("event")
            if arm.startswith("response_steer_"):
                self.number(event, getattr(event, arm).steer.previous_response_id, ended)
            self.see(event)
        started = self.session.turns_to_start()
        for turn in started:
            conversation = turn.parent.conversation if turn.parent else EMPTY
            self.running[turn.response_id] = Running(turn, conversation)
            expected = [
                one
                for one, fate in self.steers.items()
                if fate in ("accepted", "pending")
                and self.targets[one] == turn.previous_response_id
            ]
            if turn.is_successor:
                assert [steer.id for steer in turn.applies] == expected
            assert {steer.target_id for steer in turn.applies} <= {turn.previous_response_id}
        for turn in started:
            self.started += 1
            if self.started % 6:  # the others begin later, or never
                self.begin_response(self.running[turn.response_id])

    def number(self, event, target, ended):
        running = self.running.get(target)
        if running is None and ended is not None and ended.turn.response_id == target:
            running = ended
        if running is not None and running.assembler is not None:
            running.assembler.number(event)

    def see(self, event):
        self.checker.feed(event)
        arm = event.WhichOneof("event")
        match arm:
            case "response_created":
                self.known.append(event.response_created.response.id)
            case "response_steer_accepted":
                steer = event.response_steer_accepted.steer
                self.steers[steer.id] = "accepted"
                self.targets[steer.id] = steer.previous_response_id
            case "response_steer_pending":
                self.become(event.response_steer_pending.steer.id, "pending")
            case "response_steer_failed" if event.response_steer_failed.steer.id:
                self.become(event.response_steer_failed.steer.id, "failed")
            case "error" if event.event_id:
                self.answers[event.event_id] += 1
            case "response_completed" | "response_incomplete" | "response_failed":
                response = getattr(event, arm).response
                if response.turnwire.event_id:
                    self.answers[response.turnwire.event_id] += 1

    def become(self, steer_id, fate):
        assert self.steers[steer_id] in ("accepted", "pending"), "a steer has two fates"
        self.steers[steer_id] = fate

    def emit(self, events):
        for event in events:
            self.see(as_message(event))

    @precondition(lambda self: self.some(has_begun=False))
    @rule(data=st.data(), is_refused=st.sampled_from([False, False, False, True]))
    def begin_or_refuse(self, data, is_refused):
        running = data.draw(st.sampled_from(self.some(has_begun=False)))
        if is_refused:
            self.give_back(running, None, refusal_events(running.turn, GONE))
        else:
            self.begin_response(running)

    def begin_response(self, running):
        turn = running.turn
        response = new_response(
            turn.create,
            response_id=turn.response_id,
            created_at=1,
            event_id=turn.event_id,
        )
        for steer in turn.applies:
            self.become(steer.id, "applied")
        outputs = [call_output(one) for one in running.conversation.open_calls]
        running.conversation = running.conversation.extended([*turn.steered_items, *outputs])
        running.assembler = ResponseAssembler(response, stream_id=turn.lane, new_id=self.new_id)
        turn.begin(takes_steers=True)
        self.emit(running.assembler.begin())

    @precondition(lambda self: self.talking())
    @rule(
        data=st.data(), calls=st.booleans(), how=st.sampled_from(["well", "well", "well", "broken"])
    )
    def say_and_end(self, data, calls, how):
        running = data.draw(st.sampled_from(self.talking()))
        turn, assembler = running.turn, running.assembler
        self.resume(running)
        if turn.steers:
            assembler.end_after_item()
        self.emit(assembler.add([TextDelta("look"), *(CALL if calls else ())]))
        if how == "broken":
            self.give_back(running, None, assembler.fail("server_error", "It broke."))
        elif turn.is_cancelled:
            self.end(running, assembler.cancelled(USAGE))
        elif turn.create.rollout and assembler.waits_for_outputs:
            self.emit(assembler.pause(USAGE))
            said = running.conversation.extended(assembler.round_output)
            running.conversation = said
            self.session.pause_turn(turn, said)
            self.pull()
        elif assembler.has_dropped:
            self.end(running, assembler.incomplete("steered", USAGE))
        else:
            self.end(running, assembler.complete(USAGE, completed_at=2))

    def resume(self, running):
        """Take what was appended, as the driver does when the turn is woken."""
        turn = running.turn
        appended, turn.appended = turn.appended, None
        if appended is None:
            return
        for steer in appended.steers:
            assert self.targets[steer.id] == turn.response_id
            self.become(steer.id, "applied")
        texts = [item_text(item.message.content) for item in appended.items]
        assert len([one for one in texts if one.startswith("steer")]) == len(appended.steers)
        running.conversation = running.conversation.extended(appended.items)
        assert not running.conversation.open_calls
        running.assembler.resume()

    @precondition(lambda self: any(one.turn.appended for one in self.running.values()))
    @rule(data=st.data())
    def take_back(self, data):
        woken = [one for one in self.running.values() if one.turn.appended]
        turn = data.draw(st.sampled_from(woken)).turn
        appended, turn.appended = turn.appended, None
        if turn.is_cancelled:
            self.close(self.running[turn.response_id], dropped=appended.steers)
            return
        self.emit([appended.error(GONE)])
        self.session.take_back(turn, appended)
        self.pull()

    @precondition(lambda self: any(self.waits(one) for one in self.running.values()))
    @rule(data=st.data())
    def wait_no_longer(self, data):
        waiting = [one for one in self.running.values() if self.waits(one)]
        running = data.draw(st.sampled_from(waiting))
        if running.turn.is_paused:
            self.session.end_pause(running.turn)
        self.close(running)

    def waits(self, running):
        """Whether it said `response.done` and was not resumed."""
        return (
            running.turn.paused_at is not None
            and not running.turn.appended
            and (running.turn.is_paused or running.turn.is_cancelled)
        )

    def close(self, running, dropped=()):
        for steer in dropped:
            self.steers[steer.id] = "failed"  # with what was appended
        assembler = running.assembler
        if running.turn.is_cancelled:
            self.end(running, assembler.cancelled(USAGE))
        else:
            self.end(running, assembler.incomplete("append_timeout", USAGE))

    def end(self, running, events):
        turn = running.turn
        output = (
            ()
            if turn.paused_at is not None and turn.paused_at is running.conversation
            else (running.assembler.round_output)
        )
        conversation = running.conversation.extended(output)
        self.parents.append(turn.response_id)
        self.give_back(
            running, CachedResponse(turn.response_id, conversation, lane=turn.lane), events
        )

    def give_back(self, running, outcome, events):
        turn = running.turn
        del self.running[turn.response_id]
        self.session.end_turn(turn, outcome)
        self.emit(events)
        self.pull(running)

    # What always holds.

    @invariant()
    def limits_are_kept(self):
        if not hasattr(self, "session"):
            return
        assert self.session.in_flight == len(self.session.running) <= self.settings.max_in_flight
        for turn in self.session.running:
            assert len(turn.steers) <= self.settings.max_pending_steers
            assert turn.response_id in self.running

    @invariant()
    def a_steer_is_in_one_place(self):
        if not hasattr(self, "session"):
            return
        held = [steer.id for one in self.running.values() for steer in one.turn.steers]
        held += [
            steer.id
            for one in self.running.values()
            if not one.turn.has_begun
            for steer in one.turn.applies
        ]
        assert len(held) == len(set(held))
        assert all(self.steers[one] in ("accepted", "pending") for one in held)

    @invariant()
    def nobody_is_answered_twice(self):
        assert all(count <= 1 for count in getattr(self, "answers", {}).values())

    def teardown(self):
        if not hasattr(self, "session"):
            return
        self.is_input_closed = True
        self.session.close_input()
        self.pull()
        while self.running:
            running = next(iter(self.running.values()))
            if not running.turn.has_begun:
                self.begin_response(running)
            if self.waits(running):
                self.close(running)
                continue
            self.resume(running)
            self.emit(running.assembler.add([TextDelta("the end")]))
            if running.turn.is_cancelled:
                self.end(running, running.assembler.cancelled(USAGE))
            else:
                self.end(running, running.assembler.complete(USAGE, completed_at=3))
        self.check_the_end()

    def check_the_end(self):
        assert self.session.is_idle
        self.checker.finish()
        # What waits for outputs waits in vain; nothing else is left without a fate.
        assert "accepted" not in self.steers.values()


def test_whatever_happens_every_steer_has_one_fate():
    run_state_machine_as_test(
        SteeringWalk,
        settings=settings(
            max_examples=150,
            stateful_step_count=80,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),  # they judge the machine's speed
        ),
    )
