"""The benchmark's processes: each says in one line of JSON that it is ready, then answers lines.

A process stops when its standard input closes, so it does not outlive the one that started it,
however that one ends.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

import orjson

from turnwire_bench.failure import BenchFailure
from turnwire_server.config.environment import process_environment

__all__ = ["Child", "child", "say"]

_READY_S: Final = 120.0
_STOP_S: Final = 30.0
_SHOWN_LOG: Final = 4_000
"""Characters of a process's last words that are shown when it fails."""


class Child:
    """A process of the benchmark that is ready."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes], name: str) -> None:
        self._process = process
        self._log = log
        self._name = name
        self.pid = process.pid
        self.ready: dict[str, Any] = self._read(_READY_S)
        """What it said when it was."""

    def ask(self, question: Mapping[str, object], *, timeout_s: float = 60.0) -> dict[str, Any]:
        """Send one line and return the line that answers it.

        Raises:
            BenchFailure: It ended, took longer, or answered with a member `failure`.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(orjson.dumps(question) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchFailure(self._last_words()) from None
        answer = self._read(timeout_s)
        if "failure" in answer:
            raise BenchFailure(f"{self._name}: {answer['failure']}")
        return answer

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        # A thread's timer, because reading a pipe has no bound of its own.
        timer = threading.Timer(timeout_s, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise BenchFailure(self._last_words())
        answer: dict[str, Any] = orjson.loads(line)
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        words = self._log.read()[-_SHOWN_LOG:].decode("utf-8", "replace").strip()
        return f"The process {self._name!r} ended (exit code {code}).\n{words}".strip()


@contextlib.contextmanager
def child(
    module: str, arguments: Sequence[str] = (), *, environment: Mapping[str, str] | None = None
) -> Iterator[Child]:
    """Run `python -m module` until the block is left.

    Args:
        module: What to run.
        arguments: Its arguments.
        environment: Variables beside those of this process.

    Raises:
        BenchFailure: It did not become ready; with its last words.
    """
    variables = {**process_environment(), **(environment or {})}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=variables,
        )
        try:
            yield Child(process, log, module.rpartition(".")[2])
        finally:
            _stop(process)


def say(message: Mapping[str, object]) -> None:
    """Write one line to whoever started this process."""
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the child in order, and at the latest after a bound by force."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    steps: tuple[Callable[[], None], ...] = (process.terminate, process.kill)
    for step in steps:
        try:
            process.wait(_STOP_S)
            break
        except subprocess.TimeoutExpired:
            step()
    process.wait()
    process.stdout.close()
