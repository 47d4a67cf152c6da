"""Idempotency keys: the same request again gets the same response, and never runs twice.

While the response runs, whoever brings its key joins it. Afterwards the store has it, or, with
`store: false`, this process for a day within a bound of bytes. Beyond that bound the response goes
and its key stays, so that the request is refused and does not run again. A key belongs to its
tenant and to one request; what asks only for another form of answer (`stream`) is the same request.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from turnwire.v1 import client_event_pb2, error_pb2, response_pb2
from turnwire_server.ports.store import StoredResponse
from turnwire_server.runtime.background import DetachedTurn
from turnwire_server.runtime.host import Wire
from turnwire_server.runtime.keeping import Keeping
from turnwire_server.runtime.run import terminal_response
from turnwire_server.session.errors import Rejection

if TYPE_CHECKING:
    from turnwire_server.runtime.services import Services

__all__ = ["KEY_REUSED", "Found", "IdempotencyKeys", "check_key"]

_PARAM: Final = "idempotency-key"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)
_POLL_S: Final = 0.5
"""How often the store is asked for a response that another server process runs."""
_ENTRY_BYTES: Final = 512

KEY_REUSED: Final = Rejection(
    error_pb2.ERROR_REASON_INVALID_VALUE,
    "Idempotency-Key: a request with this key and another body was received before. Use a new key "
    "for a new request.",
    param=_PARAM,
)

_LOST: Final = Rejection(
    error_pb2.ERROR_REASON_SERVER_ERROR,
    "Idempotency-Key: the server could not keep the response to this request. Use a new key.",
    param=_PARAM,
    headers={"x-should-retry": "false"},
)

_NOT_KEPT: Final = Rejection(
    error_pb2.ERROR_REASON_RESPONSE_ALREADY_COMPLETED,
    "Idempotency-Key: the request with this key is over and its response, which was not to be "
    "stored, is no longer kept. It was not run again. Use a new key to run it.",
    param=_PARAM,
    headers={"x-should-retry": "false"},
)

_ELSEWHERE: Final = Rejection(
    error_pb2.ERROR_REASON_SERVER_IS_OVERLOADED,
    "Idempotency-Key: another process of this server runs the request and did not end it in time. "
    "Send it again later with the same key.",
    param=_PARAM,
)


def check_key(key: str) -> Rejection | None:
    """Return why `key` is none."""
    if _KEY.fullmatch(key):
        return None
    return Rejection(
        error_pb2.ERROR_REASON_INVALID_VALUE,
        "Idempotency-Key: 1 to 255 visible ASCII characters are needed.",
        param=_PARAM,
    )


@dataclass(frozen=True, slots=True)
class Found:
    """What a key stands for: a turn to follow, or else a response that is over."""

    turn: DetachedTurn | None
    response: response_pb2.Response | None = None
    is_again: bool = True
    """Whether the request came before."""


@dataclass(slots=True, eq=False)
class _Entry:
    digest: bytes
    opening: asyncio.Task[DetachedTurn | StoredResponse | Rejection] | None = None
    """Finds the response, or starts its turn; never cancelled. None once there is `response`: it
    would keep the turn and the log of its events, which nobody counts here."""
    response: bytes | None = None
    """The response that is over and in no store, `b""` when there was no room for it."""
    forgotten_at: float = 0.0
    """Seconds on the clock."""

    @property
    def size(self) -> int:
        return _ENTRY_BYTES + len(self.response) if self.response else 0


class IdempotencyKeys:
    """The keys of a server process. Others of the same store are found through it."""

    def __init__(self, services: Services) -> None:
        """Know no key."""
        self._services = services
        self._settings = services.settings.idempotency
        self._entries: dict[tuple[str, str], _Entry] = {}
        """Those that run, and those that are over and in no store."""
        self._over: dict[tuple[str, str], _Entry] = {}
        """Of these, those that are over, oldest first."""
        self._answered: dict[tuple[str, str], _Entry] = {}
        """Of these, those whose response is kept, oldest first."""
        self._bytes = 0

    async def claim(
        self,
        key: str,
        create: client_event_pb2.ResponseCreate,
        *,
        size: int,
        wire: Wire,
        tenant: str,
    ) -> Found | Rejection:
        """Return what the key stands for; start the turn when it came never before.

        Cancelling it leaves the turn alone.

        Args:
            key: The key, checked.
            create: The request; it may belong to the turn from now on.
            size: Bytes of the request on the wire, after decompression.
            wire: Where it came from.
            tenant: Who asks.
        """
        self._expire()
        digest = _digest(create)
        entry = self._entries.get((tenant, key))
        is_again = entry is not None
        if entry is None:
            # Noted before anything is waited for: a second request must find it.
            entry = self._entries[tenant, key] = _Entry(digest)
            keeping = Keeping(key, digest)
            entry.opening = asyncio.get_running_loop().create_task(
                self._open(entry, create, size=size, wire=wire, tenant=tenant, keeping=keeping)
            )
        elif entry.digest != digest:
            return KEY_REUSED
        if entry.opening is None:
            return self._kept(entry, tenant)
        found = await asyncio.shield(entry.opening)
        if isinstance(found, Rejection):
            return found
        if isinstance(found, StoredResponse):
            if found.request_digest != digest:
                return KEY_REUSED
            return await self._stored(found)
        return self._of_turn(entry, found, is_again=is_again)

    async def _open(
        self,
        entry: _Entry,
        create: client_event_pb2.ResponseCreate,
        *,
        size: int,
        wire: Wire,
        tenant: str,
        keeping: Keeping,
    ) -> DetachedTurn | StoredResponse | Rejection:
        key = keeping.idempotency_key
        assert key is not None  # the claim has one
        found: DetachedTurn | StoredResponse | Rejection | None = None
        try:
            found = await self._services.store.find_by_key(tenant, key)
            if found is None:
                found = self._services.detached.start(
                    create, size=size, wire=wire, tenant=tenant, keeping=keeping
                )
        finally:
            if isinstance(found, DetachedTurn):
                turn = found
                turn.when_over(lambda: self._ended((tenant, key), entry, turn))
            else:
                del self._entries[tenant, key]
        return found

    def _ended(self, name: tuple[str, str], entry: _Entry, turn: DetachedTurn) -> None:
        """Keep what no store keeps; forget what never ran."""
        response = None if turn.terminal is None else terminal_response(turn.terminal)
        if response is None or turn.is_stored:
            del self._entries[name]
            return
        entry.response, entry.opening = response.SerializeToString(), None
        entry.forgotten_at = self._services.clock.monotonic() + self._settings.ttl_s
        self._over[name] = self._answered[name] = entry
        self._bytes += entry.size
        while self._bytes > self._settings.max_bytes:
            self._drop_response(next(iter(self._answered)))
        while len(self._over) > self._settings.max_keys:
            self._forget(next(iter(self._over)))

    def _expire(self) -> None:
        now = self._services.clock.monotonic()
        while self._over:
            name, entry = next(iter(self._over.items()))
            if entry.forgotten_at > now:
                return
            self._forget(name)

    def _drop_response(self, name: tuple[str, str]) -> None:
        """Keep of a request only that it ran."""
        entry = self._answered.pop(name)
        self._bytes -= entry.size
        entry.response = b""

    def _forget(self, name: tuple[str, str]) -> None:
        if name in self._answered:
            self._drop_response(name)
        del self._over[name], self._entries[name]

    def _kept(self, entry: _Entry, tenant: str) -> Found | Rejection:
        """Return the response that is over and in no store; its turn, if it can be followed."""
        assert entry.response is not None  # there is no opening any more
        if not entry.response:
            return _NOT_KEPT
        response = response_pb2.Response.FromString(entry.response)
        if (gone := _cancelled(response)) is not None:
            return gone
        return Found(self._services.detached.find(response.id, tenant=tenant), response)

    def _of_turn(self, entry: _Entry, turn: DetachedTurn, *, is_again: bool) -> Found | Rejection:
        if not turn.is_over:
            return Found(turn, is_again=is_again)
        if turn.terminal is not None:
            response = terminal_response(turn.terminal)
            if response is not None and (gone := _cancelled(response)) is not None:
                return gone if is_again else Found(turn, is_again=False)
        if entry.response is None or self._services.detached.find(
            turn.response_id, tenant=turn.tenant
        ):
            return Found(turn, is_again=is_again)
        return self._kept(entry, turn.tenant)

    async def _stored(self, record: StoredResponse) -> Found | Rejection:
        """Return what the store knows, once it is over."""
        services, key = self._services, record.idempotency_key
        assert key is not None  # it was found by it
        found: StoredResponse | None = record
        given_up_at = services.clock.monotonic() + self._settings.wait_s
        while found is not None and not found.is_over:
            turn = services.detached.find(found.response_id, tenant=found.tenant)
            if turn is not None:
                return Found(turn)
            if found.owner == services.instance_id:
                return _LOST
            if services.clock.monotonic() >= given_up_at:
                return _ELSEWHERE
            await services.clock.sleep(_POLL_S)
            found = await services.store.find_by_key(record.tenant, key)
        if found is None:
            return _LOST
        response = response_pb2.Response.FromString(found.response)
        if (gone := _cancelled(response)) is not None:
            return gone
        return Found(services.detached.find(found.response_id, tenant=found.tenant), response)


def _cancelled(response: response_pb2.Response) -> Rejection | None:
    """Return the refusal of a request whose response was cancelled: half of it is no answer."""
    if response.status != response_pb2.RESPONSE_STATUS_CANCELLED:
        return None
    return Rejection(
        error_pb2.ERROR_REASON_REQUEST_CANCELLED,
        f"Idempotency-Key: the response to this request, {response.id}, was cancelled, by its "
        "client or because that was gone for too long. Use a new key to run it again.",
        param=_PARAM,
    )


def _digest(create: client_event_pb2.ResponseCreate) -> bytes:
    """Return what tells requests apart."""
    request = client_event_pb2.ResponseCreate()
    request.CopyFrom(create)
    for name in ("stream", "stream_options"):
        request.ClearField(name)
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
