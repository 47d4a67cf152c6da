"""A constraint as a grammar for xgrammar, or why there is none.

The child needs the grammar; the server asks first, so that a client hears of it before its turn
begins.
"""

from __future__ import annotations

from turnwire_server.adapters.engines.json_grammar import (
    GrammarFailure,
    json_object_grammar,
    json_schema_grammar,
)
from turnwire_server.adapters.engines.regex_grammar import UnsupportedPattern, text_rule

__all__ = ["ConstraintFailure", "constraint_grammar"]


class ConstraintFailure(Exception):
    """There is no grammar. `str()` says why, ends a sentence, and quotes nothing."""


def constraint_grammar(kind: str, text: str) -> str:
    """Return the grammar (EBNF) of a constraint of `ports.Constraint.kind` and `text`.

    Raises:
        ConstraintFailure: there is none.
    """
    try:
        match kind:
            case "json_schema":
                return json_schema_grammar(text)
            case "json_object":
                return json_object_grammar()
            case "regex":
                return f"root ::= {text_rule(text)}\n"
            case _:
                raise ConstraintFailure(f"constraints of kind {kind} are not supported")
    except (GrammarFailure, UnsupportedPattern) as failure:
        raise ConstraintFailure(str(failure)) from None
