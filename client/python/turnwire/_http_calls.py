"""The HTTP calls beside the stream, and what both HTTP wires share."""

from __future__ import annotations

import io
import ssl
from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import quote

import aiohttp
from google.protobuf.message import Message

from turnwire import _codec
from turnwire._rejections import rejection_from_http
from turnwire._wire import Target, WireSettings
from turnwire.errors import (
    ConnectionFailed,
    ConnectionLost,
    ProtocolViolation,
    Timeout,
    TurnwireError,
)
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.models_service_pb2 import ListModelsResult
from turnwire.v1.response_pb2 import Response
from turnwire.v1.responses_service_pb2 import (
    CountInputTokensResult,
    DeleteResult,
    ListInputItemsRequest,
    ListInputItemsResult,
)

__all__ = ["HttpCalls", "client_error", "open_client"]

ResultT = TypeVar("ResultT", bound=Message)


def open_client(settings: WireSettings) -> aiohttp.ClientSession:
    """Return a client; the caller closes it. Needs a running event loop."""
    trust: ssl.SSLContext | bool = True
    if settings.root_certificates is not None:
        trust = ssl.create_default_context(cadata=settings.root_certificates.decode("ascii"))
    return aiohttp.ClientSession(
        # Lanes are exchanges that run side by side; the server bounds them.
        connector=aiohttp.TCPConnector(limit=0, ssl=trust),
        # Compressed answers would come late and make the counted bytes another thing.
        headers={"accept-encoding": "identity", **settings.all_headers()},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=2**18,
    )


def client_error(error: Exception, authority: str) -> TurnwireError:
    """Return the error for what an HTTP exchange raised."""
    match error:
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return ConnectionFailed(f"no connection to {authority}")
        case TimeoutError():
            return Timeout(f"{authority} did not answer in time")
        case _:
            return ConnectionLost(f"the exchange with {authority} broke")


class HttpCalls:
    """The calls over HTTP. Raise `TurnwireError`."""

    def __init__(self, client: aiohttp.ClientSession, target: Target, timeout_s: float) -> None:
        self._client = client
        self._base = target.http_base
        self._authority = target.authority
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self.bytes_up = 0
        self.bytes_down = 0

    async def get(self, response_id: str, include: Sequence[str]) -> Response:
        """Return a stored response."""
        query = [("include", name) for name in include]
        return await self._call(Response, "GET", _path(response_id), query=query)

    async def delete(self, response_id: str) -> DeleteResult:
        """Forget a stored response."""
        return await self._call(DeleteResult, "DELETE", _path(response_id))

    async def cancel(self, response_id: str) -> Response:
        """End a running response."""
        return await self._call(Response, "POST", f"{_path(response_id)}/cancel")

    async def input_items(self, request: ListInputItemsRequest) -> ListInputItemsResult:
        """List what a stored response was given."""
        query = [("include", name) for name in request.include]
        if request.HasField("after"):
            query.append(("after", request.after))
        if request.HasField("limit"):
            query.append(("limit", str(request.limit)))
        if request.HasField("order"):
            query.append(("order", request.order))
        path = f"{_path(request.response_id)}/input_items"
        return await self._call(ListInputItemsResult, "GET", path, query=query)

    async def count_tokens(self, create: ResponseCreate) -> CountInputTokensResult:
        """Count the tokens of an input."""
        body = _codec.dumps(create)
        return await self._call(
            CountInputTokensResult, "POST", "/responses/input_tokens", body=body
        )

    async def models(self) -> ListModelsResult:
        """List the models."""
        return await self._call(ListModelsResult, "GET", "/models")

    async def _call(
        self,
        kind: type[ResultT],
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
    ) -> ResultT:
        headers: Mapping[str, str] = {} if body is None else {"content-type": "application/json"}
        try:
            async with self._client.request(
                method,
                self._base + path,
                params=list(query),
                data=None if body is None else io.BytesIO(body),  # aiohttp warns of large bytes
                headers=headers,
                timeout=self._timeout,
            ) as answer:
                data = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise client_error(error, self._authority) from None
        except RuntimeError:
            if not self._client.closed:
                raise
            raise ConnectionLost("the connection is over") from None
        self.bytes_up += len(body or b"")
        self.bytes_down += len(data)
        if answer.status >= 400:
            raise rejection_from_http(answer.status, data, answer.headers)
        try:
            return _codec.loads(kind, data)
        except _codec.DecodeError as error:
            raise ProtocolViolation(f"{method} {path} answered with something else") from error


def _path(response_id: str) -> str:
    return f"/responses/{quote(response_id, safe='')}"
