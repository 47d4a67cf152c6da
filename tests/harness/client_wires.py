"""Servers that follow a script, for tests of the client: in memory, gRPC, WebSocket, HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from aiohttp import WSMsgType, web

from turnwire import _codec
from turnwire._event import Event
from turnwire._reading import EventReader
from turnwire._session import Session
from turnwire._wire import Arrival, UnaryCalls, WireName, WireSettings
from turnwire.errors import ConnectionLost, TurnwireError
from turnwire.v1 import session_pb2_grpc
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.server_event_pb2 import ServerEvent, ServerFrame

__all__ = [
    "MemoryWire",
    "Script",
    "memory_session",
    "scripted_grpc",
    "scripted_http",
    "scripted_websocket",
]

Script = Callable[[ClientEvent], Iterable[ServerEvent]]
"""What a server answers to each client event, at once."""


class MemoryWire:
    """A wire without a wire: the test is the server."""

    persistent = True

    def __init__(self, script: Script | None = None, *, name: WireName = "grpc") -> None:
        self.name: WireName = name
        self.sent: list[ClientEvent] = []
        self.aborted = False
        self.closed = False
        self.pings = 0
        self.is_alive = True
        self.is_stuck = False
        self.script = script
        self._inbox: asyncio.Queue[Arrival | TurnwireError] = asyncio.Queue()
        self._someone_sent = asyncio.Event()
        self._reader = EventReader()

    @property
    def unary(self) -> UnaryCalls:
        """There are none."""
        raise AssertionError("this wire has no unary calls")

    @property
    def unary_bytes(self) -> tuple[int, int]:
        """None were made."""
        return (0, 0)

    async def send(self, event: ClientEvent) -> int:
        """Keep the event, and answer it by the script; never return when the wire is stuck."""
        if self.is_stuck:
            await asyncio.Event().wait()
        self.sent.append(event)
        self._someone_sent.set()
        if self.script is not None:
            self.push(*self.script(event))
        return event.ByteSize()

    async def receive(self) -> Sequence[Arrival]:
        """Wait for what the test pushes."""
        arrival = await self._inbox.get()
        if isinstance(arrival, TurnwireError):
            raise arrival
        return [arrival]

    async def ping(self) -> None:
        """Answer as the test says: at once, or never."""
        self.pings += 1
        if not self.is_alive:
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Note it."""
        self.closed = True
        self._inbox.put_nowait(ConnectionLost("closed"))

    async def abort(self) -> None:
        """Note it."""
        self.aborted = True

    # The test's side.

    def push(self, *events: ServerEvent) -> None:
        """Let events arrive."""
        for event in events:
            self._inbox.put_nowait(Event(event, event.ByteSize()))

    def push_text(self, *events: ServerEvent) -> None:
        """Let events arrive as JSON, of which they are made when somebody needs them."""
        for event in events:
            text = _codec.dumps(event).decode()
            self._inbox.put_nowait(self._reader.read(text, len(text)))

    def lose(self, error: TurnwireError) -> None:
        """End the connection."""
        self._inbox.put_nowait(error)

    async def sent_count(self, count: int) -> None:
        """Wait until the client has sent so many events."""
        while len(self.sent) < count:
            self._someone_sent.clear()
            await self._someone_sent.wait()


@asynccontextmanager
async def memory_session(
    wire: MemoryWire,
    *,
    silence_timeout_s: float = 5.0,
    close_timeout_s: float = 1.0,
    max_buffered_events: int = 16_384,
    on_notice: Callable[..., None] | None = None,
) -> AsyncIterator[Session]:
    """Open a session over `wire` with the model `m`."""
    settings = WireSettings(silence_timeout_s=silence_timeout_s, close_timeout_s=close_timeout_s)
    session = Session(
        wire, settings, model="m", max_buffered_events=max_buffered_events, on_notice=on_notice
    )
    try:
        yield session
    finally:
        await session.close()


class _ScriptedServicer(session_pb2_grpc.SessionServiceServicer):
    """Answers each event with one frame per two events."""

    def __init__(self, script: Script, log: list[str]) -> None:
        self._script = script
        self._log = log

    async def Connect(self, request_iterator, context):  # type: ignore[no-untyped-def]
        """Follow the script until the client half-closes."""
        self._log.append(dict(context.invocation_metadata()).get("authorization", ""))
        async for event in request_iterator:
            answers = list(self._script(event))
            for start in range(0, len(answers), 2):
                yield ServerFrame(events=answers[start : start + 2])
        self._log.append("half-closed")


@asynccontextmanager
async def scripted_grpc(
    script: Script, *, servicers: Iterable[Callable[[grpc.aio.Server], None]] = ()
) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve `script`; yields the URL and a log: the key of each stream, and its half-close."""
    log: list[str] = []
    server = grpc.aio.server()
    session_pb2_grpc.add_SessionServiceServicer_to_server(_ScriptedServicer(script, log), server)
    for add in servicers:
        add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}", log
    finally:
        await server.stop(None)


@asynccontextmanager
async def scripted_websocket(
    script: Script, *, key: str | None = None, routes: Iterable[web.RouteDef] = ()
) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve `script` at /v1/responses; yields the URL and a log: how each socket was closed."""
    log: list[str] = []

    async def upgrade(request: web.Request) -> web.WebSocketResponse:
        if key is not None and request.headers.get("authorization") != f"Bearer {key}":
            raise web.HTTPUnauthorized()
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        async for message in socket:
            assert message.type is WSMsgType.TEXT
            for event in script(_codec.loads(ClientEvent, message.data)):
                await socket.send_str(_codec.dumps(event).decode())
        log.append(f"closed {socket.close_code}")
        return socket

    async with _serving([web.get("/v1/responses", upgrade), *routes]) as authority:
        yield f"ws://{authority}", log


@asynccontextmanager
async def scripted_http(
    script: Script, *, key: str | None = None, routes: Iterable[web.RouteDef] = ()
) -> AsyncIterator[tuple[str, list[ResponseCreate]]]:
    """Serve `script` as SSE; yields the URL and a log of the creates."""
    log: list[ResponseCreate] = []

    async def create(request: web.Request) -> web.StreamResponse:
        if key is not None and request.headers.get("authorization") != f"Bearer {key}":
            error = {"code": "invalid_api_key", "message": "Wrong key.", "param": None}
            return web.json_response({"error": error}, status=401)
        body = _codec.loads(ResponseCreate, await request.read())
        log.append(body)
        events = list(script(ClientEvent(response_create=body)))
        if events[0].WhichOneof("event") == "error":
            error = {"code": events[0].error.error.code, "message": "No.", "param": "input"}
            return web.json_response({"error": error}, status=events[0].error.status)
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for event in events:
            data = _codec.dumps(event).decode()
            await answer.write(f"event: x\r\ndata: {data}\r\n\r\n: comment\n".encode())
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async with _serving([web.post("/v1/responses", create), *routes]) as authority:
        yield f"http://{authority}", log


@asynccontextmanager
async def _serving(routes: Iterable[web.RouteDef]) -> AsyncIterator[str]:
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()
