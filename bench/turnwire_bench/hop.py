"""A pass-through service of HTTP: reads a whole request, sends it on, streams the answer back.

What a gateway does at least; one that also authenticates, counts or rewrites takes longer.
"""

from __future__ import annotations

import argparse
import io
import os
from typing import Final

import aiohttp
from aiohttp import web

from turnwire_bench.loops import run
from turnwire_bench.processes import say
from turnwire_bench.standard_input import standard_input_closed

__all__ = ["main", "make_app"]

_HOST: Final = "127.0.0.1"
_MAX_BYTES: Final = 64 << 20
_OWN: Final = frozenset({"host", "connection", "transfer-encoding", "content-length"})
"""Headers that are of one connection, not of the exchange."""


def make_app(port: int) -> web.Application:
    """Return an application that sends everything on to `port` of this machine."""
    clients: list[aiohttp.ClientSession] = []

    async def forward(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = [(name, value) for name, value in request.headers.items() if _is_shared(name)]
        async with clients[0].request(
            request.method,
            f"http://{_HOST}:{port}{request.raw_path}",
            headers=headers,
            data=io.BytesIO(body) if body else None,
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if _is_shared(name):
                    response.headers.add(name, value)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    async def started(_: web.Application) -> None:
        clients.append(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
        )

    async def stopped(_: web.Application) -> None:
        await clients.pop().close()

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(client_max_size=_MAX_BYTES)
    # Gateways wait for their upstream under this path, which is not in the API.
    app.router.add_get("/health", healthy)
    app.router.add_route("*", "/{path:.*}", forward)
    app.on_startup.append(started)
    app.on_cleanup.append(stopped)
    return app


def _is_shared(name: str) -> bool:
    return name.lower() not in _OWN


async def _serve(to: int, port: int) -> None:
    runner = web.AppRunner(make_app(to), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, _HOST, port).start()
    say({"pid": os.getpid(), "port": runner.addresses[0][1]})
    await standard_input_closed()
    await runner.cleanup()


def main() -> None:
    """Serve until the standard input closes."""
    parser = argparse.ArgumentParser(prog="turnwire_bench.hop", description=__doc__)
    parser.add_argument("--to", type=int, required=True, metavar="PORT")
    parser.add_argument(
        "--port", type=int, default=0, metavar="PORT", help="a free one if left out"
    )
    options = parser.parse_args()
    run(_serve(options.to, options.port))


if __name__ == "__main__":
    main()
