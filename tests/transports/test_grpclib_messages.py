"""From DATA to messages: order, limits, and what is given back of the window."""

from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from typing import Any

import grpc
import pytest

from harness.raw_grpc import message
from turnwire_server.transports.grpclib.headers import BadRequestError
from turnwire_server.transports.grpclib.messages import MessageBuffer


class Window:
    """Counts what is given back."""

    def __init__(self, limit: int = 100, encoding: Any = "identity") -> None:
        self.given_back = 0
        self.buffer = MessageBuffer(self._ack, limit=limit, encoding=encoding)

    def _ack(self, size: int) -> None:
        self.given_back += size

    def add(self, data: bytes) -> None:
        self.buffer.add(data, len(data))


async def test_messages_are_read_in_order_however_they_were_cut() -> None:
    data = message(b"one") + message(b"") + message(b"three")
    for size in (1, 2, 7, len(data)):
        window = Window()
        for at in range(0, len(data), size):
            window.add(data[at : at + size])
        window.buffer.eof()
        read = [await window.buffer.read_message() for _ in range(4)]
        assert read == [b"one", b"", b"three", None]
        assert window.given_back + window.buffer.unacked_size() == len(data)


async def test_a_reader_waits_for_the_whole_message() -> None:
    window = Window()
    reading = asyncio.ensure_future(window.buffer.read_message())
    data = message(b"hello")
    window.add(data[:6])
    await asyncio.sleep(0)
    assert not reading.done()
    assert window.given_back == 6
    window.add(data[6:])
    async with asyncio.timeout(20):
        assert await reading == b"hello"


async def test_the_window_stays_closed_while_a_message_waits() -> None:
    window = Window()
    window.add(message(b"one"))
    window.add(message(b"two"))
    assert window.given_back == 0
    assert await window.buffer.read_message() == b"one"
    assert window.given_back == 0
    assert await window.buffer.read_message() == b"two"
    assert window.given_back == 0
    reading = asyncio.ensure_future(window.buffer.read_message())
    order: list[int] = []
    asyncio.get_running_loop().call_soon(lambda: order.append(window.given_back))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == [0]  # What was begun before goes first.
    assert window.given_back == 16
    window.buffer.eof()
    assert await reading is None


async def test_a_peer_that_sends_no_more_gets_everything_back_whether_it_was_read_or_not() -> None:
    for is_read in (False, True):
        window = Window()
        window.add(message(b"only one"))
        if is_read:
            assert await window.buffer.read_message() == b"only one"
        assert window.given_back == 0
        window.buffer.eof()
        assert (window.given_back, window.buffer.unacked_size()) == (13, 0)


async def test_a_buffer_that_is_closed_while_the_window_is_to_be_opened_keeps_count() -> None:
    window = Window()
    window.add(message(b"one"))
    assert await window.buffer.read_message() == b"one"
    reading = asyncio.ensure_future(window.buffer.read_message())
    await asyncio.sleep(0)  # It waits, and the window is to be opened next.
    window.buffer.close()
    assert await reading is None
    assert (window.given_back, window.buffer.unacked_size()) == (0, 8)


async def test_a_message_over_the_limit_is_known_by_its_prefix() -> None:
    window = Window(limit=10)
    reading = asyncio.ensure_future(window.buffer.read_message())
    await asyncio.sleep(0)
    window.add(b"\0" + (11).to_bytes(4))
    with pytest.raises(BadRequestError) as caught:
        async with asyncio.timeout(20):
            await reading
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_end_in_the_middle_of_a_message_is_an_error() -> None:
    for data in (b"\0", message(b"abc")[:-1]):
        window = Window()
        window.add(data)
        window.buffer.eof()
        with pytest.raises(BadRequestError) as caught:
            await window.buffer.read_message()
        assert caught.value.code is grpc.StatusCode.INTERNAL


async def test_a_closed_buffer_gives_everything_back() -> None:
    window = Window()
    window.add(message(b"unread"))
    window.buffer.close()
    window.add(b"more")
    assert window.given_back == 4
    assert window.buffer.unacked_size() == 11
    assert await window.buffer.read_message() is None


@pytest.mark.parametrize("size", [100, 200_000])
@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
async def test_compressed_messages_are_inflated(encoding: str, compress: Any, size: int) -> None:
    text = random.Random(1).randbytes(size)
    window = Window(limit=300_000, encoding=encoding)
    window.add(message(compress(text), compressed=True))
    async with asyncio.timeout(20):
        assert await window.buffer.read_message() == text


async def test_what_inflates_beyond_the_limit_is_refused() -> None:
    window = Window(limit=1000, encoding="gzip")
    window.add(message(gzip.compress(b"\0" * 1001), compressed=True))
    with pytest.raises(BadRequestError) as caught:
        await window.buffer.read_message()
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


class Taker:
    """Takes messages; wants no more after each one in `enough`, fails at one in `bugs`."""

    def __init__(
        self, window: Window, enough: tuple[bytes, ...] = (), bugs: tuple[bytes, ...] = ()
    ) -> None:
        self.taken: list[bytes] = []
        self._window = window
        self._enough = enough
        self._bugs = bugs

    def take(self, data: bytes) -> bool:
        self.taken.append(data)
        if data in self._bugs:
            raise ZeroDivisionError
        return data not in self._enough

    async def waits(self) -> asyncio.Task[bool]:
        """Return a task that waits for messages."""
        reading = asyncio.create_task(self._window.buffer.read_into(self.take))
        await asyncio.sleep(0)
        return reading


async def test_a_message_alone_in_its_frame_is_taken_in_the_call_that_received_it() -> None:
    window = Window(limit=3)
    taker = Taker(window)
    reading = await taker.waits()
    for data in (b"one", b"", b"two"):
        window.add(message(data))
        assert taker.taken.pop() == data
    assert window.given_back == 0
    await asyncio.sleep(0)
    assert window.given_back == 21  # What the messages set off goes first.
    assert not reading.done()
    window.buffer.eof()
    async with asyncio.timeout(20):
        assert await reading is False


async def test_messages_are_taken_in_order_however_they_are_cut_and_whoever_pauses() -> None:
    texts = [b"one", b"", b"three", b"pause", b"four", b"pause", b"zz", b"five"]
    data = [message(text) for text in texts] + [message(gzip.compress(b"last"), compressed=True)]
    stream = b"".join(data)
    for seed in range(200):
        choice = random.Random(seed)
        window = Window(encoding="gzip")
        taker = Taker(window, enough=(b"pause",))
        reading = await taker.waits()
        cuts = [sum(map(len, data[:at])) for at in range(1, len(data))]
        cuts = sorted({*choice.sample(cuts, 4), *choice.sample(range(len(stream)), seed % 4)})
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            window.add(stream[start:end])
            if choice.random() < 0.5:
                await asyncio.sleep(0)
        window.buffer.eof()
        async with asyncio.timeout(20):
            for _ in range(2):
                assert await reading is True
                reading = await taker.waits()
            assert await reading is False
        assert taker.taken == [*texts, b"last"]
        assert window.given_back + window.buffer.unacked_size() == len(stream)


async def test_a_reader_that_wants_no_more_is_handed_nothing_and_the_window_stays_closed() -> None:
    window = Window()
    taker = Taker(window, enough=(b"enough",))
    reading = await taker.waits()
    window.add(message(b"enough"))
    window.add(message(b"next"))
    async with asyncio.timeout(20):
        assert await reading is True
    window.add(message(b"last"))
    await asyncio.sleep(0)
    assert (taker.taken, window.given_back) == ([b"enough"], 0)
    reading = await taker.waits()
    assert taker.taken == [b"enough", b"next", b"last"]
    window.buffer.close()
    async with asyncio.timeout(20):
        assert await reading is False


async def test_what_taking_a_message_raises_is_the_reader_s_alone() -> None:
    window = Window()
    taker = Taker(window, bugs=(b"bad",))
    reading = await taker.waits()
    window.add(message(b"bad"))
    window.add(message(b"next"))
    async with asyncio.timeout(20):
        with pytest.raises(ZeroDivisionError):
            await reading
    window.add(message(b"last"))
    assert taker.taken == [b"bad"]
    assert await window.buffer.read_message() == b"next"


async def test_a_call_that_ends_while_a_message_is_taken_ends_its_reader() -> None:
    window = Window()

    def take(data: bytes) -> bool:
        window.buffer.close()
        return False

    reading = asyncio.create_task(window.buffer.read_into(take))
    await asyncio.sleep(0)
    window.add(message(b"the last"))
    async with asyncio.timeout(20):
        assert await reading is False


async def test_a_message_over_the_limit_is_refused_and_not_taken() -> None:
    window = Window(limit=10)
    taker = Taker(window)
    reading = await taker.waits()
    window.add(message(b"m" * 11))
    async with asyncio.timeout(20):
        with pytest.raises(BadRequestError):
            await reading
    assert taker.taken == []


async def test_a_frame_that_looks_like_a_message_amid_another_one_is_part_of_it() -> None:
    window = Window()
    taker = Taker(window)
    reading = await taker.waits()
    whole = message(b"ab" + message(b"inner"))
    window.add(whole[:7])
    window.add(whole[7:])
    await asyncio.sleep(0)
    assert taker.taken == [b"ab" + message(b"inner")]
    window.buffer.close()
    assert await reading is False


async def test_who_took_messages_before_takes_none_that_somebody_else_waits_for() -> None:
    window = Window()
    taker = Taker(window, enough=(b"enough",))
    reading = await taker.waits()
    window.add(message(b"enough"))
    assert await reading is True
    other = asyncio.create_task(window.buffer.read_message())
    await asyncio.sleep(0)
    window.add(message(b"other's"))
    async with asyncio.timeout(20):
        assert await other == b"other's"
    assert taker.taken == [b"enough"]
