"""The Codex CLI: every way in which it asks, over both transports, and its app server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harness.codex import AppServer, Codex
from harness.compat import Row, Target, installed, serving_process

pytestmark = pytest.mark.compat

# Tools as a list with a grammar, tools in an item, tools in namespaces.
MODELS = ("gpt-5.5", "gpt-6.2-sol", "some-model")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_a_command_runs_and_the_conversation_is_resumed(
    model: str, transport: str, obliging: Target, row: Row, tmp_path: Path
) -> None:
    client = installed("codex")
    row(f"Codex CLI ({model})", client.version, transport)
    codex = Codex(client, obliging, tmp_path, model=model, websockets=transport == "websocket")
    first = codex.exec("Run the shell command `echo hello` and tell me what it printed.")
    assert first.errors == []
    assert first.is_completed and first.answer
    assert [item["exit_code"] for item in first.items("command_execution")] == [0]
    second = codex.resume(first.thread_id, "Thanks. Say bye.")
    assert second.errors == []
    assert second.is_completed and second.answer


@pytest.mark.parametrize("provider", ["local", "OpenAI"])
async def test_the_app_server_interrupts_compacts_and_goes_on(
    provider: str, obliging: Target, row: Row, tmp_path: Path
) -> None:
    client = installed("codex")
    kind = "compaction by the server" if provider == "OpenAI" else "compaction by itself"
    row(f"Codex app server, {kind}", client.version, "websocket")
    # Slow enough that there is something to interrupt.
    with serving_process("--engine", "sim", "--rate", "60") as target:
        codex = Codex(client, target, tmp_path, model="gpt-5.5", websockets=True, provider=provider)
        async with asyncio.timeout(200), AppServer.running(codex) as app:
            await converse(app, codex.repository)


async def converse(app: AppServer, repository: Path) -> None:
    started = await app.call(
        "thread/start",
        {"cwd": str(repository), "approvalPolicy": "never", "sandbox": "read-only"},
    )
    thread = started["thread"]["id"]

    async def begin(text: str) -> str:
        asked = {"threadId": thread, "input": [{"type": "text", "text": text}]}
        return str((await app.call("turn/start", asked))["turn"]["id"])

    async def end() -> dict[str, Any]:
        turn: dict[str, Any] = (await app.notification("turn/completed"))["turn"]
        return turn

    def errors() -> list[Any]:
        return [message["params"] for message in app.seen if message["method"] == "error"]

    for number in range(2):
        await begin(f"Question {number}: run echo hello, then answer.")
        assert (await end())["status"] == "completed"
    said = [
        message["params"]["item"]["text"]
        for message in app.seen
        if message["method"] == "item/completed"
        and message["params"]["item"]["type"] == "agentMessage"
    ]
    assert len(said) >= 2 and all(said)

    turn = await begin("Count to a thousand.")
    await app.notification("item/agentMessage/delta")
    await app.call("turn/interrupt", {"threadId": thread, "turnId": turn})
    assert (await end())["status"] == "interrupted"
    await begin("After the interrupt.")
    assert (await end())["status"] == "completed"

    await app.call("thread/compact/start", {"threadId": thread})
    assert (await end())["status"] == "completed"
    await begin("After the compaction.")
    assert (await end())["status"] == "completed"
    assert errors() == []
