"""The Codex CLI as its users run it: single commands, and its app server as editors drive it."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.compat import Client, Target, clean_environment, run

__all__ = ["AppServer", "Codex", "Outcome"]

KEY = "TURNWIRE_COMPAT_KEY"
CONFIG = """\
model = {model}
model_provider = "compat"
check_for_update_on_startup = false

[analytics]
enabled = false

[feedback]
enabled = false

[model_providers.compat]
name = {provider}
base_url = {base_url}
wire_api = "responses"
env_key = "{key}"
supports_websockets = {websockets}
request_max_retries = 1
stream_max_retries = 1
stream_idle_timeout_ms = 60000
"""
# A slug that it has no data on is worth a remark to it, not a failure.
_HARMLESS = "Model metadata"


class Outcome:
    """What one `codex exec` reported."""

    def __init__(self, printed: str) -> None:
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        self._events: list[dict[str, Any]] = [json.loads(line) for line in lines]

    @property
    def thread_id(self) -> str:
        """The conversation, to be resumed."""
        return str(next(self._of("thread.started"))["thread_id"])

    @property
    def answer(self) -> str:
        """The last thing that the agent said."""
        said = [item["text"] for item in self.items("agent_message")]
        return said[-1] if said else ""

    @property
    def is_completed(self) -> bool:
        """Whether the turn came to its end."""
        return any(self._of("turn.completed"))

    @property
    def errors(self) -> list[str]:
        """Everything that went wrong on the way, retries and fallbacks included."""
        messages = [event["message"] for event in self._of("error")]
        messages += [item["message"] for item in self.items("error")]
        return [message for message in messages if not message.startswith(_HARMLESS)]

    def items(self, kind: str) -> list[dict[str, Any]]:
        """Return the completed items of a kind."""
        items = [event["item"] for event in self._of("item.completed")]
        return [item for item in items if item["type"] == kind]

    def _of(self, kind: str) -> Any:
        return (event for event in self._events if event.get("type") == kind)


class Codex:
    """One home directory and one repository."""

    def __init__(
        self,
        client: Client,
        target: Target,
        directory: Path,
        *,
        model: str,
        websockets: bool,
        provider: str = "compat",
    ) -> None:
        """Write the configuration and a repository below `directory`.

        Args:
            client: From the cache.
            target: The server.
            directory: An empty directory.
            model: The slug, which decides how it asks.
            websockets: Whether the provider has WebSockets.
            provider: Name of the provider; `OpenAI` switches on compaction by the server.
        """
        self.binary = client.directory / "node_modules/.bin/codex"
        self.home, self.repository = directory / "home", directory / "repository"
        self.home.mkdir()
        self.repository.mkdir()
        config = CONFIG.format(
            model=json.dumps(model),
            provider=json.dumps(provider),
            base_url=json.dumps(target.base_url),
            key=KEY,
            websockets=str(websockets).lower(),
        )
        (self.home / "config.toml").write_text(config)
        (self.repository / "notes.txt").write_text("hello\n")
        subprocess.run(["git", "init", "--quiet", self.repository], check=True)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that it is run with."""
        return {"CODEX_HOME": str(self.home), KEY: "sk-local-test"}

    def exec(self, prompt: str) -> Outcome:
        """Run one turn in a new conversation."""
        command = [self.binary, "exec", "--json", "--sandbox", "read-only", prompt]
        return Outcome(run(command, directory=self.repository, **self.environment))

    def resume(self, thread_id: str, prompt: str) -> Outcome:
        """Run one more turn, in a new process."""
        command = [self.binary, "exec", "resume", "--json", thread_id, prompt]
        return Outcome(run(command, directory=self.repository, **self.environment))


class AppServer:
    """JSON-RPC with `codex app-server` over its standard streams."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self.seen: list[dict[str, Any]] = []
        """All notifications so far."""

    @classmethod
    @asynccontextmanager
    async def running(cls, codex: Codex) -> AsyncIterator[AppServer]:
        """Start it and say hello; it ends with its input."""
        process = await asyncio.create_subprocess_exec(
            str(codex.binary),
            "app-server",
            cwd=codex.repository,
            env={**clean_environment(), **codex.environment},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=2**24,
        )
        server = cls(process)
        try:
            await server.call("initialize", {"clientInfo": {"name": "turnwire", "version": "0"}})
            await server._send({"method": "initialized"})
            yield server
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 20)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a call.

        Raises:
            AssertionError: It was refused.
        """
        number = next(self._numbers)
        await self._send({"id": number, "method": method, "params": parameters})
        answer = await self._until(
            lambda message: message.get("id") == number and "method" not in message
        )
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def notification(
        self, method: str, matches: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> dict[str, Any]:
        """Wait for the next notification of a method and return its parameters."""
        found = await self._until(
            lambda message: message.get("method") == method and matches(message["params"])
        )
        parameters: dict[str, Any] = found["params"]
        return parameters

    async def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def _until(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(90):
            while line := await self._process.stdout.readline():
                message: dict[str, Any] = json.loads(line)
                if "method" in message:
                    self.seen.append(message)
                if matches(message):
                    return message
        raise AssertionError("the app server ended")
