"""A plain client of the public API, for servers that are not ours, and for ours beside them.

It reads no more of an event than its type, the deltas and the end.
"""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import aiohttp
import orjson

from turnwire_bench.drivers import Place
from turnwire_bench.failure import BenchFailure
from turnwire_bench.samples import TurnSample
from turnwire_bench.wire_counts import WireCounts, wire_counts

__all__ = ["PEER_TRANSPORTS", "PeerDriver"]

PEER_TRANSPORTS: Final = ("http_full", "http_chain", "ws")
"""The shapes that other servers have too."""
_TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_SHOWN: Final = 300
"""Characters of a refusal that are shown."""


class PeerDriver:
    """One conversation, over HTTP with server-sent events or over a WebSocket."""

    def __init__(self, transport: str, place: Place, options: dict[str, Any]) -> None:
        """Speak to the base URL of `place`, for example `http://127.0.0.1:8080/v1`."""
        self._transport = transport
        self._place = place
        self._body: dict[str, Any] = {"model": place.model, **options, "stream": True}
        self._body.pop("include", None)  # an extension that others may refuse
        if transport != "http_chain":
            self._body["store"] = False
        self._history: list[Any] = []
        self._parent: str | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self) -> None:
        """Connect."""
        key = self._place.api_key
        self._client = aiohttp.ClientSession(
            headers={"authorization": f"Bearer {key}"} if key else None,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=120.0),
            read_bufsize=2**18,
        )
        if self._transport == "ws":
            try:
                self._socket = await self._client.ws_connect(
                    f"{self._place.url}/responses", max_msg_size=0
                )
            except aiohttp.ClientError as error:
                raise BenchFailure(f"{self._place.url} has no WebSocket here: {error}") from None

    async def turn(self, items: Sequence[Any], *, begins_run: bool) -> TurnSample:
        """Run a turn."""
        body = self._body
        if self._transport == "http_full":
            self._history.extend(items)
            body = {**body, "input": self._history}
        else:
            body = {**body, "input": list(items)}
            if self._parent is not None:
                body["previous_response_id"] = self._parent
        if self._socket is not None:
            body = {"type": "response.create", **body}
            del body["stream"]
        data = orjson.dumps(body)
        first: float | None = None
        response: dict[str, Any] = {}
        began = ended = time.perf_counter()
        async for event in self._events(data):
            kind = event["type"]
            if first is None and kind.endswith(".delta"):
                first = time.perf_counter()
            if kind in _TERMINAL:
                response = event["response"]
                ended = time.perf_counter()
                if self._socket is not None:
                    break
                # Over HTTP the end of the body is read too, or the connection would not be kept.
            if kind == "error":
                raise BenchFailure(f"{self._place.url} refused: {str(event)[:_SHOWN]}")
        if response.get("status") != "completed":
            status = response.get("status", "nothing")
            raise BenchFailure(f"{self._place.url} ended a turn with {status}.")
        self._parent = response["id"]
        output = response["output"]
        self._history.extend(output)
        usage = response.get("usage") or {}
        return TurnSample(
            total_s=ended - began,
            ttft_s=None if first is None else first - began,
            output_tokens=usage.get("output_tokens", 0),
            input_tokens=usage.get("input_tokens", 0),
            bytes_up=len(data),
            call_ids=[item["call_id"] for item in output if item["type"] == "function_call"],
        )

    async def close(self) -> WireCounts | None:
        """Close the connections."""
        counts = wire_counts(self._place.port)
        if self._socket is not None:
            await self._socket.close()
        await self._client.close()
        return counts

    async def _events(self, data: bytes) -> AsyncIterator[dict[str, Any]]:
        if self._socket is not None:
            await self._socket.send_frame(data, aiohttp.WSMsgType.TEXT)
            while True:
                message = await self._socket.receive()
                if message.type is not aiohttp.WSMsgType.TEXT:
                    raise BenchFailure(f"{self._place.url} closed the WebSocket.")
                yield orjson.loads(message.data)
        async with self._client.post(
            f"{self._place.url}/responses",
            data=io.BytesIO(data),
            headers={"content-type": "application/json", "accept": "text/event-stream"},
        ) as answer:
            if answer.status != 200:
                text = (await answer.text())[:_SHOWN]
                raise BenchFailure(f"{self._place.url} answered {answer.status}: {text}")
            async for line in answer.content:
                if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
                    yield orjson.loads(line[5:])
