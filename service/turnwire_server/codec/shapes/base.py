"""What all shapes share: strictness, and unions that give an error its exact path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar

from google.protobuf.message import Message
from pydantic import BaseModel, ConfigDict, Discriminator, FailFast, Field

__all__ = [
    "ALTERNATIVES",
    "LIST_TAG",
    "LITERAL_TAG",
    "OBJECT_TAG",
    "TEXT_TAG",
    "Json",
    "ListOf",
    "Shape",
    "Uint32",
    "alternatives",
    "by_type",
]

Element = TypeVar("Element")

LITERAL_TAG = ":"
"""Every tag of a union begins with it, so that error paths can leave tags out."""

TEXT_TAG = ":text"
LIST_TAG = ":list"
OBJECT_TAG = ":object"

ALTERNATIVES = "json_alternatives"
"""Error type of a value that is of none of a union's JSON types."""

Json = Any
"""A member that is passed on as it is: any JSON."""


class _FailFast(FailFast):
    """`FailFast` that can stand in `X | None`: typing hashes the parts of a union."""

    def __hash__(self) -> int:
        return hash(type(self))


ListOf = Annotated[list[Element], _FailFast()]
"""A list that is left at its first fault: 5,000 bad elements are one error."""

Uint32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""An integer that the wire can carry. Ranges proper are the session's."""


class Shape(BaseModel):
    """A JSON object that a client sends. Unknown members are allowed; null is absent."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    message_type: ClassVar[type[Message]]
    """The message that the object becomes: a keyword of the class statement, required but for
    bases."""

    def __init_subclass__(cls, *, message_type: type[Message] | None = None) -> None:
        if message_type is not None:
            cls.message_type = message_type


def by_type(value: Any) -> str | None:
    """Return the tag of an object by its `type`; None when it has none."""
    if isinstance(value, dict):
        public_type = value.get("type")
        if isinstance(public_type, str):
            return LITERAL_TAG + public_type
    return None


def alternatives(expected: str, *tags: str) -> Discriminator:
    """Return the discriminator of a union of JSON types.

    Args:
        expected: What a message says was expected, for example `a string or an array`.
        tags: Which of `TEXT_TAG`, `LIST_TAG` and `OBJECT_TAG` the union has.
    """
    offered = frozenset(tags)

    def tag(value: Any) -> str | None:
        found = _TAGS.get(type(value))
        return found if found in offered else None

    return Discriminator(tag, custom_error_type=ALTERNATIVES, custom_error_message=expected)


_TAGS: dict[type, str] = {dict: OBJECT_TAG, list: LIST_TAG, str: TEXT_TAG}

Chooser = Callable[[Any], str | None]
"""What a discriminator calls."""
