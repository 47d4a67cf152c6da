"""A proxy between a client and a server that breaks one rule: HTTP, SSE, WebSocket and gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import grpc
import grpc.aio
from aiohttp import web

from harness.server import RunningServer
from turnwire import _codec
from turnwire.v1 import session_pb2_grpc
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ServerEvent, ServerFrame

__all__ = ["Fault", "Link", "Proxy", "faulty_proxy"]

Json = dict[str, Any]
Framing = Literal["", "binary", "content_type", "event_name", "garbage", "id_line", "no_done"]


class Link:
    """What a fault does to one connection, or to one exchange; this one does nothing."""

    renumbers = True
    """Whether `sequence_number` is counted anew, so that only the fault itself shows."""

    def server(self, event: Json) -> Iterable[Json]:
        """Return what the client gets in place of a server event."""
        return [event]

    def client(self, event: Json) -> tuple[list[Json], list[Json]]:
        """Return what the server gets in place of a client event, and immediate answers."""
        return [event], []

    def ends_after(self, event: Json) -> bool:
        """Return whether the connection is closed after a server event."""
        return False


@dataclass(frozen=True)
class Fault:
    """One thing that the proxy does wrong."""

    name: str
    caught_by: str
    """Id of the check that must fail, and no other."""
    transport: Literal["http", "sse", "websocket", "grpc"]
    link: Callable[[], Link] = Link
    framing: Framing = ""
    body: Callable[[str, str, int, Any], tuple[int, Any]] | None = None
    """From method, path, status and body of an HTTP answer to other ones."""
    content_type: str | None = None
    """Of HTTP answers that are not streamed."""
    profile: Literal["turnwire", "openresponses"] = "turnwire"


@dataclass(frozen=True)
class Proxy:
    """Where the proxy listens."""

    base_url: str
    grpc_target: str | None


class _Numbers:
    """Counts the events of each response anew, as a server that means its fault would."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._next: dict[object, int] = {}

    def changed(self, event: Json) -> list[Json]:
        """Return what the link makes of an event."""
        lane, kind = event.get("stream_id"), event["type"]
        events = [dict(each) for each in self._link.server(event)]
        if not self._link.renumbers or kind == "error":
            return events
        if kind == "response.created":
            self._next[lane] = 0
        for each in events:
            if "sequence_number" in each and lane in self._next:
                each["sequence_number"] = self._next[lane]
                self._next[lane] += 1
        return events


@asynccontextmanager
async def faulty_proxy(server: RunningServer, fault: Fault) -> AsyncIterator[Proxy]:
    """Run a proxy with a fault in front of a server; gRPC only for faults of gRPC."""
    async with AsyncExitStack() as exits:
        upstream = await exits.enter_async_context(aiohttp.ClientSession())
        handler = _HttpProxy(server, fault, upstream)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", handler.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        exits.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        target = None
        if fault.transport == "grpc":
            grpc_server = grpc.aio.server()
            servicer = _GrpcProxy(server, fault)
            session_pb2_grpc.add_SessionServiceServicer_to_server(servicer, grpc_server)
            grpc_server.add_generic_rpc_handlers((_UnaryProxy(server),))
            target = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
            await grpc_server.start()
            exits.push_async_callback(grpc_server.stop, None)
        yield Proxy(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", target)


class _HttpProxy:
    def __init__(
        self, server: RunningServer, fault: Fault, upstream: aiohttp.ClientSession
    ) -> None:
        self._origin = server.http_url.removesuffix("/v1")
        self._fault = fault
        self._upstream = upstream

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on, and its answer back with the fault in it."""
        if request.headers.get("upgrade", "").lower() == "websocket":
            return await self._socket(request)
        body = await request.read()
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() in ("authorization", "content-type", "accept", "idempotency-key")
        }
        url = self._origin + request.path_qs
        async with self._upstream.request(
            request.method, url, data=body or None, headers=headers
        ) as answer:
            if answer.content_type == "text/event-stream":
                return await self._stream(request, answer)
            return await self._whole(request, answer)

    async def _whole(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        status, data = answer.status, await answer.read()
        if self._fault.body is not None and data:
            status, value = self._fault.body(request.method, request.path, status, json.loads(data))
            data = json.dumps(value).encode()
        kind = (status == 200 and self._fault.content_type) or answer.content_type
        return web.Response(status=status, body=data, content_type=kind)

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        framing = self._fault.framing
        kind = "text/plain" if framing == "content_type" else "text/event-stream"
        response = web.StreamResponse(headers={"content-type": kind})
        await response.prepare(request)
        link = self._fault.link()
        numbers = _Numbers(link)
        for block in (await answer.read()).decode().split("\n\n"):
            data = next((line[6:] for line in block.split("\n") if line.startswith("data: ")), None)
            if data == "[DONE]":
                await response.write(b"" if framing == "no_done" else b"data: [DONE]\n\n")
            elif data is not None:
                for event in numbers.changed(json.loads(data)):
                    await response.write(_sse(event, framing))
        return response

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        offered = request.headers.get("sec-websocket-protocol", "")
        protocols = [name.strip() for name in offered.split(",") if name.strip()]
        if self._fault.name == "selects the key":
            protocols = [name for name in protocols if "key" in name]
        else:
            protocols = [name for name in protocols if "key" not in name]
        socket = web.WebSocketResponse(protocols=protocols, max_msg_size=0)
        await socket.prepare(request)
        link = self._fault.link()
        url = f"{self._origin}{request.path_qs}"
        async with self._upstream.ws_connect(url, max_msg_size=0) as inner:
            back = asyncio.create_task(self._pump_back(socket, inner, link))
            try:
                async for message in socket:
                    events, answers = _sent(link, message.data)
                    for text in events:
                        await inner.send_str(text)
                    for answer in answers:
                        await socket.send_json(answer)
            finally:
                back.cancel()
                with suppress(asyncio.CancelledError):
                    await back
        return socket

    async def _pump_back(
        self,
        socket: web.WebSocketResponse,
        inner: aiohttp.ClientWebSocketResponse[bool],
        link: Link,
    ) -> None:
        numbers = _Numbers(link)
        async for message in inner:
            event = json.loads(message.data)
            with suppress(ConnectionError):
                for changed in numbers.changed(event):
                    if self._fault.framing == "binary":
                        await socket.send_bytes(json.dumps(changed).encode())
                    else:
                        await socket.send_json(changed)
                if link.ends_after(event):
                    await socket.close(code=1011)


def _sent(link: Link, text: str) -> tuple[list[str], list[Json]]:
    """Return what a client's frame becomes; what is no object passes as it is."""
    try:
        event = json.loads(text)
    except ValueError:
        return [text], []
    if not isinstance(event, dict) or "type" not in event:
        return [text], []
    events, answers = link.client(event)
    return [json.dumps(each) for each in events], answers


def _sse(event: Json, framing: Framing) -> bytes:
    name = "message" if framing == "event_name" else event["type"]
    lines = f"event: {name}\ndata: {json.dumps(event)}\n"
    if framing == "id_line":
        lines = f"id: {event.get('sequence_number')}\n{lines}"
    if framing == "garbage" and event["type"] == "response.created":
        lines += f'\nevent: {name}\ndata: {{"no": "type"}}\n'
    return f"{lines}\n".encode()


class _UnaryProxy(grpc.GenericRpcHandler):
    """Passes unary calls on as they are."""

    def __init__(self, server: RunningServer) -> None:
        self._target = server.grpc_target

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call, None when it is not unary."""
        method = handler_call_details.method
        if not method.startswith("/turnwire.v1.ResponsesService/"):
            return None

        async def call(request: bytes, context: Any) -> bytes:
            async with grpc.aio.insecure_channel(self._target) as channel:
                try:
                    return bytes(await channel.unary_unary(method)(request))
                except grpc.aio.AioRpcError as error:
                    await context.abort(error.code(), error.details() or "")
                    raise AssertionError("abort returned") from None

        return grpc.unary_unary_rpc_method_handler(call)


class _GrpcProxy(session_pb2_grpc.SessionServiceServicer):
    def __init__(self, server: RunningServer, fault: Fault) -> None:
        self._target = server.grpc_target
        self._fault = fault

    async def Connect(self, requests: Any, context: Any) -> AsyncIterator[ServerFrame]:
        """Pass a session on with the fault in it."""
        link = self._fault.link()
        numbers = _Numbers(link)
        async with grpc.aio.insecure_channel(self._target) as channel:
            call: Any = session_pb2_grpc.SessionServiceStub(channel).Connect()
            forward = asyncio.create_task(self._forward(requests, call, link))
            try:
                while (frame := await call.read()) is not grpc.aio.EOF:
                    for event in frame.events:
                        shown = json.loads(_codec.dumps(event))
                        changed = [
                            _codec.parse(ServerEvent, each) for each in numbers.changed(shown)
                        ]
                        yield ServerFrame(events=changed)
                        if link.ends_after(shown):
                            await context.abort(grpc.StatusCode.INTERNAL, "fault")
            finally:
                forward.cancel()
                call.cancel()

    async def _forward(self, requests: Any, call: Any, link: Link) -> None:
        async for event in requests:
            for each in link.client(json.loads(_codec.dumps(event)))[0]:
                await call.write(_codec.parse(ClientEvent, each))
        await call.done_writing()
