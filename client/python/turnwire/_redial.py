"""Opening the connection of a session again, and taking the session up on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from turnwire._recovery import Backoff, Dial, RecoverySettings, Ticket, may_pass
from turnwire._rejections import rejection_from_body
from turnwire._wire import Arrival, Broken, Wire
from turnwire.errors import ConnectionLost, TurnwireError
from turnwire.v1.client_event_pb2 import ClientEvent, LastSeen, TurnwireSessionResume
from turnwire.v1.server_event_pb2 import TurnwireSessionResumed, TurnwireSessionStarted

__all__ = ["Redialer", "Reopened", "ticket_of"]


@dataclass(frozen=True, slots=True)
class Reopened:
    """A connection in place of the lost one."""

    wire: Wire
    early: Sequence[Arrival] = ()
    """What was read from it already."""
    ticket: Ticket | None = None
    """Of the session that goes on; None when there is none, and it begins anew."""


def ticket_of(body: TurnwireSessionStarted | TurnwireSessionResumed) -> Ticket | None:
    """Return what resumes a session; None when the server does not keep it."""
    if not body.HasField("resume_token"):
        return None
    return Ticket(body.session_id, body.resume_token, body.resume_grace_s)


class Redialer:
    """Tries until it works or the patience is over."""

    def __init__(self, dial: Dial, settings: RecoverySettings, *, connect_timeout_s: float) -> None:
        self.backoff = Backoff(settings)
        self._dial = dial
        self._settings = settings
        self._connect_timeout_s = connect_timeout_s
        self._loop = asyncio.get_running_loop()

    async def reopen(
        self,
        loss: TurnwireError,
        ticket: Ticket | None,
        leave: Callable[[], Sequence[LastSeen]],
    ) -> Reopened:
        """Open a connection and resume the session on it if there is a ticket.

        Args:
            loss: How the connection was lost.
            ticket: What resumes the session.
            leave: Called just before it is resumed: leaves the old connection, should it still be
                there, and returns what was seen last on each lane.

        Returns:
            The connection; a session that could not be resumed begins anew on it.

        Raises:
            TurnwireError: It did not work in time, or never will.
        """
        until = self.backoff.begin(self._loop.time())
        hint_s = getattr(loss, "retry_after_s", None)
        while True:
            delay = self.backoff.delay(hint_s)
            if self._loop.time() + delay >= until:
                self.backoff.reset()
                raise self._given_up(loss)
            await asyncio.sleep(delay)
            try:
                async with asyncio.timeout_at(until):
                    wire = await self._dial(self._settings.resume and ticket is None)
                    try:
                        if ticket is None:
                            return Reopened(wire)
                        reopened = await self._resume(wire, ticket, leave)
                    except BaseException:
                        await wire.abort()
                        raise
            except TimeoutError:
                hint_s = None
            except TurnwireError as error:
                if not may_pass(error):
                    raise
                hint_s = getattr(error, "retry_after_s", None)
            else:
                if reopened is not None:
                    return reopened
                # Not on this connection: its first event has been another one.
                ticket = None
                await wire.abort()

    async def _resume(
        self, wire: Wire, ticket: Ticket, leave: Callable[[], Sequence[LastSeen]]
    ) -> Reopened | None:
        """Take the session up; None when the server cannot.

        Raises:
            TurnwireError: The connection is over, or this may work later.
        """
        resume = TurnwireSessionResume(
            session_id=ticket.session_id, token=ticket.token, last_seen=leave()
        )
        async with asyncio.timeout(self._connect_timeout_s):
            await wire.send(ClientEvent(turnwire_session_resume=resume))
            while True:
                arrivals = list(await wire.receive())
                for index, arrival in enumerate(arrivals):
                    if isinstance(arrival, Broken) or not arrival.arm:
                        continue
                    told: Any = arrival.message
                    if arrival.arm == "turnwire_session_resumed":
                        again = ticket_of(told) or ticket
                        return Reopened(wire, arrivals[index + 1 :], again)
                    if arrival.arm == "error":
                        refusal = rejection_from_body(told.status, told.error)
                        if refusal.retryable:
                            raise refusal
                        return None

    def _given_up(self, loss: TurnwireError) -> TurnwireError:
        text = f"{loss}; no connection came of it within {self._settings.reconnect_s:g} s"
        if isinstance(loss, ConnectionLost):
            lost = ConnectionLost(text, close_code=loss.close_code, code=loss.code)
        else:
            lost = ConnectionLost(text)
        lost.__cause__ = loss
        return lost
