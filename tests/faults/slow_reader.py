"""`scripts/slow-reader`: a client stops reading while 50 MB are due; what does it cost others?

One session asks for an answer of about 50 MB of events and stops reading for a while. Meanwhile
the server's memory and CPU time are read, and another session does short turns. Then the first
one reads on: every event must come, in order, to the end. A second part has an engine that does
not wait for its reader: past the bound of tokens the turn must end `slow_consumer`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc.aio

import turnwire
from faults.process import resident_bytes
from faults.server import FaultServer
from turnwire import _codec
from turnwire.v1 import session_pb2_grpc
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ServerEvent

__all__ = ["main"]

_TOKENS: Final = 600_000
"""Of the long answer: about 50 MB of JSON events."""
_MOST_GROWTH: Final = 2_000_000
"""Bytes: the outbox's bound of 128 KiB in several hands, what the answer has come to until the
buffers of the network are full, and the allocator's share."""
_WAIT_S: Final = 300.0
_EVERY_S: Final = 0.25
_PATIENT: Final = f"""
[[models]]
engine = "sim"
context_length = 4000000
step_tokens = 1
answer_tokens = {_TOKENS}

[[models]]
name = "short"
engine = "sim"
answer_tokens = 20

[[models]]
name = "impatient"
engine = "sim"
context_length = 4000000
answer_tokens = 2000000
tokens_per_second = 400000
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What one wire came to."""

    wire: str
    pause_s: float
    growth_mb: float
    """Most resident memory during the pause over that when the reading stopped."""
    cpu: tuple[float, float]
    """CPU time of the server by wall time, before the long turn and during the pause; the other
    session's turns are in both."""
    other_ms: tuple[float, float]
    """Median time of another session's turn before and during the pause."""
    megabytes: float
    """Payload of the long turn, as far as it was read."""
    events: int
    is_whole: bool
    """Whether all of it came, in order."""
    impatient: str
    """How the turn ended whose engine does not wait."""

    @property
    def is_well(self) -> bool:
        """Whether what must hold did."""
        return (
            self.is_whole
            and self.growth_mb * 1e6 < _MOST_GROWTH
            and self.impatient == "failed: slow_consumer"
        )


class _Reader:
    """A client that reads only when it is told to: one turn."""

    def __init__(self) -> None:
        self.bytes = 0
        self.numbers = 0
        self.is_ordered = True
        self.status = ""

    def take(self, event: ServerEvent, size: int) -> None:
        """Take an event; the last one brings the status."""
        self.bytes += size
        self.is_ordered = self.is_ordered and event.sequence_number == self.numbers
        self.numbers += 1
        arm = event.WhichOneof("event") or ""
        if arm not in ("response_completed", "response_incomplete", "response_failed"):
            return
        response = getattr(event, arm).response
        self.status = arm.removeprefix("response_")
        if response.error.code:
            self.status += f": {response.error.code}"


@asynccontextmanager
async def _turn(server: FaultServer, wire: str, model: str) -> AsyncIterator[Any]:
    """Ask for a turn; give a function that reads one message: its events and their size."""
    if wire == "grpc":
        # Without a probe: it would widen the window, and what is read ahead is not stopped.
        options = [("grpc.max_receive_message_length", -1), ("grpc.http2.bdp_probe", 0)]
        target = f"127.0.0.1:{server.grpc_port}"
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            call: Any = session_pb2_grpc.SessionServiceStub(channel).Connect()
            event = ClientEvent()
            event.response_create.model = model
            event.response_create.input.text = "Go on."
            event.response_create.store = False
            await call.write(event)

            async def read_frame() -> tuple[list[ServerEvent], int]:
                frame = await call.read()
                return list(frame.events), frame.ByteSize()

            yield read_frame
            call.cancel()
        return
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(f"{server.http_url}/responses", max_msg_size=0) as socket,
    ):
        create = {"type": "response.create", "model": model, "input": "Go on.", "store": False}
        await socket.send_json(create)

        async def read_message() -> tuple[list[ServerEvent], int]:
            text = (await socket.receive()).data
            return [_codec.parse(ServerEvent, json.loads(text))], len(text)

        yield read_message


async def _read_to_end(read: Any, reader: _Reader) -> None:
    async with asyncio.timeout(_WAIT_S):
        while not reader.status:
            events, size = await read()
            for event in events:
                reader.take(event, size // len(events))


async def _read_some(read: Any, reader: _Reader) -> None:
    """Read until deltas come, or the end."""
    async with asyncio.timeout(_WAIT_S):
        while reader.numbers < 100 and not reader.status:
            events, size = await read()
            for event in events:
                reader.take(event, size // len(events))


async def _measure(wire: str, pause_s: float, directory: Path) -> Row:
    server = FaultServer(directory, _PATIENT)
    await server.start()
    try:
        url = (
            f"grpc://127.0.0.1:{server.grpc_port}"
            if wire == "grpc"
            else f"ws://127.0.0.1:{server.http_port}/v1/responses"
        )
        async with turnwire.connect(url, model="short") as other:
            await _others(other, 2.0)  # warm
            # Once with a reader that reads: what the engine and the allocator need is no growth.
            async with _turn(server, wire, "sim") as read:
                await _read_to_end(read, _Reader())
            idle = _cpu_seconds(server.pid)
            before_ms = await _others(other, pause_s)
            idle = _cpu_seconds(server.pid) - idle
            reader = _Reader()
            async with _turn(server, wire, "sim") as read:
                await _read_some(read, reader)
                # Not earlier: the simulated engine writes its whole answer when it is asked.
                before = resident_bytes(server.pid)
                busy = _cpu_seconds(server.pid)
                watching = asyncio.create_task(_most_resident(server.pid, pause_s))
                during_ms = await _others(other, pause_s)
                most = await watching
                busy = _cpu_seconds(server.pid) - busy
                await _read_to_end(read, reader)
            impatient = _Reader()
            async with _turn(server, wire, "impatient") as read:
                await _read_some(read, impatient)
                await asyncio.sleep(min(pause_s, 3.0))  # the fault: nobody reads
                await _read_to_end(read, impatient)
        await server.close()
    finally:
        await server.abandon()
    return Row(
        wire=wire,
        pause_s=pause_s,
        growth_mb=round((most - before) / 1e6, 2),
        cpu=(round(idle / pause_s, 3), round(busy / pause_s, 3)),
        other_ms=(round(before_ms, 2), round(during_ms, 2)),
        megabytes=round(reader.bytes / 1e6, 1),
        events=reader.numbers,
        is_whole=reader.is_ordered
        and reader.status == "completed"
        and reader.numbers > _TOKENS
        and impatient.is_ordered,
        impatient=impatient.status,
    )


async def _others(session: turnwire.Session, seconds: float) -> float:
    """Do short turns for a while; return the median time of one, in milliseconds."""
    times = []
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        await session.create("Hello.", store=False).response()
        times.append((time.monotonic() - now) * 1000)
        await asyncio.sleep(0.02)
    return statistics.median(times)


async def _most_resident(pid: int, seconds: float) -> int:
    most = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        most = max(most, resident_bytes(pid))
        await asyncio.sleep(_EVERY_S)
    return most


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 0 when memory stays bounded and nothing is lost."""
    parser = argparse.ArgumentParser(prog="scripts/slow-reader", description=__doc__)
    parser.add_argument("--pause", type=float, default=10.0, help="seconds; default 10")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    options = parser.parse_args(arguments)
    rows = []
    for wire in ("grpc", "websocket"):
        with tempfile.TemporaryDirectory(prefix="turnwire-slow-reader-") as directory:
            row = asyncio.run(_measure(wire, options.pause, Path(directory)))
        rows.append(row)
        print(
            f"{wire}: paused {row.pause_s:g} s, memory {row.growth_mb:+.2f} MB, CPU "
            f"{row.cpu[0]:.1%} -> {row.cpu[1]:.1%}, another session's turn "
            f"{row.other_ms[0]} -> {row.other_ms[1]} ms; then "
            f"{row.megabytes} MB in {row.events} events, "
            f"{'whole' if row.is_whole else 'NOT WHOLE'}; an engine that does not wait: "
            f"{row.impatient}: {'ok' if row.is_well else 'FAILED'}"
        )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if all(row.is_well for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
