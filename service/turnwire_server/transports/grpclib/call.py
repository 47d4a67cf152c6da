"""One call: what `grpc.aio.ServicerContext` is to a handler of ours, on an HTTP/2 stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NoReturn

import grpc
from google.protobuf import message
from grpclib.protocol import Stream
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from turnwire_server.runtime.reports import log_bug
from turnwire_server.transports.grpc_status import Leaving, Receiver
from turnwire_server.transports.grpclib.connection import Connection
from turnwire_server.transports.grpclib.fast_data import DATA_HEAD, MIN_FRAME_BYTES, PREFIX_BYTES
from turnwire_server.transports.grpclib.headers import (
    ANSWER_HEADERS,
    BadRequestError,
    Head,
    status_headers,
)
from turnwire_server.transports.grpclib.messages import MessageBuffer
from turnwire_server.transports.grpclib.writer import TickWriter

__all__ = ["Call", "send_status"]

logger = logging.getLogger("turnwire.transports")


def send_status(
    connection: Connection,
    stream_id: int,
    code: grpc.StatusCode,
    details: str,
    metadata: Sequence[tuple[str, str | bytes]] = (),
    *,
    has_begun: bool = False,
) -> None:
    """End a stream with its status.

    Args:
        connection: Its connection.
        stream_id: Its id.
        code: The status.
        details: Its text.
        metadata: More trailers.
        has_begun: Whether headers were sent already.
    """
    headers = [] if has_begun else ANSWER_HEADERS[:2]
    h2 = connection.h2
    try:
        h2.send_headers(
            stream_id, [*headers, *status_headers(code, details, metadata)], end_stream=True
        )
        if not h2.streams[stream_id].closed:
            # The client still sends: it is told that nobody listens.
            h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
    except (ProtocolError, KeyError):
        return  # The stream is closed already.
    connection.writer.frames_sent += 1
    connection.flush()


def _over() -> grpc.aio.InternalError:
    # types-grpcio knows no arguments; the class is a plain exception.
    return grpc.aio.InternalError("the call is over")


class Call:
    """A call from its headers to its status."""

    __slots__ = (
        *("__weakref__", "_connection", "_deadline", "_h2", "_h2_stream", "_handler"),
        *("_has_begun", "_has_left", "_head", "_is_fast", "_is_over", "_max_message_bytes"),
        *("_messages", "_prompt_writer", "_stream", "_stream_id", "_task", "_when_left", "_writer"),
    )

    def __init__(
        self,
        connection: Connection,
        stream: Stream,
        head: Head,
        handler: grpc.RpcMethodHandler[Any, Any],
        *,
        max_message_bytes: int,
    ) -> None:
        """Make a call; `start` it.

        Args:
            connection: Where it came from.
            stream: Its stream.
            head: What its headers say.
            handler: The method.
            max_message_bytes: Most bytes of a message in either direction.
        """
        assert stream.id is not None
        self._connection = connection
        self._stream = stream
        self._stream_id = stream.id
        self._h2 = connection.h2
        self._h2_stream = connection.h2.streams[stream.id]
        self._writer = connection.writer
        self._prompt_writer: TickWriter | None = None
        """The writer while nothing but windows and network makes a message wait: between the
        headers and the end, and while none is written in parts."""
        self._head = head
        self._handler = handler
        self._max_message_bytes = max_message_bytes
        self._is_fast = connection.settings.is_fast
        self._messages = MessageBuffer(
            partial(connection.ack, stream.id),
            limit=max_message_bytes,
            encoding=head.encoding,
        )
        stream.buffer = self._messages
        self._has_begun = False
        self._is_over = False
        self._has_left = False
        self._when_left: list[Callable[[Leaving], None]] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, when_done: Callable[[], None]) -> asyncio.Task[None]:
        """Serve it in a task of its own, which is returned.

        Args:
            when_done: Called when the task is over.
        """
        loop = asyncio.get_running_loop()
        if self._head.timeout_s is not None:
            self._deadline = loop.call_later(self._head.timeout_s, self._expire)
        self._task = loop.create_task(self._run())

        def done(task: asyncio.Task[None]) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            self._messages.close()
            # What a call leaves behind must be no cycle: connections come and go, collections not.
            self._when_left.clear()
            self._task = None
            when_done()

        self._task.add_done_callback(done)
        return self._task

    # What the handler sees.

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the call's metadata."""
        return self._head.metadata

    def call_when_left(self, callback: Callable[[Leaving], None]) -> None:
        """Have `callback` called as soon as the client is seen to be gone; see `Context`."""
        self._when_left.append(callback)

    async def read(self) -> Any:
        """Return the next message as bytes, `grpc.aio.EOF` at the end. One task may read.

        Raises:
            grpc.aio.InternalError: The call is over.
        """
        try:
            data = await self._messages.read_message()
        except BadRequestError as refusal:
            self._refuse(refusal)
            raise _over() from None
        if data is not None:
            return data
        if self._has_left:
            raise _over()
        return grpc.aio.EOF

    async def read_into(self, receiver: Receiver) -> bool:
        """Hand every message to `receiver`, see `grpc_status.message_reader`; raise as `read`."""
        try:
            is_more = await self._messages.read_into(receiver)
        except BadRequestError as refusal:
            self._refuse(refusal)
            raise _over() from None
        if not is_more and self._has_left:
            raise _over()
        return is_more

    async def write(self, data: bytes) -> None:
        """Write a message; wait while the client or the network takes no more.

        Raises:
            grpc.aio.InternalError: The call is over.
        """
        if self._is_over:
            raise _over()
        if not self.write_now(data):
            await self._write_in_parts(data)

    def write_now(self, data: bytes) -> bool:
        """Write a message if windows and network take all of it; False: nothing was written."""
        writer = self._prompt_writer
        if writer is None:
            if self._has_begun or self._is_over:
                return False
            self._begin()
            writer = self._prompt_writer
            if writer is None:
                return False
        length = len(data)
        size = length + PREFIX_BYTES
        h2, stream = self._h2, self._h2_stream
        shared_left = h2.outbound_flow_control_window - size
        own_left = stream.outbound_flow_control_window - size
        if shared_left < 0 or own_left < 0:
            return False
        if size > MIN_FRAME_BYTES and size > h2.max_outbound_frame_size:
            return False
        if not writer.is_writable:
            return False
        h2.outbound_flow_control_window = shared_left
        stream.outbound_flow_control_window = own_left
        writer.frames_sent += 1
        frame = DATA_HEAD.pack(size << 8, 0, self._stream_id, 0, length) + data
        if writer.calls == 1:  # Company would wait for the loop's next turn.
            writer.write_now(frame)
        else:
            writer.write(frame)
        return True

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        """End the call with a status.

        Raises:
            grpc.aio.AbortError: always; it must leave the handler.
        """
        self._end(code, details, trailing_metadata)
        raise grpc.aio.AbortError("the call was ended")

    # From the connection.

    def leave(self, leaving: Leaving) -> None:
        """The client is gone: everybody who works for it is told before this returns."""
        if self._is_over:
            return
        self._is_over, self._prompt_writer = True, None
        self._stop(leaving)

    def shut_down(self) -> None:
        """End the call for the server's sake."""
        if not self._is_over:
            self._end(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls")
            self._stop("cancelled")

    def _expire(self) -> None:
        if not self._is_over:
            self._end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            self._stop("cancelled")

    def _refuse(self, refusal: BadRequestError) -> None:
        if not self._is_over:
            self._end(refusal.code, refusal.details)
            self._stop("cancelled")

    def _stop(self, leaving: Leaving) -> None:
        """Tell handler, reader and writer of a call that is over."""
        self._has_left = True
        self._messages.close()
        self._stream.window_updated.set()
        for callback in self._when_left:
            try:
                callback(leaving)
            except Exception as bug:  # What the handler does must not end the connection.
                log_bug(logger, "call failed after its client left", bug)
        if self._task is not None:
            self._task.cancel()

    # Private.

    def _begin(self) -> None:
        """Send the headers of the answer."""
        self._has_begun = True
        self._connection.h2.send_headers(self._stream_id, ANSWER_HEADERS)
        self._connection.flush()
        self._allow_prompt_writes()

    def _allow_prompt_writes(self) -> None:
        if self._is_fast and not self._is_over:
            self._prompt_writer = self._writer

    async def _write_in_parts(self, data: bytes) -> None:
        """Write with h2's public interface, as windows and buffers allow."""
        if len(data) > self._max_message_bytes:
            details = f"Sent message larger than max ({len(data)} vs. {self._max_message_bytes})"
            self._refuse(BadRequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, details))
            raise _over()
        connection, stream = self._connection, self._stream
        h2, stream_id = self._h2, self._stream_id
        rest = memoryview(b"\0" + len(data).to_bytes(4) + data)
        self._prompt_writer = None
        try:
            while rest:
                if self._is_over:
                    raise _over()
                window = h2.local_flow_control_window(stream_id)
                if not self._writer.is_writable or window <= 0:
                    stream.window_updated.clear()
                    await stream.window_updated.wait()
                    continue
                part = rest[: min(window, h2.max_outbound_frame_size)]
                h2.send_data(stream_id, bytes(part))
                connection.writer.frames_sent += 1
                connection.flush()
                rest = rest[len(part) :]
        except ProtocolError:
            raise _over() from None
        finally:
            self._allow_prompt_writes()

    def _end(
        self,
        code: grpc.StatusCode,
        details: str,
        metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> None:
        if self._is_over:
            return
        self._is_over, self._prompt_writer = True, None
        send_status(
            self._connection, self._stream_id, code, details, metadata, has_begun=self._has_begun
        )

    async def _run(self) -> None:
        try:
            await self._serve()
            self._end(grpc.StatusCode.OK, "")
        except grpc.aio.BaseError:
            pass  # It was aborted, or is over.
        except asyncio.CancelledError:
            self._end(grpc.StatusCode.CANCELLED, "The server cancelled the call.")
            raise
        except Exception as bug:  # The outermost frame: grpcio would send the exception's text.
            log_bug(logger, "call failed", bug)
            self._end(grpc.StatusCode.INTERNAL, "The server made an error.")

    async def _serve(self) -> None:
        handler = self._handler
        behavior = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        assert behavior is not None, "every handler has one of the four"
        request = self._requests() if handler.request_streaming else await self._request()
        answer: Any = behavior(request, self)  # type: ignore[arg-type] # Its part of a context.
        if isinstance(answer, AsyncGenerator):
            async with aclosing(answer) as parts:
                async for part in parts:
                    await self.write(self._serialized(part))
            return
        result = await answer
        if not handler.response_streaming:
            await self.write(self._serialized(result))

    async def _request(self) -> Any:
        """Return the only request."""
        data = await self.read()
        if data is grpc.aio.EOF:
            await self.abort(grpc.StatusCode.INTERNAL, "The call has no message.")
        return await self._deserialized(data)

    async def _requests(self) -> AsyncIterator[Any]:
        while (data := await self.read()) is not grpc.aio.EOF:
            yield await self._deserialized(data)

    async def _deserialized(self, data: bytes) -> Any:
        deserialize = self._handler.request_deserializer
        if deserialize is None:
            return data
        try:
            return deserialize(data)
        except message.DecodeError:
            await self.abort(grpc.StatusCode.INTERNAL, "Exception deserializing request!")

    def _serialized(self, answer: Any) -> bytes:
        serialize = self._handler.response_serializer
        return answer if serialize is None else serialize(answer)
