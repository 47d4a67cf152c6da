"""A session: turns over one connection."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Unpack

from turnwire import _agent
from turnwire._event import Event
from turnwire._request import (
    CreateOptions,
    RequestInput,
    RunOptions,
    ToolChoice,
    build_create,
)
from turnwire._response import Response
from turnwire._tools import Tools
from turnwire._turn import Turn, TurnState
from turnwire._unary_values import ItemPage, ModelInfo, item_page, items_request, model_infos
from turnwire._wire import Arrival, Wire, WireName, WireSettings
from turnwire.errors import ProtocolViolation, SessionClosed, Timeout, TurnwireError
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCancel, ResponseCreate
from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = ["Session"]

# Refusals that are about the connection and not about one of its turns.
_CONNECTION_CODES = frozenset(
    {"websocket_connection_limit_reached", "session_taken_over", "invalid_stream_id"}
)


@dataclass(slots=True)
class _Lane:
    turns: deque[TurnState] = field(default_factory=deque)
    last_event: float = 0.0
    timer: asyncio.TimerHandle | None = None


class Session:
    """Turns over one connection; made by `turnwire.connect`.

    Turns on one lane (`stream_id`, or the default lane without one) run one after the other, those
    on different lanes side by side. A turn continues an earlier response by
    `previous_response_id` and then brings only what is new; on gRPC and WebSocket this works with
    `store=False` for the newest response of each lane.

    All coroutines are safe to cancel; a create that was begun goes on unless it is cancelled by
    itself (`turn.cancel()`). Not for use from several event loops.
    """

    def __init__(
        self,
        wire: Wire,
        settings: WireSettings,
        *,
        model: str | None = None,
        max_buffered_events: int = 16_384,
        on_notice: Callable[[Event], None] | None = None,
    ) -> None:
        self.model = model
        """The model of creates that name none."""
        self._wire = wire
        self._settings = settings
        self._max_buffered_events = max_buffered_events
        self._on_notice = on_notice
        self._loop = asyncio.get_running_loop()
        self._turns: dict[str, TurnState] = {}
        self._lanes: dict[str | None, _Lane] = {}
        self._error: TurnwireError | None = None
        self._is_closing = False
        self._paused_by: TurnState | None = None
        self._bytes_up = 0
        self._bytes_down = 0
        self._event_prefix = f"evt_{secrets.token_hex(6)}"
        self._created = 0
        # Bounded by what the user starts and has not seen the end of.
        self._outbox: asyncio.Queue[tuple[ClientEvent, TurnState | None]] = asyncio.Queue()
        self._reader = self._loop.create_task(self._read(), name="turnwire reader")
        self._writer = self._loop.create_task(self._write(), name="turnwire writer")

    # Turns.

    def create(
        self,
        input: RequestInput | None = None,
        *,
        previous_response_id: str | None = None,
        stream_id: str | None = None,
        generate: bool | None = None,
        event_id: str | None = None,
        **options: Unpack[CreateOptions],
    ) -> Turn:
        """Start a turn and return it at once.

        Args:
            input: What is new: text for one user message, or items, oldest first.
            previous_response_id: The response to continue.
            stream_id: The lane, 1 to 256 of `A-Z a-z 0-9 _ . -`; the default lane when not given.
                On HTTP, lanes exist in this client only.
            generate: False for a warm-up (see `warm_up`).
            event_id: Id of the create, made up when not given. The same id again within a session
                is the same request for the server.
            options: The rest of the body, see `CreateOptions`.

        Raises:
            ValueError: A value has no place in a create; says which member.
            TurnwireError: The session is over. What the server refuses is raised by the turn.
        """
        create = build_create(
            input,
            options,
            model=self.model,
            previous_response_id=previous_response_id,
            generate=generate,
        )
        return self._start(create, stream_id, event_id)

    async def run(
        self,
        input: RequestInput,
        *,
        tools: Tools | None = None,
        tool_choice: ToolChoice | None = None,
        max_turns: int = 16,
        history: Literal["session", "full"] = "session",
        previous_response_id: str | None = None,
        stream_id: str | None = None,
        on_event: _agent.EventCallback | None = None,
        on_tool_output: _agent.ToolCallback | None = None,
        tool_timeout_s: float = 120.0,
        **options: Unpack[RunOptions],
    ) -> _agent.RunResult:
        """Run an agent loop: turns, with the calls of each answered, until the model calls nothing.

        Each turn continues the one before and brings only the tools' outputs. On gRPC and
        WebSocket `store` is then false unless `options` says otherwise; over HTTP it is left out,
        since a follow-up needs the stored parent.

        Args:
            input: Text for one user message, or items.
            tools: Functions by name, or a list of functions, tools and definitions. Calls of one
                turn run side by side; sync functions run in threads. What a tool raises goes to
                the model as its output.
            tool_choice: For the first turn only; later ones choose by themselves.
            max_turns: Bound on the turns; the calls of the last one are not run.
            history: `session` to continue by id, `full` to resend the whole conversation with
                each turn (the stateless way, for comparison; `store` is false by default).
            previous_response_id: A response to continue with the first turn; not with `full`.
            stream_id: The lane.
            on_event: Called with each event, in order; may be async. What it raises ends the run.
            on_tool_output: Called with each call and its output text; may be async.
            tool_timeout_s: Bound on one call; the model is told when it is over.
            options: The rest of the body, see `RunOptions`. `include` is `["turnwire.timing"]`
                when left out.

        Raises:
            TypeError: A tool's parameter has a type that JSON does not have.
            ValueError: A value has no place in a create; says which member.
            TurnwireError: As a turn raises. On cancellation and on errors the running turn is told
                to end.
        """
        return await _agent.run(
            self,
            input,
            tools=tools,
            tool_choice=tool_choice,
            max_turns=max_turns,
            history=history,
            previous_response_id=previous_response_id,
            stream_id=stream_id,
            on_event=on_event,
            on_tool_output=on_tool_output,
            tool_timeout_s=tool_timeout_s,
            options=options,
        )

    async def warm_up(
        self,
        input: RequestInput | None = None,
        *,
        previous_response_id: str | None = None,
        stream_id: str | None = None,
        **options: Unpack[CreateOptions],
    ) -> Response:
        """Have the server prepare a conversation without generating; gRPC and WebSocket only.

        Returns:
            A response without output; its id is the `previous_response_id` of a later turn.

        Raises:
            TurnwireError: As a turn raises.
        """
        turn = self.create(
            input,
            previous_response_id=previous_response_id,
            stream_id=stream_id,
            generate=False,
            **options,
        )
        async with turn:
            return await turn.response()

    # Calls beside the turns. Over WebSocket they are HTTP requests to the same origin.

    async def get(self, response_id: str, *, include: Sequence[str] = ()) -> Response:
        """Return a stored response; raises `NotFound`."""
        return Response(await self._wire.unary.get(response_id, include))

    async def delete(self, response_id: str) -> None:
        """Forget a stored response; raises `NotFound`."""
        await self._wire.unary.delete(response_id)

    async def cancel_response(self, response_id: str) -> Response:
        """End a running stored response, from whatever connection it came, and return it."""
        return Response(await self._wire.unary.cancel(response_id))

    async def input_items(
        self,
        response_id: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> ItemPage:
        """Return a page of what a stored response was given.

        Args:
            response_id: The response.
            after: Id of the item to list after.
            limit: Most items, 1 to 100; 20 when not given.
            order: Newest first (`desc`) when not given.

        Raises:
            NotFound: There is no such response.
        """
        request = items_request(response_id, after, limit, order)
        return item_page(await self._wire.unary.input_items(request))

    async def count_tokens(
        self,
        input: RequestInput | None = None,
        *,
        previous_response_id: str | None = None,
        **options: Unpack[CreateOptions],
    ) -> int:
        """Return how many tokens the whole prompt of such a create would have."""
        create = build_create(
            input, options, model=self.model, previous_response_id=previous_response_id
        )
        return (await self._wire.unary.count_tokens(create)).input_tokens

    async def models(self) -> list[ModelInfo]:
        """Return the models that the server serves."""
        return model_infos(await self._wire.unary.models())

    # The connection.

    @property
    def wire(self) -> WireName:
        """`grpc`, `websocket` or `http`."""
        return self._wire.name

    @property
    def persistent(self) -> bool:
        """Whether the server keeps a session: on gRPC and WebSocket."""
        return self._wire.persistent

    @property
    def bytes_up(self) -> int:
        """Payload bytes sent: serialized messages, JSON, HTTP bodies; no framing, no headers."""
        return self._bytes_up + self._wire.unary_bytes[0]

    @property
    def bytes_down(self) -> int:
        """Payload bytes received, counted in the same way; SSE lines belong to the body."""
        return self._bytes_down + self._wire.unary_bytes[1]

    @property
    def is_open(self) -> bool:
        """Whether turns can be started."""
        return self._error is None and not self._is_closing

    async def close(self, *, finish: bool = False) -> None:
        """Close the session; idempotent, bounded by `close_timeout_s`.

        A WebSocket is closed with 1000, a gRPC stream half-closed and its end waited for. Turns
        that still run are cut: they raise `SessionClosed`, and the server cancels them.

        Args:
            finish: Wait for running turns first, within the same bound.
        """
        if self._is_closing:
            return
        self._is_closing = True
        try:
            async with asyncio.timeout(self._settings.close_timeout_s):
                if finish:
                    await self._all_over()
                if not self._turns and self._error is None:
                    await self._wire.close()
        except TimeoutError:
            pass  # The bound did its work; the rest is cut below.
        finally:
            self._lose(SessionClosed("the session was closed"))
            self._reader.cancel()
            self._writer.cancel()
            await asyncio.gather(self._reader, self._writer, return_exceptions=True)
            await self._wire.abort()

    # Private: starting and ending turns.

    def _start(self, create: ResponseCreate, stream_id: str | None, event_id: str | None) -> Turn:
        if self._error is not None:
            raise self._error
        if self._is_closing:
            raise SessionClosed("the session was closed")
        if event_id is None:
            self._created += 1
            event_id = f"{self._event_prefix}_{self._created}"
        elif event_id in self._turns:
            raise ValueError(f"event_id: {event_id!r} is a turn that runs")
        count = len(create.input.items.items) or int(create.input.WhichOneof("value") == "text")
        state = TurnState(event_id, stream_id, count, self._max_buffered_events)
        self._turns[event_id] = state
        lane = self._lanes.setdefault(stream_id, _Lane())
        lane.turns.append(state)
        if len(lane.turns) == 1:
            lane.last_event = self._loop.time()
        self._watch(lane)
        event = ClientEvent(event_id=event_id, stream_id=stream_id, response_create=create)
        self._outbox.put_nowait((event, state))
        return Turn(state, self._cancel)

    def _cancel(self, state: TurnState) -> None:
        if state.outcome is None and not state.cancel_asked:
            state.cancel_asked = True
            self._send_cancel(state)

    def _send_cancel(self, state: TurnState) -> None:
        if self._error is not None:
            return
        if state.response_id is not None:
            cancel = ClientEvent(response_cancel=ResponseCancel(response_id=state.response_id))
        else:
            # Still queued, as far as one can know: the create is named by its own event_id.
            cancel = ClientEvent(event_id=state.event_id, response_cancel=ResponseCancel())
        if state.stream_id is not None:
            cancel.stream_id = state.stream_id
        self._outbox.put_nowait((cancel, None))

    def _forget(self, state: TurnState) -> None:
        del self._turns[state.event_id]
        lane = self._lanes[state.stream_id]
        lane.turns.remove(state)
        if not lane.turns:
            if lane.timer is not None:
                lane.timer.cancel()
            del self._lanes[state.stream_id]

    def _lose(self, error: TurnwireError) -> None:
        """End everything; only the first reason counts, unless the user closed the session."""
        if self._error is None or isinstance(error, SessionClosed):
            self._error = error
        for state in list(self._turns.values()):
            state.lose(error)
            self._forget(state)

    async def _all_over(self) -> None:
        for state in list(self._turns.values()):
            state.keep_all()
            await state.until(lambda: False)

    # Private: the reader and the writer.

    async def _read(self) -> None:
        try:
            while True:
                for arrival in await self._wire.receive():
                    self._bytes_down += arrival.size
                    state = self._route(arrival)
                    if state is not None:
                        self._paused_by = state
                        await state.room()
                        self._paused_by = None
        except TurnwireError as error:
            self._end(error)
        except Exception as error:
            # Nobody else would see it: the turns that wait must not wait for ever.
            self._end(error)

    async def _write(self) -> None:
        try:
            while True:
                event, state = await self._outbox.get()
                size = await self._wire.send(event)
                self._bytes_up += size
                if state is not None:
                    state.bytes_up += size
        except Exception as error:
            # As in the reader.
            self._end(error)

    def _end(self, error: Exception) -> None:
        if self._is_closing:
            self._lose(SessionClosed("the session was closed"))
        elif isinstance(error, TurnwireError):
            self._lose(error)
        else:
            failure = ProtocolViolation("an event could not be handled")
            failure.__cause__ = error
            self._lose(failure)

    def _route(self, arrival: Arrival) -> TurnState | None:
        if arrival.failure is not None:
            lost = self._turns.get(arrival.event_id or "")
            if lost is not None:
                lost.lose(arrival.failure)
                self._forget(lost)
            return None
        event = arrival.event
        arm = event.WhichOneof("event") if event is not None else None
        if event is None or arm is None:
            return None  # A type of a later version.
        state = self._owner(event, arm, arrival.event_id)
        wrapped = Event(event, arm)
        if state is None:
            if self._on_notice is not None:
                self._on_notice(wrapped)
            return None
        self._lanes[state.stream_id].last_event = self._loop.time()
        state.feed(wrapped, arrival.size)
        if state.is_over:
            self._forget(state)
        elif arm == "response_created" and state.cancel_asked:
            # The cancel may have missed it, having named a create that was queued.
            self._send_cancel(state)
        return state

    def _owner(self, event: ServerEvent, arm: str, event_id: str | None) -> TurnState | None:
        """Return the turn that an event is of; None when it is of the session."""
        if event_id is None and arm == "error" and event.HasField("event_id"):
            event_id = event.event_id
        if event_id is not None:
            return self._turns.get(event_id)
        if arm.startswith("turnwire_"):
            return None
        lane = self._lanes.get(event.stream_id if event.HasField("stream_id") else None)
        if lane is None:
            return None
        head = lane.turns[0]
        if arm == "error" and event.error.error.code in _CONNECTION_CODES:
            return None
        if arm == "response_created":
            extension = event.response_created.response.turnwire
            if extension.HasField("event_id") and extension.event_id != head.event_id:
                raise ProtocolViolation("a turn began out of its lane's order")
        return head

    # Private: silence.

    def _watch(self, lane: _Lane) -> None:
        if lane.timer is None:
            due = lane.last_event + self._settings.silence_timeout_s
            lane.timer = self._loop.call_at(due, self._check, lane)

    def _check(self, lane: _Lane) -> None:
        lane.timer = None
        waiting = next((state for state in lane.turns if state.outcome is None), None)
        if waiting is None:
            return
        if self._loop.time() >= lane.last_event + self._settings.silence_timeout_s:
            lane.last_event = self._loop.time()
            if self._paused_by is not waiting:
                why = " while another turn's events were not read" if self._paused_by else ""
                seconds = self._settings.silence_timeout_s
                waiting.end(Timeout(f"nothing came for {seconds:g} s{why}"))
                waiting.is_abandoned = True
                self._send_cancel(waiting)
        self._watch(lane)
