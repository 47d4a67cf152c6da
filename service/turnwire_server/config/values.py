"""Values of the sources as their keys want them."""

from __future__ import annotations

import math
from pathlib import Path
from types import NoneType, UnionType
from typing import Final, Literal, get_args, get_origin

from turnwire_server.config.keys import Key
from turnwire_server.config.settings import Address

__all__ = ["Text", "converted"]

_MOST: Final = 2**31 - 1
_MOST_OF: Final = {"cache_bytes": 2**53, "max_bytes": 2**53, "audit_rate": 1, "workers": 256}
"""The same for keys that have a bound of their own."""


class Text(str):
    """A value of the environment: text that stands for any type."""


def converted(value: object, key: Key, name: str) -> object:
    """Return `value` as the key called `name` wants it.

    Raises:
        ValueError: It cannot be; `str()` says what is needed.
    """
    annotation = key.annotation
    if isinstance(annotation, UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        if value not in choices:
            raise ValueError(" or ".join(f'"{choice}"' for choice in choices) + " is needed")
        return str(value)
    if get_origin(annotation) is tuple:
        return _list_of_texts(value)
    if annotation is bool:
        return _boolean(value)
    if annotation is int or annotation is float:
        most = _MOST_OF.get(name, _MOST)
        return _number(value, annotation, may_be_zero=key.may_be_zero, most=most)
    if not isinstance(value, str):
        raise ValueError("text is needed")
    if annotation is Address:
        try:
            return Address.parse(value)
        except ValueError:
            raise ValueError(f"HOST:PORT is needed, not {value[:80]!r}") from None
    if annotation is Path:
        return Path(value).expanduser()
    assert annotation is str, f"{name}: a settings field of a type that no key can have"
    return value


def _boolean(value: object) -> bool:
    if isinstance(value, Text) and value.lower() in ("true", "false", "1", "0"):
        return value.lower() in ("true", "1")
    if not isinstance(value, bool):
        raise ValueError("true or false is needed")
    return value


def _number(
    value: object, kind: type[int] | type[float], *, may_be_zero: bool, most: int
) -> int | float:
    what = "a whole number" if kind is int else "a number"
    least = "of at least 0" if may_be_zero else "of at least 1" if kind is int else "above 0"
    problem = ValueError(f"{what} {least} and at most {most} is needed")
    if isinstance(value, Text):
        try:
            value = kind(value)
        except ValueError:
            raise problem from None
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        raise problem
    number = kind(value)
    if not math.isfinite(number) or not 0 <= number <= most or (number == 0 and not may_be_zero):
        raise problem
    return number


def _list_of_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, Text):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise ValueError("an array of strings is needed")
    return tuple(value)
