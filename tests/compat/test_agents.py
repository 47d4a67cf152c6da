"""Coding agents and other programs for a terminal, as their users configure and run them."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.compat import Row, Target, installed, node_path, run

pytestmark = pytest.mark.compat

PROMPT = "Run the shell command `echo hello` and tell me what it printed."
MODEL = "some-model"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


def on_path(home: Path) -> dict[str, str]:
    """Variables for a program that needs Node and a home of its own."""
    return {"HOME": str(home), "PATH": f"{node_path().parent}:/usr/local/bin:/usr/bin:/bin"}


def written(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def test_pi_runs_a_command(obliging: Target, row: Row, tmp_path: Path) -> None:
    client = installed("pi")
    row("pi", client.version, "http")
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    model = {"id": MODEL, "input": ["text", "image"], "contextWindow": 128_000}
    model |= {"name": "Local", "reasoning": False, "maxTokens": 4096}
    model["cost"] = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0)
    provider = {"baseUrl": obliging.base_url, "api": "openai-responses", "apiKey": "sk-local-test"}
    written(
        home / ".pi/agent/models.json", {"providers": {"local": {**provider, "models": [model]}}}
    )
    pi = [client.directory / "node_modules/.bin/pi", "--provider", "local", "--model", MODEL]
    printed = run([*pi, "-p", "--mode", "json", PROMPT], directory=work, **on_path(home))
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    results = [event["message"] for event in events if event["type"] == "message_end"]
    tools = [message for message in results if message["role"] == "toolResult"]
    assert [tool["isError"] for tool in tools] == [False]
    assert tools[0]["content"][0]["text"] == "hello\n"
    assert results[-1]["stopReason"] == "stop" and results[-1]["content"][0]["text"]
    row.read("ok a command and an answer")
    assert run([*pi, "-p", "-c", "And again?"], directory=work, **on_path(home)).strip()
    row.read("ok the session resumed")


def test_opencode_runs_a_command(obliging: Target, row: Row, tmp_path: Path) -> None:
    client = installed("opencode")
    row("opencode", client.version, "http")
    home, work = tmp_path / "home", tmp_path / "work"
    for directory in (home, work):
        directory.mkdir()
    subprocess.run(["git", "init", "--quiet", work], check=True)
    options = {"baseURL": obliging.base_url, "apiKey": "sk-local-test"}
    models = {MODEL: {"name": "Local", "tool_call": True}}
    provider = {"npm": "@ai-sdk/openai", "name": "Local", "options": options, "models": models}
    settings: dict[str, Any] = {"autoupdate": False, "share": "disabled"}
    settings |= {"model": f"local/{MODEL}", "small_model": f"local/{MODEL}"}
    written(work / "opencode.json", {**settings, "provider": {"local": provider}})
    command = [client.directory / "node_modules/.bin/opencode", "run", "--format", "json"]
    printed = run([*command, PROMPT], directory=work, **on_path(home))
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    kinds = [event["type"] for event in events]
    assert "error" not in kinds, events
    assert "tool_use" in kinds and kinds.index("tool_use") < kinds.index("text"), kinds
    row.read("ok a command and an answer")


def test_llm_talks_calls_and_sees(obliging: Target, row: Row, tmp_path: Path) -> None:
    client = installed("llm")
    row("llm", client.version, "http")
    model = {"model_id": "local", "model_name": MODEL, "api_base": obliging.base_url}
    abilities = ("responses", "supports_tools", "supports_schema", "vision")
    written(tmp_path / "extra-openai-models.yaml", [{**model, **dict.fromkeys(abilities, True)}])
    (tmp_path / "pixel.png").write_bytes(PIXEL)
    program = client.directory / "venv/bin/llm"

    def llm(what: str, *arguments: str) -> str:
        said = run(
            [program, *arguments], directory=tmp_path, LLM_USER_PATH=str(tmp_path), PYTHONUTF8="1"
        )
        assert said.strip()
        row.read(f"ok {what}")
        return said

    llm("a streamed answer", "-m", "local", "Say hello.")
    llm("a conversation", "-c", "--no-stream", "And again.")
    assert "Tool call: llm_version" in llm(
        "a tool", "-m", "local", "-T", "llm_version", "--td", "What version are you?"
    )
    llm("an image", "-m", "local", "-a", "pixel.png", "What is this?")
    said = llm("a schema", "-m", "local", "--schema", "name, age int", "A dog.")
    assert set(json.loads(said)) == {"name", "age"}
