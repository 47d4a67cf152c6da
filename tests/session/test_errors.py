from __future__ import annotations

import pytest

from turnwire.v1 import error_pb2
from turnwire_server.session.errors import (
    MAX_MESSAGE_CHARS,
    MAX_PARAM_CHARS,
    Rejection,
    error_code,
    error_type,
    http_status,
    quoted,
)

REASONS = [value.number for value in error_pb2.ErrorReason.DESCRIPTOR.values if value.number]


@pytest.mark.parametrize("reason", REASONS, ids=error_code)
def test_every_reason_has_a_code_a_type_and_a_status(reason):
    name = error_pb2.ErrorReason.Name(reason)
    assert f"ERROR_REASON_{error_code(reason).upper()}" == name
    assert error_type(reason)
    assert 400 <= http_status(reason) < 600


@pytest.mark.parametrize(
    ("reason", "code", "status", "public_type"),
    [
        (
            "PREVIOUS_RESPONSE_NOT_FOUND",
            "previous_response_not_found",
            400,
            "invalid_request_error",
        ),
        ("INVALID_STREAM_ID", "invalid_stream_id", 400, "invalid_request_error"),
        (
            "WEBSOCKET_STREAM_LIMIT_REACHED",
            "websocket_stream_limit_reached",
            400,
            "invalid_request_error",
        ),
        (
            "WEBSOCKET_CONNECTION_LIMIT_REACHED",
            "websocket_connection_limit_reached",
            400,
            "invalid_request_error",
        ),
        ("RATE_LIMIT_EXCEEDED", "rate_limit_exceeded", 429, "rate_limit_error"),
        ("SERVER_IS_OVERLOADED", "server_is_overloaded", 503, "server_error"),
        ("SERVER_ERROR", "server_error", 500, "server_error"),
        ("MODEL_NOT_FOUND", "model_not_found", 404, "invalid_request_error"),
    ],
)
def test_public_codes_have_their_public_status_and_type(reason, code, status, public_type):
    rejection = Rejection(error_pb2.ErrorReason.Value(f"ERROR_REASON_{reason}"), "No.")
    assert (rejection.code, rejection.status) == (code, status)
    body = rejection.body()
    assert (body.code, body.type) == (code, public_type)


def test_an_error_event_carries_lane_and_event_id_and_no_sequence_number():
    rejection = Rejection(
        error_pb2.ERROR_REASON_INVALID_VALUE,
        "No.",
        param="input[0].role",
        headers={"retry-after": "2"},
    )
    event = rejection.event("main", "e1")
    assert (event.stream_id, event.event_id) == ("main", "e1")
    assert not event.HasField("sequence_number")
    assert event.error.status == 400
    assert event.error.error.param == "input[0].role"
    assert event.error.error.headers == {"retry-after": "2"}


def test_an_error_event_of_the_default_lane_names_no_lane():
    event = Rejection(error_pb2.ERROR_REASON_SERVER_ERROR, "No.").event()
    assert not event.HasField("stream_id")
    assert not event.HasField("event_id")
    assert not event.error.error.HasField("param")


def test_an_error_is_bounded_whatever_it_says():
    body = Rejection(
        error_pb2.ERROR_REASON_INVALID_VALUE, "m" * 100_000, param="p" * 100_000
    ).body()
    assert (len(body.message), len(body.param)) == (MAX_MESSAGE_CHARS, MAX_PARAM_CHARS)


def test_a_value_of_a_client_is_quoted_and_cut():
    assert quoted("abc") == "'abc'"
    assert quoted("x" * 80) == f"'{'x' * 80}'"
    assert quoted("x" * 81) == f"'{'x' * 80}…'"
