"""Tools that are safe to hand to any model: they read a clock and do sums, nothing else."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final

__all__ = ["LOCAL_TOOLS", "calculate", "current_time"]

_MOST_CHARACTERS: Final = 200
_LARGEST: Final = 10.0**15
_BINARY: Final[dict[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def current_time() -> str:
    """Tell the date and the time of day now, in UTC."""
    return datetime.now(UTC).strftime("%A, %d %B %Y, %H:%M:%S UTC")


def calculate(
    expression: Annotated[str, "numbers, + - * / // % and parentheses, for example (3 + 4) * 5"],
) -> str:
    """Compute an arithmetic expression exactly."""
    if len(expression) > _MOST_CHARACTERS:
        raise ValueError(f"the expression is longer than {_MOST_CHARACTERS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError:
        raise ValueError("this is not an arithmetic expression") from None
    return f"{_value(tree.body):.15g}"


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _BINARY:
            return _bounded(_BINARY[type(kind)](_value(left), _value(right)))
        case _:
            raise ValueError("only numbers, + - * / // % and parentheses can be used")


def _bounded(number: float) -> float:
    if abs(number) > _LARGEST:
        raise ValueError("the numbers are too large")
    return number


LOCAL_TOOLS: Final[dict[str, Callable[..., str]]] = {
    "current_time": current_time,
    "calculate": calculate,
}
"""The tools by name."""
