"""The official Node SDK and @openai/agents."""

from __future__ import annotations

import shutil

import pytest

from harness.compat import SCENARIOS, Row, Target, installed, node_path, run

pytestmark = pytest.mark.compat


def converse(name: str, scenario: str, transport: str, target: Target) -> str:
    """Run a scenario where its imports are found, and return what it printed."""
    client = installed(name)
    shutil.copy(SCENARIOS / scenario, client.directory / scenario)
    tool = "tool" if target.expects_tool else "no-tool"
    command = [node_path(), scenario, transport, target.base_url, "some-model", tool]
    return run(command, directory=client.directory, timeout_s=target.timeout_s)


@pytest.mark.parametrize("transport", ["http", "websocket", "lanes"])
def test_the_official_node_sdk(transport: str, target: Target, row: Row) -> None:
    row("openai (Node)", installed("openai-node").version, transport)
    row.read(converse("openai-node", "openai_node.mjs", transport, target))


@pytest.mark.parametrize("transport", ["http", "websocket"])
def test_agents_for_javascript(transport: str, target: Target, row: Row) -> None:
    row("@openai/agents (JavaScript)", installed("openai-agents-js").version, transport)
    row.read(converse("openai-agents-js", "openai_agents_js.mjs", transport, target))


def test_the_ai_sdk(obliging: Target, row: Row) -> None:
    row("AI SDK (`@ai-sdk/openai`)", installed("ai-sdk").version, "http")
    row.read(converse("ai-sdk", "ai_sdk.mjs", "http", obliging))
