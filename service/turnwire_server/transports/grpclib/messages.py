"""From DATA frames to messages: one stream's way in, with its flow control and its limits."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Callable
from typing import Final

import grpc
from grpclib.protocol import Buffer

from turnwire_server.transports.grpc_status import Receiver
from turnwire_server.transports.grpclib.headers import BadRequestError, Encoding
from turnwire_server.transports.inflate import DataError, inflate

__all__ = ["MessageBuffer"]

_PREFIX_BYTES: Final = 5
_INLINE_BYTES: Final = 4096
"""Compressed messages up to this are inflated in the loop: they hold at most 4 MiB."""


class _EnoughError(Exception):
    """A receiver wants no more for now: what the reader who waits is told."""


class MessageBuffer(Buffer):
    """Keeps what arrived as bytes until somebody reads it as messages.

    The peer's window is opened for what the next message still needs, as soon as somebody waits
    for it, and closed while a whole one waits and more may come: a peer that is not read can make
    us keep one message and one window.
    """

    def __init__(self, ack: Callable[[int], None], *, limit: int, encoding: Encoding) -> None:
        """Make an empty buffer.

        Args:
            ack: Opens the peer's window by so many bytes.
            limit: Most bytes of a message, before and after decompression.
            encoding: How compressed messages are compressed.
        """
        super().__init__(ack)
        self._ack = ack
        self._limit = limit
        self._encoding = encoding
        self._data = bytearray()
        self._held = 0
        self._is_complete = False
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._receiver: Receiver | None = None

    # From the connection.

    def add(self, data: bytes, ack_size: int) -> None:
        """Take the data of a frame that took `ack_size` bytes of the window."""
        if self._is_closed:
            self._ack(ack_size)
            return
        self._held += ack_size
        waiter, receiver = self._waiter, self._receiver
        if receiver is not None and waiter is not None and not waiter.done():
            if not self._data and self._is_message(data):
                self._hand_over(receiver, data[_PREFIX_BYTES:])
                return
        self._data += data
        size = self._size()
        is_whole = _PREFIX_BYTES + size <= len(self._data)
        if not is_whole:
            self._release()
        if is_whole or size > self._limit:
            self._wake()

    def eof(self) -> None:
        """The peer sends no more: what it took of the connection's window is the other calls'.

        Whoever reads a single message never waits for the next one, which would give it back.
        """
        self._is_complete = True
        self._release()
        self._wake()

    def unacked_size(self) -> int:
        """Return what was not given back of the window, and forget it."""
        held, self._held = self._held, 0
        return held

    def close(self) -> None:
        """Drop what is there and what comes; whoever reads gets the end."""
        self._is_closed = True
        self._data.clear()
        self._wake()

    # From the reader.

    async def read_into(self, receiver: Receiver) -> bool:
        """Hand every message to `receiver`, until it wants no more for now; False at the end.

        A usual message, alone in its frame, is handed over in the very call that received it,
        before the next frame is looked at: no task is woken for it. Only one task may read.

        Raises:
            BadRequestError: As `read_message` does.
        """
        self._receiver = receiver
        try:
            while True:
                message = await self.read_message()
                if message is None:
                    return False
                if not receiver(message):
                    return True
                del message  # Who waits for the next one holds nothing of the last.
        except _EnoughError:
            return True
        finally:
            self._receiver = None

    async def read_message(self) -> bytes | None:
        """Return the next message, None at the end. Only one task may read.

        Raises:
            BadRequestError: It is too large, or not what it says that it is.
        """
        while not self._is_closed:
            size = self._size()
            if size > self._limit:
                raise BadRequestError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"SERVER: Received message larger than max ({size} vs. {self._limit})",
                )
            if _PREFIX_BYTES + size <= len(self._data):
                is_compressed, message = self._take(size)
                return await self._inflated(message) if is_compressed else message
            if self._is_complete:
                break
            loop = asyncio.get_running_loop()
            if self._held:  # Not at once: what the last message set off goes first.
                loop.call_soon(self._release)
            self._waiter = loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._data:
            raise BadRequestError(grpc.StatusCode.INTERNAL, "The last message is cut off.")
        return None

    # Private.

    def _is_message(self, data: bytes) -> bool:
        """Return whether `data` is one whole message that is not compressed."""
        size = len(data) - _PREFIX_BYTES
        return 0 <= size <= self._limit and data[:_PREFIX_BYTES] == size.to_bytes(_PREFIX_BYTES)

    def _hand_over(self, receiver: Receiver, message: bytes) -> None:
        """Do with a message what the reader would, who waits; tell it what it must know."""
        try:
            wants_more = receiver(message)
        except Exception as error:  # The reader's, as if it had taken the message itself.
            self._tell(error)
        else:
            if not wants_more:
                self._tell(_EnoughError())
            elif self._held:
                asyncio.get_running_loop().call_soon(self._release)

    def _tell(self, error: Exception) -> None:
        """Let the reader's wait end with `error`, unless the call was ended meanwhile."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _size(self) -> int:
        """Return how long the next message is; 0 while that is not known."""
        if len(self._data) < _PREFIX_BYTES:
            return 0
        return int.from_bytes(self._data[1:_PREFIX_BYTES])

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _release(self) -> None:
        if self._held and not self._is_closed:
            held, self._held = self._held, 0
            self._ack(held)

    def _take(self, size: int) -> tuple[int, bytes]:
        """Return the next message, of `size` bytes, and whether it is compressed."""
        end = _PREFIX_BYTES + size
        is_compressed = self._data[0] & 1
        with memoryview(self._data) as view:
            message = bytes(view[_PREFIX_BYTES:end])
        del self._data[:end]
        return is_compressed, message

    async def _inflated(self, message: bytes) -> bytes:
        if self._encoding == "identity":
            raise BadRequestError(
                grpc.StatusCode.INTERNAL, "Compression bit set but no encoding configured"
            )
        is_cancelled = threading.Event()
        work = (self._encoding, message, self._limit, is_cancelled.is_set)
        try:
            if len(message) <= _INLINE_BYTES:
                inflated = inflate(*work)
            else:
                inflated = await asyncio.to_thread(inflate, *work)
        except (zlib.error, DataError):
            raise BadRequestError(
                grpc.StatusCode.INTERNAL, "Decompression failed due to zlib error"
            ) from None
        finally:
            is_cancelled.set()  # A thread cannot be cancelled; it looks here between two steps.
        if inflated is None:
            raise BadRequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "Decompressed message larger than max"
            )
        return inflated
