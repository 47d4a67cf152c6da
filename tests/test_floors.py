"""The architecture holds: imports go down only, and the packaging promises are kept."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("client/python", "service", "bench")
READERS_OF_THE_ENVIRONMENT = {
    "service/turnwire_server/config/environment.py",
    # Sets a variable while the library that reads it loads; it takes no path otherwise.
    "service/turnwire_server/adapters/renderers/harmony_encoding.py",
}


def project_table() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins(path: Path) -> dict[str, str]:
    """Lower-case distribution names and their exact versions."""
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return {
        name.lower().replace("_", "-"): version
        for name, _, version in (line.partition("==") for line in lines if line)
    }


def requirements() -> list[str]:
    project = project_table()
    optional = project["optional-dependencies"]
    listed = [*project["dependencies"], *(entry for extra in optional.values() for entry in extra)]
    return [entry for entry in listed if not entry.startswith("turnwire[")]


def distribution(requirement: str) -> str:
    return re.split(r"[\[<>=~;! ]", requirement)[0].lower().replace("_", "-")


def environment_reads(tree: ast.AST) -> list[int]:
    """Lines that name `os.environ` or `os.getenv`, however `os` was imported."""
    names = {"environ", "environb", "getenv", "getenvb"}
    attributes = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    imported = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == "os"
        and names & {alias.name for alias in node.names}
    ]
    return attributes + imported


def test_imports_go_down_only():
    # In a process of its own: it sets up logging, and would silence the loggers of other tests.
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    linted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert linted.returncode == 0, linted.stdout


def test_only_the_configuration_reads_the_environment():
    reads = [
        f"{path.relative_to(ROOT)}:{line}"
        for source in SOURCES
        for path in (ROOT / source).rglob("*.py")
        if str(path.relative_to(ROOT)) not in READERS_OF_THE_ENVIRONMENT
        for line in environment_reads(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert reads == []


@pytest.mark.parametrize("package", ["turnwire_server.session", "turnwire_server.codec"])
def test_the_pure_packages_run_without_the_floors_above(package):
    # In a process of its own: what other tests imported does not count.
    program = (
        f"import sys, pkgutil, importlib, {package} as package\n"
        "for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
        "floors = ['ports', 'adapters', 'runtime', 'transports', 'config', 'app', 'cli']\n"
        "print(*[name for name in sys.modules if name.startswith('turnwire_server.')\n"
        "        and name.split('.')[1] in floors])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert loaded.stdout.split() == []


def test_every_dependency_has_a_tested_version():
    tested = pins(ROOT / "constraints.txt")
    assert [entry for entry in requirements() if distribution(entry) not in tested] == []


def test_lowest_versions_are_the_declared_floors():
    lowest = pins(ROOT / "tests/lowest.txt")
    floors = {
        distribution(entry): match.group(1)
        for entry in requirements()
        if (match := re.search(r">=([0-9.]+)", entry))
    }

    def number(version: str) -> tuple[int, ...]:
        parts = [int(part) for part in version.split(".")]
        return tuple(parts + [0] * (4 - len(parts)))

    mismatched = {
        name: (floor, lowest[name])
        for name, floor in floors.items()
        if name in lowest and number(floor) != number(lowest[name])
    }
    assert mismatched == {}
    base = {distribution(entry) for entry in project_table()["dependencies"]}
    assert base <= lowest.keys()


def test_every_dependency_has_its_reason_in_the_docs():
    reasons = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8").lower()
    assert [entry for entry in requirements() if f"`{distribution(entry)}`" not in reasons] == []
