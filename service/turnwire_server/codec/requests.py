"""Client events and request bodies: from JSON text to messages, or to the first fault.

Here is what the public JSON alone decides: that it is JSON, of the right shape, in types that a
message can hold. Ranges, combinations, names of lanes and models are the session's, which judges
the messages of gRPC by the same rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from google.protobuf.message import Message
from pydantic import ValidationError

from turnwire._codec import CREDENTIALS, UNUSUAL, DecodeError, parse, quick_decoder
from turnwire._codec.errors import kind_of_json, quoted
from turnwire._codec.limits import MAX_INPUT_ITEMS
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate, ResponseProcessed
from turnwire.v1.conversation_pb2 import (
    CreateConversationItemsRequest,
    CreateConversationRequest,
    UpdateConversationRequest,
)
from turnwire.v1.responses_service_pb2 import CompactRequest
from turnwire_server.codec import shapes
from turnwire_server.codec.faults import Fault, fault_of_codec, fault_of_shape
from turnwire_server.codec.memo import ToolsMemo
from turnwire_server.codec.tools_text import STAND_IN, ToolsText

__all__ = [
    "RequestDecoder",
    "decode_client_event",
    "decode_compact",
    "decode_conversation",
    "decode_conversation_items",
    "decode_conversation_update",
    "decode_create",
    "salvaged",
    "text_of",
]

AnyMessage = TypeVar("AnyMessage", bound=Message)

_MAX_SALVAGED_CHARS = 1_048_576
"""Beyond it, JSON that is not JSON is not searched for ids."""

_USUAL = {
    shapes.ResponseCreate: (shapes.Plain(shapes.ResponseCreate), quick_decoder(ResponseCreate)),
    shapes.ResponseCreateEvent: (
        shapes.Plain(shapes.ResponseCreateEvent),
        quick_decoder(ClientEvent),
    ),
}
"""The short look at what comes with every turn, and what makes messages of what passes it."""

_NOT_FINITE = re.compile(r".?(NaN|-?Infinity)", re.DOTALL)
"""After the place that the parser gives, or one before it: it gets beyond a minus sign."""

_NESTED = (
    "Missing required parameter: 'model'. The members of a `response.create` stand beside its "
    "`type`, not below `response`."
)
_FLAT_EVENT = "Over HTTP a request has no lane: 'stream_id' is for persistent connections."


class RequestDecoder:
    """Decodes requests, and remembers the tools that it has seen."""

    def __init__(self, memo: ToolsMemo | None = None) -> None:
        """Make a decoder.

        Args:
            memo: Memory of tools; a new one when None.
        """
        self._memo = ToolsMemo() if memo is None else memo
        self._texts = ToolsText()

    def client_event(self, data: bytes | str) -> ClientEvent | Fault:
        """Decode the JSON of a client event.

        Args:
            data: A text frame, or UTF-8.

        Returns:
            The event, or the first fault. The fault names the event's id and lane if they could
            be read.
        """
        value, tools = self._read(data)
        if isinstance(value, Fault):
            return value
        event_id, stream_id = text_of(value, "event_id"), text_of(value, "stream_id")
        public_type = value.get("type")
        if not isinstance(public_type, str):
            return _no_type(public_type, event_id, stream_id)
        if public_type == "response.processed":
            return _processed(value, event_id, stream_id)
        shape = shapes.CLIENT_EVENTS.get(public_type)
        if shape is None:
            message = f"No client event has the type {quoted(public_type)}."
            return Fault("unknown_event_type", message, "type", event_id, stream_id)
        lane = value.get("stream_id")
        if lane is not None and stream_id is None:
            message = (
                f"Invalid 'stream_id': expected a string, but got {kind_of_json(lane)} instead."
            )
            return Fault("invalid_stream_id", message, "stream_id", event_id)
        if shape is shapes.ResponseCreateEvent:
            if isinstance(value.get("response"), dict) and value.get("model") is None:
                return Fault("missing_required_parameter", _NESTED, "model", event_id, stream_id)
            return self._with_tools(shape, ClientEvent, value, event_id, stream_id, data, tools)
        return _decode(shape, ClientEvent, value, event_id, stream_id)

    def create(self, data: bytes | str) -> ResponseCreate | Fault:
        """Decode the JSON body of `POST /v1/responses` or `/v1/responses/input_tokens`."""
        value, tools = self._read(data)
        if isinstance(value, Fault):
            return value
        if value.get("stream_id") is not None:
            return Fault("unsupported_parameter", _FLAT_EVENT, "stream_id")
        shape = shapes.ResponseCreate
        return self._with_tools(shape, ResponseCreate, value, None, None, data, tools)

    def _read(self, data: bytes | str) -> tuple[dict[str, Any] | Fault, bytes | None]:
        """Return the JSON object, and what its tools became if their text is known.

        Known tools are not in the object any more, `STAND_IN` is.
        """
        text = _text(data)
        if text is not None and (cut := self._texts.cut(text)) is not None:
            rest, decoded = cut
            value = _load(rest)
            # Anything else is read as it came: what was cut out were not the tools.
            if isinstance(value, dict) and value.get("tools") == STAND_IN:
                return value, decoded
        return _load(data), None

    def _with_tools(
        self,
        shape: type[shapes.Shape],
        message_type: type[AnyMessage],
        value: dict[str, Any],
        event_id: str | None,
        stream_id: str | None,
        data: bytes | str,
        decoded: bytes | None,
    ) -> AnyMessage | Fault:
        """Decode a create: its tools by memory, the rest anew.

        Only tools are worth a fingerprint: checking the other settings takes less time than
        hashing them would.
        """
        given = value.get("input")
        if isinstance(given, list) and len(given) > MAX_INPUT_ITEMS:
            problem = f"Invalid 'input': it has more than {MAX_INPUT_ITEMS} items."
            return Fault("invalid_value", problem, "input", event_id, stream_id)
        tools = value.get("tools")
        if not tools:
            return _decode(shape, message_type, value, event_id, stream_id)
        if decoded is None:
            decoded_or_fault = self._tools(tools, data, event_id, stream_id)
            if isinstance(decoded_or_fault, Fault):
                return decoded_or_fault
            decoded = decoded_or_fault
        del value["tools"]
        message = _decode(shape, message_type, value, event_id, stream_id)
        if isinstance(message, ClientEvent):
            message.response_create.MergeFromString(decoded)
        elif isinstance(message, ResponseCreate):
            message.MergeFromString(decoded)
        return message

    def _tools(
        self, tools: Any, data: bytes | str, event_id: str | None, stream_id: str | None
    ) -> bytes | Fault:
        """Decode tools to a serialized `ResponseCreate`, or remember what they became.

        The text of tools that come for the second time is worth remembering too.
        """
        try:
            as_json = orjson.dumps(tools)
        except orjson.JSONEncodeError:
            problem = "Invalid 'tools': they are nested too deep."
            return Fault("invalid_json", problem, "tools", event_id, stream_id)
        key = self._memo.key(as_json)
        decoded = self._memo.get(key)
        if decoded is not None:
            text = _text(data)
            if text is not None and self._memo.is_second(key):
                self._texts.learn(text, tools, decoded)
            return decoded
        try:
            shapes.ToolList.model_validate(tools)
            decoded = parse(ResponseCreate, {"tools": tools}).SerializeToString()
        except ValidationError as error:
            return fault_of_shape(error, event_id, stream_id, below="tools")
        except DecodeError as error:
            return fault_of_codec(error, event_id, stream_id)
        if CREDENTIALS not in as_json:
            self._memo.put(key, decoded)
        return decoded


def _text(data: bytes | str) -> str | None:
    """Return the text of a request, None when it is not UTF-8."""
    if isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _body_decoder(
    shape: type[shapes.Shape], message_type: type[AnyMessage], *, empty: bytes = b""
) -> Callable[[bytes | str], AnyMessage | Fault]:
    """Return the decoder of a JSON body.

    Args:
        shape: Its shape.
        message_type: What it becomes.
        empty: What a body of no bytes stands for.
    """

    def decode(data: bytes | str) -> AnyMessage | Fault:
        value = _load(data or empty)
        if isinstance(value, Fault):
            return value
        return _decode(shape, message_type, value, None, None)

    return decode


def _decode(
    shape: type[shapes.Shape],
    message_type: type[AnyMessage],
    value: dict[str, Any],
    event_id: str | None,
    stream_id: str | None,
) -> AnyMessage | Fault:
    is_plain, quick = _USUAL.get(shape, (None, None))
    try:
        if is_plain is None or quick is None or not is_plain(value):
            shape.model_validate(value)
        else:
            try:
                return message_type(**quick(value))
            except UNUSUAL:
                pass
        return parse(message_type, value)
    except ValidationError as error:
        return fault_of_shape(error, event_id, stream_id)
    except DecodeError as error:
        return fault_of_codec(error, event_id, stream_id)


def _load(data: bytes | str) -> dict[str, Any] | Fault:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        value = salvaged(data)
        event_id, stream_id = text_of(value, "event_id"), text_of(value, "stream_id")
        return Fault("invalid_json", _problem_of(error), None, event_id, stream_id)
    if not isinstance(value, dict):
        got = kind_of_json(value)
        return Fault("invalid_json", f"The message is {got}; expected one JSON object.")
    return value


def _problem_of(error: orjson.JSONDecodeError) -> str:
    """Return what is wrong and where, for what other parsers let pass by its name."""
    if "UTF-8" in error.msg:
        return "The message is not valid JSON: it is not UTF-8."
    where = f"The message is not valid JSON at line {error.lineno}, column {error.colno}"
    if "surrogate" in error.msg:
        return f"{where}: an escaped surrogate stands alone; characters beyond U+FFFF need a pair."
    if "depth" in error.msg:
        return f"{where}: it is nested too deep."
    if _NOT_FINITE.match(error.doc, max(error.pos - 1, 0)):
        return f"{where}: numbers are finite; NaN and Infinity are not JSON."
    return f"{where}."


def salvaged(data: bytes | str) -> dict[str, Any]:
    """Return the object that even a lenient parser reads, an empty one when there is none.

    A lone surrogate or a NaN somewhere in an event should not hide whose event it was.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        if len(data) > _MAX_SALVAGED_CHARS:
            return {}
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def text_of(value: dict[str, Any], name: str) -> str | None:
    """Return a member that is a string that UTF-8 can hold, else None."""
    text = value.get(name)
    if not isinstance(text, str):
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def _no_type(value: object, event_id: str | None, stream_id: str | None) -> Fault:
    if value is None:
        message = "Missing required parameter: 'type'."
        return Fault("missing_required_parameter", message, "type", event_id, stream_id)
    message = f"Invalid type for 'type': expected a string, but got {kind_of_json(value)} instead."
    return Fault("invalid_type", message, "type", event_id, stream_id)


def _processed(value: dict[str, Any], event_id: str | None, stream_id: str | None) -> ClientEvent:
    """Return the event as far as it can be read.

    It is ignored, and so are its mistakes: a client would take an error frame for the failure of
    its next turn.
    """
    processed = ResponseProcessed(response_id=text_of(value, "response_id"))
    return ClientEvent(event_id=event_id, stream_id=stream_id, response_processed=processed)


_DECODER = RequestDecoder()
decode_client_event = _DECODER.client_event
decode_create = _DECODER.create
decode_compact = _body_decoder(shapes.CompactRequest, CompactRequest)
decode_conversation = _body_decoder(
    shapes.CreateConversationRequest, CreateConversationRequest, empty=b"{}"
)
decode_conversation_items = _body_decoder(
    shapes.CreateConversationItemsRequest, CreateConversationItemsRequest
)
decode_conversation_update = _body_decoder(
    shapes.UpdateConversationRequest, UpdateConversationRequest
)
