"""What the settings of creates come to, remembered: clients send the same ones with every turn."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from turnwire.v1 import client_event_pb2, response_pb2
from turnwire_server.ports.engine import Constraint, EngineInfo
from turnwire_server.runtime.abilities import (
    check_forced,
    ignored_settings,
    text_constraint,
    unforced_grammars,
)
from turnwire_server.runtime.registry import ServedModel
from turnwire_server.runtime.settings_bytes import Settings, sent_settings, settings_of
from turnwire_server.session.create_rules import TIMING
from turnwire_server.session.errors import Rejection
from turnwire_server.session.presence import number
from turnwire_server.session.responses import shown_settings
from turnwire_server.session.tool_choice import CheckedChoice, check_tool_choice
from turnwire_server.session.tool_rules import CheckedTools, hold_credentials
from turnwire_server.session.tools import ToolSet

__all__ = ["CheckedSettings", "KnownSettings", "check_settings"]

Create = client_event_pb2.ResponseCreate

_DEFAULT_THRESHOLD: Final = 0.8
"""Part of the context from which on it is compacted when the client names no threshold."""
_ENTRY_BYTES: Final = 1024
_ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"
_MOST_HELD: Final = 64 * 1024
"""Bytes of the largest create that is held between `has` and `find`: one that is refused in between
is held until the next one comes."""
_MOST_ALIKE: Final = 8
"""Of settings with the same tools, so many are known: users of one application may differ in a few
others."""

_Shape = tuple[int, bytes, tuple[bytes, ...]]
"""How many tools, the last of them, and those that items offered."""


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
    sampling: tuple[float | None, float | None, float | None, float | None]
    """Temperature, `top_p`, presence and frequency penalty, as `Sampling` has them."""
    is_parallel: bool
    """Whether the model may call several tools at once."""
    is_stored: bool
    """Whether the response outlives its session."""
    wants_timing: bool
    """Whether the terminal event says where the time went."""
    wants_sealed_reasoning: bool
    """Whether reasoning items shall have `encrypted_content`."""


class KnownSettings:
    """The settings that were checked last, found by their bytes.

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
        self._known: OrderedDict[_Shape, dict[bytes, CheckedSettings]] = OrderedDict()
        self._found: tuple[Create, CheckedSettings] | None = None
        """What `has` found last: `find` is mostly asked for the same create right after."""

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
        found, self._found = self._found, None
        if found is not None and found[0] is create and not added:
            checked: CheckedSettings | None = found[1]
        else:
            checked = self._look_up(settings_of(create), added)
        if checked is not None and checked.model is not model:
            self.forget()
            return None
        return checked

    def has(self, event: bytes, create: Create | None = None) -> bool:
        """Return whether the settings of the create in a serialized `ClientEvent` are known.

        Args:
            event: The bytes.
            create: The create that was read from them, if `find` shall not look for it again:
                until then nobody may change it.
        """
        settings = sent_settings(event)
        checked = None if settings is None else self._look_up(settings, ())
        self._found = None
        if checked is not None and create is not None and len(event) <= _MOST_HELD:
            self._found = (create, checked)
        return checked is not None

    def _look_up(self, settings: Settings, added: tuple[bytes, ...]) -> CheckedSettings | None:
        shape = _shape(settings, added)
        alike = self._known.get(shape)
        if alike is None or (checked := alike.get(settings.SerializeToString())) is None:
            return None
        self._known.move_to_end(shape)
        return checked

    def forget(self) -> None:
        """Forget all: models were replaced, and none of them is to be kept alive."""
        self._known.clear()
        self._bytes = 0
        self._found = None

    def add(self, create: Create, added: tuple[bytes, ...], checked: CheckedSettings) -> None:
        """Remember what the settings of a create, which are not known, came to."""
        if hold_credentials(create.tools, added):
            return
        settings = settings_of(create)
        shape, key = _shape(settings, added), settings.SerializeToString()
        size = _size(shape, key, checked)
        if size > self._max_bytes:
            return
        alike = self._known.setdefault(shape, {})
        self._known.move_to_end(shape)
        if len(alike) == _MOST_ALIKE:
            oldest = next(iter(alike))
            self._bytes -= _size(shape, oldest, alike.pop(oldest))
        alike[key] = checked
        self._bytes += size
        while self._bytes > self._max_bytes:
            shape, forgotten = self._known.popitem(last=False)
            self._bytes -= sum(_size(shape, *known) for known in forgotten.items())


def _shape(settings: Settings, added: tuple[bytes, ...]) -> _Shape:
    """Return what tells most tools apart without comparing all of them."""
    tools = settings.tools
    return len(tools), tools[-1] if tools else b"", added


def _size(shape: _Shape, key: bytes, checked: CheckedSettings) -> int:
    return len(key) + sum(map(len, shape[2])) + len(checked.shown) + _ENTRY_BYTES


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
        sampling=(
            number(create, "temperature"),
            number(create, "top_p"),
            number(create, "presence_penalty"),
            number(create, "frequency_penalty"),
        ),
        is_parallel=create.parallel_tool_calls or not create.HasField("parallel_tool_calls"),
        is_stored=create.store or not create.HasField("store"),
        wants_timing=TIMING in create.include,
        wants_sealed_reasoning=_ENCRYPTED_REASONING in create.include,
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
