"""`turnwire bench micro`: single pieces of code in this process, without network or engine."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from turnwire import _codec
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.response_pb2 import Usage
from turnwire_bench.figures import Figure
from turnwire_bench.loops import run
from turnwire_bench.meta import meta_of
from turnwire_bench.micro_render import render_pieces
from turnwire_bench.progress import Progress
from turnwire_server.adapters.clock import SystemClock
from turnwire_server.codec.requests import RequestDecoder
from turnwire_server.codec.sse import sse_event
from turnwire_server.runtime.outbox import Outbox
from turnwire_server.runtime.settings import OutboxSettings
from turnwire_server.session.assembly import ResponseAssembler
from turnwire_server.session.events import Delta, Outgoing, Part
from turnwire_server.session.output import TextDelta
from turnwire_server.session.responses import new_response
from turnwire_server.session.session import Session
from turnwire_server.session.settings import SessionSettings
from turnwire_server.transports.encoding import JsonEncoder, ProtoEncoder

__all__ = ["GROUPS", "MicroSettings", "Piece", "run_micro"]

GROUPS: Final = ("codec", "session", "render", "outbox")
_MICRO: Final = 1e6
_TEXT: Final = " token"
_PART: Final = Part("response_output_text_delta", "msg_0123456789abcdef0123", 0, 0, None)


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing to measure."""

    group: str
    name: str
    call: Callable[[], object]
    per_call: int = 1
    """How many of what the name says one call does."""


@dataclass(frozen=True, slots=True)
class MicroSettings:
    """What to run."""

    groups: tuple[str, ...] = GROUPS
    seconds: float = 0.2
    """About how long each repetition of a piece takes."""
    repeats: int = 5
    tools_bytes: int = 60_000


def run_micro(settings: MicroSettings, progress: Progress) -> dict[str, Any]:
    """Measure every piece of the groups.

    Returns:
        `{"meta", "rows"}`; docs/bench.md has the schema.
    """
    makers: dict[str, Callable[[], Sequence[Piece]]] = {
        "codec": _codec_pieces,
        "session": _session_pieces,
        "render": lambda: [
            Piece("render", name, call) for name, call in render_pieces(settings.tools_bytes)
        ],
        "outbox": _outbox_pieces,
    }
    rows = []
    for group in settings.groups:
        progress(group)
        for piece in makers[group]():
            progress(f"{group}: {piece.name}")
            figure = _measured(piece, settings)
            rows.append(
                {
                    "group": group,
                    "name": piece.name,
                    "us": figure.median,
                    "us_spread": [figure.low, figure.high],
                }
            )
    return {
        "meta": meta_of(
            "micro",
            notes=["One process, no network. Medians of repetitions, in µs of wall time."],
            repeats=settings.repeats,
            tools_bytes=settings.tools_bytes,
        ),
        "rows": rows,
    }


def _measured(piece: Piece, settings: MicroSettings) -> Figure:
    piece.call()
    began = time.perf_counter()
    piece.call()
    once = max(1e-7, time.perf_counter() - began)
    count = max(1, min(100_000, int(settings.seconds / once)))
    found = []
    for _ in range(settings.repeats):
        gc.collect()
        began = time.perf_counter()
        for _ in range(count):
            piece.call()
        spent = time.perf_counter() - began
        found.append(spent / count / piece.per_call * _MICRO)
    return Figure.of_values(found)


# Codec.


def _codec_pieces() -> list[Piece]:
    numbers = itertools.count()
    json_encoder, proto_encoder = JsonEncoder(), ProtoEncoder()

    def delta() -> Delta:
        return Delta(_PART, next(numbers), _TEXT)

    completed = _completed()
    small, large = _request(1), _request(106)
    decoder = RequestDecoder()
    message = _codec.loads(ClientEvent, large).SerializeToString()
    return [
        Piece("codec", "delta as JSON", lambda: json_encoder.encode(delta())),
        Piece("codec", "delta as a frame's entry", lambda: proto_encoder.encode(delta())),
        Piece(
            "codec",
            "delta as a server-sent event",
            lambda: sse_event("response.output_text.delta", json_encoder.encode(delta())),
        ),
        Piece("codec", "response.completed as JSON", lambda: json_encoder.encode(completed)),
        Piece("codec", "response.completed as protobuf", lambda: proto_encoder.encode(completed)),
        Piece(
            "codec", f"create of {len(small)} bytes of JSON", lambda: decoder.client_event(small)
        ),
        Piece(
            "codec", f"create of {len(large)} bytes of JSON", lambda: decoder.client_event(large)
        ),
        Piece(
            "codec",
            f"the same as {len(message)} bytes of protobuf",
            lambda: ClientEvent.FromString(message),
        ),
    ]


def _request(messages: int) -> bytes:
    text = "what a message of a conversation is like when it has some length " * 8
    items = [
        {"role": ("user", "assistant")[number % 2], "content": text} for number in range(messages)
    ]
    return orjson.dumps({"type": "response.create", "model": "sim", "input": items, "store": False})


def _completed() -> Outgoing:
    """Return the last event of a response that said 200 tokens."""
    assembler = _assembler()
    assembler.begin()
    assembler.add([TextDelta(_TEXT * 200)])
    return assembler.complete(Usage(), completed_at=0)[-1]


# Session.


def _session_pieces() -> list[Piece]:
    session = Session(SessionSettings(), new_id=_ids())
    create = ClientEvent(response_create=ResponseCreate(model="sim"))
    create.response_create.input.text = "Go on."
    pieces = [TextDelta(_TEXT)]
    assembler = _assembler()
    assembler.begin()

    def turn() -> None:
        session.receive(create, size=100, now=0.0)
        (started,) = session.turns_to_start()
        session.events_to_send()
        session.end_turn(started, None)

    return [
        Piece("session", "a create admitted, and its turn taken back", turn),
        Piece("session", "a piece of text to a delta", lambda: assembler.add(pieces)),
    ]


def _assembler() -> ResponseAssembler:
    create = ResponseCreate(model="sim")
    response = new_response(create, response_id="resp_1", created_at=0)
    return ResponseAssembler(response, stream_id=None, new_id=_ids())


def _ids() -> Callable[[str], str]:
    numbers = itertools.count()
    return lambda prefix: f"{prefix}{next(numbers):024x}"


# Outbox.


class _NoWire:
    """A way out that costs nothing but the encoding."""

    def __init__(self, encode: Callable[[Outgoing], bytes]) -> None:
        self.encode = encode
        self.writes = 0

    async def write(self, batch: Sequence[bytes]) -> None:
        """Take a batch."""
        self.writes += 1

    def heartbeat(self) -> bytes | None:
        """Return nothing: there is no sign of life."""
        return None


def _outbox_pieces() -> list[Piece]:
    count = 1000
    return [
        Piece("outbox", f"a delta, {name}", lambda batch=batch: run(_send(count, batch)), count)  # type: ignore[misc]  # its default is its argument
        for name, batch in (("one at a time", 1), ("sixteen at a time", 16))
    ]


async def _send(count: int, batch: int) -> None:
    """Send deltas, `batch` in each iteration of the loop, and wait until all are written."""
    sink = _NoWire(ProtoEncoder().encode)
    outbox = Outbox(sink, OutboxSettings(), SystemClock())
    writer = asyncio.get_running_loop().create_task(outbox.run())
    for number in range(count):
        if not outbox.send(Delta(_PART, number, _TEXT)):
            await outbox.drain()
        if number % batch == batch - 1:
            await asyncio.sleep(0)
    outbox.close()
    await writer
