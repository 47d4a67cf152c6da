"""The asyncio servicers alone, with a context that records."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, cast
from urllib.parse import quote

import grpc
import pytest

from harness.fake_services import FakeServices, created, greeting
from harness.grpc_context import RecordingContext, error_info
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.error_pb2 import ERROR_REASON_RATE_LIMIT_EXCEEDED
from turnwire.v1.server_event_pb2 import ServerFrame
from turnwire_server.session.errors import Rejection
from turnwire_server.transports.grpc import SessionServicer
from turnwire_server.transports.grpc_services import FrameSink
from turnwire_server.transports.grpc_status import abort, guarded

CREATE = ClientEvent(response_create=ResponseCreate(model="m")).SerializeToString()


def servicer(services: FakeServices) -> SessionServicer:
    return SessionServicer(cast(Any, services), max_frame_bytes=1 << 20)


async def test_what_the_client_sends_is_answered_in_frames_until_the_half_close() -> None:
    context = RecordingContext()
    context.client_sends(CREATE)
    context.client_half_closes()
    async with asyncio.timeout(20):
        await servicer(FakeServices()).connect(None, cast(Any, context))
    (frame,) = [ServerFrame.FromString(data) for data in context.written]
    assert len(frame.events) == len(greeting())
    assert context.code is None


async def test_cancellation_is_raised_again_after_the_turns_were_told() -> None:
    services = FakeServices(lambda connection, event: [created()])
    context = RecordingContext()
    context.client_sends(CREATE)
    call = asyncio.create_task(servicer(services).connect(None, cast(Any, context)))
    await services.until(lambda: bool(services.connections and services.connections[0].received))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert services.connections[0].disconnected.is_set()
    context.client_half_closes()


async def test_a_call_that_is_over_is_a_connection_error_for_the_writer() -> None:
    context = RecordingContext()
    context.fail_writes = True
    sink = FrameSink(cast(Any, context), max_frame_bytes=100)
    with pytest.raises(ConnectionError):
        await sink.write([sink.encode(created())])


async def test_a_write_that_fails_disconnects() -> None:
    services = FakeServices()
    context = RecordingContext()
    context.fail_writes = True
    context.client_sends(CREATE)
    async with asyncio.timeout(20):
        await servicer(services).connect(None, cast(Any, context))
    assert services.connections[0].disconnected.is_set()
    context.client_half_closes()


async def test_a_retry_hint_becomes_retry_info_and_metadata() -> None:
    context = RecordingContext()
    rejection = Rejection(ERROR_REASON_RATE_LIMIT_EXCEEDED, "full", headers={"retry-after": "7"})
    with pytest.raises(grpc.aio.AbortError):
        await abort(cast(Any, context), rejection)
    assert context.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error_info(context.trailers).metadata["retry-after"] == "7"
    ((_, status),) = context.trailers
    assert b"google.rpc.RetryInfo" in status


async def test_long_and_foreign_texts_still_fit_the_trailers() -> None:
    context = RecordingContext()
    rejection = Rejection(ERROR_REASON_RATE_LIMIT_EXCEEDED, "삶" * 2000, "삶" * 9000)
    with pytest.raises(grpc.aio.AbortError):
        await abort(cast(Any, context), rejection)
    ((_, status),) = context.trailers
    as_sent = len(quote(context.details)) + len(base64.b64encode(status))
    assert as_sent < 8000
    assert error_info(context.trailers).reason == "RATE_LIMIT_EXCEEDED"


async def test_an_abort_is_no_bug() -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        await abort(context, Rejection(ERROR_REASON_RATE_LIMIT_EXCEEDED, "full"))

    context = RecordingContext()
    with pytest.raises(grpc.aio.AbortError):
        await guarded(handler)(b"", cast(Any, context))
    assert context.code is grpc.StatusCode.RESOURCE_EXHAUSTED
