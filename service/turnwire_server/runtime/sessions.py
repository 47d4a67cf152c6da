"""The sessions that may be resumed: found by id and token, kept for a while without a connection.

A session that loses its connection goes on for the grace; then it is cancelled and forgotten. The
number of sessions without a connection is bounded: one more ends the one that has waited longest of
the tenant that has the most, so that nobody loses a session to somebody who has more.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import Counter
from typing import TYPE_CHECKING

from turnwire.v1 import client_event_pb2
from turnwire_server.runtime.event_log import Seen
from turnwire_server.runtime.host import SessionHost
from turnwire_server.runtime.reports import log_bug
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Outgoing
from turnwire_server.session.opening import NOT_RESUMED, TAKEN_OVER, gap

if TYPE_CHECKING:
    from turnwire_server.runtime.services import Services

__all__ = ["ResumableSessions"]

_log = logging.getLogger("turnwire.runtime")


class ResumableSessions:
    """The resumable sessions of one server process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._hosts: dict[str, SessionHost] = {}
        self._waiting: dict[SessionHost, asyncio.Task[None]] = {}
        """Those without a connection, the one that lost it first in front."""
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def waiting(self) -> int:
        """How many have no connection."""
        return len(self._waiting)

    def add(self, host: SessionHost) -> None:
        """Let a session be found."""
        self._hosts[host.session.id] = host

    def forget(self, host: SessionHost) -> None:
        """Let a session be found no longer."""
        self._hosts.pop(host.session.id, None)

    def take_up(
        self, resume: client_event_pb2.TurnwireSessionResume, tenant: str
    ) -> tuple[SessionHost, list[Outgoing]] | Rejection:
        """Find a session and take it from its connection, if it has one.

        When events are missing that its client has not seen, nobody can go on with the session:
        it ends here, so that nothing runs twice.

        Args:
            resume: What the client shows.
            tenant: Whose connection it is.

        Returns:
            The session, and the events to send before anything else.
        """
        host = self._hosts.get(resume.session_id)
        token = (host.session.resume_token if host else None) or ""
        is_right = hmac.compare_digest(token.encode(), resume.token.encode(errors="replace"))
        if host is None or not is_right or host.tenant != tenant:
            return NOT_RESUMED
        missed = host.missed([_seen(one) for one in resume.last_seen])
        if host.leave is not None:
            host.leave(TAKEN_OVER)
        if (timer := self._waiting.pop(host, None)) is not None:
            timer.cancel()
        if not isinstance(missed, list):
            _log.info("events are missing session_id=%s", host.session.id)
            self._end(host)
            return gap(missed.lane)
        return host, missed

    def await_client(self, host: SessionHost) -> None:
        """Let a session that has lost its connection go on for the grace."""
        settings = self._services.settings
        if len(self._waiting) >= settings.max_detached_sessions:
            self._give_up(self._one_too_many(host))
        if self._hosts.get(host.session.id) is host:
            job = self._expire(host, settings.resume_grace_s)
            self._waiting[host] = asyncio.get_running_loop().create_task(job)

    def end_idle(self) -> None:
        """End the sessions without a connection that have nothing to do: nobody can come back."""
        for host in list(self._waiting):
            if host.session.is_idle:
                self._give_up(host)

    def close(self) -> None:
        """End all that have no connection: every engine is told before this returns."""
        for host in list(self._waiting):
            self._give_up(host)

    async def finish(self, grace_s: float) -> None:
        """Wait for the ends that were begun, at most `grace_s` seconds."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=grace_s)

    # Private.

    async def _expire(self, host: SessionHost, grace_s: float) -> None:
        await self._services.clock.sleep(grace_s)
        self._waiting.pop(host, None)
        self._end(host)

    def _one_too_many(self, newcomer: SessionHost) -> SessionHost:
        """Return the session that must go when another one begins to wait."""
        counts = Counter(host.tenant for host in (*self._waiting, newcomer))
        most = max(counts, key=lambda tenant: (counts[tenant], tenant == newcomer.tenant))
        return next((host for host in self._waiting if host.tenant == most), newcomer)

    def _give_up(self, host: SessionHost) -> None:
        if (timer := self._waiting.pop(host, None)) is not None:
            timer.cancel()
        self._end(host)

    def _end(self, host: SessionHost) -> None:
        """Cancel everything at once, and forget the session when its turns have ended."""
        self.forget(host)
        host.cut()
        task = asyncio.get_running_loop().create_task(_finish(host))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _finish(host: SessionHost) -> None:
    try:
        await host.finish()
    except Exception as bug:  # outermost frame of the task: nobody else could handle it
        log_bug(_log, f"session could not end session_id={host.session.id}", bug)
    finally:
        host.forget()


def _seen(one: client_event_pb2.LastSeen) -> Seen:
    lane = one.stream_id if one.HasField("stream_id") else None
    return Seen(lane, one.response_id, one.sequence_number)
