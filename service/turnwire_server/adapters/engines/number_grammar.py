"""Grammar expressions for JSON numbers within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

__all__ = ["integer_rule", "number_rule"]

_MOST_DIGITS: Final = 15
"""Integers up to here are exact in every JSON reader."""
_LARGEST: Final = 10**_MOST_DIGITS - 1
_FRACTION: Final = '"." [0-9]{0,5} [1-9]'


def integer_rule(schema: Mapping[str, object]) -> str | None:
    """Return an expression for the integers within the schema's bounds, None without bounds.

    Bounds that no integer of 15 digits fits are ignored.
    """
    least, most = _bounds(schema, whole=True)
    if least is None and most is None:
        return None
    options = _integers(_ceiling(least), _floor(most))
    return f"({' | '.join(options)})" if options else None


def number_rule(schema: Mapping[str, object]) -> str | None:
    """Return an expression for decimal numbers within the schema's bounds, None without bounds.

    Only fractions between two integers within the bounds are allowed: for a range that has no
    integer in it, the bounds are ignored.
    """
    least, most = _bounds(schema, whole=False)
    if least is None and most is None:
        return None
    whole_least, whole_most = _bounds(schema, whole=True)
    options = _integers(_ceiling(whole_least), _floor(whole_most))
    low, high = _ceiling(least), _floor(most)
    if max(low, 0) <= high - 1:
        options += [f"{part} {_FRACTION}" for part in _digits(max(low, 0), high - 1)]
    if max(-high, 0) <= -low - 1:
        options += [f'"-" {part} {_FRACTION}' for part in _digits(max(-high, 0), -low - 1)]
    return f"({' | '.join(options)})" if options else None


def _bounds(schema: Mapping[str, object], *, whole: bool) -> tuple[float | None, float | None]:
    """Return the least and the most value; with `whole`, as bounds of integers."""
    least, most = _number(schema, "minimum"), _number(schema, "maximum")
    above, below = _number(schema, "exclusiveMinimum"), _number(schema, "exclusiveMaximum")
    if above is not None:
        bound = math.floor(above) + 1 if whole else above
        least = bound if least is None else max(least, bound)
    if below is not None:
        bound = math.ceil(below) - 1 if whole else below
        most = bound if most is None else min(most, bound)
    return least, most


def _number(schema: Mapping[str, object], key: str) -> float | None:
    value = schema.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _ceiling(least: float | None) -> int:
    return -_LARGEST if least is None else max(math.ceil(least), -_LARGEST)


def _floor(most: float | None) -> int:
    return _LARGEST if most is None else min(math.floor(most), _LARGEST)


def _integers(least: int, most: int) -> list[str]:
    """Return expressions that together are the integers from `least` to `most`."""
    if least > most:
        return []
    options = []
    if most >= 0:
        options += _digits(max(least, 0), most)
    if least < 0:
        options += [f'"-" {part}' for part in _digits(max(-most, 1), -least)]
    return options


def _digits(least: int, most: int) -> list[str]:
    """Return expressions for `least` to `most`, both >= 0, without leading zeros."""
    options = []
    for length in range(len(str(least)), len(str(most)) + 1):
        low = max(least, 0 if length == 1 else 10 ** (length - 1))
        high = min(most, 10**length - 1)
        if low <= high:
            options += _same_length(str(low), str(high))
    return options


def _same_length(low: str, high: str) -> list[str]:
    """Return expressions for the digit strings from `low` to `high`, of one length."""
    if not low:
        return [""]
    rest = len(low) - 1
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return [_range(low[0], high[0]) + (f" [0-9]{{{rest}}}" if rest else "")]
    if low[0] == high[0]:
        return _after(low[0], _same_length(low[1:], high[1:]))
    options = _after(low[0], _same_length(low[1:], "9" * rest))
    first, last = chr(ord(low[0]) + 1), chr(ord(high[0]) - 1)
    if first <= last:
        options.append(f"{_range(first, last)} [0-9]{{{rest}}}")
    return options + _after(high[0], _same_length("0" * rest, high[1:]))


def _after(digit: str, options: list[str]) -> list[str]:
    return [f'"{digit}" {option}'.rstrip() for option in options]


def _range(first: str, last: str) -> str:
    return f'"{first}"' if first == last else f"[{first}-{last}]"
