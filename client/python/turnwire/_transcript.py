"""What a client remembers of its conversations: enough to begin one again somewhere else."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turnwire.v1.client_event_pb2 import Input
from turnwire.v1.item_pb2 import Item

__all__ = ["Made", "Remembered", "Transcript", "as_made"]

_MAX_ENDS = 64
_MAX_RENAMED = 256


class Made(NamedTuple):
    """What a turn made."""

    items: tuple[bytes, ...]
    """Serialized: that is a third of the work of a copy, and hardly any is ever needed."""
    compaction: int | None
    """Which of them is the newest compaction."""


def as_made(items: Sequence[Item]) -> Made:
    """Keep what a turn made as it is now."""
    newest = None
    for index, item in enumerate(items):
        if item.WhichOneof("item") == "compaction":
            newest = index
    return Made(tuple([item.SerializeToString() for item in items]), newest)


@dataclass(slots=True, eq=False)
class Remembered:
    """One response with what led to it."""

    response_id: str
    parent: Remembered | None
    items: tuple[bytes, ...]
    """What the response added, serialized: its input and its output."""
    size: int
    is_stored: bool
    """Whether the server was to store it."""
    session: int
    """Which of the client's sessions it was made on."""
    lane: str | None
    stays: bool
    """Whether the server may keep it when its lane goes on without it."""
    continued: int = 0
    """How many remembered responses continue it."""
    steers: Input | None = None
    """Messages that go in front of what continues it."""


class Transcript:
    """Conversations by their newest responses, as trees that share what they have in common.

    A response is kept while it, or one that continues it, is among the ends: the newest responses,
    of which a lane has one unless it is stored. Everything together is bounded in bytes; the ends
    that were not touched for longest go first. A conversation that is not whole is not kept.
    """

    def __init__(self, most_bytes: int) -> None:
        """Make an empty one.

        Args:
            most_bytes: Bound on the items, as serialized; 0 to remember nothing.
        """
        self._most_bytes = most_bytes
        self._kept: dict[str, Remembered] = {}
        self._ends: OrderedDict[str, None] = OrderedDict()
        self._lanes: dict[str | None, str] = {}
        """The newest response of each lane."""
        self._renamed: OrderedDict[str, str] = OrderedDict()
        self.bytes = 0
        """What the items take, as serialized."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def is_kept(self) -> bool:
        """Whether anything is remembered at all."""
        return self._most_bytes > 0

    @property
    def has_renamed(self) -> bool:
        """Whether a response may have taken over from another."""
        return bool(self._renamed)

    def add(
        self,
        response_id: str,
        *,
        parent_id: str | None,
        lane: str | None,
        given: Iterable[Item],
        made: Made,
        is_stored: bool,
        session: int,
        is_warm_up: bool = False,
    ) -> None:
        """Remember a response that is over and can be continued.

        Args:
            response_id: Its id.
            parent_id: The response that it continues; None for none.
            lane: Its lane.
            given: Its input.
            made: What followed it.
            is_stored: Whether the server was to store it.
            session: The session that it was made on.
            is_warm_up: Whether it only prepared a conversation.
        """
        if not self.is_kept or response_id in self._kept:
            return
        parent = None if parent_id is None else self.find(parent_id)
        if parent_id is not None and parent is None:
            self._follow(lane, response_id, is_kept=False)
            return
        own = list(given)
        if parent is not None and parent.steers is not None:
            own = [*parent.steers.items.items, *own]
            parent.steers = None
        output = made.items
        if made.compaction is not None:
            # It stands for all before it.
            own, output, parent = [], output[made.compaction :], None
        items = (*[item.SerializeToString() for item in own], *output)
        entry = Remembered(
            response_id,
            parent,
            items,
            sum(map(len, items)),
            is_stored,
            session,
            lane,
            stays=is_stored or is_warm_up,
        )
        self._kept[response_id] = entry
        self.bytes += entry.size
        self._ends[response_id] = None
        if parent is not None:
            parent.continued += 1
            self._ends.pop(parent.response_id, None)
        self._follow(lane, response_id, is_kept=True)
        while self._ends and (self.bytes > self._most_bytes or len(self._ends) > _MAX_ENDS):
            self._drop(next(iter(self._ends)))

    def find(self, response_id: str) -> Remembered | None:
        """Return what is remembered of a response, also by the id of one that it took over from."""
        return self._kept.get(self._renamed.get(response_id, response_id))

    def whole(self, entry: Remembered) -> Input:
        """Return the whole conversation up to and with a response, as the input of another."""
        chain = [entry]
        while (parent := chain[-1].parent) is not None:
            chain.append(parent)
        whole = Input()
        whole.items.SetInParent()
        for each in reversed(chain):
            whole.items.items.extend(map(Item.FromString, each.items))
        if entry.steers is not None:
            whole.items.items.extend(entry.steers.items.items)
        return whole

    def steer(self, response_id: str, items: Iterable[Item]) -> None:
        """Remember messages that the server puts in front of what continues a response."""
        entry = self.find(response_id)
        if entry is not None:
            if entry.steers is None:
                entry.steers = Input()
            entry.steers.items.items.extend(items)

    def rename(self, lost_ids: Iterable[str], response_id: str) -> None:
        """Note that a response took over from others that were lost with their sessions."""
        for lost_id in lost_ids:
            self._renamed[lost_id] = response_id
            if len(self._renamed) > _MAX_RENAMED:
                self._renamed.popitem(last=False)

    def name(self, response_id: str) -> str:
        """Return the id under which the server may know a response that the user named."""
        return self._renamed.get(response_id, response_id)

    def forget(self, response_id: str) -> None:
        """Forget a response, and with it what continues it: it was deleted."""
        doomed = self.find(response_id)
        if doomed is None:
            return
        for end in [self._kept[end] for end in self._ends]:
            each: Remembered | None = end
            while each is not None and each is not doomed:
                each = each.parent
            if each is doomed:
                self._drop(end.response_id)

    # Private.

    def _follow(self, lane: str | None, response_id: str, *, is_kept: bool) -> None:
        """Let a lane go on: what is not stored and was not continued is gone at the server."""
        before = self._kept.get(self._lanes.pop(lane, ""))
        if is_kept:
            self._lanes[lane] = response_id
        if before is not None and not before.stays and not before.continued:
            self._drop(before.response_id)

    def _drop(self, response_id: str) -> None:
        """Take an end away, with all that leads to no other end."""
        self._ends.pop(response_id, None)
        entry: Remembered | None = self._kept.get(response_id)
        while entry is not None and not entry.continued and entry.response_id not in self._ends:
            del self._kept[entry.response_id]
            self.bytes -= entry.size
            if self._lanes.get(entry.lane) == entry.response_id:
                del self._lanes[entry.lane]
            entry = entry.parent
            if entry is not None:
                entry.continued -= 1
