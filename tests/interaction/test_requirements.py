"""Every behaviour is proven by a test, and every test proves a behaviour."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from interaction.requirements import (
    EVERY_WIRE,
    KNOWN_CASES,
    REQUIREMENTS,
    proofs_of,
    requirement,
)

_FOLDER = Path(__file__).parent


def _tests() -> Iterator[tuple[str, list[str]]]:
    """Yield each test of the folder that has a wire, with the requirements that it names."""
    for path in sorted(_FOLDER.glob("test_*.py")):
        if path == Path(__file__):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not node.name.startswith("test_"):
                continue
            named = [
                argument.value
                for mark in node.decorator_list
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "requirement"
                for argument in mark.args
                if isinstance(argument, ast.Constant)
            ]
            yield f"{path.name}::{node.name}", [str(one) for one in named]


def test_every_test_names_a_requirement() -> None:
    assert [name for name, named in _tests() if not named] == []


def test_every_requirement_is_proven() -> None:
    proven = {identifier for _, named in _tests() for identifier in named}
    assert set(REQUIREMENTS) - proven == set()
    assert proven - set(REQUIREMENTS) == set()


@pytest.mark.parametrize("case", KNOWN_CASES)
def test_every_case_is_proven_by_what_is_there(case: int) -> None:
    proofs = proofs_of(case)
    assert proofs
    for proof in proofs:
        path, is_elsewhere, name = proof.partition("::")
        if not is_elsewhere:
            assert proof in REQUIREMENTS
            continue
        tree = ast.parse((_FOLDER.parents[1] / path).read_text(encoding="utf-8"))
        assert name in {getattr(node, "name", None) for node in tree.body}, proof


def test_no_two_tests_have_the_same_name() -> None:
    names = [name for name, _ in _tests()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("identifier", REQUIREMENTS)
def test_a_requirement_that_is_not_on_every_wire_says_why(identifier: str) -> None:
    one = REQUIREMENTS[identifier]
    assert one.source and one.sentence.endswith(".")
    assert set(one.wires) <= set(EVERY_WIRE) and one.wires
    assert bool(one.why) == (one.wires != EVERY_WIRE)


def test_a_requirement_that_is_not_there_cannot_be_named() -> None:
    with pytest.raises(KeyError):
        requirement("no.such.thing")
