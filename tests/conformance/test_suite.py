"""The unbroken server passes on every transport, in both profiles; the rest is its own."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path

import pytest

from harness.server import running_server
from turnwire_server.cli import main
from turnwire_server.conformance import (
    CHECKS,
    Report,
    SuiteFailure,
    SuiteSettings,
    catalogue,
    run_suite,
)
from turnwire_server.runtime.settings import CompatSettings, RuntimeSettings
from turnwire_server.transports.http import HttpSettings

DOCS = Path(__file__).parents[2] / "docs/conformance.md"
KEY = "sk-conformance-right"
# A sign of life comes after half a minute of silence, which no check waits for.
SILENT = {"keepalive.after_created"}


@pytest.fixture(autouse=True)
def quiet_engines():
    """Engines break on purpose here."""
    logger = logging.getLogger("turnwire")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def skipped(report: Report) -> set[str]:
    return {result.check.id for result in report.results if result.outcome == "skipped"}


def failures(report: Report) -> list[tuple[str, str, str, str | None]]:
    return [
        (result.check.id, result.transport, result.reason, result.event) for result in report.failed
    ]


async def test_the_server_passes_everything_on_every_transport():
    # With a key, so that nothing is skipped for want of one.
    async with (
        asyncio.timeout(60),
        running_server(runtime=RuntimeSettings(auth_keys=(KEY,))) as server,
    ):
        settings = SuiteSettings(
            server.http_url, server.grpc_target, api_key=KEY, timeout_s=20, parallel=8
        )
        report = await run_suite(settings)
    assert failures(report) == []
    assert skipped(report) == SILENT
    assert report.official_version is not None
    every = {(check.id, transport) for check in CHECKS for transport in check.transports}
    other = {check.id for check in CHECKS if "turnwire" not in check.profiles}
    seen = {(result.check.id, result.transport) for result in report.results}
    assert seen == {(name, transport) for name, transport in every if name not in other}


async def test_with_summaries_the_server_passes_as_open_responses():
    compat = CompatSettings(reasoning_events="summary")
    async with (
        asyncio.timeout(60),
        running_server(runtime=RuntimeSettings(compat=compat)) as server,
    ):
        settings = SuiteSettings(server.http_url, profile="openresponses", timeout_s=20, parallel=8)
        report = await run_suite(settings)
    assert failures(report) == []
    (gone,) = {result.reason for result in report.results if result.transport == "grpc"}
    assert gone == "no gRPC target was given"


async def test_raw_reasoning_is_outside_open_responses():
    async with asyncio.timeout(60), running_server() as server:
        settings = SuiteSettings(
            server.http_url, profile="openresponses", transports=("sse",), timeout_s=20
        )
        report = await run_suite(settings)
    assert {name for name, *_ in failures(report)} == {"types.open_responses_only"}
    assert "response.reasoning_text.delta" in failures(report)[0][2]


async def test_without_websocket_its_checks_are_skipped():
    settings_of_http = HttpSettings(websocket=None, shutdown_timeout_s=1.0)
    async with asyncio.timeout(60), running_server(http=settings_of_http) as server:
        settings = SuiteSettings(server.http_url, transports=("websocket",), timeout_s=20)
        report = await run_suite(settings)
    assert {result.outcome for result in report.results} == {"skipped"}
    assert {result.reason for result in report.results} == {"the server answers upgrades with 426"}


async def test_only_the_checks_that_are_asked_for_are_run_and_reported():
    async with asyncio.timeout(60), running_server() as server:
        settings = SuiteSettings(server.http_url, transports=("http", "sse"), timeout_s=20)
        scenario = await run_suite(settings, only=["sequence.text"])
        rule = await run_suite(settings, only=["usage.sums"])
        with pytest.raises(SuiteFailure, match=r"no\.such"):
            await run_suite(settings, only=["no.such"])
    assert [(r.check.id, r.transport, r.outcome) for r in scenario.results] == [
        ("sequence.text", "http", "pass"),
        ("sequence.text", "sse", "pass"),
    ]
    assert [(r.check.id, r.outcome) for r in rule.results] == [("usage.sums", "pass")] * 2


def test_ids_are_used_once_and_sentences_are_sentences():
    ids = [check.id for check in CHECKS]
    assert len(ids) == len(set(ids))
    for check in CHECKS:
        assert check.sentence.endswith("."), check.id
        assert check.transports, check.id


def test_the_documented_list_of_checks_is_current():
    text = DOCS.read_text(encoding="utf-8")
    listed = re.search(r"<!-- checks -->\n(.*)<!-- end of checks -->", text, re.DOTALL)
    assert listed is not None
    # `turnwire conformance --list` prints what belongs there.
    assert listed.group(1).strip() == catalogue().strip()
    sections = {check.source for check in CHECKS}
    described = set(re.findall(r"^\| ([0-9A-Z.]+) \|", text, re.MULTILINE))
    assert sections <= described


# The command.


def test_the_list_is_printed_without_a_server(capsys):
    assert main(["conformance", "--list"]) == 0
    assert capsys.readouterr().out == catalogue()


def test_without_a_url_or_a_server_the_exit_code_is_2(capsys):
    assert main(["conformance"]) == 2
    assert main(["conformance", "--base-url", "http://127.0.0.1:1/v1"]) == 2
    said = capsys.readouterr().err
    assert "--base-url" in said
    assert "Traceback" not in said


async def test_the_command_reports_to_people_and_programs(capsys, tmp_path):
    path = tmp_path / "report.json"
    async with asyncio.timeout(60), running_server() as server:
        arguments = ["conformance", "--base-url", server.http_url, "--grpc", server.grpc_url]
        arguments += ["--only", "sequence.text,error.setting", "--json", str(path)]
        assert await asyncio.to_thread(main, arguments) == 0
    assert "8 passed, 0 failed, 0 skipped" in capsys.readouterr().out
    report = json.loads(path.read_text(encoding="utf-8"))
    assert (report["passed"], report["failed"], report["model"]) == (8, 0, "sim")
    assert {result["transport"] for result in report["results"]} == {
        *("http", "sse", "websocket", "grpc")
    }


async def test_a_failure_is_shown_with_its_reason_and_the_exit_code_is_1(capsys):
    async with asyncio.timeout(60), running_server() as server:
        arguments = ["conformance", "--base-url", server.http_url, "--model", "no-such-model"]
        arguments += ["--only", "sequence.text", "--transport", "http", "--json", "-"]
        assert await asyncio.to_thread(main, arguments) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["failed"] == 1
    assert "the create was refused: model_not_found" in said.err
