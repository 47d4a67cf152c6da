"""What the settings of creates come to, remembered: clients send the same ones with every turn."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import copysign
from typing import Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from turnwire.v1 import client_event_pb2, response_pb2
from turnwire_server.ports.engine import Constraint, EngineInfo
from turnwire_server.runtime.abilities import (
    check_forced,
    ignored_settings,
    text_constraint,
    unforced_grammars,
)
from turnwire_server.runtime.registry import ServedModel
from turnwire_server.session.create_rules import OF_ONE_TURN
from turnwire_server.session.errors import Rejection
from turnwire_server.session.responses import shown_settings
from turnwire_server.session.tool_choice import CheckedChoice, check_tool_choice
from turnwire_server.session.tool_rules import CheckedTools, hold_credentials
from turnwire_server.session.tools import ToolSet

__all__ = ["CheckedSettings", "KnownSettings", "check_settings"]

Create = client_event_pb2.ResponseCreate

_DEFAULT_THRESHOLD: Final = 0.8
"""Part of the context from which on it is compacted when the client names no threshold."""
_ENTRY_BYTES: Final = 1024
_OF_ONE_TURN: Final = frozenset(Create.DESCRIPTOR.fields_by_name[name] for name in OF_ONE_TURN)

_MOST_ALIKE: Final = 8
"""Of settings with the same tools, so many are known: users of one application may differ in a few
others."""

_Shape = tuple[str, int, bytes, tuple[bytes, ...]]
_Settings = list[tuple[FieldDescriptor, object]]
"""Members and their values."""
_Zeros = list[tuple[int, float]]
"""Where among settings there is a floating-point zero, and 1 or -1 for its sign."""


@dataclass(frozen=True, slots=True)
class CheckedSettings:
    """What the settings of a create come to that has passed the rules."""

    model: ServedModel
    engine: EngineInfo
    """What its engine says of itself."""
    tools: ToolSet
    callable_tools: ToolSet
    """The tools that the turn may call: those that `tool_choice` allows."""
    choice: CheckedChoice
    text_format: Constraint | None
    shown: bytes
    """What the response shows of them, see `shown_settings`."""
    warnings: tuple[response_pb2.Warning, ...]
    compact_threshold: int | None
    """Tokens of the prompt from which on the context is compacted first; None for never."""


class _Known(NamedTuple):
    settings: _Settings
    zeros: _Zeros
    checked: CheckedSettings
    size: int


class KnownSettings:
    """The settings that were checked last, found by comparing them.

    Members `OF_ONE_TURN` are neither compared nor kept; nor is any create that has credentials.
    """

    def __init__(self, max_bytes: int = 4 * 1024 * 1024) -> None:
        """Remember nothing yet.

        Args:
            max_bytes: Bound on the settings that are kept, serialized, and 1 KiB for each; those
                used last stay.
        """
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[_Shape, list[_Known]] = OrderedDict()

    def find(
        self, create: Create, model: ServedModel | Rejection, added: tuple[bytes, ...]
    ) -> CheckedSettings | None:
        """Return what the same settings came to, None when that is not known.

        Args:
            create: A create; when its settings are known, it has passed `check_create` but for
                what `check_own` looks at.
            model: Its model.
            added: Serialized tools that items offered.
        """
        shape = _shape(create, added)
        alike = self._known.get(shape)
        if alike is None:
            return None
        if alike[0].checked.model is not model:
            self.forget()
            return None
        settings = _settings(create)
        for known in alike:
            if known.settings == settings and (not known.zeros or _has(settings, known.zeros)):
                self._known.move_to_end(shape)
                return known.checked
        return None

    def forget(self) -> None:
        """Forget all: models were replaced, and none of them is to be kept alive."""
        self._known.clear()
        self._bytes = 0

    def add(self, create: Create, added: tuple[bytes, ...], checked: CheckedSettings) -> None:
        """Remember what the settings of a create, which are not known, came to."""
        if hold_credentials(create.tools, added):
            return
        own = Create()  # the turn may change its create
        for member, value in _settings(create):
            if isinstance(value, str | int | float):
                setattr(own, member.name, value)
            else:
                getattr(own, member.name).MergeFrom(value)
        size = own.ByteSize() + sum(map(len, added)) + len(checked.shown) + _ENTRY_BYTES
        if size > self._max_bytes:
            return
        shape = _shape(create, added)
        alike = self._known.setdefault(shape, [])
        self._known.move_to_end(shape)
        if len(alike) == _MOST_ALIKE:
            self._bytes -= alike.pop(0).size
        kept = _settings(own)
        alike.append(_Known(kept, _zeros(kept), checked, size))
        self._bytes += size
        while self._bytes > self._max_bytes:
            _, forgotten = self._known.popitem(last=False)
            self._bytes -= sum(known.size for known in forgotten)


def _settings(create: Create) -> _Settings:
    """Return the settings, tools among the last: compared first is what takes no time."""
    return [member for member in reversed(create.ListFields()) if member[0] not in _OF_ONE_TURN]


def _zeros(settings: _Settings) -> _Zeros:
    """Return the zeros among settings: to Python the two are equal, to a client they are not."""
    return [
        (index, copysign(1.0, value))
        for index, (_, value) in enumerate(settings)
        if isinstance(value, float) and value == 0
    ]


def _has(settings: _Settings, zeros: _Zeros) -> bool:
    """Return whether settings, equal otherwise, have these very zeros."""
    for index, sign in zeros:
        if copysign(1.0, settings[index][1]) != sign:  # type: ignore[arg-type]  # It is equal to 0.
            return False
    return True


def _shape(create: Create, added: tuple[bytes, ...]) -> _Shape:
    """Return what tells most settings apart without comparing them."""
    tools = create.tools
    last = tools[-1].SerializeToString() if tools else b""
    return create.model, len(tools), last, added


def check_settings(
    create: Create, model: ServedModel, tools: CheckedTools
) -> CheckedSettings | Rejection:
    """Check the settings of a create against its tools and against what its model can do.

    Args:
        create: The create; it has passed `check_create`.
        model: Its model.
        tools: Its tools, and those that items offered.
    """
    engine = model.engine.info
    choice = check_tool_choice(
        create.tool_choice if create.HasField("tool_choice") else None, tools.tools
    )
    if isinstance(choice, Rejection):
        return choice
    may_call = _callable(tools.tools, choice)
    text_format = text_constraint(create, model.engine)
    if isinstance(text_format, Rejection):
        return text_format
    rejection = check_forced(tools, choice, may_call, model.engine)
    if rejection is not None:
        return rejection
    return CheckedSettings(
        model=model,
        engine=engine,
        tools=tools.tools,
        callable_tools=may_call,
        choice=choice,
        text_format=text_format,
        shown=shown_settings(create, tools.echo),
        warnings=(
            *tools.warnings,
            *unforced_grammars(tools, choice, may_call, model.engine),
            *ignored_settings(create, engine),
        ),
        compact_threshold=_threshold(create, engine.context_length),
    )


def _threshold(create: Create, context_length: int) -> int | None:
    if not create.context_management:
        return None
    thresholds = [
        entry.compact_threshold or int(context_length * _DEFAULT_THRESHOLD)
        for entry in create.context_management
    ]
    return min(thresholds)


def _callable(tools: ToolSet, choice: CheckedChoice) -> ToolSet:
    if choice.mode == "none":
        return ToolSet()
    if choice.allowed is None:
        return tools
    return ToolSet.of(
        tuple(tools.by_qualified_name[name] for name in choice.allowed), tools.fingerprint
    )
