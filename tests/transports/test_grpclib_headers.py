"""What the headers of a call say, and what its trailers look like."""

from __future__ import annotations

import grpc
import pytest

from turnwire_server.transports.grpclib.headers import (
    BadRequestError,
    Head,
    NoGrpcError,
    read_head,
    status_headers,
)

CALL = [(b":method", b"POST"), (b":path", b"/s/m"), (b"te", b"trailers")]


def head(*more: tuple[bytes, bytes]) -> Head:
    return read_head([*CALL, *more], 16_384)


def refusal(*more: tuple[bytes, bytes]) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        head(*more)
    return caught.value


def test_what_is_not_said_has_its_default() -> None:
    assert head() == Head("/s/m", (), None, "identity")


def test_metadata_are_what_http2_and_grpc_leave() -> None:
    read = head(
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"gzip"),
        (b"user-agent", b"x/1"),
        (b"a", b"1"),
        (b"a", b"2"),
    )
    assert read.metadata == (("user-agent", "x/1"), ("a", "1"), ("a", "2"))


@pytest.mark.parametrize(
    ("value", "decoded"),
    [(b"AAE=", [b"\0\1"]), (b"AAE", [b"\0\1"]), (b"", [b""]), (b"AAE,AQ==", [b"\0\1", b"\1"])],
)
def test_binary_metadata_are_decoded(value: bytes, decoded: list[bytes]) -> None:
    assert head((b"x-bin", value)).metadata == tuple(("x-bin", part) for part in decoded)


@pytest.mark.parametrize("value", [b"***", b"A", b"AA\nE="])
def test_binary_metadata_that_are_none_are_refused(value: bytes) -> None:
    assert "'x-bin'" in refusal((b"x-bin", value)).details


def test_text_that_is_no_printable_ascii_is_dropped() -> None:
    assert head((b"authorization", b"Bearer \xff"), (b"x", b"a\x7f")).metadata == ()


@pytest.mark.parametrize("name", [b"X-Upper", b"\xc3\xa4", b"a\0"])
def test_names_that_http2_forbids_are_refused(name: bytes) -> None:
    assert refusal((name, b"v")).code is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"5S", 5), (b"200m", 0.2), (b"2M", 120), (b"1H", 3600), (b"7u", 7e-6), (b"0n", 0)],
)
def test_timeouts_are_seconds(value: bytes, seconds: float) -> None:
    assert head((b"grpc-timeout", value)).timeout_s == pytest.approx(seconds)


def test_a_timeout_of_ages_is_a_year() -> None:
    assert head((b"grpc-timeout", b"99999999999H")).timeout_s == 366 * 86_400


@pytest.mark.parametrize(
    "value", [b"", b"5", b"S", b"5s", b"-1S", b"1.5S", b"9" * 30 + b"S", b"\xb2S"]
)
def test_timeouts_that_are_none_are_refused(value: bytes) -> None:
    assert refusal((b"grpc-timeout", value)).details == "Error parsing 'grpc-timeout' metadata"


@pytest.mark.parametrize(
    "headers", [[], [(b":method", b"GET"), (b"te", b"trailers")], [(b":method", b"POST")]]
)
def test_what_is_no_call_is_known(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(NoGrpcError):
        read_head(headers, 1000)


def test_headers_are_counted_as_http2_does() -> None:
    size = sum(len(name) + len(value) + 32 for name, value in CALL)
    assert read_head(CALL, size)
    with pytest.raises(BadRequestError) as caught:
        read_head(CALL, size - 1)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_trailers_are_escaped() -> None:
    trailers = status_headers(
        grpc.StatusCode.NOT_FOUND, "50 % ä\n", [("x-bin", b"\0\1"), ("y", "z")]
    )
    assert trailers == [
        ("grpc-status", "5"),
        ("grpc-message", "50 %25 %C3%A4%0A"),
        ("x-bin", "AAE"),
        ("y", "z"),
    ]
