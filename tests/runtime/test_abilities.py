"""What an engine can hold a forced call to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from turnwire.v1 import error_pb2
from turnwire_server.adapters.engines.constraint_grammar import (
    ConstraintFailure,
    constraint_grammar,
)
from turnwire_server.ports.engine import Constraint, Engine, EngineInfo
from turnwire_server.runtime.abilities import check_forced, unforced_grammars
from turnwire_server.session.tool_choice import CheckedChoice
from turnwire_server.session.tool_rules import CheckedTools
from turnwire_server.session.tools import ToolSet, ToolSpec

REGEX = ToolSpec("pick", kind="custom", grammar="red|green", grammar_syntax="regex")
LARK = replace(REGEX, grammar="start: A", grammar_syntax="lark")


class GrammarEngine:
    """The part of an engine that is asked what it can do."""

    def __init__(self, *constraints: Any) -> None:
        self.info = EngineInfo("test", 100, constraints=frozenset(constraints))

    def refusal(self, constraint: Constraint) -> str | None:
        try:
            constraint_grammar(constraint.kind, constraint.text)
        except ConstraintFailure as failure:
            return str(failure)
        return None


BOTH = GrammarEngine("regex", "json_schema")


@pytest.mark.parametrize(
    ("tools", "engine", "mode", "is_refused", "is_warned"),
    [
        ((REGEX,), BOTH, "required", False, False),
        ((REGEX,), BOTH, "auto", False, True),
        ((REGEX,), GrammarEngine("json_schema"), "required", True, True),
        ((REGEX,), GrammarEngine("regex"), "required", True, True),
        ((replace(REGEX, grammar="(?=a)a"),), BOTH, "required", True, True),
        ((LARK,), BOTH, "required", True, True),
        ((REGEX, replace(REGEX, name="other")), BOTH, "required", True, True),
        ((REGEX, ToolSpec("f")), BOTH, "required", False, True),
    ],
)
def test_the_one_tool_that_is_forced_is_held_to_its_regex(
    tools, engine, mode, is_refused, is_warned
):
    checked = CheckedTools(ToolSet.of(tools, b"x"), (), b"", {}, {"pick": "t", "other": "o"})
    choice = CheckedChoice(mode)
    asked = (checked, choice, checked.tools, cast(Engine, engine))
    rejection = check_forced(*asked)
    assert (rejection is not None) == is_refused
    if rejection is not None:
        assert rejection.reason == error_pb2.ERROR_REASON_UNSUPPORTED_VALUE
        assert rejection.param == "t"
    assert bool(list(unforced_grammars(*asked))) == is_warned
