"""The sessions of a transport: which are open, what each holds, whose turn it is.

A session serves one conversation at a time. When its turn is over it keeps the conversation's
newest response, so that the next request of the conversation can continue it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from turnwire._event import Event
from turnwire._session import Session
from turnwire.errors import SessionClosed
from turnwire.openai._values import PhaseTimeoutError

__all__ = ["Head", "HeldSession", "Identity", "Lease", "Opener", "PoolSettings", "SessionPool"]

Identity = tuple[tuple[str, str], ...]
"""Whose session it is: the headers that it was opened with."""

Opener = Callable[[Identity, Callable[[Event], None]], AbstractAsyncContextManager[Session]]
"""Opens a session for an identity; the second argument takes the session's notices."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How many sessions, for how long."""

    max_sessions: int = 32
    idle_expiry_s: float = 300.0
    """A session that had no turn for this long is closed."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest response of a conversation."""

    response_id: str
    digest: bytes
    """Of all items up to and with its output."""


@dataclass(slots=True, eq=False)
class HeldSession:
    """An open session and the conversation that it holds."""

    identity: Identity
    opening: AbstractAsyncContextManager[Session]
    session: Session
    head: Head | None = None
    is_busy: bool = True
    is_retired: bool = False
    """The server will not have it much longer: no new turns."""
    idle_since: float = 0.0
    borrowers: int = 0
    """Calls beside the turns that are on it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A session for one turn."""

    held: HeldSession
    head: Head | None = None
    """What it holds of the turn's conversation."""
    items: int = 0
    """How many of the request's items `head` covers."""


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
        self._by_digest: dict[tuple[Identity, bytes], list[HeldSession]] = defaultdict(list)
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

    def find(self, identity: Identity, digests: Sequence[bytes]) -> Lease | None:
        """Take the session that holds the longest prefix, short of all items.

        Args:
            identity: Whose.
            digests: Of each prefix, the empty one first.

        Returns:
            None when no idle session holds any of it.
        """
        for count in range(len(digests) - 2, 0, -1):
            for held in self._by_digest.get((identity, digests[count]), ()):
                if self._is_usable(held):
                    return self._take(held, count)
        return None

    def find_response(self, identity: Identity, response_id: str) -> Lease | None:
        """Take the session whose newest response this is; None when no idle one holds it."""
        for held in self._open:
            head = held.head
            if head is not None and head.response_id == response_id:
                if held.identity == identity and self._is_usable(held):
                    return self._take(held)
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
                self._hold(place, None)
                return self._take(place)
            self._drop(place)
            self._opening += 1
            await self._close(place)
        return Lease(await self._connect(identity, connect_s))

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
            self.release(held, None)
        held.borrowers += 1
        try:
            yield held.session
        finally:
            held.borrowers -= 1

    def release(self, held: HeldSession, head: Head | None) -> None:
        """Give back a session whose turn is over.

        Args:
            held: The session.
            head: What it holds now; None when nothing can be continued.
        """
        if held not in self._open:
            return
        held.is_busy = False
        held.idle_since = self._loop.time()
        if self._is_closed or held.is_retired or not held.session.is_open:
            self._drop(held)
            self._own(self._close(held))
        else:
            self._hold(held, head)
            self._watch()
        self._wake()

    def discard(self, held: HeldSession) -> None:
        """Close a session in whatever state it is; what runs on it is cut."""
        if held in self._open:
            self._drop(held)
            self._own(self._close(held))
            self._wake()

    def forget(self, response_id: str) -> None:
        """Continue this response no more: it was deleted."""
        for held in self._open:
            if held.head is not None and held.head.response_id == response_id:
                self._hold(held, None)

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

    def _is_usable(self, held: HeldSession) -> bool:
        return not held.is_busy and not held.is_retired and held.session.is_open

    def _take(self, held: HeldSession, items: int = 0) -> Lease:
        lease = Lease(held, held.head, items)
        self._hold(held, None)
        held.is_busy = True
        return lease

    def _place(self, identity: Identity) -> HeldSession | bool | None:
        """Return a session to take over, True for room to open one, None when all are busy."""
        if self._is_closed:
            raise SessionClosed("the transport was closed")
        for held in self._closable():
            if not self._is_usable(held):
                self._drop(held)
                self._own(self._close(held))
        idle = sorted(
            (held for held in self._open if self._is_usable(held)),
            key=lambda held: held.idle_since,
        )
        for held in idle:
            if held.head is None and held.identity == identity:
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
        coming.held = held
        held.is_retired = bool(coming.notices)
        self._counts.opened += 1
        self._open.append(held)
        return held

    def _hold(self, held: HeldSession, head: Head | None) -> None:
        if held.head is not None:
            key = (held.identity, held.head.digest)
            self._by_digest[key].remove(held)
            if not self._by_digest[key]:
                del self._by_digest[key]
        held.head = head
        if head is not None:
            self._by_digest[held.identity, head.digest].append(held)

    def _drop(self, held: HeldSession) -> None:
        self._hold(held, None)
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
