"""What the agents of a seed saw, to be held against what the server kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from turnwire import Event, Response

__all__ = ["Seen", "SeenResponse"]

_TERMINAL = frozenset({"response_completed", "response_incomplete", "response_failed"})


@dataclass(slots=True)
class SeenResponse:
    """One response as its client saw it."""

    id: str
    store: bool
    numbers: list[int] = field(default_factory=list)
    """`sequence_number` of its events, in the order in which they came."""
    status: str = ""
    """Final status, "" when no terminal event came."""
    usage: tuple[int, int, int] = (0, 0, 0)
    """Input, cached and output tokens of the terminal event."""
    text: str = ""
    calls: tuple[str, ...] = ()
    """Ids of the calls of its output."""


@dataclass(slots=True)
class Seen:
    """Everything that one agent saw and did."""

    agent: str
    responses: dict[str, SeenResponse] = field(default_factory=dict)
    executed: Counter[str] = field(default_factory=Counter)
    """`call_id` -> how often its tool ran."""
    finished: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Of each run that came to its end: the text of its answer, and the calls it made."""
    losses: list[str] = field(default_factory=list)
    """Names of the errors after which the agent began a run anew."""
    _open: SeenResponse | None = None

    @property
    def events(self) -> int:
        """How many events came."""
        return sum(len(response.numbers) for response in self.responses.values())

    def event(self, event: Event, *, store: bool) -> None:
        """Note an event, in the order in which the client gave it out."""
        response = event.response
        if response is not None:
            known = self.responses.get(response.id)
            if known is None:
                known = self.responses[response.id] = SeenResponse(response.id, store)
            self._open = known
        assert self._open is not None, "an event came before its response was created"
        if event.sequence_number is not None:
            self._open.numbers.append(event.sequence_number)
        if response is not None and event.arm in _TERMINAL:
            self._end(self._open, response)

    def _end(self, known: SeenResponse, response: Response) -> None:
        usage = response.message.usage
        known.status = response.status
        known.usage = (
            usage.input_tokens,
            usage.input_tokens_details.cached_tokens,
            usage.output_tokens,
        )
        known.text = response.output_text
        known.calls = tuple(call.call_id for call in response.function_calls)
