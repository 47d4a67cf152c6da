"""Server events for scripts that play a server to the client."""

from __future__ import annotations

from collections.abc import Sequence

from turnwire.v1 import response_pb2
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.content_pb2 import Content, ContentPart, ContentPartList, OutputText
from turnwire.v1.error_pb2 import ErrorBody
from turnwire.v1.item_pb2 import FunctionCallItem, Item, ItemStatus, MessageItem
from turnwire.v1.response_pb2 import Response, Timing, TimingTokens, TurnwireExtension, Usage
from turnwire.v1.server_event_pb2 import (
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseFunctionCallArgumentsDelta,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseOutputItemAdded,
    ResponseOutputItemDone,
    ResponseOutputTextDelta,
    ServerEvent,
    SessionError,
)

__all__ = [
    "call_item",
    "call_turn",
    "cancelled",
    "failed_turn",
    "opening",
    "rejected",
    "text_item",
    "text_turn",
]


def text_item(text: str) -> Item:
    """Return a whole assistant message."""
    part = ContentPart(output_text=OutputText(text=text))
    content = Content(parts=ContentPartList(parts=[part]))
    return Item(
        message=MessageItem(
            id="msg_1",
            role="assistant",
            content=content,
            status=ItemStatus.ITEM_STATUS_COMPLETED,
        )
    )


def call_item(name: str, arguments: str, call_id: str = "call_1") -> Item:
    """Return a whole function call."""
    return Item(
        function_call=FunctionCallItem(
            id=f"fc_{call_id}",
            call_id=call_id,
            name=name,
            arguments=arguments,
            status=ItemStatus.ITEM_STATUS_COMPLETED,
        )
    )


def opening(create: ClientEvent, response_id: str) -> list[ServerEvent]:
    """Return the first two events of a turn."""
    response = Response(
        id=response_id,
        object="response",
        status=response_pb2.RESPONSE_STATUS_IN_PROGRESS,
        turnwire=TurnwireExtension(event_id=create.event_id or None),
    )
    return _numbered(
        create,
        [
            ServerEvent(response_created=ResponseCreated(response=response)),
            ServerEvent(response_in_progress=ResponseInProgress(response=response)),
        ],
    )


def text_turn(create: ClientEvent, response_id: str, *deltas: str) -> list[ServerEvent]:
    """Return a whole turn that answers in text."""
    item = text_item("".join(deltas))
    body = [
        ServerEvent(response_output_item_added=ResponseOutputItemAdded(item=item)),
        *(
            ServerEvent(response_output_text_delta=ResponseOutputTextDelta(delta=delta))
            for delta in deltas
        ),
        ServerEvent(response_output_item_done=ResponseOutputItemDone(item=item)),
    ]
    return _turn(create, response_id, body, [item])


def call_turn(
    create: ClientEvent, response_id: str, *calls: Item, whole_output: bool = True
) -> list[ServerEvent]:
    """Return a whole turn that calls functions.

    Args:
        create: What it answers.
        response_id: Its id.
        calls: The calls.
        whole_output: Whether the terminal event repeats the items.
    """
    body = []
    for index, call in enumerate(calls):
        delta = ResponseFunctionCallArgumentsDelta(
            output_index=index, delta=call.function_call.arguments
        )
        body += [
            ServerEvent(
                response_output_item_added=ResponseOutputItemAdded(output_index=index, item=call)
            ),
            ServerEvent(response_function_call_arguments_delta=delta),
            ServerEvent(
                response_output_item_done=ResponseOutputItemDone(output_index=index, item=call)
            ),
        ]
    return _turn(create, response_id, body, calls if whole_output else ())


def failed_turn(create: ClientEvent, response_id: str, code: str) -> list[ServerEvent]:
    """Return a turn that breaks after it began."""
    response = Response(
        id=response_id,
        status=response_pb2.RESPONSE_STATUS_FAILED,
        error=response_pb2.ResponseError(code=code, message="It broke."),
    )
    failed = ServerEvent(response_failed=ResponseFailed(response=response))
    return [*opening(create, response_id), *_numbered(create, [failed], first=2)]


def cancelled(create: ClientEvent, response_id: str, first: int = 2) -> ServerEvent:
    """Return the end of a turn that was cancelled."""
    response = Response(id=response_id, status=response_pb2.RESPONSE_STATUS_CANCELLED)
    end = ServerEvent(response_incomplete=ResponseIncomplete(response=response))
    return _numbered(create, [end], first=first)[0]


def rejected(
    create: ClientEvent, code: str, status: int = 400, param: str | None = None
) -> ServerEvent:
    """Return the refusal of a create."""
    error = ErrorBody(type="invalid_request_error", code=code, message="No.", param=param)
    return ServerEvent(
        stream_id=create.stream_id or None,
        event_id=create.event_id or None,
        error=SessionError(status=status, error=error),
    )


def _turn(
    create: ClientEvent, response_id: str, body: Sequence[ServerEvent], output: Sequence[Item]
) -> list[ServerEvent]:
    tokens = TimingTokens(input=40, sent=7, rendered=7, cached=33, output=5)
    response = Response(
        id=response_id,
        object="response",
        status=response_pb2.RESPONSE_STATUS_COMPLETED,
        output=output,
        usage=Usage(
            input_tokens=40,
            input_tokens_details=response_pb2.InputTokensDetails(cached_tokens=33),
            output_tokens=5,
            total_tokens=45,
        ),
    )
    if "turnwire.timing" in create.response_create.include:
        response.turnwire.timing.CopyFrom(Timing(decode_ms=0.5, overhead_ms=0.25, tokens=tokens))
    end = ServerEvent(response_completed=ResponseCompleted(response=response))
    return [*opening(create, response_id), *_numbered(create, [*body, end], first=2)]


def _numbered(
    create: ClientEvent, events: Sequence[ServerEvent], first: int = 0
) -> list[ServerEvent]:
    for number, event in enumerate(events, first):
        event.sequence_number = number
        if create.HasField("stream_id"):
            event.stream_id = create.stream_id
    return list(events)
