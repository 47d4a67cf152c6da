"""Answers to `response.steer` and `response.inject`, which this server does not act on yet."""

from __future__ import annotations

from turnwire.v1 import client_event_pb2, error_pb2, server_event_pb2
from turnwire_server.session.errors import Rejection, quoted
from turnwire_server.session.turns import Turn

__all__ = ["inject_failed", "steer_failed"]

ServerEvent = server_event_pb2.ServerEvent


def steer_failed(steer: client_event_pb2.ResponseSteer, target: Turn | None) -> ServerEvent:
    """Return the answer to a steer of the running turn `target`, None when none runs.

    An `error` event would be wrong: clients would take it for the end of the running turn.
    """
    if target is None:
        rejection = Rejection(
            error_pb2.ERROR_REASON_RESPONSE_NOT_FOUND,
            f"No response {quoted(steer.previous_response_id)} runs on this connection.",
            param="previous_response_id",
        )
    else:
        rejection = Rejection(
            error_pb2.ERROR_REASON_STEERING_NOT_SUPPORTED,
            "This server does not steer responses yet.",
            param="previous_response_id",
        )
    return ServerEvent(
        sequence_number=0,
        stream_id=target.lane if target is not None else None,
        response_steer_failed=server_event_pb2.ResponseSteerFailed(
            steer=server_event_pb2.Steer(
                previous_response_id=steer.previous_response_id,
                input=steer.input if steer.HasField("input") else None,
            ),
            error=rejection.body(),
        ),
    )


def inject_failed(inject: client_event_pb2.ResponseInject, stream_id: str | None) -> ServerEvent:
    """Return the answer to an inject that came on the lane `stream_id`."""
    rejection = Rejection(
        error_pb2.ERROR_REASON_RESPONSE_NOT_FOUND,
        "No response here takes injected items.",
        param="response_id",
    )
    return ServerEvent(
        sequence_number=0,
        stream_id=stream_id,
        response_inject_failed=server_event_pb2.ResponseInjectFailed(
            response_id=inject.response_id,
            input=inject.input if inject.HasField("input") else None,
            error=rejection.body(),
        ),
    )
