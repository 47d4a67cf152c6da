"""The seam between a session and the wire under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlsplit

from turnwire._event import Event
from turnwire.errors import TurnwireError
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.models_service_pb2 import ListModelsResult
from turnwire.v1.response_pb2 import Response
from turnwire.v1.responses_service_pb2 import (
    CountInputTokensResult,
    DeleteResult,
    ListInputItemsRequest,
    ListInputItemsResult,
)

__all__ = [
    "Arrival",
    "Broken",
    "Target",
    "UnaryCalls",
    "Wire",
    "WireName",
    "WireSettings",
    "parse_target",
]

WireName: TypeAlias = Literal["grpc", "websocket", "http"]

_PORTS: Mapping[str, int] = {"grpc": 50051, "grpcs": 443}
_KINDS: Mapping[str, WireName] = {
    "grpc": "grpc",
    "grpcs": "grpc",
    "ws": "websocket",
    "wss": "websocket",
    "http": "http",
    "https": "http",
}
_SECURE = frozenset({"grpcs", "wss", "https"})


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is."""

    kind: WireName
    secure: bool
    authority: str
    """`host:port`; the port is left out where the scheme's own is meant."""
    base_path: str = ""
    """Path above `/responses` and `/models`, for example `/v1`; empty on gRPC."""

    @property
    def http_base(self) -> str:
        """URL above `/responses` and `/models`, for example `http://127.0.0.1:8080/v1`."""
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.base_path}"


@dataclass(frozen=True, slots=True)
class WireSettings:
    """What all wires are told."""

    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with the handshake or, over HTTP, with every request; metadata on gRPC."""
    root_certificates: bytes | None = field(default=None, repr=False)
    """PEM of the authorities to trust instead of the system's."""
    connect_timeout_s: float = 10.0
    silence_timeout_s: float = 300.0
    close_timeout_s: float = 5.0
    unary_timeout_s: float = 60.0

    def all_headers(self) -> dict[str, str]:
        """Return the headers with the key, lower-case names."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers


class Broken(NamedTuple):
    """Instead of an event: the exchange of one create broke."""

    create_id: str
    error: TurnwireError


Arrival: TypeAlias = Event | Broken
"""One thing that came in; an event of a type of a later version has no arm."""


class UnaryCalls(Protocol):
    """The calls beside the stream. All raise `TurnwireError`."""

    async def get(self, response_id: str, include: Sequence[str]) -> Response:
        """Return a stored response."""

    async def delete(self, response_id: str) -> DeleteResult:
        """Forget a stored response."""

    async def cancel(self, response_id: str) -> Response:
        """End a running response."""

    async def input_items(self, request: ListInputItemsRequest) -> ListInputItemsResult:
        """List what a stored response was given."""

    async def count_tokens(self, create: ResponseCreate) -> CountInputTokensResult:
        """Count the tokens of an input."""

    async def models(self) -> ListModelsResult:
        """List the models."""


class Wire(Protocol):
    """One connection, or what stands for it over HTTP. Opened when it is made."""

    @property
    def name(self) -> WireName:
        """Which wire this is."""

    @property
    def persistent(self) -> bool:
        """Whether the server keeps a session: `store: false` chains, warm-ups, rollouts."""

    @property
    def unary(self) -> UnaryCalls:
        """The calls beside the stream."""

    @property
    def unary_bytes(self) -> tuple[int, int]:
        """Payload bytes of `unary` so far, up and down."""

    async def send(self, event: ClientEvent) -> int:
        """Send an event, in order, waiting for the wire's flow control.

        The session never cancels this unless it aborts the connection. What it does until it first
        waits may happen in another task than the rest.

        Returns:
            Payload bytes on the wire.

        Raises:
            TurnwireError: The connection is over.
        """

    async def receive(self) -> Sequence[Arrival]:
        """Wait for what comes next; may be empty.

        Cancelling this may end the connection.

        Raises:
            TurnwireError: The connection is over.
        """

    async def ping(self) -> None:
        """Ask for a sign of life and wait for it. `receive` must be running.

        Raises:
            TurnwireError: The connection is over.
        """

    async def close(self) -> None:
        """Say good-bye and wait for the other side. `receive` may still be waiting."""

    async def abort(self) -> None:
        """Let go of everything at once, ending what runs. Idempotent; also after `close`."""


def parse_target(url: str) -> Target:
    """Read the URL of a server.

    Args:
        url: `grpc://host:port`, `grpcs://…`, `ws://host:port[/v1/responses]`, `wss://…`,
            `http://host:port[/v1]` or `https://…`. A path is the one above `/responses`, with or
            without it; `/v1` when there is none. The gRPC port is 50051 when not given, 443 with
            TLS.

    Raises:
        ValueError: It is none of these.
    """
    parts = urlsplit(url)
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        known = ", ".join(f"{scheme}://" for scheme in _KINDS)
        raise ValueError(f"{url!r} starts with none of {known}")
    if not parts.hostname:
        raise ValueError(f"{url!r} names no host")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("a target has no user, query or fragment; a key goes into api_key")
    authority = parts.netloc
    if kind == "grpc":
        if parts.path.strip("/"):
            raise ValueError(f"{url!r}: a gRPC target has no path")
        if parts.port is None:
            authority = f"{authority.rstrip(':')}:{_PORTS[parts.scheme]}"
        return Target(kind, parts.scheme in _SECURE, authority)
    path = parts.path.rstrip("/").removesuffix("/responses") or (
        "" if parts.path.rstrip("/") == "/responses" else "/v1"
    )
    return Target(kind, parts.scheme in _SECURE, authority, path)
