from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import turnwire
import turnwire.errors


def test_all_is_sorted_and_each_member_is_there() -> None:
    assert turnwire.__all__ == sorted(turnwire.__all__)
    for name in turnwire.__all__:
        assert getattr(turnwire, name) is not None


def test_all_names_what_the_module_imports_and_nothing_else() -> None:
    source = ast.parse(Path(turnwire.__file__ or "").read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("turnwire")
        for alias in node.names
    }
    assert imported | {"errors"} == set(turnwire.__all__)


def test_every_error_is_exported() -> None:
    assert set(turnwire.errors.__all__) < set(turnwire.__all__)


def test_every_private_module_has_an_exact_all() -> None:
    folder = Path(turnwire.__file__ or "").parent
    for path in folder.glob("_*.py"):
        if path.name in ("__init__.py", "__main__.py"):
            continue
        assert "__all__ = [" in path.read_text(), path.name


def test_importing_messages_through_the_package_loads_no_client() -> None:
    code = "import turnwire.v1.session_pb2, sys; print({'asyncio', 'grpc'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "set()"
