"""The text that a screen reads: what the model would be told, in one canonical form.

The canonical form of a text is NFKC, without invisible characters, every run of white space one
space, none at the ends. Writing a phrase in full-width letters, with a zero-width space inside or
over two lines does not hide it. Look-alikes of other scripts stay what they are.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import orjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from turnwire.v1 import annotations_pb2, item_pb2

__all__ = ["SOURCES", "Source", "canonical", "item_text", "source_of"]

Source = Literal[
    "user",
    "assistant",
    "system",
    "developer",
    "instructions",
    "tool_call",
    "tool_output",
    "reasoning",
    "other",
]
"""Where a text comes from: a message's role, or the kind of item."""

SOURCES: Final[tuple[Source, ...]] = (
    "user",
    "assistant",
    "system",
    "developer",
    "instructions",
    "tool_call",
    "tool_output",
    "reasoning",
    "other",
)

_ROLES: Final[Mapping[str, Source]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
}

_NOT_TEXT: Final = frozenset(
    {
        "annotations",
        "call_id",
        "caller",
        "created_by",
        "detail",
        "encrypted_content",
        "extra_json",
        "file_data",
        "file_id",
        "file_url",
        "fingerprint",
        "id",
        "image_url",
        "logprobs",
        "phase",
        "role",
        "status",
    }
)
"""Members of items and parts that are no text for the model."""

_JSON_STRINGS: Final = frozenset({"arguments"})
"""String members that hold JSON although the contract passes them on as they are."""

# Default_Ignorable_Code_Point of Unicode: they are drawn as nothing.
_IGNORABLE: Final = (
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
# Control characters that are not white space. Those that are, `str.split` knows.
_CONTROLS: Final = ((0x00, 0x08), (0x0E, 0x1B), (0x7F, 0x84), (0x86, 0x9F))

_INVISIBLE: Final[Mapping[int, None]] = {
    code: None for first, last in (*_IGNORABLE, *_CONTROLS) for code in range(first, last + 1)
}

_MAX_MARKS: Final = 30
"""Combining marks in a row that are kept, as in Unicode's stream-safe format (UAX 15)."""


def canonical(text: str) -> str:
    """Return the canonical form of `text`. Linear in its length."""
    text = text.translate(_INVISIBLE)
    if not text.isascii():
        # NFKC sorts runs of combining marks, in quadratic time: they must be short.
        text = unicodedata.normalize("NFKC", _with_short_runs_of_marks(text))
    return " ".join(text.split())


def _with_short_runs_of_marks(text: str) -> str:
    category = unicodedata.category
    kept: list[str] | None = None
    run = 0
    for position, character in enumerate(text):
        run = run + 1 if character > "\u02ff" and category(character)[0] == "M" else 0
        if run > _MAX_MARKS:
            if kept is None:
                kept = list(text[:position])
        elif kept is not None:
            kept.append(character)
    return text if kept is None else "".join(kept)


def source_of(item: item_pb2.Item) -> Source:
    """Return where the text of `item` comes from."""
    arm = item.WhichOneof("item") or ""
    if arm == "message":
        return _ROLES.get(item.message.role, "other")
    if arm == "reasoning":
        return "reasoning"
    if arm.endswith("_output"):
        return "tool_output"
    if arm.endswith("_call"):
        return "tool_call"
    return "other"


def item_text(item: item_pb2.Item) -> str:
    """Return all text of `item` that a model may be told, not canonical yet.

    The parts of a content are joined as the model sees them, without a separator; different
    members are set apart by a space.
    """
    arm = item.WhichOneof("item")
    return "" if arm is None else " ".join(_texts(getattr(item, arm)))


def _texts(message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        if field.name in _NOT_TEXT:
            continue
        if field.type == FieldDescriptor.TYPE_STRING:
            for text in value if field.is_repeated else (value,):
                yield _readable(text) if _holds_json(field) else text
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.is_repeated:
                yield "".join(text for part in value for text in _texts(part))
            else:
                yield from _texts(value)


def _holds_json(field: FieldDescriptor) -> bool:
    if field.name in _JSON_STRINGS:
        return True
    return bool(field.GetOptions().Extensions[annotations_pb2.json_text])


def _readable(text: str) -> str:
    """Return JSON text with its escapes resolved, so that they hide nothing."""
    if "\\" not in text:
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:  # arguments that were cut: the model sees them as they are
        return text
    strings: list[str] = []
    waiting: list[Any] = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            strings.append(value)
        elif isinstance(value, int | float):
            strings.append(str(value))
        elif isinstance(value, dict):
            for key, member in reversed(value.items()):
                waiting += (member, key)
        elif isinstance(value, list):
            waiting += reversed(value)
    return " ".join(strings)
