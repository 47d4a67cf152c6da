"""What becomes of turns whose session is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress

from turnwire._book import TurnBook
from turnwire._event import terminal_event
from turnwire._lineage import Lineage
from turnwire._recovery import Backoff, RecoverySettings, unexpected
from turnwire._rejections import rejection
from turnwire._response import Response
from turnwire._steer import Steers
from turnwire._turn_state import TurnState
from turnwire._wire import Wire
from turnwire.errors import (
    ConnectionFailed,
    OutputLost,
    ResponseRejected,
    TurnwireError,
)

__all__ = ["Rescue"]

_RUNNING = frozenset({"in_progress", "queued"})
_FIRST_LOOK_S = 0.1
_MOST_LOOK_S = 1.0


class Rescue:
    """Decides turn by turn.

    1. A response that was stored and finished while nobody listened ends its turn: nothing runs
       twice, and nothing is lost.
    2. A turn of which no output was given out begins again.
    3. Any other is lost, with `OutputLost`: what the model would say now is not what it said.
    """

    def __init__(
        self,
        book: TurnBook,
        lineage: Lineage,
        settings: RecoverySettings,
        *,
        wire: Callable[[], Wire],
        settle: Callable[[TurnState], None],
        pump: Callable[[], None],
    ) -> None:
        """Make one for a session.

        Args:
            book: The turns.
            lineage: Told of turns that are over.
            settings: How long, and how often.
            wire: Returns the wire for calls beside the turns.
            settle: Called with a turn that is over.
            pump: Called when turns may be sent.
        """
        self._book = book
        self._lineage = lineage
        self._settings = settings
        self._wire = wire
        self._settle = settle
        self._pump = pump
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def all(self, loss: TurnwireError, steers: Steers) -> None:
        """Rescue all turns that were sent on a session that is lost."""
        for state in self._book:
            delivery = state.delivery
            if state.outcome is not None:
                self._settle(state)
            elif delivery.is_held or not delivery.is_sent:
                delivery.is_tentative = delivery.needs_history = False
            elif state.cancel_asked:
                self._lose(state, _cancelled())
            else:
                is_bound = steers.has_taken(state.response_id)
                if state.response_id is not None and state.delivery.may_be_stored:
                    delivery.is_sent, delivery.is_held = False, True
                    self._own(state, self._look(state, loss, is_bound=is_bound))
                else:
                    self._begin_again(state, loss, None, is_bound=is_bound)

    def retry(self, state: TurnState, error: TurnwireError, backoff: Backoff) -> None:
        """Rescue one turn, on a wire where it is sent again beside others."""
        delivery = state.delivery
        delivery.is_sent, delivery.is_held = False, True
        if delivery.tried_until is None:
            delivery.tried_until = self._loop.time() + self._settings.reconnect_s
        if state.cancel_asked:
            self._lose(state, _cancelled())
        else:
            self._own(state, self._retry(state, error, backoff, delivery.tried_until))

    def begins_again(self, state: TurnState) -> bool:
        """Let a turn begin again, unless somebody could notice; return whether it does."""
        delivery = state.delivery
        if (
            delivery.create is None
            or state.has_shown_output
            or (delivery.is_exact and state.has_shown_anything)
            or delivery.resends >= self._settings.max_resends
        ):
            return False
        state.restart()
        delivery.resends += 1
        return True

    def none(self, error: TurnwireError) -> None:
        """Give up all turns: there is no other connection."""
        for state in self._book:
            if not state.delivery.is_held:
                self._lose(state, _output_lost(state, error) if state.has_shown_output else error)

    async def close(self) -> None:
        """Give up what is being tried."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Private.

    def _own(self, state: TurnState, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(self._guard(state, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, state: TurnState, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as bug:
            # Nobody else would see it, and the turn must not wait for ever.
            state.lose(unexpected(bug))
        if state.is_over and self._book.find(state.event_id) is state:
            self._settle(state)
        self._pump()

    def _lose(self, state: TurnState, error: TurnwireError) -> None:
        state.lose(error)
        self._settle(state)

    async def _look(self, state: TurnState, loss: TurnwireError, *, is_bound: bool) -> None:
        until = self._loop.time() + self._settings.reconnect_s
        response = await self._fetch(state, until)
        if state.outcome is not None:
            state.is_over = True
        elif not self._is_finished(state, response):
            self._begin_again(state, loss, response, is_bound=is_bound)

    async def _retry(
        self, state: TurnState, error: TurnwireError, backoff: Backoff, until: float
    ) -> None:
        response = None
        if state.response_id is not None and state.delivery.may_be_stored:
            response = await self._fetch(state, until)
        if state.outcome is None and self._is_finished(state, response):
            return
        delay = backoff.delay(getattr(error, "retry_after_s", None))
        if self._loop.time() + delay >= until:
            state.lose(_output_lost(state, error) if state.has_shown_output else error)
            return
        await asyncio.sleep(delay)
        if state.outcome is not None:
            state.is_over = True
        else:
            is_new = isinstance(error, ConnectionFailed)
            self._begin_again(state, error, response, is_new=is_new)
        if (
            state.is_over
            and state.response_id
            and (response is None or response.status in _RUNNING)
        ):
            # Nobody wants it any more, and by its key it would go on for a while.
            with suppress(TurnwireError):
                await self._wire().unary.cancel(state.response_id)

    async def _fetch(self, state: TurnState, until: float) -> Response | None:
        """Return the turn's response once it does not run any more; None when nobody has it."""
        pause = _FIRST_LOOK_S
        response = None
        while state.outcome is None:
            try:
                async with asyncio.timeout_at(until):
                    found = await self._wire().unary.get(state.response_id or "", ())
                response = Response(found)
                if response.status not in _RUNNING:
                    return response
            except ResponseRejected as refusal:
                if not refusal.retryable:
                    return response
            except (TurnwireError, TimeoutError):
                pass  # The server may be on its way back.
            if self._loop.time() + pause >= until:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MOST_LOOK_S)
        return response

    def _is_finished(self, state: TurnState, response: Response | None) -> bool:
        """End a turn with a response that is over and worth it."""
        if response is None or response.status in _RUNNING:
            return False
        if response.status == "cancelled":
            worth = state.cancel_asked  # Else the loss of the connection was its end.
        elif response.status == "failed":
            worth = state.has_shown_output  # It may do better when it begins again.
        else:
            worth = True
        if worth:
            state.complete(terminal_event(response.message, state.stream_id))
            self._lineage.note(state, is_here=False)
        return worth

    def _begin_again(
        self,
        state: TurnState,
        error: TurnwireError,
        response: Response | None,
        *,
        is_bound: bool = False,
        is_new: bool = False,
    ) -> None:
        """Let a turn begin again, if nobody can notice; else it is lost.

        Args:
            state: The turn.
            error: What was lost.
            response: What the server has of it.
            is_bound: Whether the server has taken something that is lost with it.
            is_new: Whether it never got to the server.
        """
        if state.cancel_asked:
            self._lose(state, _cancelled())
        elif state.has_shown_output:
            self._lose(state, _output_lost(state, error, response))
        elif is_bound or not self.begins_again(state):
            self._lose(state, error)
        elif is_new:
            state.delivery.resends -= 1


def _output_lost(
    state: TurnState, error: TurnwireError, response: Response | None = None
) -> OutputLost:
    lost = OutputLost(
        f"the output of {state.response_id} was lost after some of it had been given out: {error}",
        response_id=state.response_id or "",
        items=state.items(),
        response=response,
        close_code=getattr(error, "close_code", None),
        code=getattr(error, "code", None),
    )
    lost.__cause__ = error
    return lost


def _cancelled() -> TurnwireError:
    return rejection(
        "request_cancelled", "The turn was cancelled when its session was lost.", status=400
    )
