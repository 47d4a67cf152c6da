"""Wires without wires that break, and are opened again: the test is the server behind them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from harness.client_wires import MemoryWire, Script
from turnwire._recovery import RecoverySettings
from turnwire._session import Session
from turnwire._wire import UnaryCalls, Wire, WireName, WireSettings
from turnwire.errors import NotFound, TurnwireError
from turnwire.v1 import response_pb2
from turnwire.v1.client_event_pb2 import ResponseCreate
from turnwire.v1.error_pb2 import ErrorBody
from turnwire.v1.models_service_pb2 import ListModelsResult
from turnwire.v1.responses_service_pb2 import (
    CountInputTokensResult,
    DeleteResult,
    ListInputItemsRequest,
    ListInputItemsResult,
)
from turnwire.v1.server_event_pb2 import (
    ServerEvent,
    SessionError,
    TurnwireGoAway,
    TurnwireSessionResumed,
    TurnwireSessionStarted,
)

__all__ = [
    "AT_ONCE",
    "MemoryDial",
    "StoredResponses",
    "go_away",
    "recovering",
    "refused",
    "resumed",
    "started",
]

AT_ONCE = RecoverySettings(reconnect_s=5.0, first_delay_s=0.0, most_delay_s=0.0)
"""Tries again without waiting."""


def started(token: str | None = "token_1") -> ServerEvent:
    """Return the answer to a wish for resume."""
    body = TurnwireSessionStarted(session_id="sess_1", resume_token=token, resume_grace_s=60)
    return ServerEvent(turnwire_session_started=body)


def resumed(token: str = "token_2") -> ServerEvent:
    """Return the answer to a resume that works."""
    body = TurnwireSessionResumed(session_id="sess_1", resume_token=token, resume_grace_s=60)
    return ServerEvent(turnwire_session_resumed=body)


def refused(code: str, status: int = 400, event_id: str | None = None) -> ServerEvent:
    """Return an `error` of the connection, or of the client event that is named."""
    error = ErrorBody(type="invalid_request_error", code=code, message="No.")
    return ServerEvent(event_id=event_id, error=SessionError(status=status, error=error))


def go_away(reason: str, time_left_s: float = 9.0) -> ServerEvent:
    """Return what a server says before it ends a connection."""
    return ServerEvent(turnwire_go_away=TurnwireGoAway(reason=reason, time_left_s=time_left_s))


class StoredResponses(UnaryCalls):
    """What a server has stored; the test puts it there."""

    def __init__(self) -> None:
        self.kept: dict[str, list[response_pb2.Response | TurnwireError]] = {}
        """What each call for a response finds; the last one stays."""
        self.asked: list[str] = []

    async def get(self, response_id: str, include: Sequence[str]) -> response_pb2.Response:
        """Return what is there."""
        self.asked.append(response_id)
        found = self.kept.get(response_id)
        if not found:
            raise NotFound(code="response_not_found", status=404, message="There is none.")
        first = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(first, TurnwireError):
            raise first
        return first

    async def delete(self, response_id: str) -> DeleteResult:
        """Forget it."""
        self.kept.pop(response_id, None)
        return DeleteResult(id=response_id, deleted=True)

    async def cancel(self, response_id: str) -> response_pb2.Response:
        """Not played."""
        raise AssertionError("nobody should ask")

    async def input_items(self, request: ListInputItemsRequest) -> ListInputItemsResult:
        """Not played."""
        raise AssertionError("nobody should ask")

    async def count_tokens(self, create: ResponseCreate) -> CountInputTokensResult:
        """Not played."""
        raise AssertionError("nobody should ask")

    async def models(self) -> ListModelsResult:
        """Not played."""
        raise AssertionError("nobody should ask")


class _Wire(MemoryWire):
    def __init__(self, script: Script | None, name: WireName, stored: StoredResponses) -> None:
        super().__init__(script, name=name)
        self.stored = stored

    @property
    def unary(self) -> UnaryCalls:
        """The calls for stored responses."""
        return self.stored


class MemoryDial:
    """Opens wires without wires; the test is the server behind all of them."""

    def __init__(self, script: Script | None = None, *, name: WireName = "grpc") -> None:
        self.wires: list[MemoryWire] = []
        self.wishes: list[bool] = []
        """Of each try, whether it asked for resume."""
        self.failures: deque[TurnwireError] = deque()
        """What the next tries come to."""
        self.stored = StoredResponses()
        self.on_open: Callable[[MemoryWire], None] | None = None
        """Called with each new wire."""
        self._script = script
        self._name = name
        self._someone_came = asyncio.Event()

    async def __call__(self, wants_resume: bool) -> Wire:
        """Open the next wire."""
        self.wishes.append(wants_resume)
        if self.failures:
            raise self.failures.popleft()
        wire = _Wire(self._script, self._name, self.stored)
        wire.persistent = self._name != "http"
        self.wires.append(wire)
        self._someone_came.set()
        if self.on_open is not None:
            self.on_open(wire)
        return wire

    async def opened(self, count: int) -> MemoryWire:
        """Wait until so many wires were opened; return the last of them."""
        while len(self.wires) < count:
            self._someone_came.clear()
            await self._someone_came.wait()
        return self.wires[count - 1]


@asynccontextmanager
async def recovering(
    dial: MemoryDial,
    recovery: RecoverySettings = AT_ONCE,
    *,
    close_timeout_s: float = 1.0,
    silence_timeout_s: float = 5.0,
    on_notice: Callable[..., None] | None = None,
) -> AsyncIterator[Session]:
    """Open a session with the model `m` that dials again."""
    session = Session(
        await dial(recovery.resume),
        WireSettings(close_timeout_s=close_timeout_s, silence_timeout_s=silence_timeout_s),
        model="m",
        on_notice=on_notice,
        dial=dial,
        recovery=recovery,
    )
    try:
        yield session
    finally:
        await session.close()
