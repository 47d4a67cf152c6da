"""The one error of this package."""

from __future__ import annotations

from typing import Literal

__all__ = ["DecodeError", "Kind", "kind_of_json", "quoted", "wrong_type"]

Kind = Literal["json", "missing", "type", "value"]
"""Not JSON; a member is missing; it has the wrong JSON type; it is out of its range or set."""

_MAX_QUOTED_CHARS = 80


class DecodeError(ValueError):
    """JSON that is not the public form of a message.

    Attributes:
        kind: What is wrong, for programs.
        problem: What is wrong, in English, without the path; at most 200 characters.
        path: Where, for example `input[2].content[0].text`; "" for the whole value.
    """

    def __init__(self, kind: Kind, problem: str, *steps: str | int) -> None:
        super().__init__(problem)
        self.kind = kind
        self.problem = problem
        # Innermost first: the path grows only while an error travels outwards.
        self._steps = list(steps)

    def within(self, step: str | int) -> DecodeError:
        """Put the path so far below a member's name or an element's index."""
        self._steps.append(step)
        return self

    @property
    def path(self) -> str:
        """Path of the value at fault."""
        path = ""
        for step in reversed(self._steps):
            if isinstance(step, int):
                path += f"[{step}]"
            else:
                path += f".{step}" if path else step
        return path

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self._steps else self.problem


def quoted(value: str) -> str:
    """Return a peer's `value` in quotes, cut to a bounded length."""
    cut = value if len(value) <= _MAX_QUOTED_CHARS else f"{value[:_MAX_QUOTED_CHARS]}…"
    return f"'{cut}'"


def kind_of_json(value: object) -> str:
    """Return the JSON type of `value` with its article, for example `an array`."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int():
            return "an integer"
        case float():
            return "a number"
        case dict():
            return "an object"
        case list() | tuple():
            return "an array"
    return "something that is not JSON"


def wrong_type(expected: str, value: object) -> DecodeError:
    """Return the error for a `value` of the wrong JSON type."""
    return DecodeError("type", f"expected {expected}, but got {kind_of_json(value)} instead")
