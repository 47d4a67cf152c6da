"""Headers of a call: what a request asks for, and the trailers that end it. No I/O."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import grpc
from grpclib.metadata import decode_timeout, encode_bin_value, encode_grpc_message

__all__ = [
    "ANSWER_HEADERS",
    "BadRequestError",
    "Encoding",
    "Head",
    "Headers",
    "NoGrpcError",
    "read_head",
    "status_headers",
]

Headers = list[tuple[str, str]]
Encoding = Literal["identity", "gzip", "deflate"]
Metadata = tuple[tuple[str, str | bytes], ...]

ANSWER_HEADERS: Final[Headers] = [
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
]
_ENTRY_BYTES: Final = 32
"""What HTTP/2 counts for each entry beside its name and value (RFC 9113, 6.5.2)."""
_MAX_TIMEOUT_S: Final = 366 * 86_400.0
_MAX_TIMEOUT_CHARS: Final = 20
_PRINTABLE: Final = re.compile(rb"[ -~]*")
_ENCODINGS: Final[dict[bytes, Encoding]] = {
    b"identity": "identity",
    b"gzip": "gzip",
    b"deflate": "deflate",
}


class NoGrpcError(Exception):
    """The request is no gRPC call."""


class BadRequestError(Exception):
    """The request is a call that ends at once with this status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


@dataclass(frozen=True, slots=True)
class Head:
    """What the headers of a call say."""

    path: str
    metadata: Metadata
    """Names in lower case; values of names in `-bin` as bytes."""
    timeout_s: float | None
    """Seconds until the call's deadline, None for no deadline."""
    encoding: Encoding
    """How messages are compressed that say that they are."""


def read_head(headers: Iterable[tuple[bytes, bytes]], max_bytes: int) -> Head:
    """Read the headers of a request.

    Args:
        headers: As they came.
        max_bytes: Most that they may be together, counted as HTTP/2 does.

    Raises:
        NoGrpcError: It is something else.
        BadRequestError: It is a call that cannot be served.
    """
    method = path = te = b""
    timeout: float | None = None
    encoding: Encoding = "identity"
    metadata: list[tuple[str, str | bytes]] = []
    size = 0
    for name, value in headers:
        size += len(name) + len(value) + _ENTRY_BYTES
        if size > max_bytes:
            raise BadRequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"received metadata size exceeds hard limit ({size} vs. {max_bytes})",
            )
        match name:
            case b":method":
                method = value
            case b":path":
                path = value
            case b"te":
                te = value
            case b"grpc-timeout":
                timeout = _timeout(value)
            case b"grpc-encoding":
                if value not in _ENCODINGS:
                    raise _unreadable("grpc-encoding")
                encoding = _ENCODINGS[value]
            case _ if not name.startswith((b":", b"grpc-")) and name != b"content-type":
                metadata.extend(_entries(name, value))
    if method != b"POST" or te != b"trailers":
        raise NoGrpcError
    return Head(path.decode("ascii", "replace"), tuple(metadata), timeout, encoding)


def _unreadable(name: str, why: str = "") -> BadRequestError:
    return BadRequestError(grpc.StatusCode.INTERNAL, f"Error parsing '{name}' metadata{why}")


def _timeout(value: bytes) -> float:
    try:
        if len(value) > _MAX_TIMEOUT_CHARS:
            raise ValueError
        return min(decode_timeout(value.decode("ascii")), _MAX_TIMEOUT_S)
    except ValueError:
        raise _unreadable("grpc-timeout") from None


def _entries(name: bytes, value: bytes) -> list[tuple[str, str | bytes]]:
    """Return a header as metadata; text that is no printable ASCII is dropped."""
    if name.lower() != name or not _PRINTABLE.fullmatch(name):
        raise BadRequestError(grpc.StatusCode.INTERNAL, "Illegal header key")
    key = name.decode("ascii")
    if not key.endswith("-bin"):
        return [(key, value.decode("ascii"))] if _PRINTABLE.fullmatch(value) else []
    try:
        return [(key, _unbase64(part)) for part in value.split(b",")]
    except binascii.Error:
        raise _unreadable(key, ": illegal base64 encoding") from None


def _unbase64(value: bytes) -> bytes:
    bare = value.strip().rstrip(b"=")
    return base64.b64decode(bare + b"=" * (-len(bare) % 4), validate=True)


def status_headers(
    code: grpc.StatusCode, details: str, metadata: Sequence[tuple[str, str | bytes]] = ()
) -> Headers:
    """Return the trailers that end a call.

    Args:
        code: The status.
        details: Its text.
        metadata: More trailers; values of names in `-bin` as bytes.
    """
    headers = [
        ("grpc-status", str(code.value[0])),
        ("grpc-message", encode_grpc_message(details)),
    ]
    for name, value in metadata:
        text = value if isinstance(value, str) else encode_bin_value(value).decode("ascii")
        headers.append((name, text))
    return headers
