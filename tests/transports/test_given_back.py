"""What a session over a real wire holds while it is idle, and when it is over."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
import grpc
import pytest

from harness.server import RunningServer, running_server
from harness.waiting import until
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.server_event_pb2 import ServerFrame
from turnwire_server.transports.http_protocol import _Protocol

TEXT = "needle in a haystack " * 1_000


LONG = {
    "type": "response.create",
    "model": "sim",
    "input": "Hi",
    "store": False,
    "metadata": {"turnwire.sim": '{"tokens": 5000, "tokens_per_second": 500}'},
}


def connections(known: Sequence[_Protocol] = ()) -> list[_Protocol]:
    """Return the HTTP connections that are in memory, but for those of other tests."""
    found = [each for each in gc.get_objects() if type(each) is _Protocol]
    return [each for each in found if not any(each is other for other in known)]


def held_by_tasks() -> Iterator[str]:
    """Yield the texts that the local variables of waiting coroutines hold."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        waits = task.get_coro()
        while waits is not None and hasattr(waits, "cr_frame"):
            if waits.cr_frame is not None:
                yield from map(str, waits.cr_frame.f_locals.values())
            waits = waits.cr_await


async def turn_over_websocket(socket: aiohttp.ClientWebSocketResponse) -> None:
    create = {"type": "response.create", "model": "sim", "input": TEXT, "store": False}
    await socket.send_str(json.dumps(create))
    while (await socket.receive_json())["type"] != "response.completed":
        pass


async def turn_over_grpc(server: RunningServer, port: int) -> list[str]:
    """Run a turn and return what is held while the call is idle."""
    create = ResponseCreate(model="sim", input={"text": TEXT}, store=False)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_stream("/turnwire.v1.SessionService/Connect")()
        await call.write(ClientEvent(response_create=create).SerializeToString())
        while True:
            frame = ServerFrame.FromString(await call.read())
            if any(event.HasField("response_completed") for event in frame.events):
                del frame
                break
        del create
        await settled(server)
        return list(held_by_tasks())


async def settled(server: RunningServer) -> None:
    """Wait until no turn runs any more."""
    services = server.services
    await until(lambda: not services.running and not services.afterwork._jobs)
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("wire", ["websocket", "grpc"])
async def test_an_idle_session_s_reader_and_writer_hold_nothing_of_the_last_turn(wire: str) -> None:
    async with asyncio.timeout(20), running_server() as server:
        if wire == "grpc":
            held = await turn_over_grpc(server, server.grpc_port)
        else:
            url = f"http://127.0.0.1:{server.http_port}/v1/responses"
            async with aiohttp.ClientSession() as client, client.ws_connect(url) as socket:
                await turn_over_websocket(socket)
                await settled(server)
                held = list(held_by_tasks())
        assert held
        assert not [text for text in held if "haystack" in text]


@pytest.mark.parametrize("ending", ["close", "loss"])
async def test_a_websocket_that_is_over_is_given_back_without_a_collection(ending: str) -> None:
    was_enabled = gc.isenabled()
    async with asyncio.timeout(20), running_server() as server, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{server.http_port}/v1/responses"
        gc.collect()
        known = connections()
        gc.disable()
        try:
            async with client.ws_connect(url) as socket:
                await turn_over_websocket(socket)
                (connection,) = server.services._connections
                sink = connection._outbox._sink
                gone = [weakref.ref(connection), weakref.ref(sink._socket)]
                del connection, sink
                if ending == "loss":
                    await socket.send_str(json.dumps(LONG))
                    await socket.receive()
                    socket._writer.transport.abort()
            del socket
            await until(lambda: all(each() is None for each in gone) and not connections(known))
        finally:
            if was_enabled:
                gc.enable()


async def test_a_stream_whose_client_is_gone_is_given_back_without_a_collection() -> None:
    was_enabled = gc.isenabled()
    async with asyncio.timeout(20), running_server() as server:
        url = f"http://127.0.0.1:{server.http_port}/v1/responses"
        gc.collect()
        known = connections()
        gc.disable()
        try:
            async with aiohttp.ClientSession() as client:
                answer = await client.post(url, json={**LONG, "stream": True})
                await answer.content.readline()
                assert len(connections(known)) == 1
                answer.close()
            await until(lambda: not connections(known))
        finally:
            if was_enabled:
                gc.enable()


@pytest.mark.parametrize("ending", ["half-close", "cancel", "loss"])
async def test_a_grpc_connection_that_is_over_is_given_back_without_a_collection(
    ending: str,
) -> None:
    was_enabled = gc.isenabled()
    create = ResponseCreate(model="sim", input={"text": "Hi"}, store=False)
    async with asyncio.timeout(20), running_server() as server:
        gc.collect()
        gc.disable()
        try:
            async with grpc.aio.insecure_channel(
                f"127.0.0.1:{server.grpc_port}",
                # Its own connection, which ends with it.
                options=[("grpc.use_local_subchannel_pool", 1)],
            ) as channel:
                call: Any = channel.stream_stream("/turnwire.v1.SessionService/Connect")()
                await call.write(ClientEvent(response_create=create).SerializeToString())
                await call.read()
                (connection,) = server.services._connections
                context = connection._outbox._sink._write.__self__
                gone = [weakref.ref(connection), weakref.ref(context)]
                gone.append(weakref.ref(context._connection))
                del connection, context
                if ending == "half-close":
                    await call.done_writing()
                    while await call.read() is not grpc.aio.EOF:
                        pass
                elif ending == "cancel":
                    call.cancel()
            del call, channel
            await until(lambda: all(each() is None for each in gone))
        finally:
            if was_enabled:
                gc.enable()
