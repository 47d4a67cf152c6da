"""Where the bridge meets an HTTP library: `httpx2`, or `httpx` with older SDKs.

Both have the same classes and check that what a transport returns is made of their own, so what
is made here depends on the request, not on which of them was imported first.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl

from turnwire.errors import ConnectionFailed, SessionClosed, TurnwireError
from turnwire.openai import _answers
from turnwire.openai._values import Answer, Exchange, PhaseTimeoutError, Stream, Timeouts

if TYPE_CHECKING:
    import httpx2 as httpx
else:
    try:
        import httpx2 as httpx
    except ImportError:
        try:
            import httpx
        except ImportError:
            raise ImportError(
                "turnwire.openai is for the `openai` SDK and the httpx that it uses, "
                "which are not installed: pip install 'turnwire[openai]'"
            ) from None

__all__ = [
    "async_response",
    "exchange_of",
    "httpx",
    "not_served",
    "raised",
    "sync_response",
]


def exchange_of(request: httpx.Request, body: bytes) -> Exchange:
    """Return a request as the bridge takes it."""
    path, _, query = request.url.raw_path.partition(b"?")
    timeout = request.extensions.get("timeout", {})
    return Exchange(
        method=request.method.upper(),
        path=path.decode("ascii"),
        query=parse_qsl(query.decode("ascii"), keep_blank_values=True),
        headers={name.lower(): value for name, value in request.headers.items()},
        body=body,
        timeouts=Timeouts(timeout.get("connect"), timeout.get("read"), timeout.get("pool")),
    )


def async_response(request: httpx.Request, answer: Answer) -> httpx.Response:
    """Return an answer for an async client."""
    library = _library_of(request)
    if isinstance(answer.body, bytes):
        return _whole(library, answer, answer.body)
    return _streamed(library, answer, _async_body(library)(request, answer.body))


def sync_response(
    request: httpx.Request, answer: Answer, run: Callable[[Coroutine[Any, Any, Any]], Any]
) -> httpx.Response:
    """Return an answer for a sync client; `run` waits for a coroutine of the bridge's loop."""
    library = _library_of(request)
    if isinstance(answer.body, bytes):
        return _whole(library, answer, answer.body)
    return _streamed(library, answer, _sync_body(library)(request, answer.body, run))


def not_served(exchange: Exchange) -> Answer:
    """Return the answer for a path that a session has nothing for."""
    message = (
        f"A session has nothing for {exchange.method} {exchange.path[:200]}. "
        "Give the transport a `fallback` for the rest of the API."
    )
    return _answers.refusal("not_found", message)


def raised(error: TurnwireError, request: httpx.Request) -> Exception:
    """Return the HTTP library's exception for an exchange that got no whole answer."""
    library = _library_of(request)
    match error:
        case PhaseTimeoutError(phase=phase):
            kind = {
                "connect": library.ConnectTimeout,
                "read": library.ReadTimeout,
                "pool": library.PoolTimeout,
            }[phase]
        case ConnectionFailed():
            kind = library.ConnectError
        case _:
            kind = library.RemoteProtocolError
    return cast(Exception, kind(str(error), request=request))


def _library_of(request: httpx.Request) -> ModuleType:
    for kind in type(request).__mro__:
        name = kind.__module__.partition(".")[0]
        if name in ("httpx", "httpx2"):
            return sys.modules[name]
    return httpx


def _whole(library: ModuleType, answer: Answer, body: bytes) -> httpx.Response:
    response = library.Response(answer.status, headers=dict(answer.headers), content=body)
    return cast("httpx.Response", response)


def _streamed(library: ModuleType, answer: Answer, body: object) -> httpx.Response:
    response = library.Response(answer.status, headers=dict(answer.headers), stream=body)
    return cast("httpx.Response", response)


class _Body:
    def __init__(self, request: httpx.Request, stream: Stream) -> None:
        self._request = request
        self._stream = stream


@cache
def _async_body(library: ModuleType) -> Callable[[httpx.Request, Stream], object]:
    class AsyncBody(_Body, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                while chunk := await self._stream.next_chunk():
                    yield chunk
            except TurnwireError as error:
                raise raised(error, self._request) from error

        async def aclose(self) -> None:
            await self._stream.aclose()

    return AsyncBody


@cache
def _sync_body(library: ModuleType) -> Callable[[httpx.Request, Stream, Any], object]:
    class SyncBody(_Body, library.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(
            self,
            request: httpx.Request,
            stream: Stream,
            run: Callable[[Coroutine[Any, Any, Any]], Any],
        ) -> None:
            super().__init__(request, stream)
            self._run = run

        def __iter__(self) -> Iterator[bytes]:
            try:
                while chunk := self._run(self._stream.next_chunk()):
                    yield chunk
            except TurnwireError as error:
                raise raised(error, self._request) from error

        def close(self) -> None:
            # A stream may be dropped, and then closed, later than its client.
            with suppress(SessionClosed):
                self._run(self._stream.aclose())

    return SyncBody
