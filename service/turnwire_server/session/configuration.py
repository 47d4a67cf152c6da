"""Configuration updates: items that change the settings of the responses after them."""

from __future__ import annotations

import json

from turnwire.v1 import client_event_pb2, error_pb2, item_pb2, response_pb2
from turnwire_server.session.errors import Rejection

__all__ = ["EFFORTS", "apply_configuration", "check_update"]

EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
"""What `reasoning.effort` may say."""


def check_update(update: item_pb2.ConfigurationUpdateItem, path: str) -> Rejection | None:
    """Check a `configuration_update` item, which is at `path`: `effort` and `format` only."""
    read = _read(update, path)
    return read if isinstance(read, Rejection) else None


def apply_configuration(create: client_event_pb2.ResponseCreate, configuration: bytes) -> None:
    """Make `create` what a configuration says; it wins over the create's own settings.

    Args:
        create: The create; it is changed.
        configuration: A serialized `ConfigurationUpdateItem` that was checked.
    """
    update = item_pb2.ConfigurationUpdateItem.FromString(configuration)
    read = _read(update, "")
    assert not isinstance(read, Rejection)  # it was checked
    effort, text_format = read
    if effort is not None:
        create.reasoning.effort = effort
    if text_format is not None:
        create.text.format.CopyFrom(text_format)


def _read(
    update: item_pb2.ConfigurationUpdateItem, path: str
) -> tuple[str | None, response_pb2.TextFormat | None] | Rejection:
    reasoning = _object(update.reasoning)
    text = _object(update.text)
    if reasoning is None:
        return _invalid(f"{path}.reasoning", "reasoning must be an object.")
    if text is None:
        return _invalid(f"{path}.text", "text must be an object.")
    effort = reasoning.get("effort")
    if effort is not None and effort not in EFFORTS:
        return _invalid(
            f"{path}.reasoning.effort", f"effort must be one of {', '.join(sorted(EFFORTS))}."
        )
    given = text.get("format")
    if given is None:
        return effort, None
    text_format = _format(given)
    if text_format is None:
        return _invalid(
            f"{path}.text.format", "format must be of type text, json_object or json_schema."
        )
    return effort, text_format


def _object(text: str) -> dict[str, object] | None:
    value = json.loads(text or "{}")
    return value if isinstance(value, dict) else None


def _format(given: object) -> response_pb2.TextFormat | None:
    """Return the message of a format, None for what is none."""
    if not isinstance(given, dict):
        return None
    result = response_pb2.TextFormat()
    match given:
        case {"type": "text"}:
            result.text.SetInParent()
        case {"type": "json_object"}:
            result.json_object.SetInParent()
        case {"type": "json_schema", "name": str(name), "schema": dict(schema)}:
            result.json_schema.name = name
            result.json_schema.schema = json.dumps(schema, ensure_ascii=False)
            if isinstance(given.get("strict"), bool):
                result.json_schema.strict = given["strict"]
        case _:
            return None
    return result


def _invalid(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_INVALID_VALUE, message, param=path)
