"""A server in a process of its own, for the demo and for the benchmark."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final

from turnwire_server.cli.failure import CommandFailure

__all__ = ["ChildServer", "child_server"]

_READY_S: Final = 120.0
_STOP_S: Final = 20.0
_SHOWN_LOG: Final = 4_000
"""Characters of the server's last words that are shown when it cannot start."""


@dataclass(frozen=True, slots=True)
class ChildServer:
    """A server that is ready."""

    http_url: str
    websocket_url: str
    grpc_url: str
    model: str
    """Name of its first model."""
    pid: int


@contextlib.contextmanager
def child_server(arguments: Sequence[str]) -> Iterator[ChildServer]:
    """Run `turnwire serve` on free ports of 127.0.0.1 until the block is left.

    The child stops when its standard input closes, so it does not outlive this process, however
    this process ends.

    Args:
        arguments: More arguments of `turnwire serve`.

    Raises:
        CommandFailure: It did not become ready; with its last words.
    """
    command = [
        *(sys.executable, "-m", "turnwire", "serve"),
        *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--until-stdin-closes"),
        *arguments,
    ]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            yield _ready(process, log)
        finally:
            _stop(process)


def _ready(process: subprocess.Popen[str], log: IO[str]) -> ChildServer:
    """Wait for the line that says that it is ready."""
    assert process.stdout is not None
    # A thread's timer, because reading a pipe has no bound of its own.
    timer = threading.Timer(_READY_S, process.kill)
    timer.start()
    try:
        line = process.stdout.readline()
    finally:
        timer.cancel()
    if not line:
        process.wait()
        log.seek(0)
        words = log.read()[-_SHOWN_LOG:].strip()
        raise CommandFailure(f"The server did not start (exit code {process.returncode}).\n{words}")
    said = json.loads(line)
    return ChildServer(
        http_url=said["http"],
        websocket_url=said["websocket"],
        grpc_url=said["grpc"],
        model=said["models"][0],
        pid=said["pid"],
    )


def _stop(process: subprocess.Popen[str]) -> None:
    """Stop the child in order, and at the latest after a bound by force."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    for step in (process.terminate, process.kill):
        try:
            process.wait(_STOP_S)
            break
        except subprocess.TimeoutExpired:
            step()
    process.wait()
    process.stdout.close()
