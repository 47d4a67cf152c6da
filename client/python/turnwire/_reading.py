"""Server events from their JSON: no message is built before it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from turnwire import _codec
from turnwire._event import DELTA_ARMS, PUBLIC_TYPES, Event
from turnwire.errors import ProtocolViolation
from turnwire.v1.response_pb2 import Response
from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = ["EventReader"]

_RUNNING = "response.in_progress"
_STAND_IN = "turnwire.known"
_HEAD = {"type": str, "sequence_number": int, "stream_id": str}
_FLAT = {
    PUBLIC_TYPES[arm.name]: (str(arm.name), _codec.flat_members(arm.message_type) | _HEAD)
    for arm in ServerEvent.DESCRIPTOR.oneofs_by_name["event"].fields
    if arm.message_type is not None
}
"""Public type -> its arm, and the members of such events that are flat, as those of most are."""
_decode = _codec.quick_decoder(ServerEvent)
_CREDENTIALS = _codec.CREDENTIALS.decode()
_MAX_KNOWN_CHARS = 65_536
# What is the same in all responses to the same settings.
_SETTINGS = frozenset(
    """background frequency_penalty instructions max_output_tokens max_tool_calls model
    parallel_tool_calls presence_penalty prompt_cache_key reasoning safety_identifier service_tier
    store temperature text tool_choice tools top_logprobs top_p truncation user""".split()
)


class _Known(NamedTuple):
    """Settings of a response that come again and again, one behind the other."""

    text: str
    first: str
    """How the text begins: the name of the first member."""
    names: frozenset[str]
    message: bytes
    """A response of them alone, serialized."""


class EventReader:
    """Reads the events of one connection.

    Every response that a server tells brings the tools of its create, three times a turn. Their
    text, and that of the settings around them, is compared with that of the response before, and
    read only when it differs. Tools that bring credentials are not remembered.
    """

    def __init__(self) -> None:
        self._known: _Known | None = None
        self._created: tuple[str, Event] | None = None
        """Of a response that has just been created: the text of what comes next, and the event."""

    def read(self, text: str, size: int) -> Event:
        """Return the event of a JSON text that took `size` bytes.

        Raises:
            ProtocolViolation: It is not the JSON of an event.
        """
        created, self._created = self._created, None
        known = self._known
        if known is not None and len(text) > len(known.text):
            if created is not None and text == created[0]:
                return _again(size, created[1])
            if (event := self._read_known(text, size, known)) is not None:
                return event
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise ProtocolViolation("an event is malformed at ''") from None
        try:
            flat = _FLAT.get(value["type"])
            if flat is not None and _codec.is_flat(value, flat[1]):
                return _flat(flat[0], value, size)
            return _late(_decode(value), size)
        except _codec.UNUSUAL:
            pass  # `parse` knows how to read it, or what is wrong with it.
        try:
            event = Event(_parse(value), size)
        except _codec.DecodeError as error:
            if error.kind == "value" and error.path == "type":
                return Event(ServerEvent(), size)
            raise ProtocolViolation(f"an event is malformed at {error.path!r}") from None
        if type(value.get("response")) is dict:
            self._learn(text, value["response"])
            self._note(text, value, event)
        return event

    def _read_known(self, text: str, size: int, known: _Known) -> Event | None:
        """Read an event with what is known already; None when it must be read as it came."""
        at = text.find(known.first)
        if at < 0 or not text.startswith(known.text, at):
            return None
        # Nothing can follow text in JSON, as digits can follow the end of a number.
        rest = f'{text[:at]}"{_STAND_IN}":""{text[at + len(known.text) :]}'
        try:
            value = orjson.loads(rest)
            response = value["response"]
            # What was cut out were members of the response, and all of those names.
            if response.pop(_STAND_IN) != "" or not known.names.isdisjoint(response):
                return None
            arguments = _decode(value)
        except (orjson.JSONDecodeError, *_codec.UNUSUAL):
            return None
        event = _late(arguments, size, known.message)
        if "response" not in arguments[event.arm]:
            return None
        self._note(text, value, event)
        return event

    def _learn(self, text: str, response: Mapping[str, Any]) -> None:
        """Remember the settings around the tools of a response."""
        run: dict[str, Any] = {}
        for name, content in response.items():
            if name in _SETTINGS:
                run[name] = content
            elif "tools" in run:
                break
            else:
                run.clear()
        self._known = None
        if not run.get("tools"):
            return
        known = orjson.dumps(run).decode()[1:-1]
        if len(known) <= _MAX_KNOWN_CHARS and known in text and _CREDENTIALS not in known:
            message = _codec.parse(Response, run).SerializeToString()
            self._known = _Known(known, f'"{next(iter(run))}":', frozenset(run), message)

    def _note(self, text: str, value: dict[str, Any], event: Event) -> None:
        """Remember a response that was created: the next event says the same of it."""
        # The response ends it: no member of the head comes again behind it.
        if event.arm == "response_created" and event.number == 0 and text.endswith("}}"):
            head = {name: content for name, content in value.items() if name in _HEAD}
            start = _start(head)
            if len(head) + 1 == len(value) and text.startswith(start):
                head |= {"type": _RUNNING, "sequence_number": 1}
                self._created = _start(head) + text[len(start) :], event


def _start(head: dict[str, Any]) -> str:
    """Return how the text of an event with a response begins."""
    return f'{orjson.dumps(head).decode()[:-1]},"response":'


def _flat(arm: str, value: dict[str, Any], size: int) -> Event:
    """Return the event of a flat JSON value."""
    number, stream_id = value.get("sequence_number", -1), value.get("stream_id")
    delta = value.get("delta") if arm in DELTA_ARMS else None
    return Event.late(arm, size, number, stream_id, delta, _parse, value)


def _parse(value: dict[str, Any]) -> ServerEvent:
    return _codec.parse(ServerEvent, value)


def _late(arguments: dict[str, Any], size: int, known: bytes | None = None) -> Event:
    """Return the event of such arguments, and of known members of its response."""
    arm = next(iter(arguments))  # The event itself comes first.
    response = arguments[arm].get("response")
    return Event.late(
        arm,
        size,
        arguments.get("sequence_number", -1),
        arguments.get("stream_id"),
        arguments[arm].get("delta") if arm in DELTA_ARMS else None,
        _whole,
        (arguments, arm, known),
        "" if response is None else response.get("id", ""),
    )


def _whole(made_of: tuple[dict[str, Any], str, bytes | None]) -> ServerEvent:
    arguments, arm, known = made_of
    event = ServerEvent(**arguments)
    if known is not None:
        getattr(event, arm).response.MergeFromString(known)
    return event


def _again(size: int, created: Event) -> Event:
    """Return the event that a response is in progress, which is as it was when created."""
    number, stream_id = created.number + 1, created.stream_id
    return Event.late("response_in_progress", size, number, stream_id, None, _in_progress, created)


def _in_progress(created: Event) -> ServerEvent:
    told: Any = created.message
    event = ServerEvent(sequence_number=created.number + 1, stream_id=created.stream_id)
    event.response_in_progress.response.CopyFrom(told.response)
    return event
