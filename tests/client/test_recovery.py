from __future__ import annotations

import random

import grpc
import pytest

import turnwire
from turnwire._grpc_errors import stream_error
from turnwire._recovery import Backoff, RecoverySettings, Ticket, is_announced, may_pass


def test_waits_are_chance_below_a_bound_that_doubles_up_to_a_cap() -> None:
    settings = RecoverySettings(first_delay_s=1.0, most_delay_s=10.0, chance=lambda: 1.0)
    backoff = Backoff(settings)
    assert [backoff.delay() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert backoff.delay() == 1


def test_what_the_server_asks_for_is_waited_and_chance_comes_on_top() -> None:
    backoff = Backoff(RecoverySettings(first_delay_s=1.0, chance=lambda: 0.5))
    assert backoff.delay(3.0) == 3.5


def test_clients_that_were_cut_together_do_not_come_back_together() -> None:
    chance = random.Random(7)
    settings = RecoverySettings(chance=chance.random)
    clients = [Backoff(settings) for _ in range(200)]
    for attempt in range(6):
        bound = min(settings.most_delay_s, settings.first_delay_s * 2**attempt)
        delays = sorted(client.delay() for client in clients)
        # No tenth of the bound sees a storm: about 20 of 200 come in each.
        tenths = [int(delay / bound * 10) for delay in delays]
        assert max(tenths.count(tenth) for tenth in range(10)) < 45
        assert delays[0] < bound / 10 and delays[-1] > bound * 0.9


def test_patience_begins_with_the_trouble_and_ends_with_it() -> None:
    backoff = Backoff(RecoverySettings(reconnect_s=60.0))
    assert backoff.begin(100.0) == 160.0
    assert backoff.begin(150.0) == 160.0
    backoff.reset()
    assert backoff.begin(150.0) == 210.0


def refusal(code: str, *, retryable: bool) -> turnwire.ResponseRejected:
    return turnwire.ResponseRejected(code=code, status=503, message="no", retryable=retryable)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (turnwire.ConnectionLost("x"), True),
        (turnwire.ConnectionLost("x", retryable=False), False),
        (turnwire.OutputLost("x", response_id="resp_1"), False),
        (turnwire.ConnectionFailed("x"), True),
        (turnwire.ConnectionFailed("x", status=503), True),
        (turnwire.ConnectionFailed("x", status=429), True),
        (turnwire.ConnectionFailed("x", status=426), False),
        (refusal("server_is_overloaded", retryable=True), True),
        (refusal("invalid_api_key", retryable=False), False),
        (turnwire.Timeout("x"), True),
        (turnwire.ProtocolViolation("x"), False),
        (turnwire.SessionClosed("x"), False),
    ],
)
def test_it_is_known_which_troubles_may_pass(error: turnwire.TurnwireError, passes: bool) -> None:
    assert may_pass(error) is passes


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (grpc.StatusCode.OK, True),
        (grpc.StatusCode.UNAVAILABLE, True),
        (grpc.StatusCode.INTERNAL, True),
        (grpc.StatusCode.CANCELLED, True),
        (grpc.StatusCode.UNKNOWN, True),
        (grpc.StatusCode.INVALID_ARGUMENT, False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, False),
        (grpc.StatusCode.UNIMPLEMENTED, False),
        (grpc.StatusCode.UNAUTHENTICATED, False),
    ],
)
def test_a_stream_that_ended_for_what_was_sent_is_not_opened_again(
    code: grpc.StatusCode, passes: bool
) -> None:
    assert may_pass(stream_error(code, "x", ())) is passes


def test_a_close_with_1000_ends_the_session_and_a_cut_does_not() -> None:
    assert is_announced(turnwire.ConnectionLost("x", close_code=1000))
    assert not is_announced(turnwire.ConnectionLost("x", close_code=1006))
    assert not is_announced(turnwire.ConnectionLost("x"))


def test_a_token_is_in_no_repr() -> None:
    assert "sesame" not in repr(Ticket("sess_1", "sesame", 60.0))
