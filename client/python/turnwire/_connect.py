"""How a session begins and ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from turnwire._event import Event
from turnwire._recovery import RecoverySettings
from turnwire._session import Session
from turnwire._wire import Target, Wire, WireSettings, parse_target

__all__ = ["connect"]


def connect(
    url: str,
    *,
    api_key: str | None = None,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    root_certificates: bytes | None = None,
    connect_timeout_s: float = 10.0,
    silence_timeout_s: float = 300.0,
    close_timeout_s: float = 5.0,
    unary_timeout_s: float = 60.0,
    max_buffered_events: int = 16_384,
    on_notice: Callable[[Event], None] | None = None,
    resume: bool = True,
    reconnect_s: float = 60.0,
    transcript_bytes: int = 16 << 20,
    ping_after_idle_s: float = 5.0,
    ping_timeout_s: float = 2.0,
) -> AbstractAsyncContextManager[Session]:
    """Open a session: `async with turnwire.connect("grpc://127.0.0.1:50051") as session`.

    Args:
        url: `grpc://host:port`, `grpcs://…`, `ws://host:port[/v1/responses]`, `wss://…`,
            `http://host:port[/v1]` or `https://…`. The API is the same on all of them; over HTTP
            nothing is sent before the first turn, and a turn is an exchange of its own.
        api_key: Sent as a bearer token. On gRPC a wrong key shows at the first turn, over
            WebSocket here, over HTTP with each exchange.
        model: The model of creates that name none.
        headers: More headers, or gRPC metadata.
        root_certificates: PEM of the authorities to trust instead of the system's.
        connect_timeout_s: Bound on connecting, in seconds.
        silence_timeout_s: Longest time without any event on a lane that waits for some.
        close_timeout_s: Bound on closing.
        unary_timeout_s: Bound on each call beside the turns.
        max_buffered_events: Events of one turn that wait for their reader before the connection
            is held up.
        on_notice: Called with events that are of no turn, for example `turnwire.go_away`. What it
            raises ends the session.
        resume: Whether to ask the server to keep the session for a while when the connection is
            lost, so that its turns go on. Asked by a header, or gRPC metadata, which a server that
            does not know it ignores. Over HTTP each create has an idempotency key instead: its turn
            goes on for a while, and the create, sent again, does not run a second time.
        reconnect_s: How long to try to reopen a lost connection before its turns are lost; 0 to
            leave it lost.
        transcript_bytes: Bound on what is remembered of conversations, to begin one again where the
            server has lost it; 0 to remember nothing.
        ping_after_idle_s: After so many seconds without a turn the next one brings a ping along.
        ping_timeout_s: Longest wait for its answer; then the connection is dead and reopened.

    Returns:
        A context manager; leaving it closes the session, see `Session.close`.

    Raises:
        ValueError: `url` is no such URL.
        ConnectionFailed: On entering: there is no server, or not in time.
        AuthenticationFailed: On entering, over WebSocket.
    """
    settings = WireSettings(
        api_key=api_key,
        headers=headers or {},
        root_certificates=root_certificates,
        connect_timeout_s=connect_timeout_s,
        silence_timeout_s=silence_timeout_s,
        close_timeout_s=close_timeout_s,
        unary_timeout_s=unary_timeout_s,
    )
    recovery = RecoverySettings(
        resume=resume,
        reconnect_s=reconnect_s,
        transcript_bytes=transcript_bytes,
        ping_after_idle_s=ping_after_idle_s,
        ping_timeout_s=ping_timeout_s,
    )
    target = parse_target(url)

    async def dial(wants_resume: bool) -> Wire:
        return await _open(target, settings, wants_resume)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Session]:
        session = Session(
            await dial(resume and reconnect_s > 0),
            settings,
            model=model,
            max_buffered_events=max_buffered_events,
            on_notice=on_notice,
            dial=dial,
            recovery=recovery,
        )
        try:
            yield session
        finally:
            await session.close()

    return opened()


async def _open(target: Target, settings: WireSettings, wants_resume: bool) -> Wire:
    # Imported when needed: a script that uses one wire does not load the others' libraries.
    match target.kind:
        case "grpc":
            from turnwire._wire_grpc import open_grpc

            return await open_grpc(target, settings, wants_resume=wants_resume)
        case "websocket":
            from turnwire._wire_websocket import open_websocket

            return await open_websocket(target, settings, wants_resume=wants_resume)
        case "http":
            from turnwire._wire_http import open_http

            return await open_http(target, settings, is_keyed=wants_resume)
