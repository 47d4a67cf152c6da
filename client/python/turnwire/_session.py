"""A session: turns over one connection, and over the one after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Unpack

from turnwire import _agent
from turnwire._connection import Connection
from turnwire._event import Event
from turnwire._recovery import Dial, RecoverySettings
from turnwire._request import (
    CreateOptions,
    KnownOptions,
    RequestInput,
    RunOptions,
    ToolChoice,
    build_create,
    build_event,
    build_late,
)
from turnwire._response import Response
from turnwire._tools import Tools
from turnwire._turn import Turn
from turnwire._unary_values import ItemPage, ModelInfo, item_page, items_request, model_infos
from turnwire._wire import Wire, WireName, WireSettings

__all__ = ["Session"]


class Session:
    """Turns over a connection that is reopened when it is lost; made by `turnwire.connect`.

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
        dial: Dial | None = None,
        recovery: RecoverySettings | None = None,
    ) -> None:
        self.model = model
        """The model of creates that name none."""
        self._known_options = KnownOptions()
        self._connection = Connection(
            wire,
            settings,
            max_buffered_events=max_buffered_events,
            on_notice=on_notice,
            dial=dial,
            recovery=recovery,
        )

    @property
    def _wire(self) -> Wire:
        """The wire that there is, or was last."""
        return self._connection.keeper.wire

    # Turns.

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
    ) -> Turn:
        """Start a turn and return it at once.

        Args:
            input: What is new: text for one user message, or items, oldest first.
            previous_response_id: The response to continue.
            stream_id: The lane, 1 to 256 of `A-Z a-z 0-9 _ . -`; the default lane when not given.
                On HTTP, lanes exist in this client only.
            generate: False for a warm-up (see `warm_up`).
            rollout: True for a whole agent run in one response: where the model calls tools the
                turn pauses, and goes on when `turn.append` brings their outputs. gRPC and
                WebSocket only.
            event_id: Id of the create, made up when not given. The same id again within a session
                is the same request for the server.
            options: The rest of the body, see `CreateOptions`.

        Raises:
            ValueError: A value has no place in a create; says which member.
            TurnwireError: The session is over. What the server refuses is raised by the turn.
        """
        # Only JSON can be written without a message.
        build = build_late if self._wire.name == "websocket" else build_event
        event = build(
            input,
            options,
            self._known_options,
            model=self.model,
            previous_response_id=previous_response_id,
            generate=generate,
            rollout=rollout,
        )
        return self._connection.start(event, stream_id, event_id)

    async def run(
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
            rollout: True to make the whole run one response, paused for each round of calls;
                `max_turns` then bounds its rounds, and the result has one turn. gRPC and WebSocket
                only; not with `full`.
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
            rollout=rollout,
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
        self._connection.forget(response_id)
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
        keeper = self._connection.keeper
        return keeper.bytes_up + keeper.past_unary_bytes[0] + self._wire.unary_bytes[0]

    @property
    def bytes_down(self) -> int:
        """Payload bytes received, counted in the same way; SSE lines belong to the body."""
        past = self._connection.keeper.past_unary_bytes[1]
        return self._connection.bytes_down + past + self._wire.unary_bytes[1]

    @property
    def is_open(self) -> bool:
        """Whether turns can be started; also while a lost connection is being reopened."""
        return self._connection.is_open

    @property
    def is_resumable(self) -> bool:
        """Whether the server keeps this session for a while when its connection is lost."""
        return self._connection.keeper.is_resumable

    @property
    def reconnects(self) -> int:
        """How often the connection was opened again."""
        return self._connection.keeper.reconnects

    async def close(self, *, finish: bool = False) -> None:
        """Close the session; idempotent, bounded by `close_timeout_s`.

        Turns that still run are cut: they raise `SessionClosed`, and the server is told to cancel
        them. Then a WebSocket is closed with 1000, a gRPC stream half-closed, and the server's word
        is waited for: it keeps nothing of the session.

        Args:
            finish: Wait for running turns first, within the same bound.
        """
        await self._connection.close(finish=finish)
