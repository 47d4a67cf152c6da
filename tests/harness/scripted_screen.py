"""A screen whose verdicts a test decides, one check at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwire.v1.item_pb2 import Item
from turnwire_server.ports.screen import Verdict
from turnwire_server.session.conversation import item_text

__all__ = ["Check", "ScriptedScreen"]


@dataclass(slots=True, eq=False)
class Check:
    """One check that waits for its verdict."""

    state: bytes
    texts: list[str]
    """Text of the messages among the new items; "" for other items."""
    instructions: str
    answer: asyncio.Future[Verdict] = field(repr=False)

    def allow(self, state: bytes = b"") -> None:
        """Let the turn go on."""
        self.answer.set_result(Verdict(allowed=True, state=state))


class ScriptedScreen:
    """Implements `ports.Screen`."""

    def __init__(self) -> None:
        self.stopped = 0
        """Checks that were cancelled."""
        self.last_word: Verdict | None = None
        """What a check says that was cancelled and answers all the same."""
        self._arrivals: asyncio.Queue[Check] = asyncio.Queue()

    async def check(
        self, state: bytes, new_items: Sequence[Item], *, instructions: str = ""
    ) -> Verdict:
        """Wait for what the test says."""
        texts = [item_text(item.message.content) for item in new_items]
        check = Check(state, texts, instructions, asyncio.get_running_loop().create_future())
        self._arrivals.put_nowait(check)
        try:
            return await check.answer
        except asyncio.CancelledError:
            self.stopped += 1
            if self.last_word is None:
                raise
            return self.last_word

    async def checked(self) -> Check:
        """Return the next check, once it began."""
        async with asyncio.timeout(20):
            return await self._arrivals.get()
