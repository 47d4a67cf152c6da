"""A short look that most creates pass: members that are right whatever pydantic would say of them.

Pydantic goes through every member that there could be, this through those that are there. What
does not pass may still be right: then the shape itself says so, or what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from types import NoneType
from typing import Any, Final, get_args

from turnwire_server.codec.shapes.base import ListOf, Pairs, Shape, Uint32
from turnwire_server.codec.shapes.input import Input

__all__ = ["Plain"]

_ANY: Final = frozenset({str, int, float, bool, NoneType, list, dict})
_MAX_PAIRS: Final = 64
"""Far below the shape's own bound."""


_Look = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_finite(value: Any) -> bool:
    return type(value) is float and isfinite(value)


def _is_uint32(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**32


def _are_texts(value: Any) -> bool:
    return type(value) is list and all(type(one) is str for one in value)


def _are_pairs(value: Any) -> bool:
    return (
        type(value) is dict
        and len(value) <= _MAX_PAIRS
        and all(type(one) is str for one in value.values())
    )


_LOOKS: Final = (
    (float | None, _is_finite),
    (Uint32 | None, _is_uint32),
    (Input | None, _is_text),
    (ListOf[str] | None, _are_texts),
    (Pairs | None, _are_pairs),
)
"""What is surely right, by the annotation of the member. null is absent."""


class Plain:
    """Looks at the objects of one shape."""

    def __init__(self, shape: type[Shape], *, known: frozenset[str] = frozenset()) -> None:
        """Make it.

        Args:
            shape: The shape.
            known: Members that are known to be right, among them all that it requires.
        """
        self._types: dict[str, frozenset[Any]] = {}
        """JSON types of which any value is right."""
        self._looks: dict[str, _Look | None] = {}
        for name, field in shape.model_fields.items():
            given = field.annotation
            assert field.alias is None and (name in known or not field.is_required())
            if name in known or given is Any:
                self._types[name] = _ANY
            elif given in (str | None, bool | None):
                self._types[name] = frozenset(get_args(given))
            else:
                self._types[name] = frozenset({NoneType})
                self._looks[name] = _look(given)

    def __call__(self, value: Any) -> bool:
        """Return whether an object is surely of the shape; False says nothing."""
        if type(value) is not dict:
            return False
        types, looks = self._types, self._looks
        for name, content in value.items():
            if type(content) not in types.get(name, _ANY):
                look = looks.get(name)
                if look is None or not look(content):
                    return False
        return True


def _look(annotation: Any) -> _Look | None:
    """Return what looks at the value of a member, None when only pydantic can."""
    for known, look in _LOOKS:
        if annotation == known:
            return look
    shape, *_ = get_args(annotation) or (None,)
    if not (isinstance(shape, type) and issubclass(shape, Shape)):
        return None
    if any(field.is_required() for field in shape.model_fields.values()):
        return None
    return Plain(shape)
