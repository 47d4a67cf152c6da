"""A receiver of usage records that takes its time: after work that is slow.

A turn must not notice it. The row beside the ordinary one shows whether it does.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from aiohttp import web

from turnwire_bench.loops import run
from turnwire_bench.processes import say
from turnwire_bench.standard_input import standard_input_closed

__all__ = ["main", "make_app"]

_HOST: Final = "127.0.0.1"
_ANSWER_S: Final = 0.5
"""How long a record takes to be received."""


def make_app(seconds: float) -> web.Application:
    """Return an application that answers every post after some time."""

    async def receive(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(seconds)
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/{path:.*}", receive)
    return app


async def _serve() -> None:
    runner = web.AppRunner(make_app(_ANSWER_S), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, _HOST, 0).start()
    say({"pid": os.getpid(), "port": runner.addresses[0][1]})
    await standard_input_closed()
    await runner.cleanup()


def main() -> None:
    """Serve until the standard input closes."""
    run(_serve())


if __name__ == "__main__":
    main()
