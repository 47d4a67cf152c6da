"""The transports that the official SDK's HTTP client is given."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from turnwire._connect import connect
from turnwire._event import Event
from turnwire._session import Session
from turnwire._sync import Portal
from turnwire._wire import parse_target
from turnwire.errors import SessionClosed, TurnwireError
from turnwire.openai._bridge import Bridge
from turnwire.openai._httpx import (
    async_response,
    exchange_of,
    httpx,
    not_served,
    raised,
    sync_response,
)
from turnwire.openai._pool import Opener, PoolSettings
from turnwire.openai._slots import Identity
from turnwire.openai._values import TransportStats

__all__ = ["SyncTransport", "Transport"]

ResultT = TypeVar("ResultT")

# The bounds on an exchange are the HTTP client's own; a session must not have stricter ones.
_NEVER_S = 10 * 86_400.0
_MAX_BUFFERED_EVENTS = 1024


class Transport(httpx.AsyncBaseTransport):
    """Carries the SDK's requests over sessions: a transport for `httpx.AsyncClient`.

    ::

        client = AsyncOpenAI(
            api_key="…",
            http_client=httpx.AsyncClient(transport=Transport("grpc://127.0.0.1:50051")),
        )

    Creates run as turns, each conversation on a session of its own: of a history that the client
    resends, only what the session does not hold yet goes over the wire. The base URL's host plays
    no part. The client's timeouts hold; its connection limits do not, `max_sessions` does.

    Needs asyncio. Sessions belong to the event loop that the first request ran on; requests on
    other loops get sessions of their own.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        root_certificates: bytes | None = None,
        max_sessions: int = 32,
        idle_expiry_s: float = 300.0,
        fallback: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Make a transport; nothing is opened before the first request.

        Args:
            url: `grpc://host:port`, `grpcs://…`, `ws://host:port[/v1/responses]` or `wss://…`.
            headers: More headers, or gRPC metadata, for each session. Of the requests' own only
                `authorization`, `openai-organization` and `openai-project` go along.
            root_certificates: PEM of the authorities to trust instead of the system's.
            max_sessions: Most sessions at a time; further requests wait for one that is free, as
                long as the client's pool timeout lets them.
            idle_expiry_s: A session without a turn for so long is closed.
            fallback: Carries requests that a session has nothing for, such as `/embeddings`;
                without it they are answered with 404.

        Raises:
            ValueError: `url` is no such URL, or a bound is not positive.
        """
        self._opener = _opener(url, headers or {}, root_certificates)
        self._settings = _pool_settings(max_sessions, idle_expiry_s)
        self._fallback = fallback
        self._bridges: WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = WeakKeyDictionary()

    @property
    def stats(self) -> TransportStats:
        """What happened so far on the running event loop."""
        bridge = self._bridges.get(asyncio.get_running_loop())
        return TransportStats() if bridge is None else bridge.stats

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request; raises the HTTP library's exceptions."""
        exchange = exchange_of(request, await request.aread())
        loop = asyncio.get_running_loop()
        bridge = self._bridges.get(loop)
        if bridge is None:
            bridge = self._bridges[loop] = Bridge(self._settings, self._opener)
        try:
            answer = await bridge.handle(exchange)
        except TurnwireError as error:
            raise raised(error, request) from error
        if answer is None and self._fallback is not None:
            return await self._fallback.handle_async_request(request)
        return async_response(request, answer or not_served(exchange))

    async def aclose(self) -> None:
        """Close the running loop's sessions; what runs on them is cut."""
        bridge = self._bridges.pop(asyncio.get_running_loop(), None)
        if bridge is not None:
            await bridge.aclose()
        if self._fallback is not None:
            await self._fallback.aclose()


class SyncTransport(httpx.BaseTransport):
    """The same for `httpx.Client` and `OpenAI`; the sessions live on a thread of their own.

    Arguments are those of `Transport`. Safe to use from several threads.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        root_certificates: bytes | None = None,
        max_sessions: int = 32,
        idle_expiry_s: float = 300.0,
        fallback: httpx.BaseTransport | None = None,
    ) -> None:
        """Make a transport; `Transport` describes the arguments."""
        self._opener = _opener(url, headers or {}, root_certificates)
        self._settings = _pool_settings(max_sessions, idle_expiry_s)
        self._fallback = fallback
        self._lock = threading.Lock()
        self._running: tuple[Portal, Bridge] | None = None
        self._is_closed = False

    @property
    def stats(self) -> TransportStats:
        """What happened so far."""
        running = self._running
        if running is None:
            return TransportStats()

        async def look() -> TransportStats:
            return running[1].stats

        return self._call(look())

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request; raises the HTTP library's exceptions."""
        exchange = exchange_of(request, request.read())
        try:
            answer = self._call(self._bridge().handle(exchange))
        except TurnwireError as error:
            raise raised(error, request) from error
        if answer is None and self._fallback is not None:
            return self._fallback.handle_request(request)
        return sync_response(request, answer or not_served(exchange), self._call)

    def close(self) -> None:
        """Close all sessions; what runs on them is cut."""
        with self._lock:
            self._is_closed = True
            running, self._running = self._running, None
        if running is not None:
            portal, bridge = running
            portal.call(bridge.aclose())
            portal.stop()
        if self._fallback is not None:
            self._fallback.close()

    def _bridge(self) -> Bridge:
        with self._lock:
            if self._is_closed:
                raise SessionClosed("the transport was closed")
            if self._running is None:
                portal = Portal()
                self._running = portal, portal.call(_make(self._settings, self._opener))
            return self._running[1]

    def _call(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        running = self._running
        if running is None:
            work.close()
            raise SessionClosed("the transport was closed")
        return running[0].call(work)


async def _make(settings: PoolSettings, opener: Opener) -> Bridge:
    return Bridge(settings, opener)


def _pool_settings(max_sessions: int, idle_expiry_s: float) -> PoolSettings:
    if max_sessions < 1 or idle_expiry_s <= 0:
        raise ValueError("max_sessions and idle_expiry_s are positive")
    return PoolSettings(max_sessions, idle_expiry_s)


def _opener(url: str, headers: Mapping[str, str], root_certificates: bytes | None) -> Opener:
    if parse_target(url).kind == "http":
        raise ValueError("HTTP keeps no session: give the SDK a base_url, or use grpc:// or ws://")

    def open_session(
        identity: Identity, on_notice: Callable[[Event], None]
    ) -> AbstractAsyncContextManager[Session]:
        return connect(
            url,
            headers={**dict(identity), **headers},
            root_certificates=root_certificates,
            connect_timeout_s=_NEVER_S,
            silence_timeout_s=_NEVER_S,
            unary_timeout_s=_NEVER_S,
            max_buffered_events=_MAX_BUFFERED_EVENTS,
            on_notice=on_notice,
            transcript_bytes=0,  # Each request brings the whole conversation.
        )

    return open_session
