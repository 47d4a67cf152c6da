"""A connection that carries many turns: what WebSocket and gRPC have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from turnwire_server.conformance.checks import Json, Skip, Transport
from turnwire_server.conformance.clients.turn import Turn, turn_of
from turnwire_server.conformance.findings import Findings
from turnwire_server.conformance.stream import TERMINAL, StreamJudge

__all__ = ["Lost", "NoAnswer", "PersistentConnection"]

_DRAIN_S: Final = 5.0
"""Most seconds to wait for what a server still sends when a check is over."""


class Lost(Skip):
    """The server ended the connection; the rule `connection.open` says so."""


class NoAnswer(Skip):
    """Nothing came in time; the rule `order.ends` says so."""


class PersistentConnection(ABC):
    """Sends client events and reads what comes, judged and sorted by lane."""

    transport: Transport

    def __init__(self, findings: Findings, judge: StreamJudge, timeout_s: float) -> None:
        self._findings = findings
        self._judge = judge
        self._timeout_s = timeout_s
        self._arrived: dict[str | None, deque[Json]] = {}
        self._is_over = False
        self.order: list[tuple[str | None, str]] = []
        """Lanes and types of the events in the order of their arrival."""

    # What a scenario does.

    async def send(self, event: Mapping[str, Any]) -> None:
        """Send a client event.

        Raises:
            Skip: This wire cannot say it, or the connection is over.
        """
        self._judge.sent(dict(event))
        await self._write(dict(event))

    async def send_again(self, event: Mapping[str, Any]) -> None:
        """Send a create for the second time: nothing but the end of the first may answer it."""
        self._judge.sent_again()
        await self._write(dict(event))

    async def receive(self, lane: str | None = None) -> Json:
        """Return the next event of a lane; those of other lanes are kept for later.

        Raises:
            Lost: The connection is over.
            NoAnswer: Nothing came in time.
        """
        arrived = self._arrived.setdefault(lane, deque())
        try:
            async with asyncio.timeout(self._timeout_s):
                while not arrived:
                    await self._take()
        except TimeoutError:
            where = "the default lane" if lane is None else f"lane {lane}"
            reason = f"nothing came on {where} within {self._timeout_s:g} s"
            self._findings.require("order.ends", False, reason)
            raise NoAnswer(f"{reason}, see order.ends") from None
        return arrived.popleft()

    async def finish(self, lane: str | None = None) -> Turn:
        """Return the lane's turn when its end has come."""
        events = [await self.receive(lane)]
        while events[-1]["type"] not in TERMINAL and events[-1]["type"] != "error":
            events.append(await self.receive(lane))
        return turn_of(events)

    async def until(self, *kinds: str, lane: str | None = None) -> Json:
        """Return the lane's next event of one of these types, or an error event."""
        while True:
            event = await self.receive(lane)
            if event["type"] in kinds or event["type"] == "error":
                return event

    async def turn(self, create: Mapping[str, Any]) -> Turn:
        """Send a create and return what came of it."""
        await self.send(create)
        return await self.finish(create.get("stream_id"))

    async def quiet(self) -> list[Json]:
        """Return what comes until the server has answered all that was sent."""
        await self._barrier()
        rest = [event for arrived in self._arrived.values() for event in arrived]
        self._arrived.clear()
        return rest

    async def close(self) -> None:
        """Leave: wait for what a server without faults does not send, then close."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                if self._judge.is_idle and not self._is_over:
                    await self._barrier()
                    self._findings.require("connection.open", True, "")
        except (TimeoutError, Skip):
            pass
        finally:
            await self._leave()

    # What a wire does.

    @abstractmethod
    async def _write(self, event: Json) -> None: ...

    @abstractmethod
    async def _take(self) -> None:
        """Wait for what comes next and `_put` its events."""

    @abstractmethod
    async def _barrier(self) -> None:
        """Take everything that the server sends before its answer to this."""

    @abstractmethod
    async def _leave(self) -> None: ...

    def _put(self, event: Json) -> None:
        lane, belongs = self._judge.feed(event)
        if belongs:
            self.order.append((lane, event["type"]))
            self._arrived.setdefault(lane, deque()).append(event)

    def _lost(self, how: str) -> Lost:
        if not self._is_over:
            self._findings.require("connection.open", False, f"the server ended it: {how}")
        self._is_over = True
        return Lost(f"the server ended the connection ({how}), see connection.open")
