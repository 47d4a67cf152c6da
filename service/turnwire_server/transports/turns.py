"""What the transports share: who may come in, and one turn without a persistent connection."""

from __future__ import annotations

from collections.abc import Sequence

from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.error_pb2 import ERROR_REASON_SERVER_IS_OVERLOADED, ErrorBody
from turnwire.v1.response_pb2 import Response
from turnwire.v1.server_event_pb2 import ServerEvent, SessionError
from turnwire_server.runtime.connection import Ending, Wire
from turnwire_server.runtime.idempotency import Found
from turnwire_server.runtime.keeping import Keeping
from turnwire_server.runtime.outbox import Sink
from turnwire_server.runtime.services import Services
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Delta, Outgoing
from turnwire_server.transports.encoding import is_terminal

__all__ = [
    "RETRY_AFTER_S",
    "TerminalSink",
    "bearer_token",
    "begin_detached",
    "error_of",
    "outcome_of",
    "overload",
    "response_of",
    "run_turn",
]

RETRY_AFTER_S = 1
"""Hint to a client that was refused for lack of capacity, in seconds."""


def bearer_token(authorization: str | None) -> str | None:
    """Return the token of an `Authorization` value, None when there is none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def overload(services: Services) -> Rejection | None:
    """Return why nothing new may start now, None when it may."""
    if services.accepting:
        return None
    return Rejection(
        ERROR_REASON_SERVER_IS_OVERLOADED,
        "The server takes no new work now; try again, on another connection.",
        headers={"retry-after": str(RETRY_AFTER_S)},
    )


def error_of(event: Outgoing) -> ErrorBody | None:
    """Return the body of an `error` event, None for any other event."""
    if isinstance(event, Delta) or event.WhichOneof("event") != "error":
        return None
    return event.error.error


def response_of(event: ServerEvent) -> Response:
    """Return the response that a terminal event other than `error` carries."""
    arm = event.WhichOneof("event")
    assert arm is not None, "the runtime sends no empty events"
    response = getattr(event, arm).response
    assert isinstance(response, Response), "only events of a response's life carry it"
    return response


class TerminalSink:
    """Keeps the terminal event and drops the rest: a turn whose client does not stream."""

    __slots__ = ("terminal",)

    def __init__(self) -> None:
        self.terminal: ServerEvent | None = None

    def encode(self, event: Outgoing) -> bytes:
        """Return nothing to write."""
        if is_terminal(event):
            assert not isinstance(event, Delta)
            self.terminal = event
        return b""

    async def write(self, batch: Sequence[bytes]) -> None:
        """Do nothing."""

    def heartbeat(self) -> bytes | None:
        """Return None: a plain answer has no place for one."""
        return None


async def run_turn(
    services: Services,
    sink: Sink,
    create: ResponseCreate,
    *,
    size: int,
    wire: Wire,
    tenant: str,
) -> Ending:
    """Run one turn to its end. Cancelling it cancels the turn.

    Args:
        services: The server's services.
        sink: Where the events go.
        create: The turn; belongs to the turn from now on.
        size: Bytes of the request on the wire, after decompression.
        wire: The transport.
        tenant: Who asks.
    """
    connection = services.connect(sink, wire=wire, tenant=tenant, persistent=False)
    connection.receive(ClientEvent(response_create=create), size)
    connection.half_close()
    return await connection.run()


async def begin_detached(
    services: Services,
    create: ResponseCreate,
    *,
    size: int,
    wire: Wire,
    tenant: str,
    key: str | None,
) -> Found | Rejection:
    """Begin, or find, the turn of a create that runs without its connection.

    Args:
        services: The server's services.
        create: A background create, or one with a key; belongs to the turn from now on.
        size: Bytes of the request on the wire, after decompression.
        wire: The transport.
        tenant: Who asks.
        key: The idempotency key, checked.
    """
    if key is not None:
        return await services.idempotency.claim(key, create, size=size, wire=wire, tenant=tenant)
    turn = services.detached.start(create, size=size, wire=wire, tenant=tenant, keeping=Keeping())
    return turn if isinstance(turn, Rejection) else Found(turn, is_again=False)


async def outcome_of(found: Found, *, is_background: bool) -> Response | SessionError:
    """Return what a client is answered that does not stream.

    One in the background is answered once it runs, with the response as it stands; for another
    one its end is waited for. Cancelling it leaves the turn alone.
    """
    turn = found.turn
    if turn is None:
        assert found.response is not None  # one of the two is there
        return found.response
    event = await (turn.opening() if is_background else turn.outcome())
    if event.HasField("error"):
        return event.error
    if is_background and turn.terminal is None:
        return turn.state() or event.response_created.response
    return response_of(turn.terminal or event)
