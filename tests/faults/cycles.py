"""`scripts/cycles`: connect, do a turn, end in one of three ways, thousands of times over.

After each thousandth or so the memory and the tasks of the server are read. What must hold: its
resident memory grows by less than 5 % from the end of the warm-up on, and its tasks are as many
as before the first connection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp
import grpc.aio

from faults.process import gauge, gauges, resident_bytes
from faults.server import FaultServer
from harness.grpc_backends import BACKENDS
from turnwire.v1 import session_pb2_grpc
from turnwire.v1.client_event_pb2 import ClientEvent

__all__ = ["main"]

Way = Literal["close", "cancel", "reset"]
"""How a connection ends: by a good-bye, by cancelling in the middle of a turn, by a reset of the
TCP connection in the middle of a turn."""

_WAYS: Final[tuple[Way, ...]] = ("close", "cancel", "reset")
_WIRES: Final = ("grpc", "websocket")
_MOST_GROWTH: Final = 0.05
_WAIT_S: Final = 30.0
_AT_ONCE: Final = 8
_SAMPLES: Final = 10
_CONFIG: Final = """
[[models]]
engine = "sim"
tokens_per_second = 2000
answer_tokens = 64

[database]
url = "memory"
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What one wire came to."""

    wire: str
    cycles: int
    resident_mb: tuple[float, ...]
    """After the warm-up, then evenly over the cycles."""
    growth: float
    """Of the last over the first, as a fraction."""
    tasks: tuple[int, int]
    """Before the first connection and after the last."""

    @property
    def is_well(self) -> bool:
        """Whether it grew by less than 5 % and left no task."""
        return self.growth < _MOST_GROWTH and self.tasks[1] <= self.tasks[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cycles; return 0 when nothing leaks."""
    parser = argparse.ArgumentParser(prog="scripts/cycles", description=__doc__)
    parser.add_argument("--cycles", type=int, default=200, help="on each wire; default 200")
    parser.add_argument("--grpc-backend", choices=BACKENDS, help="default: the server's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    options = parser.parse_args(arguments)
    rows = []
    for wire in _WIRES:
        with tempfile.TemporaryDirectory(prefix="turnwire-cycles-") as directory:
            server = FaultServer(Path(directory), _CONFIG, grpc_backend=options.grpc_backend)
            row = asyncio.run(_measure(wire, options.cycles, server))
        rows.append(row)
        print(
            f"{wire}: {row.cycles} cycles, resident {row.resident_mb[0]:.1f} -> "
            f"{row.resident_mb[-1]:.1f} MB ({row.growth:+.1%}), tasks {row.tasks[0]} -> "
            f"{row.tasks[1]}: {'ok' if row.is_well else 'FAILED'}"
        )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if all(row.is_well for row in rows) else 1


async def _measure(wire: str, cycles: int, server: FaultServer) -> Row:
    await server.start()
    try:
        origin = server.http_url.removesuffix("/v1")
        async with aiohttp.ClientSession() as client:
            tasks = int(gauge(await gauges(client, origin), "turnwire_tasks"))
            # The first ones fill caches and the allocator: that is no growth.
            await _cycle(wire, server, client, max(cycles // 2, 150))
            await _settled(client, origin, tasks)
            resident = [resident_bytes(server.pid) / 1e6]
            for _ in range(_SAMPLES):
                await _cycle(wire, server, client, max(cycles // _SAMPLES, 1))
                await _settled(client, origin, tasks)
                resident.append(resident_bytes(server.pid) / 1e6)
            left = int(gauge(await gauges(client, origin), "turnwire_tasks"))
        await server.close()
    finally:
        await server.abandon()
    growth = resident[-1] / resident[0] - 1
    return Row(
        wire, cycles, tuple(round(each, 2) for each in resident), round(growth, 4), (tasks, left)
    )


async def _cycle(wire: str, server: FaultServer, client: aiohttp.ClientSession, count: int) -> None:
    """Do `count` cycles, a few at once."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            way = _WAYS[number % len(_WAYS)]
            async with asyncio.timeout(_WAIT_S):
                if wire == "grpc":
                    await _grpc_cycle(server, way)
                else:
                    await _websocket_cycle(server, client, way)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


async def _settled(client: aiohttp.ClientSession, origin: str, tasks: int) -> None:
    """Wait until the server has seen the last connections go, or a bound."""
    for _ in range(100):
        text = await gauges(client, origin)
        if not gauge(text, "turnwire_connections") and gauge(text, "turnwire_tasks") <= tasks:
            return
        await asyncio.sleep(0.05)


async def _grpc_cycle(server: FaultServer, way: Way) -> None:
    # A pool of its own per channel, or channels of one process share a TCP connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{server.grpc_port}", options=options
    ) as channel:
        call: Any = session_pb2_grpc.SessionServiceStub(channel).Connect()
        event = ClientEvent()
        event.response_create.model = "sim"
        event.response_create.input.text = "Go on."
        event.response_create.store = False
        await call.write(event)
        if way == "close":
            await call.done_writing()
        while (frame := await call.read()) is not grpc.aio.EOF:
            if way != "close" and any(
                each.HasField("response_in_progress") for each in frame.events
            ):
                break
        if way == "cancel":
            call.cancel()
    # Leaving closes the channel: with a call that runs, the connection goes without a good-bye.


async def _websocket_cycle(server: FaultServer, client: aiohttp.ClientSession, way: Way) -> None:
    socket = await client.ws_connect(f"{server.http_url}/responses")
    create = {"type": "response.create", "model": "sim", "input": "Go on.", "store": False}
    await socket.send_json(create)
    last = {"close": "response.completed", "cancel": "response.incomplete"}.get(
        way, "response.in_progress"
    )
    async for message in socket:
        kind = json.loads(message.data)["type"]
        if kind == "response.in_progress" and way == "cancel":
            await socket.send_json({"type": "response.cancel"})
        if kind == last or kind == "response.completed":
            break
    if way == "reset":
        transport = socket._response.connection.transport  # type: ignore[union-attr]
        assert transport is not None
        transport.abort()
    await socket.close()


if __name__ == "__main__":
    sys.exit(main())
