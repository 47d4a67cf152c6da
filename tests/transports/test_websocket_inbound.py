"""What arrives on a WebSocket, past aiohttp's reader and through it: nobody can tell them apart."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from inspect import signature
from typing import Any

import pytest
from aiohttp import web

from harness.fake_services import FakeConnection, FakeServices
from harness.raw_websocket import close_frame, handshake, masked
from harness.wire_servers import http_port
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire_server.session.events import Outgoing
from turnwire_server.transports import websocket_mask
from turnwire_server.transports.websocket_mask import MaskGuard
from turnwire_server.transports.websocket_socket import Socket

TEXT, BINARY, PING, PONG = 1, 2, 9, 10
MASK = b"\x12\x34\x56\x78"


def event(number: int, filler: str = "") -> bytes:
    value = {"type": "response.cancel", "response_id": f"resp_{number}", "event_id": filler}
    return json.dumps(value, ensure_ascii=False).encode()


def text(payload: bytes, mask: bytes = MASK) -> bytes:
    return masked(payload, opcode=TEXT, mask=mask)


class Parser:
    """Keeps what it is fed with."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        raise AssertionError


class Receiver:
    """A guard, a parser behind it, and who waits for texts."""

    def __init__(self, *, wants_more: bool = True) -> None:
        self.parser = Parser()
        self.guard = MaskGuard(self.parser)
        self.guard.max_text_bytes = 1000
        self.guard.receiver = self._take
        self.taken: list[tuple[str, int]] = []
        self._wants_more = wants_more

    def _take(self, text: str, size: int) -> bool:
        self.taken.append((text, size))
        return self._wants_more


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 1000])
def test_a_text_that_is_a_packet_of_its_own_is_taken_in_the_call_that_received_it(
    size: int,
) -> None:
    receiver = Receiver()
    for _ in range(2):
        assert receiver.guard.feed_data(text(b"t" * size)) == (False, b"")
    assert receiver.taken == [("t" * size, size)] * 2
    assert receiver.parser.data == b""
    receiver.guard.feed_data(text("삶😀".encode()))
    assert receiver.taken[-1] == ("삶😀", 7)


@pytest.mark.parametrize(
    "packet",
    [
        text(b"one") + text(b"two"),
        text(b"longer than this")[:-1],
        text(b"one") + b"\x81",
        text(b"m" * 1001),
        text(b"m" * 70_000),
        text(b"\xff"),
        masked(b"{}", opcode=BINARY),
        masked(b"", opcode=PING),
        masked(b"", opcode=PONG),
        masked(b"begin", opcode=TEXT, final=False),
        b"\xc1" + text(b"compressed")[1:],
        b"\x81",
        b"\x81\xfe\x00",
        b"",
    ],
)
def test_everything_else_is_the_readers_and_so_is_what_comes_until_it_was_read(
    packet: bytes,
) -> None:
    receiver = Receiver()
    receiver.guard.feed_data(packet)
    receiver.guard.feed_data(b"")
    assert (receiver.taken, receiver.guard.receiver) == ([], None)
    assert packet.startswith(receiver.parser.data)
    receiver.guard.feed_data(text(b"next"))
    assert receiver.taken == []


@pytest.mark.parametrize(
    "before",
    [
        text(b"cut off here")[:-3],
        text(b"m" * 300)[:3],
        masked(b"begin", opcode=TEXT, final=False),
        masked(b"begin", opcode=TEXT, final=False) + masked(b"", opcode=PING),
        b"\x81",
    ],
)
def test_amid_a_frame_and_amid_a_message_nothing_is_taken(before: bytes) -> None:
    receiver = Receiver()
    receiver.guard.feed_data(before)
    receiver.guard.receiver = receiver._take
    receiver.guard.feed_data(text(b"inner"))
    assert receiver.taken == []
    assert receiver.parser.data.startswith(before)


def test_behind_the_last_fragment_texts_are_taken_again() -> None:
    receiver = Receiver()
    receiver.guard.feed_data(masked(b"begin", opcode=TEXT, final=False))
    receiver.guard.feed_data(masked(b"end", opcode=0))
    receiver.guard.receiver = receiver._take
    receiver.guard.feed_data(text(b"next"))
    assert receiver.taken == [("next", 4)]


def test_who_wants_no_more_is_woken_by_a_pong_and_handed_nothing() -> None:
    receiver = Receiver(wants_more=False)
    receiver.guard.feed_data(text(b"enough"))
    assert receiver.parser.data == masked(b"", opcode=PONG)
    receiver.guard.feed_data(text(b"next"))
    assert receiver.taken == [("enough", 6)]
    assert receiver.parser.data.endswith(text(b"next"))


def test_a_frame_without_a_mask_is_refused_while_somebody_waits() -> None:
    receiver = Receiver()
    receiver.guard.feed_data(b"\x81\x02{}" * 2)  # As long as one with a mask.
    assert (receiver.taken, receiver.parser.data) == ([], b"\xf0\x80")
    assert receiver.guard.feed_data(text(b"next")) == (True, b"")


@pytest.mark.skipif(
    "data_received_cb" not in signature(web.RequestHandler.set_parser).parameters,
    reason="this aiohttp hears clients only by reading",
)
@pytest.mark.parametrize(
    ("hears_packets", "count"),
    [pytest.param(True, 1, id="aiohttp hears packets"), pytest.param(False, 4, id="it does not")],
)
async def test_events_that_come_one_by_one_do_not_go_through_the_reader_where_that_may_be(
    hears_packets: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, reads = Socket.receive, 0
    if not hears_packets:
        make: Any = Socket.__init__
        monkeypatch.setattr(
            Socket, "__init__", lambda self, **given: make(self, **{**given, "heartbeat": None})
        )

    async def counted(socket: Socket) -> Any:
        nonlocal reads
        reads += 1
        return await receive(socket)

    monkeypatch.setattr(Socket, "receive", counted)
    services = FakeServices()
    async with http_port(services) as port:
        _, writer = await handshake(port)
        connection = await services.connection()
        await asyncio.sleep(0)  # Its reader waits.
        for number in range(3):
            writer.write(text(event(number)))
            await services.until(lambda count=number: len(connection.received) > count)
        await asyncio.sleep(0)
        assert reads == count
        writer.close()


@pytest.mark.parametrize("is_short", [True, False])
async def test_events_arrive_in_order_however_they_are_sent_and_cut(
    is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of them makes the connection crowded: nothing may arrive until it is calm."""
    if not is_short:
        monkeypatch.setattr(websocket_mask, "_unmask", None)
    crowds: set[FakeConnection] = set()

    def script(connection: FakeConnection, received: ClientEvent) -> Iterable[Outgoing]:
        assert connection not in crowds
        if len(connection.received) % 3 == 0:
            crowds.add(connection)
        return []

    async def calm(connection: FakeConnection) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        crowds.discard(connection)

    monkeypatch.setattr(FakeConnection, "is_crowded", property(lambda self: self in crowds))
    monkeypatch.setattr(FakeConnection, "calm", calm)
    services = FakeServices(script)
    async with http_port(services) as port:
        for seed in range(15):
            await send_some(services, port, random.Random(seed))


async def send_some(services: FakeServices, port: int, choice: random.Random) -> None:
    """Send events over a connection of their own, and wait for all of them."""
    before = len(services.connections)
    sent: list[tuple[int, int]] = []

    def have_all_arrived() -> bool:
        return len(services.connections) > before and arrived(services.connections[-1]) == sent

    _, writer = await handshake(port)
    for number in range(40):
        payload = event(number, choice.choice(("", "삶", "f" * 200, "f" * 70_000)))
        frames = choice.choice((text, text, text, binary, pinged, fragmented))(payload)
        sent.append((number, len(payload)))
        cut = choice.randrange(len(frames)) if choice.random() < 0.2 else 0
        for part in (frames[:cut], frames[cut:]):
            writer.write(part)
            if choice.random() < 0.7:
                await asyncio.sleep(0)
        if choice.random() < 0.3:
            await services.until(have_all_arrived)
    await services.until(have_all_arrived)
    writer.close()


def binary(payload: bytes) -> bytes:
    return masked(payload, opcode=BINARY, mask=MASK)


def pinged(payload: bytes) -> bytes:
    return masked(b"p", opcode=PING) + text(payload) + masked(b"p", opcode=PONG)


def fragmented(payload: bytes) -> bytes:
    half = len(payload) // 2
    begin = masked(payload[:half], opcode=TEXT, final=False)
    return begin + masked(b"p", opcode=PING) + masked(payload[half:], opcode=0)


def arrived(connection: FakeConnection) -> list[tuple[int, int]]:
    """Return number and size of what has arrived."""
    return [(int(one.response_cancel.response_id[5:]), size) for one, size in connection.received]


async def test_a_bug_in_what_is_taken_closes_the_socket_behind_what_was_taken_before() -> None:
    def script(connection: FakeConnection, received: ClientEvent) -> Iterable[Outgoing]:
        if len(connection.received) == 2:
            raise RuntimeError("/secret/path is on fire")
        return []

    services = FakeServices(script)
    async with http_port(services) as port:
        reader, writer = await handshake(port)
        connection = await services.connection()
        for number in range(3):
            writer.write(text(event(number)))
            await services.until(lambda count=number: len(connection.received) > min(count, 1))
        async with asyncio.timeout(20):
            assert await close_frame(reader) == (1011, "internal error")
        writer.close()
    assert len(connection.received) == 2
