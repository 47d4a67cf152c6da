"""The sessions of a transport: which are open, what each holds, whose turn it is.

A session serves one conversation at a time. When its turn is over it keeps the conversation's
newest response, so that the next request of the conversation can continue it. Requests that go
another way from the same point while a turn runs (forks) get lanes of the same session, which
holds that point until the turn is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from turnwire._event import Event
from turnwire._session import Session
from turnwire.errors import SessionClosed
from turnwire.openai._slots import Head, Heads, HeldSession, Identity, Known, Lease, Slot
from turnwire.openai._values import PhaseTimeoutError

__all__ = ["Opener", "PoolSettings", "SessionPool"]

Opener = Callable[[Identity, Callable[[Event], None]], AbstractAsyncContextManager[Session]]
"""Opens a session for an identity; the second argument takes the session's notices."""

# Below what servers allow: 16 turns at once, 32 named lanes.
_MOST_BUSY = 16
_MOST_SLOTS = 32


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How many sessions, for how long."""

    max_sessions: int = 32
    idle_expiry_s: float = 300.0
    """A session that had no turn for this long is closed."""


@dataclass(slots=True)
class _Counts:
    opened: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(slots=True)
class _Opening:
    """A session that is on its way: it takes a place in the pool already."""

    notices: list[Event] = field(default_factory=list)
    held: HeldSession | None = None

    def notice(self, event: Event) -> None:
        """Take an event that is of no turn: a farewell, or a refusal of the connection."""
        if event.arm in ("error", "turnwire_go_away"):
            self.notices.append(event)
            if self.held is not None:
                self.held.is_retired = True


class SessionPool:
    """Lives on one event loop. Choosing a session never waits; opening and closing do."""

    def __init__(self, settings: PoolSettings, opener: Opener) -> None:
        self._settings = settings
        self._opener = opener
        self._loop = asyncio.get_running_loop()
        self._open: list[HeldSession] = []
        self._opening = 0
        self._heads = Heads()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._reaper: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._counts = _Counts()

    @property
    def sessions_opened(self) -> int:
        """Sessions opened so far."""
        return self._counts.opened

    @property
    def sessions(self) -> int:
        """Sessions that are open."""
        return len(self._open)

    @property
    def payload_bytes(self) -> tuple[int, int]:
        """Payload bytes up and down over all sessions so far."""
        return (
            self._counts.bytes_up + sum(held.session.bytes_up for held in self._open),
            self._counts.bytes_down + sum(held.session.bytes_down for held in self._open),
        )

    def find(self, identity: Identity, digests: Sequence[bytes]) -> Lease | Known | None:
        """Find what holds the longest prefix, short of all items.

        Args:
            identity: Whose.
            digests: Of each prefix, the empty one first.

        Returns:
            A slot, taken: one that holds the prefix, or a lane beside a turn that continues it.
            Or what the server keeps of it, for whatever slot. None when there is nothing.
        """
        for count in range(len(digests) - 2, 0, -1):
            digest = digests[count]
            for slot in self._heads.idle(identity, digest):
                if slot.held.is_usable:
                    return self._take(slot, slot.head, count)
            for slot in self._heads.running(identity, digest):
                if (lane := self._beside(slot.held)) is not None:
                    return self._take(lane, slot.base, count)
            if (head := self._heads.stored(identity, digest)) is not None:
                return Known(head, count)
        return None

    def find_response(self, identity: Identity, response_id: str) -> Lease | None:
        """Take a slot of the session that holds this response; None when none does."""
        for held in self._open:
            if held.identity != identity or not held.is_usable:
                continue
            for slot in held.slots:
                if slot.head is not None and slot.head.response_id == response_id:
                    return self._take(slot, slot.head)
                if slot.base is not None and slot.base.response_id == response_id:
                    lane = self._beside(held)
                    return None if lane is None else self._take(lane, slot.base)
        return None

    async def acquire(
        self, identity: Identity, *, connect_s: float | None, pool_s: float | None
    ) -> Lease:
        """Take a session for something new: a free one, a new one, or the one idle longest.

        Raises:
            PhaseTimeoutError: None came free, or none could be opened, in time.
            TurnwireError: It could not be opened.
        """
        try:
            async with asyncio.timeout(pool_s):
                while (place := self._place(identity)) is None:
                    await self._room()
        except TimeoutError:
            raise PhaseTimeoutError("pool", "no session came free in time") from None
        if isinstance(place, HeldSession):
            if place.identity == identity:
                for slot in place.slots:
                    self._heads.hold(slot, None)
                return self._take(place.slots[0], None)
            self._drop(place)
            self._opening += 1
            await self._close(place)
        held = await self._connect(identity, connect_s)
        return self._take(held.slots[0], None)

    def continuing(self, lease: Lease, known: Known) -> Lease:
        """Return the lease of a slot with nothing on it for a turn that continues `known`."""
        self._heads.begin(lease.slot, known.head)
        return Lease(lease.slot, known.head, known.items)

    @asynccontextmanager
    async def borrow(
        self, identity: Identity, *, connect_s: float | None
    ) -> AsyncIterator[Session]:
        """Lend any open session for a call beside the turns; it does not become busy by it."""
        held = next(
            (each for each in self._open if each.identity == identity and each.session.is_open),
            None,
        )
        if held is None:
            self._opening += 1
            held = await self._connect(identity, connect_s)
            self.release(held.slots[0], None)
        held.borrowers += 1
        try:
            yield held.session
        finally:
            held.borrowers -= 1

    def release(self, slot: Slot, head: Head | None, *, is_stored: bool = False) -> None:
        """Give back a slot whose turn is over.

        Args:
            slot: The slot.
            head: What it holds now; None when nothing can be continued.
            is_stored: Whether the server keeps that.
        """
        held = slot.held
        if head is not None and is_stored:
            self._heads.keep(held.identity, head)
        if held not in self._open:
            return
        self._heads.end(slot)
        held.idle_since = self._loop.time()
        if not self._is_closed and held.is_usable:
            self._heads.hold(slot, head)
            self._watch()
        elif not held.is_busy:
            self._drop(held)
            self._own(self._close(held))
        self._wake()

    def discard(self, slot: Slot) -> None:
        """Give back a slot whose turn cannot be ended; it and its session are used no more."""
        held = slot.held
        if held in self._open:
            held.is_retired = True
            self.release(slot, None)

    def forget(self, response_id: str) -> None:
        """Continue this response no more: it was deleted, or the server does not know it."""
        self._heads.lose(response_id)
        for held in self._open:
            for slot in held.slots:
                if slot.head is not None and slot.head.response_id == response_id:
                    self._heads.hold(slot, None)

    async def aclose(self) -> None:
        """Close all sessions; what runs on them is cut."""
        self._is_closed = True
        while self._waiters:
            self._wake()  # To be told so.
        if self._reaper is not None:
            self._reaper.cancel()
        open_now = list(self._open)
        for held in open_now:
            self._drop(held)
        closing = [self._close(held) for held in open_now]
        await asyncio.gather(*closing, *self._tasks, return_exceptions=True)

    def own(self, work: Coroutine[None, None, None]) -> None:
        """Run something that nobody waits for; `aclose` does."""
        self._own(work)

    # Private.

    async def _room(self) -> None:
        """Wait until a place may have come free."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake()  # It was for somebody who still waits.
            raise

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _own(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, slot: Slot, head: Head | None, items: int = 0) -> Lease:
        self._heads.begin(slot, head)
        return Lease(slot, head, items)

    def _beside(self, held: HeldSession) -> Slot | None:
        """Return an idle lane of a session on which turns run; None when it can have no more."""
        if not held.is_usable or sum(slot.is_busy for slot in held.slots) >= _MOST_BUSY:
            return None
        idle = [slot for slot in held.slots[1:] if not slot.is_busy]
        free = next((slot for slot in idle if slot.head is None), None)
        if free is None and len(held.slots) < _MOST_SLOTS:
            free = Slot(held, f"fork-{len(held.slots)}")
            held.slots.append(free)
        return free or (idle[0] if idle else None)

    def _place(self, identity: Identity) -> HeldSession | bool | None:
        """Return a session to take over, True for room to open one, None when all are busy."""
        if self._is_closed:
            raise SessionClosed("the transport was closed")
        for held in self._closable():
            if not held.is_usable:
                self._drop(held)
                self._own(self._close(held))
        idle = sorted(
            (held for held in self._open if held.is_usable and not held.is_busy),
            key=lambda held: held.idle_since,
        )
        for held in idle:
            if held.identity == identity and not any(slot.head for slot in held.slots):
                return held
        if len(self._open) + self._opening < self._settings.max_sessions:
            self._opening += 1
            return True
        mine = next((held for held in idle if held.identity == identity), None)
        return mine or next((held for held in idle if not held.borrowers), None)

    def _closable(self) -> list[HeldSession]:
        return [held for held in self._open if not held.is_busy and not held.borrowers]

    async def _connect(self, identity: Identity, connect_s: float | None) -> HeldSession:
        coming = _Opening()
        opening = self._opener(identity, coming.notice)
        try:
            async with asyncio.timeout(connect_s):
                session = await opening.__aenter__()
        except TimeoutError:
            raise PhaseTimeoutError("connect", "no connection in time") from None
        finally:
            self._opening -= 1
            self._wake()
        if self._is_closed:
            await opening.__aexit__(None, None, None)
            raise SessionClosed("the transport was closed")
        held = HeldSession(identity, opening, session)
        held.slots.append(Slot(held))
        coming.held = held
        held.is_retired = bool(coming.notices)
        self._counts.opened += 1
        self._open.append(held)
        return held

    def _drop(self, held: HeldSession) -> None:
        for slot in held.slots:
            self._heads.hold(slot, None)
            self._heads.end(slot)
        self._open.remove(held)

    async def _close(self, held: HeldSession) -> None:
        try:
            await held.opening.__aexit__(None, None, None)
        finally:
            self._counts.bytes_up += held.session.bytes_up
            self._counts.bytes_down += held.session.bytes_down

    def _watch(self) -> None:
        if self._reaper is None and not self._is_closed:
            idle = [held.idle_since for held in self._open if not held.is_busy]
            if idle:
                # Not at once for one that is overdue because it is borrowed.
                due = max(min(idle) + self._settings.idle_expiry_s, self._loop.time() + 0.1)
                self._reaper = self._loop.call_at(due, self._reap)

    def _reap(self) -> None:
        self._reaper = None
        # A timer may fire a clock tick early.
        now = self._loop.time() + 0.001
        for held in self._closable():
            if held.idle_since + self._settings.idle_expiry_s <= now:
                self._drop(held)
                self._own(self._close(held))
        self._watch()
