"""Server processes whose every file is in one folder."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from harness.peers import GrpcPeer, HttpPeer, Peer, WebSocketPeer, Wire

__all__ = ["ServerProcess", "server_process"]

_START_S = 60  # An interpreter and the vocabulary; the machine may be busy.


class ServerProcess:
    """A server that is ready."""

    def __init__(self, process: Process, ready: dict[str, Any], exits: AsyncExitStack) -> None:
        """Know a process by what it said when it was ready; `exits` closes the peers."""
        self.process = process
        self.ready = ready
        self._exits = exits

    async def connect(self, wire: Wire) -> Peer:
        """Return a new peer."""
        peer: Peer
        match wire:
            case "grpc":
                peer = GrpcPeer(self.ready["grpc"].removeprefix("grpc://"))
            case "websocket":
                peer = WebSocketPeer(self.ready["websocket"])
            case _:
                peer = HttpPeer(self.ready["http"])
        self._exits.push_async_callback(peer.close)
        await peer.open()
        return peer

    async def kill(self) -> bytes:
        """Kill it at once, and return what it still had to say on its standard output."""
        assert self.process.stdout is not None
        if self.process.returncode is None:
            self.process.kill()
        async with asyncio.timeout(20):
            rest = await self.process.stdout.read()
            await self.process.wait()
        return rest


@asynccontextmanager
async def server_process(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[ServerProcess]:
    """Run `turnwire serve --engine sim` until the end of the context, which kills it.

    Args:
        folder: Where its directories for data, temporary files and all others are, its standard
            error (`stderr`), and the place that it is started from.
        *arguments: More of the command line.
        environment: More of the environment.
    """
    names = {
        "HOME": "home",
        "TMPDIR": "temporary",
        "XDG_CACHE_HOME": "cache",
        "XDG_CONFIG_HOME": "config",
        "XDG_DATA_HOME": "data",
        "XDG_STATE_HOME": "state",
    }
    paths = {name: folder / path for name, path in names.items()}
    for path in paths.values():
        path.mkdir(exist_ok=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith("TURNWIRE_")}
    with (folder / "stderr").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "turnwire", "serve", "--engine", "sim"),
            *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *arguments),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=log,
            cwd=folder,
            env={**own, **{name: str(path) for name, path in paths.items()}, **(environment or {})},
        )
    assert process.stdout is not None
    async with AsyncExitStack() as exits:
        try:
            async with asyncio.timeout(_START_S):
                line = await process.stdout.readline()
            assert line, (folder / "stderr").read_text(errors="replace")[-2000:]
            server = ServerProcess(process, json.loads(line), exits)
            exits.push_async_callback(server.kill)
            yield server
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
