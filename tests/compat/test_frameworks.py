"""Frameworks that nobody named: they speak the Responses API, and that is enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.compat import SCENARIOS, Row, Target, installed, run

pytestmark = pytest.mark.compat

FRAMEWORKS = {
    "agno": ("Agno", "agno_python.py"),
    "haystack": ("Haystack", "haystack_python.py"),
    "langchain-openai": ("LangChain (`langchain-openai`)", "langchain_python.py"),
    "litellm": ("LiteLLM", "litellm_python.py"),
    "llama-index": ("LlamaIndex (`llama-index-llms-openai`)", "llama_index_python.py"),
    "pydantic-ai": ("pydantic-ai", "pydantic_ai_python.py"),
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_runs_an_agent(name: str, obliging: Target, row: Row, tmp_path: Path) -> None:
    shown, scenario = FRAMEWORKS[name]
    client = installed(name)
    row(shown, client.version, "http")
    command = [client.python, SCENARIOS / scenario, "http", "--base-url", obliging.base_url]
    # None of them may need a network beside the server's.
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HAYSTACK_TELEMETRY_ENABLED": "False"}
    row.read(run(command, directory=tmp_path, PYTHONUTF8="1", HOME=str(tmp_path), **quiet))
