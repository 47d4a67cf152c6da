"""The yardstick: a server that sends messages of given sizes at a given pace, and knows no more.

The same over grpc.aio and over a WebSocket. A stream begins with plans, one for each turn:
`{"plans": [[[seconds, size], …], …]}`, answered by one message. Then each request `{"turn": n}`,
as long as the real one by a member `pad`, is answered by the messages of plan n: each is written
by itself, when its time has come.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
import orjson
from aiohttp import WSMsgType, web

from turnwire_bench.loops import run
from turnwire_bench.processes import say
from turnwire_bench.standard_input import standard_input_closed

__all__ = ["ECHO_METHOD", "ECHO_PATH", "main", "plans_message", "turn_message"]

_HOST: Final = "127.0.0.1"
_SERVICE: Final = "turnwire.bench.Echo"
ECHO_METHOD: Final = f"/{_SERVICE}/Connect"
"""Path of the gRPC method."""
ECHO_PATH: Final = "/echo"
"""Path of the WebSocket."""
_READY: Final = b"{}"

Plan = Sequence[tuple[float, bytes]]
"""When each message is due, in seconds after the request, and the message."""

Write = Callable[[bytes], Awaitable[object]]


def plans_message(turns: Sequence[Sequence[tuple[float, int]]]) -> bytes:
    """Return the message that a stream begins with.

    Args:
        turns: For each turn when its messages are due, in seconds, and how long they are.
    """
    return orjson.dumps({"plans": turns})


def turn_message(number: int, size: int) -> bytes:
    """Return the request of a turn, about `size` bytes long."""
    return orjson.dumps({"turn": number, "pad": "x" * max(0, size - 20)})


class Player:
    """One stream's plans."""

    def __init__(self) -> None:
        self._plans: list[Plan] = []

    async def answer(self, request: bytes | str, write: Write) -> None:
        """Answer one request."""
        began = time.perf_counter()
        value: dict[str, Any] = orjson.loads(request)
        if "plans" in value:
            # Printable, since a WebSocket's text is checked on both sides.
            self._plans = [[(due, b"x" * size) for due, size in plan] for plan in value["plans"]]
            await write(_READY)
            return
        for due, message in self._plans[value["turn"] % len(self._plans)]:
            wait = began + due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            await write(message)


async def _connect(requests: AsyncIterator[bytes], context: Any) -> None:
    player = Player()
    async for request in requests:
        await player.answer(request, context.write)


async def _socket(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(compress=False, max_msg_size=0)
    await socket.prepare(request)
    player = Player()

    async def write(data: bytes) -> None:
        await socket.send_frame(data, WSMsgType.TEXT)

    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await player.answer(message.data, write)
    return socket


def grpc_server() -> tuple[grpc.aio.Server, int]:
    """Return the gRPC server, not started, and its port; nothing is set but what it must bear."""
    # Without these a default server refuses many of 5,000 simultaneous opens.
    bounds = [("grpc.server.max_pending_requests", 65_536)]
    bounds.append(("grpc.server.max_pending_requests_hard_limit", 65_536))
    server = grpc.aio.server(options=[*bounds, ("grpc.max_receive_message_length", 64 << 20)])
    # Without serializers messages are bytes: what a codec costs is no part of the yardstick.
    handler: Any = grpc.stream_stream_rpc_method_handler(_connect)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(_SERVICE, {"Connect": handler})]
    )
    return server, server.add_insecure_port(f"{_HOST}:0")


async def _serve() -> None:
    server, grpc_port = grpc_server()
    await server.start()
    app = web.Application()
    app.router.add_get(ECHO_PATH, _socket)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, _HOST, 0, backlog=4096).start()
    say({"pid": os.getpid(), "grpc_port": grpc_port, "http_port": runner.addresses[0][1]})
    await standard_input_closed()
    await runner.cleanup()
    await server.stop(1.0)


def main() -> None:
    """Serve until the standard input closes."""
    run(_serve())


if __name__ == "__main__":
    main()
