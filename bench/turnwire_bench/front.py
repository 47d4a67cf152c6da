"""A pass-through that ends TLS: a process in front of a server that has none itself."""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final

from turnwire_bench.loops import run
from turnwire_bench.processes import say
from turnwire_bench.standard_input import standard_input_closed

__all__ = ["main", "server_context"]

_HOST: Final = "127.0.0.1"
_CHUNK: Final = 1 << 18


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return what a server offers: both protocols of the project, and no session to resume.

    Without tickets every connection is a whole handshake, as that of a client without a pool.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one side ends."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _serve(port: int, context: ssl.SSLContext) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward = await asyncio.open_connection(_HOST, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass(reader, onward[1]), _pass(onward[0], writer))

    server = await asyncio.start_server(connected, _HOST, 0, ssl=context, backlog=1024)
    async with server:
        say({"pid": os.getpid(), "port": server.sockets[0].getsockname()[1]})
        await standard_input_closed()


def main() -> None:
    """Pass on until the standard input closes."""
    parser = argparse.ArgumentParser(prog="turnwire_bench.front", description=__doc__)
    parser.add_argument("--to", type=int, required=True, metavar="PORT")
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    options = parser.parse_args()
    run(_serve(options.to, server_context(options.certificate, options.key)))


if __name__ == "__main__":
    main()
