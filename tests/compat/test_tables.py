"""The tables of clients: what they say is what came of the clients."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


def _imported() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compat_tables", HERE / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = _imported()
RESULTS = json.loads((HERE / "results.json").read_text(encoding="utf-8"))


def result(**changes: Any) -> dict[str, Any]:
    facts = {"client": "openai (Python)", "version": "1.0", "transport": "http"}
    return {**facts, "model": "simulated", "result": "pass", "did": ["text", "text"], **changes}


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_a_page_has_the_table_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    # `python tests/compat/tables.py` writes it.
    assert tables.page_with(text, tables.PAGES[page](RESULTS)) == text


def test_every_client_passes() -> None:
    assert [one for one in RESULTS if one["result"] != "pass"] == []
    assert {one["model"] for one in RESULTS} == {"simulated", "smollm2"}


def test_the_versions_are_those_that_are_installed() -> None:
    pinned = tomllib.loads((HERE / "versions.toml").read_text(encoding="utf-8"))
    packages = [name for recipe in pinned.values() for name in recipe.get("pip", recipe.get("npm"))]
    versions = {package.rpartition("==" if "==" in package else "@")[2] for package in packages}
    elsewhere = ("nginx in front", "Open Responses suite")
    known = [one for one in RESULTS if one["client"] not in elsewhere]
    assert {one["version"] for one in known} <= versions


def test_every_flow_that_was_asked_for_is_there() -> None:
    there = {(one["client"], one["transport"], one["model"]) for one in RESULTS}
    sdks = ("openai (Python), sync and async", "openai (Node)")
    agents = ("openai-agents (Python)", "@openai/agents (JavaScript)")
    for model in ("simulated", "smollm2"):
        for transport in ("http", "websocket", "lanes"):
            assert {(sdk, transport, model) for sdk in sdks} <= there
        for transport in ("http", "websocket"):
            assert {(agent, transport, model) for agent in agents} <= there
    for slug in ("gpt-5.5", "gpt-6.2-sol", "some-model"):
        for transport in ("http", "websocket"):
            assert (f"Codex CLI ({slug})", transport, "simulated") in there
    for how in ("compaction by itself", "compaction by the server"):
        assert (f"Codex app server, {how}", "websocket", "simulated") in there


def test_results_of_the_same_run_replace_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results.json")
    tables.record([result(), result(transport="lanes", result="failed")])
    tables.record([result(version="2.0"), result(model="small")])
    members = ("transport", "model", "version", "result")
    kept = [tuple(one[member] for member in members) for one in tables.read()]
    assert sorted(kept) == [
        ("http", "simulated", "2.0", "pass"),
        ("http", "small", "1.0", "pass"),
        ("lanes", "simulated", "1.0", "failed"),
    ]


def test_a_line_of_the_summary_has_a_column_per_transport() -> None:
    lines = tables.summary(
        [
            result(),
            result(transport="lanes", result="failed"),
            result(client="Codex CLI", transport="http, websocket"),
            result(client="somebody else"),
            result(model="small", transport="lanes"),
        ]
    )
    assert lines[2:] == [
        "| openai (Python) | 1.0 | pass | | failed | | lanes |",
        "| Codex CLI | 1.0 | pass | pass | | | |",
    ]
    assert tables.whole([result(client="somebody else")])[2:] == [
        "| somebody else | 1.0 | HTTP | simulated | pass | text |"
    ]
