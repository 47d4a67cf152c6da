"""Jobs that put load on a server: bursts, idle sessions, many opens, readers that stop."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from typing import Any, Final

import grpc

from turnwire.v1.server_event_pb2 import ServerFrame
from turnwire_bench.echo import ECHO_METHOD, plans_message, turn_message
from turnwire_bench.lean import (
    METHOD,
    LeanSession,
    LeanWire,
    Link,
    close_all,
    create_of,
    open_lean,
)
from turnwire_bench.samples import EventSize

__all__ = ["burst", "idle", "let_go", "opens", "stalled"]

Job = dict[str, Any]

_AT_ONCE: Final = 64
"""Sessions that are opened at a time, where it is not the opening that is measured."""
_TURN_TIMEOUT_S: Final = 60.0
_OPENS_TIMEOUT_S: Final = 400.0
_NUMBERS: Final = 0.15
"""Part of the words that are numbers."""
_WORDS: Final = (
    "a about after again all also and any are as at be because been before between but by can "
    "could day did do each even every file find first for from function get give good had has "
    "have he her here him his how if in into is it its just know last like line list little long "
    "look made make many may message more most much must name never new no not now of on one only "
    "open or order other our out over part people place problem question read result return right "
    "said same see server session set she should so some state still such take test than that the "
    "their them then there these they thing think this those time to token turn two under until "
    "up use value very want was water way we well were what when where which while who why will "
    "with word work world would write year you your"
).split()
_held: list[Link] = []
"""Idle sessions."""


async def burst(job: Job) -> dict[str, Any]:
    """Run `turns` turns of `tokens` tokens from an engine that is as fast as it is read.

    Both sides over a plain grpc.aio client that takes messages as bytes.

    Returns:
        Seconds of each turn; of a server's, also what the last one's events were.
    """
    method = ECHO_METHOD if job.get("echo") else METHOD
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job['port']}") as channel:
        connect: Any = channel.stream_stream(method)
        call = connect()
        took: list[float] = []
        if job.get("echo"):
            await call.write(plans_message([[(0.0, size) for size in job["sizes"]]]))
            await call.read()
            for _ in range(job["turns"]):
                began = time.perf_counter()
                await call.write(turn_message(0, job["request_size"]))
                for _ in job["sizes"]:
                    await call.read()
                took.append(time.perf_counter() - began)
            call.cancel()
            return {"seconds": took}
        create = create_of("grpc", "Go on.", json.dumps({"tokens": job["tokens"]}))
        session = LeanSession("grpc", on_end=lambda _: ended.append(True))
        ended: list[bool] = []
        for _ in range(job["turns"]):
            ended.clear()
            frames: list[bytes] = []
            began = time.perf_counter()
            await call.write(create)
            # The last frame is known by a look at its events; the ones before cost the same.
            while not ended:
                frames.append(await call.read())
                session.take(frames[-1])
            took.append(time.perf_counter() - began)
        call.cancel()
        return {
            "seconds": took,
            "events": [size for frame in frames for size in _event_sizes(frame)],
            "frames": len(frames),
            "request_size": len(create),
        }


def _event_sizes(frame: bytes) -> list[EventSize]:
    return [
        ((event.WhichOneof("event") or "").endswith("_delta"), event.ByteSize())
        for event in ServerFrame.FromString(frame).events
    ]


async def idle(job: Job) -> dict[str, Any]:
    """Open `count` sessions, hold one turn on each, and keep them open.

    The turn brings `turn_bytes` in one message, or in `items` of them.
    """
    wire: LeanWire = job["wire"]
    number = job.get("items", 1)
    text = prose(job["turn_bytes"] // number)
    items = [{"role": "user", "content": text}] * number
    create = create_of(wire, text, '{"tokens": 20}', input=items)
    limit = asyncio.Semaphore(_AT_ONCE)
    sessions = [LeanSession(wire) for _ in range(job["count"])]

    async def connect(session: LeanSession) -> None:
        async with limit:
            session.link = await open_lean(wire, job["port"], session.take)

    async def talk(session: LeanSession) -> str:
        async with limit, asyncio.timeout(_TURN_TIMEOUT_S):
            return await session.turn(create)

    began = time.perf_counter()
    async with asyncio.timeout(_OPENS_TIMEOUT_S):
        await asyncio.gather(*map(connect, sessions))
    connected = time.perf_counter() - began
    _held.extend(session.link for session in sessions)
    ends = await asyncio.gather(*map(talk, sessions))
    return {
        "connect_s": connected,
        "completed": sum(end == "response_completed" for end in ends),
        "alive": sum(not session.link.closed.done() for session in sessions),
    }


def prose(size: int) -> str:
    """Return about `size` bytes of text, the same each time, that compresses about like prose."""
    chance = random.Random(size)  # no secret
    words: list[str] = []
    length = 0
    while length < size:
        word = chance.choice(_WORDS)
        if chance.random() < _NUMBERS:
            word = str(chance.randrange(10_000))
        words.append(word)
        length += len(word) + 1
    return " ".join(words)


async def let_go(job: Job) -> dict[str, Any]:
    """Close the sessions that are held; those that do not read are cut."""
    links = _held[:]
    _held.clear()
    await close_all(links, politely=not job.get("cut", False))
    return {"closed": len(links)}


async def opens(job: Job) -> dict[str, Any]:
    """Open `count` sessions at the same time, and hold a short turn on each."""
    wire: LeanWire = job["wire"]
    create = create_of(wire, "Hi.", '{"tokens": 1}')
    sessions = [LeanSession(wire) for _ in range(job["count"])]

    async def one(session: LeanSession) -> str:
        try:
            session.link = await open_lean(wire, job["port"], session.take)
        except OSError as error:
            return f"not opened: {type(error).__name__}"
        return await session.turn(create) or "closed before its turn was over"

    began = time.perf_counter()
    async with asyncio.timeout(_OPENS_TIMEOUT_S):
        ends = Counter(await asyncio.gather(*map(one, sessions)))
    took = time.perf_counter() - began
    await close_all([session.link for session in sessions if hasattr(session, "link")])
    served = ends.pop("response_completed", 0)
    return {
        "seconds": took,
        "served": served,
        "refused": len(sessions) - served,
        "reasons": dict(ends),
    }


async def stalled(job: Job) -> dict[str, Any]:
    """Open `count` sessions, ask each for `turns` turns of `tokens` tokens, and read nothing.

    Over a WebSocket the socket is not read; over gRPC the stream's window is not opened, which
    is what a reader that stops does there.
    """
    wire: LeanWire = job["wire"]
    create = create_of(wire, "Go on.", json.dumps({"tokens": job["tokens"]}))
    for _ in range(job["count"]):
        session = LeanSession(wire)
        link = await open_lean(
            wire,
            job["port"],
            session.take,
            window=65_535,
            receive_buffer=65_536 if wire == "ws" else None,
        )
        if wire == "ws":
            link.transport.pause_reading()
        session.link = link
        for _ in range(job["turns"]):
            session.send(create)
        _held.append(link)
    return {}
