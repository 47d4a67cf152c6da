from __future__ import annotations

import pytest

from turnwire import errors
from turnwire._rejections import error_body, http_status, rejection, rejection_from_http
from turnwire.v1 import error_pb2


@pytest.mark.parametrize(
    ("code", "status", "kind", "retryable"),
    [
        ("previous_response_not_found", 400, errors.PreviousResponseNotFound, False),
        ("invalid_value", 400, errors.InvalidRequest, False),
        ("websocket_connection_limit_reached", 400, errors.InvalidRequest, True),
        ("invalid_api_key", 401, errors.AuthenticationFailed, False),
        ("model_not_found", 404, errors.NotFound, False),
        ("rate_limit_exceeded", 429, errors.RateLimited, True),
        ("insufficient_quota", 429, errors.RateLimited, False),
        ("request_cancelled", 400, errors.RequestCancelled, False),
        ("server_error", 500, errors.ServerFailed, True),
        ("server_is_overloaded", 503, errors.ServerOverloaded, True),
        ("brand_new", 418, errors.InvalidRequest, False),
        ("brand_new", 500, errors.ServerFailed, False),
        ("", 502, errors.ServerFailed, True),
        ("", 404, errors.NotFound, False),
    ],
)
def test_a_code_has_its_error(
    code: str, status: int, kind: type[errors.ResponseRejected], retryable: bool
) -> None:
    error = rejection(code, "No.", status=status, param="input")
    assert type(error) is kind
    assert (error.status, error.param, error.retryable) == (status, "input", retryable)
    assert error.code == (code or f"http_{status}")


def test_every_reason_of_the_contract_has_an_http_status() -> None:
    for value in error_pb2.ErrorReason.DESCRIPTOR.values:
        code = value.name.removeprefix("ERROR_REASON_").lower()
        assert (http_status(code) is None) == (value.number == 0)


def test_an_http_answer_of_a_proxy_is_an_error_too() -> None:
    error = rejection_from_http(503, b"<html>busy</html>", {"Retry-After": "2"})
    assert type(error) is errors.ServerOverloaded
    assert (error.code, error.retryable, error.retry_after_s) == ("http_503", True, 2.0)


@pytest.mark.parametrize("data", [b"[]", b'{"error":3}', b'{"error":{"code":3}}', b"\xff"])
def test_an_error_of_another_shape_is_read_as_far_as_it_goes(data: bytes) -> None:
    body = error_body(400, data, {})
    assert body.code == "" and body.message == "HTTP status 400"


def test_a_date_as_a_hint_to_retry_is_no_number() -> None:
    hint = {"retry-after": "Sun, 29 Nov 2026 10:00:00 GMT"}
    assert rejection_from_http(429, b"", hint).retry_after_s is None
