"""From Python arguments to a create."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict, TypeGuard, TypeVar

import orjson
from google.protobuf.message import Message

from turnwire import _codec
from turnwire._create import Create, fill
from turnwire._json import JSONValue
from turnwire._tools import Tool
from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseCreate
from turnwire.v1.item_pb2 import Item
from turnwire.v1.tool_pb2 import Tool as ToolMessage

__all__ = [
    "CreateOptions",
    "InputItem",
    "KnownOptions",
    "RequestInput",
    "RunOptions",
    "ToolChoice",
    "ToolDefinition",
    "as_items",
    "build_create",
    "build_event",
    "build_input",
    "build_items",
    "build_late",
    "is_text",
]

InputItem: TypeAlias = Mapping[str, JSONValue] | Item
"""An item: as in the public JSON, or as a message, for example out of an earlier response."""

RequestInput: TypeAlias = str | Sequence[InputItem]
"""One user message, or items, oldest first."""

MessageT = TypeVar("MessageT", bound=Message)

_MAX_KNOWN = 4
_MAX_KNOWN_BYTES = 65_536

ToolDefinition: TypeAlias = Tool | Mapping[str, JSONValue]
"""A tool made by `turnwire.tool`, or the public JSON of any tool."""

ToolChoice: TypeAlias = str | Mapping[str, JSONValue]
"""A mode, or the public JSON of a choice."""


class RunOptions(TypedDict, total=False):
    """Settings of a turn; the names and meanings are the public API's.

    A value of None is the same as leaving it out.
    """

    model: str | None
    """Name of the model; the session's when left out."""
    instructions: str | None
    """What the model is told before everything else."""
    parallel_tool_calls: bool | None
    """Whether several tools may be called at once; default true."""
    store: bool | None
    """Whether the response can be continued from anywhere later; default true."""
    include: Sequence[str] | None
    """Extras, for example `turnwire.timing`."""
    metadata: Mapping[str, str] | None
    """Up to 16 pairs; keys up to 64 characters, values up to 512."""
    max_output_tokens: int | None
    """Most tokens to generate."""
    temperature: float | None
    """0 to 2; default 1."""
    top_p: float | None
    """0 to 1; default 1."""
    top_logprobs: int | None
    """Alternatives per token, 0 to 20."""
    presence_penalty: float | None
    """-2 to 2; default 0."""
    frequency_penalty: float | None
    """-2 to 2; default 0."""
    reasoning: Mapping[str, JSONValue] | None
    """For example `{"effort": "low"}`."""
    text: Mapping[str, JSONValue] | None
    """For example `{"format": {"type": "json_schema", "name": …, "schema": …}}`."""
    truncation: str | None
    """`disabled` (default) or `auto`."""
    context_management: Sequence[Mapping[str, JSONValue]] | None
    """For example `[{"type": "compaction", "compact_threshold": 50000}]`."""
    prompt_cache_key: str | None
    """Key for cache affinity."""
    safety_identifier: str | None
    """Your id of your user, for safety checks."""
    service_tier: str | None
    """For example `auto` or `priority`."""


class CreateOptions(RunOptions, total=False):
    """Settings of a turn, with its tools.

    Nothing but the conversation is inherited from the parent: `instructions` and `tools` are sent
    again with each turn.
    """

    tools: Sequence[ToolDefinition] | None
    """The tools of this turn."""
    tool_choice: ToolChoice | None
    """`auto` (default), `none`, `required`, or for example `{"type": "function", "name": …}`."""


def build_items(items: Sequence[InputItem]) -> list[Item]:
    """Return `items` as messages.

    Raises:
        ValueError: One is not an item; says which member.
    """
    return [
        item if isinstance(item, Item) else _parse(Item, item, f"input[{position}]")
        for position, item in enumerate(items)
    ]


def build_input(value: RequestInput) -> Input:
    """Return an input as a message; raises as `build_items` does."""
    if isinstance(value, str):
        return Input(text=value)
    built = Input()
    built.items.items.extend(build_items(value))
    built.items.SetInParent()
    return built


def as_items(given: Input) -> list[Item]:
    """Return an input as items: text is a message of the user."""
    if given.WhichOneof("value") == "text":
        item = Item()
        message = item.message
        message.role = "user"
        message.content.text = given.text
        return [item]
    return list(given.items.items)


def build_create(
    value: RequestInput | None,
    options: CreateOptions,
    *,
    model: str | None,
    previous_response_id: str | None = None,
    generate: bool | None = None,
    rollout: bool | None = None,
) -> ResponseCreate:
    """Return the create for Python arguments.

    Args:
        value: The input, or None for none.
        options: The rest of the body.
        model: The model when `options` names none.
        previous_response_id: The parent.
        generate: False for a warm-up.
        rollout: True for a whole agent run in one response.

    Raises:
        ValueError: A value has no place in a create; says which member.
    """
    create = _settings(options, model)
    given = value if value is None or isinstance(value, str) else build_input(value)
    fill(create, given, previous_response_id, generate=generate, rollout=rollout)
    return create


def build_event(
    value: RequestInput | None,
    options: CreateOptions,
    known: KnownOptions,
    *,
    model: str | None,
    previous_response_id: str | None = None,
    generate: bool | None = None,
    rollout: bool | None = None,
) -> ClientEvent:
    """Return the create for Python arguments in an event of its own, as `build_create` does.

    Args:
        value: As there, like all that is not said here.
        options: The rest of the body.
        known: The options of the session's creates so far; these are added.
        model: As there.
        previous_response_id: As there.
        generate: As there.
        rollout: As there.
    """
    event = known.event(options, model)
    given = value if value is None or isinstance(value, str) else build_input(value)
    create = event.response_create
    fill(create, given, previous_response_id, generate=generate, rollout=rollout)
    return event


def build_late(
    value: RequestInput | None,
    options: CreateOptions,
    known: KnownOptions,
    *,
    model: str | None,
    previous_response_id: str | None = None,
    generate: bool | None = None,
    rollout: bool | None = None,
) -> ClientEvent | Create:
    """Return what `build_event` does, as a message or, where the options are known, without one."""
    settings, metadata = known.find(options, model)
    if (
        settings is not None
        and (metadata is None or _are_texts(metadata))
        and (not isinstance(value, str) or is_text(value))
        and (previous_response_id is None or is_text(previous_response_id))
        and (generate is None or type(generate) is bool)
        and (rollout is None or type(rollout) is bool)
    ):
        given = value if value is None or isinstance(value, str) else build_input(value)
        pairs = dict(sorted(metadata.items())) if metadata else None
        return Create(
            settings, given, previous_response_id, pairs, generate=generate, rollout=rollout
        )
    return build_event(
        value,
        options,
        known,
        model=model,
        previous_response_id=previous_response_id,
        generate=generate,
        rollout=rollout,
    )


class KnownOptions:
    """Remembers the newest options of a session's creates: most turns have those of another.

    They are compared by their JSON, so that it does not matter what became of the dicts and lists
    that they came in. The metadata is read anew with each create, as it tends to change. Tools that
    bring credentials are not remembered.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, bytes], bytes] = {}
        """Model of the session and JSON of the options -> a create of them, serialized; oldest
        first."""

    def event(self, options: CreateOptions, model: str | None) -> ClientEvent:
        """Return a create of the options alone; raises as `build_create` does."""
        body, text, metadata = _taken_apart(options)
        known = self._known.get((model, text))
        if known is not None:
            event = ClientEvent.FromString(known)
        else:
            event = ClientEvent(response_create=_settings(body, model))
            if 0 < len(text) <= _MAX_KNOWN_BYTES and _codec.CREDENTIALS not in text:
                if len(self._known) >= _MAX_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[model, text] = event.SerializeToString()
        if metadata is not None:
            _add_metadata(event.response_create, metadata)
        return event

    def find(self, options: CreateOptions, model: str | None) -> tuple[bytes | None, object]:
        """Return a create of the options alone, serialized, if it is known; and the metadata."""
        _, text, metadata = _taken_apart(options)
        return self._known.get((model, text)), metadata


def _taken_apart(options: CreateOptions) -> tuple[dict[str, object], bytes, object]:
    """Return the options without the metadata, their JSON (empty if there is none), and that."""
    body: dict[str, object] = {**options}
    metadata = body.pop("metadata", None)
    if None in body.values():  # JSON would not tell it from a NaN.
        body = {name: given for name, given in body.items() if given is not None}
    try:
        return body, orjson.dumps(body, option=_codec.JSON_ONLY), metadata
    except orjson.JSONEncodeError:
        return body, b"", metadata  # Tools with functions, for example.


def is_text(value: object) -> bool:
    """Return whether protobuf and JSON take it as text without a word."""
    if type(value) is not str:
        return False
    try:
        return value.isascii() or value.encode() is not None
    except UnicodeEncodeError:
        return False


def _are_texts(pairs: object) -> TypeGuard[dict[str, str]]:
    if type(pairs) is not dict:
        return False
    return all(map(is_text, pairs)) and all(map(is_text, pairs.values()))


def _settings(options: Mapping[str, object], model: str | None) -> ResponseCreate:
    """Return a create of the options alone."""
    body = {name: given for name, given in options.items() if given is not None}
    tools = body.get("tools")
    if tools is not None:
        if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
            raise ValueError("tools: a list of tools is needed")
        if all(isinstance(definition, dict) for definition in tools):
            body["tools"], tools = list(tools), None
        else:
            del body["tools"]
    create = _parse(ResponseCreate, body, "")
    if tools is not None:
        create.tools.extend(
            definition.message
            if isinstance(definition, Tool)
            else _parse(ToolMessage, definition, f"tools[{position}]")
            for position, definition in enumerate(tools)
        )
    if not create.HasField("model") and model is not None:
        create.model = model
    return create


def _add_metadata(create: ResponseCreate, metadata: object) -> None:
    try:
        pairs = create.metadata
        for key, content in metadata.items():  # type: ignore[attr-defined]  # Else see below.
            if type(key) is not str or type(content) is not str:
                raise TypeError  # Protobuf would take bytes too.
            pairs[key] = content
    except (AttributeError, TypeError, UnicodeEncodeError):
        # The codec knows what to say of it, and is ten times slower.
        create.MergeFrom(_parse(ResponseCreate, {"metadata": metadata}, ""))


def _parse(kind: type[MessageT], value: object, where: str) -> MessageT:
    try:
        return _codec.parse(kind, value)
    except _codec.DecodeError as error:
        path = f"{where}.{error.path}" if where and error.path else where or error.path
        raise ValueError(f"{path}: {error.problem}") from None
