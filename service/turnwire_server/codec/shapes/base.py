"""What all shapes share: strictness, and unions that give an error its exact path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar

from google.protobuf.message import Message
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

__all__ = [
    "ALTERNATIVES",
    "LIST_TAG",
    "LITERAL_TAG",
    "OBJECT_TAG",
    "PAIR",
    "TEXT_TAG",
    "Json",
    "JsonObject",
    "ListOf",
    "Pairs",
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


def _object(value: Any) -> Any:
    if not isinstance(value, dict):
        raise PydanticCustomError("dict_type", "not an object")
    return value


def _texts(value: Any) -> Any:
    if len(_object(value)) > _MAX_PAIRS:
        raise PydanticCustomError("too_many", "more than {most} members", {"most": _MAX_PAIRS})
    for key, content in value.items():
        if not isinstance(content, str):
            raise PydanticCustomError(PAIR, "not a string", {"key": key})
    return value


PAIR = "json_pair"
"""Error type of a pair of `Pairs` whose value is no string; its context has the `key`."""

_MAX_PAIRS = 1_024
"""Far beyond what the session allows, and near enough for its rules to be quick."""

# Pydantic itself would copy an object, and of a million bad values make a million errors.
JsonObject = Annotated[dict[str, Any], PlainValidator(_object), WithJsonSchema({"type": "object"})]
"""An object that is passed on as it is, for example a JSON Schema."""

Pairs = Annotated[
    dict[str, Any],
    PlainValidator(_texts),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]
"""An object of strings."""

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
