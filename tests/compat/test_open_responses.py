"""The suite of Open Responses, from a copy that is not ours and is never part of this project."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from harness.compat import Row, Target, installed, node_path, run

pytestmark = pytest.mark.compat

ZOD = "3.25.76"
"""What the suite's own code is written for."""
WHAT_IT_IS = ("bin", "src", "tsconfig.json")


def test_the_suite_of_open_responses_passes(
    open_responses: Path, obliging: Target, row: Row, tmp_path: Path
) -> None:
    bun = installed("bun").directory / "node_modules/.bin/bun"
    for name in WHAT_IT_IS:
        source = open_responses / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    # Its own package file asks for a whole web site.
    package = {"private": True, "type": "module", "dependencies": {"zod": ZOD}}
    (tmp_path / "package.json").write_text(json.dumps(package), encoding="utf-8")
    npm = node_path().parent / "npm"
    environment = {"PATH": f"{node_path().parent}:/usr/local/bin:/usr/bin:/bin"}
    run(
        [npm if npm.exists() else "npm", "install", "--no-audit", "--no-fund"],
        directory=tmp_path,
        **environment,
    )
    command = [bun, "run", "bin/compliance-test.ts", "--base-url", obliging.base_url]
    row("Open Responses suite", version_of(open_responses), "http, websocket")
    printed = run(
        [*command, "--api-key", "sk-local-test", "--model", "some-model"], directory=tmp_path
    )
    passed, failed, skipped, total = counts(printed)
    assert (failed, skipped) == (0, 0), printed
    assert passed == total >= 17
    row.read(f"ok {passed} of {total} tests")


def version_of(copy: Path) -> str:
    """The newest date of its changelog, which is the version of the specification."""
    changelog = copy / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8") if changelog.exists() else ""
    dates = re.findall(r"\b20\d\d-\d\d-\d\d\b", text)
    return max(dates, default="unknown")


def counts(printed: str) -> tuple[int, ...]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    found = re.search(r"Results: (\d+) passed, (\d+) failed, (\d+) skipped, (\d+) total", plain)
    assert found is not None, printed
    return tuple(int(number) for number in found.groups())
