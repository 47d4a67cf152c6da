"""What the pool holds: sessions, their lanes, and the newest response of each conversation."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from turnwire._session import Session

__all__ = ["Head", "Heads", "HeldSession", "Identity", "Known", "Lease", "Slot"]

Identity = tuple[tuple[str, str], ...]
"""Whose session it is: the headers that it was opened with."""

_Place = tuple[Identity, bytes]
_MOST_STORED = 4096
"""Stored responses that are remembered, newest first."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest response of a conversation."""

    response_id: str
    digest: bytes
    """Of all items up to and with its output."""


@dataclass(frozen=True, slots=True)
class Known:
    """A response that the server keeps, whatever session asks for it."""

    head: Head
    items: int
    """How many of the request's items it covers."""


@dataclass(slots=True, eq=False)
class HeldSession:
    """An open session. It serves one conversation at a time, and the forks of it, on lanes."""

    identity: Identity
    opening: AbstractAsyncContextManager[Session]
    session: Session
    slots: list[Slot] = field(default_factory=list)
    is_retired: bool = False
    """The server will not have it much longer: no new turns."""
    idle_since: float = 0.0
    borrowers: int = 0
    """Calls beside the turns that are on it."""

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs on it."""
        return any(slot.is_busy for slot in self.slots)

    @property
    def is_usable(self) -> bool:
        """Whether it takes turns."""
        return not self.is_retired and self.session.is_open


@dataclass(slots=True, eq=False)
class Slot:
    """A lane of a session, with the conversation on it."""

    held: HeldSession
    lane: str | None = None
    """None is the default lane."""
    is_busy: bool = False
    head: Head | None = None
    """What it holds while it is idle."""
    base: Head | None = None
    """What its running turn continues: until that ends, the session holds it too."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot for one turn."""

    slot: Slot
    head: Head | None = None
    """What there is of the turn's conversation."""
    items: int = 0
    """How many of the request's items `head` covers."""


class Heads:
    """Finds what can be continued, by the digest of its items."""

    def __init__(self) -> None:
        self._idle: dict[_Place, list[Slot]] = defaultdict(list)
        self._bases: dict[_Place, list[Slot]] = defaultdict(list)
        self._stored: OrderedDict[_Place, str] = OrderedDict()

    def idle(self, identity: Identity, digest: bytes) -> Sequence[Slot]:
        """Return the idle slots that hold it."""
        return self._idle.get((identity, digest), ())

    def running(self, identity: Identity, digest: bytes) -> Sequence[Slot]:
        """Return the busy slots whose turns continue it."""
        return self._bases.get((identity, digest), ())

    def stored(self, identity: Identity, digest: bytes) -> Head | None:
        """Return it, if the server was asked to keep it."""
        response_id = self._stored.get((identity, digest))
        return None if response_id is None else Head(response_id, digest)

    def hold(self, slot: Slot, head: Head | None) -> None:
        """Let an idle slot hold a response, or none."""
        _take(self._idle, slot, slot.head)
        slot.head = head
        if head is not None:
            self._idle[slot.held.identity, head.digest].append(slot)

    def begin(self, slot: Slot, base: Head | None) -> None:
        """Let a slot be busy with a turn that continues `base`, None for nothing."""
        self.hold(slot, None)
        slot.is_busy, slot.base = True, base
        if base is not None:
            self._bases[slot.held.identity, base.digest].append(slot)

    def end(self, slot: Slot) -> None:
        """Let a slot be idle."""
        _take(self._bases, slot, slot.base)
        slot.is_busy, slot.base = False, None

    def keep(self, identity: Identity, head: Head) -> None:
        """Remember that the server keeps a response."""
        self._stored[identity, head.digest] = head.response_id
        self._stored.move_to_end((identity, head.digest))
        if len(self._stored) > _MOST_STORED:
            self._stored.popitem(last=False)

    def lose(self, response_id: str) -> None:
        """Forget that the server keeps a response."""
        lost = [place for place, kept in self._stored.items() if kept == response_id]
        for place in lost:
            del self._stored[place]


def _take(index: dict[_Place, list[Slot]], slot: Slot, head: Head | None) -> None:
    if head is None:
        return
    place = (slot.held.identity, head.digest)
    index[place].remove(slot)
    if not index[place]:
        del index[place]
