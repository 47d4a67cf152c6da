"""A short look that most creates pass: members that are right whatever pydantic would say of them.

Pydantic goes through every member that there could be, this through those that are there. What
does not pass may still be right: then the shape itself says so, or what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

from turnwire_server.codec.shapes.base import ListOf, Pairs, Shape, Uint32
from turnwire_server.codec.shapes.content import Content, InputText, OutputText
from turnwire_server.codec.shapes.input import Input
from turnwire_server.codec.shapes.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    MessageItem,
)

__all__ = ["Plain"]

_NULL: Final = frozenset({NoneType})
_STRING: Final = frozenset({str})
_ANY: Final = frozenset({str, int, float, bool, NoneType, list, dict})
_MAX_PAIRS: Final = 64
"""Far below the shape's own bound."""


_Look = Callable[[Any], bool]


def _is_finite(value: Any) -> bool:
    return type(value) is float and isfinite(value)


def _is_uint32(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**32


def _are_texts(value: Any) -> bool:
    return type(value) is list and _STRING.issuperset(map(type, value))


def _are_pairs(value: Any) -> bool:
    return (
        type(value) is dict
        and len(value) <= _MAX_PAIRS
        and _STRING.issuperset(map(type, value.values()))
    )


def _is_content(value: Any) -> bool:
    return type(value) is str or _are_of(_PARTS, value)


def _is_input(value: Any) -> bool:
    return type(value) is str or _are_of(_ITEMS, value)


def _are_of(looks: Mapping[str | None, Plain], value: Any) -> bool:
    """Return whether it is a list of objects, each of the shape that its `type` names."""
    if type(value) is not list:
        return False
    for one in value:
        if type(one) is not dict:
            return False
        kind = one.get("type")
        look = looks.get(kind) if kind is None or type(kind) is str else None
        if look is None or not look(one):
            return False
    return True


_LOOKS: Final = (
    (float | None, _is_finite),
    (Uint32 | None, _is_uint32),
    (Input | None, _is_input),
    (Content | None, _is_content),
    (get_args(Content)[0], _is_content),  # without what pydantic takes off a required member
    (ListOf[str] | None, _are_texts),
    (Pairs | None, _are_pairs),
)
"""What is surely right, by the annotation of the member. null is absent."""


class Plain:
    """Looks at the objects of one shape."""

    def __init__(self, shape: type[Shape]) -> None:
        """Make it for a shape."""
        self._types: dict[str, frozenset[Any]] = {}
        """JSON types of which any value is right."""
        self._looks: dict[str, _Look | None] = {}
        required = set()
        for field_name, field in shape.model_fields.items():
            name, given = field.alias or field_name, field.annotation
            if field.is_required():
                required.add(name)
            if given is Any:
                self._types[name] = _ANY
            elif given in (str, str | None, bool | None):
                self._types[name] = frozenset(get_args(given) or (given,))
            else:
                self._types[name] = _NULL if NoneType in get_args(given) else frozenset()
                self._looks[name] = _look(given)
        self._required = frozenset(required)

    def __call__(self, value: Any) -> bool:
        """Return whether an object is surely of the shape; False says nothing."""
        if type(value) is not dict or not self._required <= value.keys():
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
    given = get_args(annotation)
    if get_origin(annotation) is Literal:
        return _one_of(given)
    if len(given) == 2 and NoneType in given:
        return _look(given[0])
    is_shape = isinstance(annotation, type) and issubclass(annotation, Shape)
    return Plain(annotation) if is_shape else None


def _one_of(names: tuple[str, ...]) -> _Look:
    allowed = frozenset(names)
    return lambda value: type(value) is str and value in allowed


_PARTS: Final[Mapping[str | None, Plain]] = {
    "input_text": Plain(InputText),
    "output_text": Plain(OutputText),
}
_MESSAGE: Final = Plain(MessageItem)
_ITEMS: Final[Mapping[str | None, Plain]] = {
    None: _MESSAGE,
    "message": _MESSAGE,
    "function_call": Plain(FunctionCallItem),
    "function_call_output": Plain(FunctionCallOutputItem),
}
"""The items that agents send with every turn, by `type`; a message needs none."""
