"""The synchronous face: the same session, on an event loop in a thread of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Literal, Self, Unpack

from turnwire._agent import EventCallback, RunResult, ToolCallback
from turnwire._connect import connect
from turnwire._event import Event
from turnwire._portal import Portal
from turnwire._request import CreateOptions, InputItem, RequestInput, RunOptions, ToolChoice
from turnwire._response import FunctionCall, Response
from turnwire._session import Session
from turnwire._steer import Steer
from turnwire._tools import Tools
from turnwire._turn import Turn, TurnStats
from turnwire._unary_values import ItemPage, ModelInfo
from turnwire._wire import WireName

__all__ = ["Portal", "SyncSession", "SyncSteer", "SyncTurn", "connect_sync"]


class SyncTurn:
    """One turn, made by `SyncSession.create`: `Turn` without `await`.

    Iterate for the events, call `response()` for the end. Both raise as `Turn`'s do.
    """

    def __init__(self, turn: Turn, portal: Portal) -> None:
        self._turn = turn
        self._portal = portal
        self._events: deque[Event] = deque()

    @property
    def event_id(self) -> str:
        """The id that the create was sent with."""
        return self._turn.event_id

    @property
    def stream_id(self) -> str | None:
        """The lane; None for the default lane."""
        return self._turn.stream_id

    @property
    def response_id(self) -> str | None:
        """Id of the response; None until `response.created` came."""
        return self._turn.response_id

    @property
    def stats(self) -> TurnStats | None:
        """What the turn cost; None until it is over."""
        return self._turn.stats

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if not self._events:
            # All that are there at once: going to the other thread costs more than an event.
            self._events.extend(self._portal.call(self._turn._state.next_events()))
            if not self._events:
                raise StopIteration
        return self._events.popleft()

    def started(self) -> str:
        """Wait until the turn has begun and return its response's id."""
        return self._portal.call(self._turn.started())

    def response(self) -> Response:
        """Wait for the end and return the final response. Events that were not read are dropped."""
        self._events.clear()
        return self._portal.call(self._turn.response())

    @property
    def is_paused(self) -> bool:
        """Whether it is a rollout that waits for outputs."""
        return self._turn.is_paused

    @property
    def calls(self) -> list[FunctionCall]:
        """The calls that a paused rollout waits for."""
        return self._turn.calls

    def paused(self) -> list[FunctionCall]:
        """Wait until a rollout pauses; return its calls, none when the turn is over."""
        return self._portal.call(self._turn.paused())

    def append(self, input: Sequence[InputItem]) -> None:
        """Answer the calls of a paused rollout; see `Turn.append`."""
        self._portal.call(self._turn.append(input))

    def steer(self, input: RequestInput) -> SyncSteer:
        """Send user messages while the turn runs; see `Turn.steer`."""
        return SyncSteer(self._portal.call(self._turn.steer(input)), self._portal)

    def cancel(self) -> None:
        """Ask the server to end the turn, and wait until it is over."""
        self._portal.call(self._turn.cancel())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(self._turn.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._turn)


class SyncSteer:
    """A steer that the server has taken, made by `SyncTurn.steer`: `Steer` without `await`."""

    def __init__(self, steer: Steer, portal: Portal) -> None:
        self._steer = steer
        self._portal = portal

    @property
    def id(self) -> str:
        """Id, `steer_…`."""
        return self._steer.id

    @property
    def previous_response_id(self) -> str:
        """The response that it steers."""
        return self._steer.previous_response_id

    def successor(self) -> SyncTurn | None:
        """Wait for the turn that follows the steered one by itself; see `Steer.successor`."""
        turn = self._portal.call(self._steer.successor())
        return None if turn is None else SyncTurn(turn, self._portal)

    def __repr__(self) -> str:
        return repr(self._steer)


class SyncSession:
    """Turns over one connection, made by `turnwire.connect_sync`: `Session` without `await`.

    `Session` has the contract of each method. Use it from one thread at a time. Callbacks run on
    the session's own thread and must not call the session.
    """

    def __init__(self, session: Session, portal: Portal) -> None:
        self._session = session
        self._portal = portal

    def create(
        self,
        input: RequestInput | None = None,
        *,
        previous_response_id: str | None = None,
        stream_id: str | None = None,
        generate: bool | None = None,
        rollout: bool | None = None,
        event_id: str | None = None,
        **options: Unpack[CreateOptions],
    ) -> SyncTurn:
        """Start a turn; see `Session.create`."""

        async def create() -> Turn:
            return self._session.create(
                input,
                previous_response_id=previous_response_id,
                stream_id=stream_id,
                generate=generate,
                rollout=rollout,
                event_id=event_id,
                **options,
            )

        return SyncTurn(self._portal.call(create()), self._portal)

    def run(
        self,
        input: RequestInput,
        *,
        tools: Tools | None = None,
        tool_choice: ToolChoice | None = None,
        max_turns: int = 16,
        history: Literal["session", "full"] = "session",
        rollout: bool = False,
        previous_response_id: str | None = None,
        stream_id: str | None = None,
        on_event: EventCallback | None = None,
        on_tool_output: ToolCallback | None = None,
        tool_timeout_s: float = 120.0,
        **options: Unpack[RunOptions],
    ) -> RunResult:
        """Run an agent loop; see `Session.run`."""
        return self._portal.call(
            self._session.run(
                input,
                tools=tools,
                tool_choice=tool_choice,
                max_turns=max_turns,
                history=history,
                rollout=rollout,
                previous_response_id=previous_response_id,
                stream_id=stream_id,
                on_event=on_event,
                on_tool_output=on_tool_output,
                tool_timeout_s=tool_timeout_s,
                **options,
            )
        )

    def warm_up(
        self,
        input: RequestInput | None = None,
        *,
        previous_response_id: str | None = None,
        stream_id: str | None = None,
        **options: Unpack[CreateOptions],
    ) -> Response:
        """Have the server prepare a conversation; see `Session.warm_up`."""
        return self._portal.call(
            self._session.warm_up(
                input, previous_response_id=previous_response_id, stream_id=stream_id, **options
            )
        )

    def get(self, response_id: str, *, include: Sequence[str] = ()) -> Response:
        """Return a stored response; raises `NotFound`."""
        return self._portal.call(self._session.get(response_id, include=include))

    def delete(self, response_id: str) -> None:
        """Forget a stored response; raises `NotFound`."""
        self._portal.call(self._session.delete(response_id))

    def cancel_response(self, response_id: str) -> Response:
        """End a running stored response and return it."""
        return self._portal.call(self._session.cancel_response(response_id))

    def input_items(
        self,
        response_id: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> ItemPage:
        """Return a page of what a stored response was given; see `Session.input_items`."""
        return self._portal.call(
            self._session.input_items(response_id, after=after, limit=limit, order=order)
        )

    def count_tokens(
        self,
        input: RequestInput | None = None,
        *,
        previous_response_id: str | None = None,
        **options: Unpack[CreateOptions],
    ) -> int:
        """Return how many tokens the whole prompt of such a create would have."""
        return self._portal.call(
            self._session.count_tokens(input, previous_response_id=previous_response_id, **options)
        )

    def models(self) -> list[ModelInfo]:
        """Return the models that the server serves."""
        return self._portal.call(self._session.models())

    @property
    def model(self) -> str | None:
        """The model of creates that name none."""
        return self._session.model

    @property
    def wire(self) -> WireName:
        """`grpc`, `websocket` or `http`."""
        return self._session.wire

    @property
    def persistent(self) -> bool:
        """Whether the server keeps a session: on gRPC and WebSocket."""
        return self._session.persistent

    @property
    def bytes_up(self) -> int:
        """Payload bytes sent; see `Session.bytes_up`."""
        return self._session.bytes_up

    @property
    def bytes_down(self) -> int:
        """Payload bytes received; see `Session.bytes_down`."""
        return self._session.bytes_down

    @property
    def is_open(self) -> bool:
        """Whether turns can be started; see `Session.is_open`."""
        return self._session.is_open

    @property
    def is_resumable(self) -> bool:
        """Whether the server keeps this session for a while when its connection is lost."""
        return self._session.is_resumable

    @property
    def reconnects(self) -> int:
        """How often the connection was opened again."""
        return self._session.reconnects

    def close(self, *, finish: bool = False) -> None:
        """Close the session; see `Session.close`."""
        self._portal.call(self._session.close(finish=finish))


def connect_sync(
    url: str,
    *,
    api_key: str | None = None,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    root_certificates: bytes | None = None,
    connect_timeout_s: float = 10.0,
    silence_timeout_s: float = 300.0,
    close_timeout_s: float = 5.0,
    unary_timeout_s: float = 60.0,
    max_buffered_events: int = 16_384,
    on_notice: Callable[[Event], None] | None = None,
    resume: bool = True,
    reconnect_s: float = 60.0,
    transcript_bytes: int = 16 << 20,
    ping_after_idle_s: float = 5.0,
    ping_timeout_s: float = 2.0,
) -> AbstractContextManager[SyncSession]:
    """Open a session for a script: `with turnwire.connect_sync("ws://…") as session`.

    Arguments, bounds and errors are those of `turnwire.connect`.
    """
    opening = connect(
        url,
        api_key=api_key,
        model=model,
        headers=headers,
        root_certificates=root_certificates,
        connect_timeout_s=connect_timeout_s,
        silence_timeout_s=silence_timeout_s,
        close_timeout_s=close_timeout_s,
        unary_timeout_s=unary_timeout_s,
        max_buffered_events=max_buffered_events,
        on_notice=on_notice,
        resume=resume,
        reconnect_s=reconnect_s,
        transcript_bytes=transcript_bytes,
        ping_after_idle_s=ping_after_idle_s,
        ping_timeout_s=ping_timeout_s,
    )

    @contextmanager
    def opened() -> Iterator[SyncSession]:
        portal = Portal()
        try:
            session = portal.call(opening.__aenter__())
            try:
                yield SyncSession(session, portal)
            finally:
                # Only closing is left to it; an error of the block is the block's own.
                portal.call(opening.__aexit__(None, None, None))
        finally:
            portal.stop()

    return opened()
