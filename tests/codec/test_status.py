from __future__ import annotations

import pytest

from turnwire.v1 import error_pb2
from turnwire.v1.error_pb2 import ErrorReason
from turnwire_server.codec.status import (
    GRPC_STATUS,
    error_type,
    grpc_status,
    http_status,
    reason_of_code,
)

REASONS = [value.number for value in ErrorReason.DESCRIPTOR.values]
RETRIABLE = {14, 8}  # UNAVAILABLE and RESOURCE_EXHAUSTED.


def test_every_reason_has_a_grpc_status_that_is_not_ok() -> None:
    assert sorted(GRPC_STATUS) == sorted(REASONS)
    assert all(1 <= status <= 16 for status in GRPC_STATUS.values())


@pytest.mark.parametrize("reason", REASONS[1:], ids=lambda number: ErrorReason.Name(number))
def test_the_two_statuses_of_a_reason_blame_the_same_side(reason: ErrorReason.ValueType) -> None:
    status = http_status(reason)

    assert 400 <= status < 600
    assert error_type(reason)
    assert (status >= 500) == (grpc_status(reason) in {13, 14} and status != 400)
    if status == 404:
        assert grpc_status(reason) == 5
    if status in {429, 503}:
        assert grpc_status(reason) in RETRIABLE


def test_a_reason_of_a_newer_version_is_internal() -> None:
    assert grpc_status(9_999) == 13  # type: ignore[arg-type]


def test_a_code_finds_its_reason() -> None:
    for number in REASONS:
        name = ErrorReason.Name(ErrorReason.ValueType(number)).removeprefix("ERROR_REASON_")
        assert reason_of_code(name.lower()) == number
    assert reason_of_code("of_tomorrow") == error_pb2.ERROR_REASON_UNSPECIFIED
