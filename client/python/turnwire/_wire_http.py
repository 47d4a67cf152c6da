"""The HTTP wire: each turn is an exchange of its own, streamed as server-sent events."""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
from collections import OrderedDict, deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress

import aiohttp

from turnwire import _codec
from turnwire._event import Event
from turnwire._http_calls import HttpCalls, client_error, open_client
from turnwire._rejections import error_body, rejection_from_body
from turnwire._sse import SseParser
from turnwire._wire import Arrival, Broken, Target, WireName, WireSettings
from turnwire.errors import ConnectionLost, ProtocolViolation, TurnwireError
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.error_pb2 import ErrorBody
from turnwire.v1.server_event_pb2 import ServerEvent, SessionError

__all__ = ["HttpWire", "open_http"]

_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}
_KEY = "idempotency-key"
_REPLAYED = "idempotent-replayed"
_CANCELLED = "request_cancelled"
_DONE = b"[DONE]"
_TERMINAL = frozenset({"response_completed", "response_incomplete", "response_failed"})
_MAX_INBOX = 1024
_MAX_KEYS = 1024
"""Keys of turns that are not known to be over; each is small."""
_BEGIN_S = 2.0
"""How long a cancel waits for the id of the response that it is to end."""


async def open_http(target: Target, settings: WireSettings, *, is_keyed: bool) -> HttpWire:
    """Prepare a client; nothing is sent before the first turn.

    Args:
        target: The server.
        settings: What all wires are told.
        is_keyed: Whether creates have an idempotency key: a server that knows it lets a turn go on
            for a while when its connection breaks, and runs a create that comes again once.
    """
    return HttpWire(open_client(settings), target, settings, is_keyed=is_keyed)


class _Exchange:
    """One create on its way."""

    def __init__(self, event: ClientEvent) -> None:
        self.event_id = event.event_id
        self.stream_id = event.stream_id if event.HasField("stream_id") else None
        self.body = _streaming_body(event.response_create)
        create = event.response_create
        self.may_be_stored = create.store or not create.HasField("store")
        self.key: str | None = None
        """Idempotency key."""
        self.is_again = False
        """Whether the key was sent before: its turn may run."""
        self.response_id: str | None = None
        self.is_named = asyncio.Event()
        """Set when `response_id` is there, or will never be."""
        self.task: asyncio.Task[None] | None = None
        """None while it waits for its lane."""


class HttpWire:
    """What stands for a connection over HTTP.

    The server knows no lanes here, so this keeps their order: one exchange at a time on each.
    """

    name: WireName = "http"
    persistent = False

    def __init__(
        self,
        client: aiohttp.ClientSession,
        target: Target,
        settings: WireSettings,
        *,
        is_keyed: bool,
    ) -> None:
        self._client = client
        self._target = target
        self._timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=settings.connect_timeout_s,
            sock_read=settings.silence_timeout_s,
        )
        self.unary = HttpCalls(client, target, settings.unary_timeout_s)
        self._is_keyed = is_keyed
        self._keys: OrderedDict[str, tuple[bytes, str]] = OrderedDict()
        """Create's `event_id` -> digest of its body, and key; of turns not known to be over."""
        self._lanes: dict[str | None, deque[_Exchange]] = {}
        # Bounded, so that a user who does not read stops the exchanges' reading.
        self._inbox: asyncio.Queue[Arrival] = asyncio.Queue(_MAX_INBOX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: dict[str, str] = {}
        """Create's `event_id` -> response, of exchanges that broke: it may still run."""
        self._is_closing = False

    @property
    def unary_bytes(self) -> tuple[int, int]:
        """Payload bytes of `unary` so far, up and down."""
        return self.unary.bytes_up, self.unary.bytes_down

    async def send(self, event: ClientEvent) -> int:
        """Queue a create on its lane, or cancel one."""
        match event.WhichOneof("event"):
            case "response_create":
                exchange = _Exchange(event)
                if self._is_keyed:
                    exchange.key = self._key_of(exchange)
                    self._broken.pop(exchange.event_id, None)
                lane = self._lanes.setdefault(exchange.stream_id, deque())
                lane.append(exchange)
                if len(lane) == 1:
                    self._begin(exchange)
                return len(exchange.body)
            case "response_cancel":
                self._own(self._cancel(event))
                return 0
            case other:
                raise ValueError(f"{other} has no form over HTTP")

    async def receive(self) -> Sequence[Arrival]:
        """Wait for what any exchange brings."""
        arrivals = [await self._inbox.get()]
        while not self._inbox.empty():
            arrivals.append(self._inbox.get_nowait())
        return arrivals

    async def ping(self) -> None:
        """Nothing to ask: each exchange finds out by itself."""

    async def close(self) -> None:
        """End the turns that run: with their keys they would go on for a while, for nobody."""
        self._is_closing = True  # what waits behind them on its lane must not begin now
        running = [exchange for lane in self._lanes.values() for exchange in lane if exchange.task]
        ends: list[Coroutine[None, None, object]] = [
            self._end(exchange) for exchange in running if exchange.key is not None
        ]
        ends += map(self.unary.cancel, self._broken.values())
        await asyncio.gather(*ends, return_exceptions=True)

    async def abort(self) -> None:
        """Break off all exchanges, which cancels the turns of those without a key, and close."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    # Private.

    async def _end(self, exchange: _Exchange) -> None:
        """End a turn of which it may not be known yet which response it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_BEGIN_S):
                await exchange.is_named.wait()
        if exchange.response_id is not None:
            await self.unary.cancel(exchange.response_id)

    def _own(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _begin(self, exchange: _Exchange) -> None:
        exchange.task = self._own(self._run(exchange))

    def _next(self, exchange: _Exchange) -> None:
        lane = self._lanes[exchange.stream_id]
        lane.remove(exchange)
        if not lane:
            del self._lanes[exchange.stream_id]
        elif lane[0].task is None and not self._is_closing:
            self._begin(lane[0])

    async def _run(self, exchange: _Exchange) -> None:
        try:
            await self._exchange(exchange)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            await self._fail(exchange, client_error(error, self._target.authority))
        except TurnwireError as error:
            await self._fail(exchange, error)
        finally:
            exchange.is_named.set()
            self._next(exchange)

    def _key_of(self, exchange: _Exchange) -> str:
        """Return the key of a create: the one that it had, if it comes again as it was."""
        digest = hashlib.sha256(exchange.body).digest()
        known = self._keys.get(exchange.event_id)
        if known is not None and known[0] == digest:
            exchange.is_again = True
            return known[1]
        key = secrets.token_hex(16)
        self._keys[exchange.event_id] = digest, key
        if len(self._keys) > _MAX_KEYS:
            self._keys.popitem(last=False)
        return key

    async def _exchange(self, exchange: _Exchange) -> None:
        async with self._client.post(
            f"{self._target.http_base}/responses",
            data=io.BytesIO(exchange.body),  # aiohttp warns of large bytes
            headers=_HEADERS if exchange.key is None else {**_HEADERS, _KEY: exchange.key},
            timeout=self._timeout,
        ) as answer:
            if answer.status >= 400:
                data = await answer.read()
                body = error_body(answer.status, data, answer.headers)
                refused = rejection_from_body(answer.status, body)
                if exchange.is_again and refused.retryable:
                    # Not a word about the turn, which may run: it is asked for again.
                    raise ConnectionLost(f"the turn cannot be asked for again now: {refused}")
                self._keys.pop(exchange.event_id, None)
                if exchange.key is not None and body.code == _CANCELLED:
                    raise ConnectionLost(
                        "the server gave the turn up before it was asked for again"
                    )
                await self._refuse(exchange, answer.status, body, len(data))
                return
            is_again = answer.headers.get(_REPLAYED) == "true"
            await self._stream(exchange, answer.content, is_again=is_again)

    async def _stream(
        self, exchange: _Exchange, content: aiohttp.StreamReader, *, is_again: bool
    ) -> None:
        parser = SseParser()
        is_over = False
        # A server may announce `response.failed` by an `error` that is not the end.
        error: Arrival | None = None
        async for chunk in content.iter_any():
            for data, size in parser.feed(chunk):
                event = None if data == _DONE or is_over else _decode(data)
                arm = None if event is None else event.WhichOneof("event")
                arrival = self._arrival(exchange, event, size)
                if arm == "error":
                    error = arrival
                    continue
                if arm in _TERMINAL:
                    is_over = True
                    self._keys.pop(exchange.event_id, None)
                    if is_again and arm == "response_failed":
                        # Maybe only because its server went: not for this wire to say.
                        raise ConnectionLost("the turn failed while nobody followed it")
                await self._inbox.put(arrival)
        await self._inbox.put(Event(ServerEvent(), parser.unread, exchange.event_id))
        if is_over:
            return
        if error is None:
            raise ConnectionLost("the answer ended before the turn did")
        await self._inbox.put(error)

    def _arrival(self, exchange: _Exchange, event: ServerEvent | None, size: int) -> Arrival:
        if event is None:  # Bytes that are no event of this version.
            return Event(ServerEvent(), size, exchange.event_id)
        if exchange.stream_id is not None:
            event.stream_id = exchange.stream_id
        if event.WhichOneof("event") == "response_created":
            exchange.response_id = event.response_created.response.id
            exchange.is_named.set()
        return Event(event, size, exchange.event_id)

    async def _refuse(
        self, exchange: _Exchange, status: int, body: ErrorBody, size: int = 0
    ) -> None:
        event = ServerEvent(
            stream_id=exchange.stream_id,
            event_id=exchange.event_id,
            error=SessionError(status=status, error=body),
        )
        await self._inbox.put(Event(event, size, exchange.event_id))

    async def _fail(self, exchange: _Exchange, error: TurnwireError) -> None:
        if exchange.key is not None and exchange.response_id is not None:
            self._broken[exchange.event_id] = exchange.response_id
            if len(self._broken) > _MAX_KEYS:
                del self._broken[next(iter(self._broken))]
        if exchange.response_id is not None and exchange.may_be_stored:
            # Whoever sends it again has looked it up before, and wants another response.
            self._keys.pop(exchange.event_id, None)
        await self._inbox.put(Broken(exchange.event_id, error))

    async def _cancel(self, event: ClientEvent) -> None:
        exchange = self._find(event)
        if exchange is None:
            return
        if exchange.key is not None and exchange.task is not None:
            # Leaving would not end it.
            with suppress(TimeoutError):
                async with asyncio.timeout(_BEGIN_S):
                    await exchange.is_named.wait()
            if exchange.task.done():
                return
        if exchange.response_id is not None:
            try:
                await self.unary.cancel(exchange.response_id)
                return  # The stream now ends with `response.incomplete`.
            except TurnwireError:
                pass  # It is not stored, or the call is not there: leaving ends the turn, too.
        if exchange.task is None:
            self._next(exchange)
        elif not exchange.task.done():
            exchange.task.cancel()
            await asyncio.gather(exchange.task, return_exceptions=True)
        body = ErrorBody(
            type="invalid_request_error",
            code=_CANCELLED,
            message="The create was cancelled.",
        )
        await self._refuse(exchange, 400, body)

    def _find(self, event: ClientEvent) -> _Exchange | None:
        response_id = event.response_cancel.response_id
        for lane in self._lanes.values():
            for exchange in lane:
                if (response_id and exchange.response_id == response_id) or (
                    not response_id and exchange.event_id == event.event_id
                ):
                    return exchange
        return None


def _streaming_body(create: ResponseCreate) -> bytes:
    body = ResponseCreate()
    body.CopyFrom(create)
    body.stream = True
    return _codec.dumps(body)


def _decode(data: bytes) -> ServerEvent | None:
    try:
        return _codec.loads(ServerEvent, data)
    except _codec.DecodeError as error:
        if error.kind == "value" and error.path == "type":
            return None  # A type of a later version.
        raise ProtocolViolation(f"an event is malformed at {error.path!r}") from None
