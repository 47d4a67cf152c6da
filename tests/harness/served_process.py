"""`turnwire serve` as a process of its own, on a simulated engine and a directory of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from harness.peers import GrpcPeer, HttpPeer, Peer, WebSocketPeer, Wire

__all__ = ["ServedProcess", "served"]

START_S = 60.0
"""An interpreter and the vocabulary; the machine may be busy."""
END_S = 20.0


class ServedProcess:
    """A server that is ready."""

    def __init__(
        self, process: Process, ready: dict[str, Any], log: Path, exits: AsyncExitStack
    ) -> None:
        self._process = process
        self.ready = ready
        """What it said about itself."""
        self._log = log
        self._exits = exits

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    async def exit_code(self) -> int:
        """Wait for its end."""
        async with asyncio.timeout(END_S):
            return await self._process.wait()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.returncode is not None

    def log(self) -> str:
        """Return what it logged."""
        return self._log.read_text()

    async def logged(self, text: str, *, times: int = 1) -> None:
        """Wait until it has logged a text so often."""
        async with asyncio.timeout(END_S):
            while self.log().count(text) < times:  # noqa: ASYNC110  # a file has no events
                await asyncio.sleep(0.05)

    async def connect(
        self, wire: Wire, *, key: str | None = None, headers: dict[str, str] | None = None
    ) -> Peer:
        """Return a new peer, closed with the process."""
        headers = dict(headers or {})
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        peer: Peer
        match wire:
            case "grpc":
                target = self.ready["grpc"].removeprefix("grpc://")
                peer = GrpcPeer(target, metadata=tuple(headers.items()))
            case "websocket":
                peer = WebSocketPeer(self.ready["websocket"], headers=headers)
            case "http":
                peer = HttpPeer(self.ready["http"])
            case _:
                raise NotImplementedError(wire)
        self._exits.push_async_callback(peer.close)
        await peer.open()
        return peer

    async def get(self, path: str, *, key: str | None = None) -> tuple[int, Any]:
        """Return status and JSON of a GET below the origin."""
        origin = self.ready["http"].removesuffix("/v1")
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession() as client:
            async with client.get(origin + path, headers=headers) as answer:
                return answer.status, await answer.json()


@asynccontextmanager
async def served(
    directory: Path, config: str = '[[models]]\nengine = "sim"\n', *arguments: str
) -> AsyncIterator[ServedProcess]:
    """Run a server.

    Args:
        directory: Where its data and its configuration file, `turnwire.toml`, are; the same one
            again is the same server after a restart.
        config: The file's content.
        arguments: More options.
    """
    file = directory / "turnwire.toml"
    file.write_text(config)
    log = directory / "server.log"
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "turnwire", "serve", "--config", str(file)),
            *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *arguments),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=stream,
            env={**os.environ, "XDG_DATA_HOME": str(directory)},
        )
    assert process.stdout is not None
    try:
        async with AsyncExitStack() as exits:
            async with asyncio.timeout(START_S):
                line = await process.stdout.readline()
            assert line, log.read_text()
            yield ServedProcess(process, json.loads(line), log, exits)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
