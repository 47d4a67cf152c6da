"""Why JSON from a client is refused: one bounded value, whatever the request contained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from turnwire._codec import DecodeError
from turnwire._codec.errors import Kind, kind_of_json, quoted
from turnwire_server.codec.shapes.base import ALTERNATIVES, LITERAL_TAG, PAIR

__all__ = ["MAX_MESSAGE_CHARS", "Fault", "FaultCode", "fault_of_codec", "fault_of_shape"]

FaultCode = Literal[
    "invalid_json",
    "invalid_stream_id",
    "invalid_type",
    "invalid_value",
    "missing_required_parameter",
    "unknown_event_type",
    "unsupported_parameter",
]

MAX_MESSAGE_CHARS = 512
_MAX_PARAM_CHARS = 256


@dataclass(frozen=True, slots=True)
class Fault:
    """The first thing wrong with a client's JSON."""

    code: FaultCode
    """Public code: the lower-case name of an `ErrorReason`."""
    message: str
    """English prose for a person, at most `MAX_MESSAGE_CHARS` characters."""
    param: str | None = None
    """Path of the member at fault, for example `input[2].content[0].text`."""
    event_id: str | None = None
    """The event's own id, when it could be read."""
    stream_id: str | None = None
    """The event's lane, when it could be read. Not checked to be a lane's name."""


def fault_of_shape(
    error: ValidationError, event_id: str | None, stream_id: str | None, *, below: str = ""
) -> Fault:
    """Return the first fault that a shape found.

    Args:
        error: What pydantic raised.
        event_id: The event's own id.
        stream_id: The event's lane.
        below: Path of the validated value, for one that is a part of the request.
    """
    detail = error.errors(include_url=False)[0]
    param = _path(detail["loc"], below)
    code, param, message = _explain(detail, param)
    return _fault(code, message, param, event_id, stream_id)


def fault_of_codec(error: DecodeError, event_id: str | None, stream_id: str | None) -> Fault:
    """Return the fault for JSON that has the right shape and is still no message."""
    param = error.path[:_MAX_PARAM_CHARS]
    return _fault(
        _CODES[error.kind], f"Invalid '{param}': it {error.problem}.", param, event_id, stream_id
    )


_CODES: dict[Kind, FaultCode] = {
    "json": "invalid_json",
    "missing": "missing_required_parameter",
    "type": "invalid_type",
    "value": "invalid_value",
}


def _fault(
    code: FaultCode, message: str, param: str, event_id: str | None, stream_id: str | None
) -> Fault:
    if len(message) > MAX_MESSAGE_CHARS:
        message = f"{message[: MAX_MESSAGE_CHARS - 1]}…"
    return Fault(code, message, param, event_id, stream_id)


def _path(location: tuple[int | str, ...], below: str) -> str:
    """Return a location in the API's form, without the tags of unions."""
    path = below
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith(LITERAL_TAG):
            path += f".{step}" if path else step
    return path[:_MAX_PARAM_CHARS]


def _explain(detail: ErrorDetails, param: str) -> tuple[FaultCode, str, str]:
    """Return the code, the exact path and the message of one of pydantic's errors."""
    kind, value = detail["type"], detail["input"]
    if kind.startswith("union_tag_"):
        if not isinstance(value, dict):
            return "invalid_type", param, _wrong_type(param, "an object", value)
        param, value = f"{param}.type", value.get("type")
        if isinstance(value, str):
            return (
                "invalid_value",
                param,
                _unsupported(param, value, detail["ctx"]["expected_tags"]),
            )
        kind = "string_type"
    if kind == PAIR:
        key = detail["ctx"]["key"]
        param, value, kind = f"{param}.{key}"[:_MAX_PARAM_CHARS], value[key], "string_type"
    if kind == "missing" or value is None:  # null is absent, so a required null is missing.
        return "missing_required_parameter", param, f"Missing required parameter: '{param}'."
    if kind == ALTERNATIVES:
        return "invalid_type", param, _wrong_type(param, detail["msg"], value)
    if kind == "literal_error":
        if isinstance(value, str):
            return "invalid_value", param, _unsupported(param, value, detail["ctx"]["expected"])
        kind = "string_type"
    if kind in _EXPECTED:
        return "invalid_type", param, _wrong_type(param, _EXPECTED[kind], value)
    return "invalid_value", param, f"Invalid value for '{param}': {detail['msg'].lower()}."


_EXPECTED = {
    "bool_type": "a boolean",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "an array",
    "model_type": "an object",
    "string_type": "a string",
}
"""What pydantic's errors of type expected."""


def _wrong_type(param: str, expected: str, value: Any) -> str:
    got = kind_of_json(value)
    return f"Invalid type for '{param}': expected {expected}, but got {got} instead."


def _unsupported(param: str, value: str, supported: str) -> str:
    supported = supported.replace(f"'{LITERAL_TAG}", "'")
    return f"Invalid value for '{param}': {quoted(value)}. Supported values are: {supported}."
