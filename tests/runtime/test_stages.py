from __future__ import annotations

import pytest

from harness.clock import ManualClock
from turnwire.v1.response_pb2 import Timing
from turnwire_server.ports.renderer import Rendered, RerenderReason
from turnwire_server.runtime.stages import Stages
from turnwire_server.session.prompt import Prompt
from turnwire_server.session.tokens import TokenIds


def rendered(tokens: int, *, ids: int = 100, reason: RerenderReason = "", head: int = 30):
    prompt = Prompt("f", TokenIds(range(ids)), head)
    return Rendered(prompt, tokens, reason)


def test_the_time_since_receipt_is_the_queue():
    clock = ManualClock()
    received_at = clock.monotonic()
    clock.advance(0.25)
    assert Stages(clock, received_at).seconds == {"queue": 0.25}


def test_each_mark_ends_the_stage_that_it_names_and_names_add_up():
    clock = ManualClock()
    stages = Stages(clock, clock.monotonic())
    for stage, seconds in (("resolve", 0.5), ("decode", 1), ("screen", 0.25), ("decode", 2)):
        clock.advance(seconds)
        stages.mark(stage)
    assert stages.seconds == {"queue": 0, "resolve": 0.5, "decode": 3, "screen": 0.25}


def test_overhead_is_all_that_is_not_inference():
    clock = ManualClock()
    stages = Stages(clock, clock.monotonic())
    for stage, seconds in (
        ("resolve", 0.5),
        ("validate", 0.25),
        ("render", 0.125),
        ("prefill", 8),
        ("screen", 0.5),
        ("decode", 4),
        ("commit", 1),
    ):
        clock.advance(seconds)
        stages.mark(stage)
    timing = Timing()
    stages.write(timing, rendered(10), cached=90, output=7)
    assert timing.queue_ms == 0
    assert timing.resolve_ms == 500
    assert timing.validate_ms == 250
    assert timing.render_ms == 125
    assert timing.prefill_ms == 8_000
    assert timing.screen_ms == 500
    assert timing.decode_ms == 4_000
    assert timing.commit_ms == 1_000
    assert timing.overhead_ms == 2_375
    assert (timing.tokens.cached, timing.tokens.output) == (90, 7)


def test_stages_that_a_turn_did_not_have_took_no_time():
    clock = ManualClock()
    timing = Timing()
    Stages(clock, clock.monotonic()).write(timing, rendered(1), cached=0, output=0)
    assert timing.overhead_ms == 0
    assert timing.prefill_ms == 0


@pytest.mark.parametrize(
    ("reason", "tokens", "sent"),
    [("", 12, 12), ("first", 100, 70), ("tools", 40, 10), ("tools", 20, 0)],
)
def test_what_was_sent_is_what_was_rendered_without_the_head(reason, tokens, sent):
    clock = ManualClock()
    timing = Timing()
    Stages(clock, clock.monotonic()).write(
        timing, rendered(tokens, reason=reason), cached=0, output=0
    )
    assert (timing.tokens.input, timing.tokens.rendered, timing.tokens.sent) == (100, tokens, sent)
    assert timing.rerender_reason == reason


def test_no_more_tokens_are_cached_than_the_prompt_has():
    clock = ManualClock()
    timing = Timing()
    Stages(clock, clock.monotonic()).write(timing, rendered(1, ids=5), cached=9, output=0)
    assert timing.tokens.cached == 5
