"""The `turnwire` command of a client-only install."""

from __future__ import annotations

import sys

import pytest

from turnwire.__main__ import main


class CommandLineThatLacks:
    """An importer of `turnwire_server.cli` that finds one module missing."""

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "turnwire_server.cli":
            raise ModuleNotFoundError(f"No module named '{self.missing}'", name=self.missing)


@pytest.fixture
def lacking(monkeypatch):
    def lack(missing: str) -> None:
        monkeypatch.delitem(sys.modules, "turnwire_server.cli", raising=False)
        monkeypatch.setattr(sys, "meta_path", [CommandLineThatLacks(missing), *sys.meta_path])

    return lack


def test_without_the_server_the_command_names_the_extra_to_add(lacking, capsys):
    lacking("pydantic")
    assert main() == 1
    hint = capsys.readouterr().err
    assert "pydantic is missing" in hint
    assert "pip install 'turnwire[server]'" in hint


def test_a_broken_server_package_is_not_taken_for_a_missing_extra(lacking):
    lacking("turnwire_server.runtime.turn")
    with pytest.raises(ModuleNotFoundError):
        main()
