"""Creates of which the message is made when somebody needs it: their JSON needs none."""

from __future__ import annotations

from typing import Any

from turnwire import _codec
from turnwire.v1.client_event_pb2 import ClientEvent, Input, ResponseCreate

__all__ = ["Create", "fill", "input_items"]


class Create:
    """A create whose settings came before.

    Attributes:
        settings: An event with a create of the settings alone, serialized.
        event_id: Its id.
        stream_id: Its lane.
        given: Its input.
    """

    __slots__ = (
        "_generate",
        "_metadata",
        "_previous_response_id",
        "_rollout",
        "_whole",
        "event_id",
        "given",
        "settings",
        "stream_id",
    )

    def __init__(
        self,
        settings: bytes,
        given: str | Input | None,
        previous_response_id: str | None,
        metadata: dict[str, str] | None,
        *,
        generate: bool | None,
        rollout: bool | None,
    ) -> None:
        self.settings = settings
        self.event_id = ""
        self.stream_id: str | None = None
        self.given = given
        self._previous_response_id = previous_response_id
        self._metadata = metadata
        self._generate = generate
        self._rollout = rollout
        self._whole: ClientEvent | None = None

    @property
    def whole(self) -> ClientEvent:
        """The message; it is made once, when `event_id` and `stream_id` are set."""
        if self._whole is None:
            event = self._whole = ClientEvent.FromString(self.settings)
            event.event_id = self.event_id
            if self.stream_id is not None:
                event.stream_id = self.stream_id
            create = event.response_create
            if self._metadata:
                create.metadata.update(self._metadata)
            fill(
                create,
                self.given,
                self._previous_response_id,
                generate=self._generate,
                rollout=self._rollout,
            )
            if isinstance(self.given, Input):
                self.given = create.input
        return self._whole

    def head(self) -> dict[str, Any]:
        """Return the members of its JSON that stand in front of the settings."""
        head = {"type": "response.create", "event_id": self.event_id}
        if self.stream_id is not None:
            head["stream_id"] = self.stream_id
        return head

    def own(self) -> dict[str, Any]:
        """Return the members of its JSON that are not settings."""
        given = self.given
        own: dict[str, Any] = {}
        if given is not None:
            own["input"] = given if isinstance(given, str) else _codec.to_value(given)
        if self._previous_response_id is not None:
            own["previous_response_id"] = self._previous_response_id
        if self._generate is not None:
            own["generate"] = self._generate
        if self._metadata:
            own["metadata"] = self._metadata
        if self._rollout is not None:
            own["rollout"] = self._rollout
        return own


def input_items(create: ClientEvent | Create) -> int:
    """Return how many items a create brings; text is one."""
    given = create.given if isinstance(create, Create) else create.response_create.input
    if isinstance(given, Input) and not given.HasField("text"):
        return len(given.items.items)
    return 0 if given is None else 1


def fill(
    create: ResponseCreate,
    given: str | Input | None,
    previous_response_id: str | None,
    *,
    generate: bool | None,
    rollout: bool | None,
) -> None:
    """Add to a create what each turn has of its own, but for the metadata."""
    if isinstance(given, str):
        create.input.text = given
    elif given is not None:
        create.input.CopyFrom(given)
    if previous_response_id is not None:
        create.previous_response_id = previous_response_id
    if generate is not None:
        create.generate = generate
    if rollout is not None:
        create.rollout = rollout
