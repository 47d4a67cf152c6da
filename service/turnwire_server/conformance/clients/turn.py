"""What came of one create, read as tolerantly as possible: the rules judge, this only reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwire_server.conformance.checks import Failure, Json, Skip, bounded
from turnwire_server.conformance.stream import TERMINAL

__all__ = ["Turn", "turn_of"]


@dataclass(slots=True)
class Turn:
    """The events of a turn, or what refused it."""

    events: list[Json] = field(default_factory=list)
    """All events, the last one included; empty over plain HTTP."""
    response: Json | None = None
    """The response that the last event or the body showed."""
    refusal: Json | None = None
    """`{status, error, …}` when the create was refused."""

    @property
    def id(self) -> str:
        """The response's id; "" when there is none."""
        return str((self.response or {}).get("id", ""))

    @property
    def status(self) -> object:
        """The response's status; None when there is none."""
        return (self.response or {}).get("status")

    @property
    def items(self) -> list[Json]:
        """The items that were done, or those of the body."""
        done = [
            event["item"]
            for event in self.events
            if event["type"] == "response.output_item.done" and isinstance(event.get("item"), dict)
        ]
        if done:
            return done
        output = (self.response or {}).get("output")
        return [item for item in output if isinstance(item, dict)] if output else []

    def of_type(self, kind: str) -> list[Json]:
        """Return the items of a type."""
        return [item for item in self.items if item.get("type") == kind]

    @property
    def text(self) -> str:
        """The text of the messages."""
        return "".join(
            str(part.get("text", ""))
            for item in self.of_type("message")
            for part in item.get("content") or []
        )

    @property
    def input_tokens(self) -> int:
        """`usage.input_tokens`; the check is skipped when there is none."""
        return self._used("input_tokens")

    @property
    def output_tokens(self) -> int:
        """`usage.output_tokens`; the check is skipped when there is none."""
        return self._used("output_tokens")

    def _used(self, name: str) -> int:
        usage = (self.response or {}).get("usage")
        value = usage.get(name) if isinstance(usage, dict) else None
        if not isinstance(value, int):
            raise Skip("the usage is missing, see terminal.usage")
        return value

    @property
    def refused_status(self) -> object:
        """The refusal's HTTP status; None when it has none."""
        return (self.refusal or {}).get("status")

    @property
    def code(self) -> str:
        """The refusal's code; "" when there is none."""
        return str(self._error.get("code") or "")

    @property
    def param(self) -> object:
        """The refusal's `param`."""
        return self._error.get("param")

    @property
    def _error(self) -> Json:
        error = (self.refusal or {}).get("error")
        return error if isinstance(error, dict) else {}

    # What scenarios ask for.

    def finished(self) -> Turn:
        """Return the turn.

        Raises:
            Failure: It was refused, or failed.
        """
        if self.refusal is not None:
            raise Failure(f"the create was refused: {self.code or 'no code'}", self.refusal)
        if self.status not in ("completed", "incomplete"):
            raise Failure(f"the response ended with status {bounded(self.status)}", self.response)
        return self

    def completed(self) -> Turn:
        """Return the turn.

        Raises:
            Failure: It is not completed.
        """
        if self.finished().status != "completed":
            raise Failure(f"the response is {bounded(self.status)}, not completed", self.response)
        return self

    def refused(
        self, code: str | None = None, *, status: int | None = 400, param: str | None = None
    ) -> Turn:
        """Return the turn.

        Args:
            code: The code that it must have; any when None.
            status: The HTTP status that it must have; any of an error when None.
            param: What `param` must be; anything when None.

        Raises:
            Failure: It was not refused, or otherwise.
            Skip: The refusal is malformed, which is for the rules to say.
        """
        if self.refusal is None:
            raise Failure("the create was accepted and must be refused", self.response)
        known = isinstance(self.refused_status, int) and 400 <= self.refused_status <= 599
        if not known or not isinstance(self._error.get("code"), str):
            raise Skip("the refusal is malformed, see error.frame and error.body")
        if code is not None and self.code != code:
            raise Failure(f"the code is {bounded(self.code)} instead of {code}", self.refusal)
        if status is not None and self.refused_status != status:
            shown = bounded(self.refused_status)
            raise Failure(f"the status is {shown} instead of {status}", self.refusal)
        if param is not None and self.param != param:
            raise Failure(f"`param` is {bounded(self.param)} instead of {param}", self.refusal)
        return self

    def is_unsupported(self, *names: str) -> bool:
        """Return whether the create was refused because of one of these parameters or events."""
        known = self.code in (
            "unsupported_parameter",
            "unknown_parameter",
            "unsupported_value",
            "unknown_event_type",
        )
        return known and (not names or str(self.param or "").split("[")[0] in names)


def turn_of(events: list[Json]) -> Turn:
    """Return the turn that `events` tell, the last of them its end."""
    last = events[-1]
    if last["type"] == "error":
        return Turn(events, refusal=last)
    shown = last.get("response") if last["type"] in TERMINAL else None
    return Turn(events, response=shown if isinstance(shown, dict) else None)
