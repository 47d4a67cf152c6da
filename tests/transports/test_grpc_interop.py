"""The same calls of four clients to both back ends: nobody can tell which one answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from harness.certificates import make_certificate
from harness.fake_services import FakeServices, FakeUnaryApi, completed, created
from harness.grpc_backends import BACKENDS
from harness.grpc_clients import CLIENTS, CallClient, ClientName, Outcome, Plan, client_of
from harness.wire_servers import CONNECT, RESPONSES
from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.models_service_pb2 import GetModelRequest, Model
from turnwire.v1.response_pb2 import Response
from turnwire.v1.responses_service_pb2 import GetRequest
from turnwire.v1.server_event_pb2 import ServerFrame
from turnwire_server.runtime.connection import Ending
from turnwire_server.transports.grpc import (
    GrpcBackend,
    GrpcServer,
    GrpcSettings,
    listen,
    make_grpc_server,
)
from turnwire_server.transports.tls import TlsFiles

GET_MODEL = "/turnwire.v1.ModelsService/GetModel"
WAIT_S = 20.0


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> GrpcBackend:
    return cast(GrpcBackend, request.param)


@pytest.fixture(params=CLIENTS, scope="module")
def client_name(request: pytest.FixtureRequest) -> ClientName:
    return cast(ClientName, request.param)


@pytest.fixture(scope="module")
def client(client_name: ClientName) -> Iterator[CallClient]:
    with client_of(client_name) as made:
        if made is None:
            pytest.skip("needs Node and grpc-js, which scripts/typescript installs")
        yield made


@asynccontextmanager
async def serving(
    backend: GrpcBackend, services: FakeServices, tls: TlsFiles | None = None, **settings: Any
) -> AsyncIterator[tuple[str, GrpcServer]]:
    server = make_grpc_server(
        cast(Any, services),
        GrpcSettings(backend=backend, **settings),
        unary=cast(Any, FakeUnaryApi()),
    )
    port = listen(server, "127.0.0.1:0", tls)
    await server.start()
    try:
        yield f"127.0.0.1:{port}", server
    finally:
        await server.stop(None)


def create(**fields: Any) -> bytes:
    return ClientEvent(response_create=ResponseCreate(model="m", **fields)).SerializeToString()


def get_model(name: str = "m", **plan: Any) -> Plan:
    return Plan(GET_MODEL, (GetModelRequest(model=name).SerializeToString(),), **plan)


def arms(outcome: Outcome) -> list[str | None]:
    frames = map(ServerFrame.FromString, outcome.messages)
    return [event.WhichOneof("event") for frame in frames for event in frame.events]


def held() -> FakeServices:
    """Services whose turns begin and go on."""
    services = FakeServices(lambda connection, event: [created()])
    services.hold_after_half_close = True
    return services


async def test_turns_of_a_stream_end_with_ok(backend: GrpcBackend, client: CallClient) -> None:
    async with serving(backend, FakeServices()) as (target, _):
        outcome = await client.call(target, Plan(CONNECT, (create(), create())))
    assert outcome.code == "OK"
    assert arms(outcome).count("response_completed") == 2


async def test_a_stream_without_events_ends_with_ok(
    backend: GrpcBackend, client: CallClient
) -> None:
    async with serving(backend, FakeServices()) as (target, _):
        outcome = await client.call(target, Plan(CONNECT))
    assert (outcome.code, outcome.messages) == ("OK", [])


async def test_a_half_closed_stream_gets_the_rest_of_its_turn(
    backend: GrpcBackend, client: CallClient
) -> None:
    services = held()
    async with serving(backend, services) as (target, _):
        call = asyncio.create_task(client.call(target, Plan(CONNECT, (create(),))))
        connection = await services.connection()
        await services.until(lambda: connection.is_half_closed)
        connection.send(completed())
        connection.end(Ending("finished"))
        outcome = await call
    assert outcome.code == "OK"
    assert arms(outcome) == ["response_created", "response_completed"]


async def test_a_unary_call_is_answered(backend: GrpcBackend, client: CallClient) -> None:
    async with serving(backend, FakeServices()) as (target, _):
        outcome = await client.call(target, get_model())
    assert outcome.code == "OK"
    assert [Model.FromString(message).id for message in outcome.messages] == ["m"]


async def test_a_streamed_create_is_answered(backend: GrpcBackend, client: CallClient) -> None:
    request = ResponseCreate(model="m").SerializeToString()
    async with serving(backend, FakeServices()) as (target, _):
        streamed = await client.call(target, Plan(RESPONSES + "StreamCreate", (request,)))
        whole = await client.call(target, Plan(RESPONSES + "Create", (request,)))
    assert (streamed.code, whole.code) == ("OK", "OK")
    assert arms(streamed)[-1] == "response_completed"
    assert Response.FromString(whole.messages[0]).id == "resp_1"


async def test_a_refusal_is_a_status_with_its_details(
    backend: GrpcBackend, client: CallClient
) -> None:
    async with serving(backend, FakeServices()) as (target, _):
        outcome = await client.call(target, get_model("missing"))
    assert (outcome.code, outcome.details) == ("NOT_FOUND", "No such model.")
    assert outcome.reason == "MODEL_NOT_FOUND"


async def test_text_of_a_status_may_be_any_unicode(
    backend: GrpcBackend, client: CallClient
) -> None:
    services = FakeServices()
    async with serving(backend, services) as (target, _):
        request = GetRequest(response_id="missing %zz ä漢\n\r😀").SerializeToString()
        outcome = await client.call(target, Plan(RESPONSES + "Get", (request,)))
    assert outcome.code == "NOT_FOUND"
    assert outcome.details == "No response missing %zz ä漢\n\r😀."


async def test_a_method_that_is_not_there_is_unimplemented(
    backend: GrpcBackend, client: CallClient
) -> None:
    async with serving(backend, FakeServices()) as (target, _):
        outcome = await client.call(target, Plan("/turnwire.v1.NoService/Call", (b"",)))
    assert (outcome.code, outcome.details) == ("UNIMPLEMENTED", "Method not found!")


async def test_a_bug_is_internal_without_its_text(backend: GrpcBackend, client: CallClient) -> None:
    async with serving(backend, FakeServices()) as (target, _):
        outcome = await client.call(target, get_model("boom"))
    assert outcome.code == "INTERNAL"
    assert "req_" in outcome.details and "secret" not in outcome.details


async def test_bytes_that_are_no_request_are_an_invalid_argument(
    backend: GrpcBackend, client: CallClient
) -> None:
    async with serving(backend, FakeServices()) as (target, _):
        unary = await client.call(target, Plan(GET_MODEL, (b"\xff\xff\xff",)))
        stream = await client.call(target, Plan(CONNECT, (b"\xff\xff\xff",), half_closes=False))
    assert (unary.code, stream.code) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert (unary.reason, stream.reason) == ("INVALID_VALUE", "INVALID_VALUE")


async def test_a_deadline_ends_the_call_on_both_sides(
    backend: GrpcBackend, client: CallClient
) -> None:
    services = held()
    async with serving(backend, services) as (target, _):
        plan = Plan(CONNECT, (create(),), half_closes=False, timeout_s=0.5)
        outcome = await client.call(target, plan)
        async with asyncio.timeout(WAIT_S):
            await services.connections[0].disconnected.wait()
    assert outcome.code == "DEADLINE_EXCEEDED"


async def test_a_cancelled_call_reaches_its_turns(backend: GrpcBackend, client: CallClient) -> None:
    services = held()
    async with serving(backend, services) as (target, _):
        plan = Plan(CONNECT, (create(),), half_closes=False, cancel_after=1)
        outcome = await client.call(target, plan)
        async with asyncio.timeout(WAIT_S):
            await services.connections[0].disconnected.wait()
            await services.connections[0].ended.wait()
    assert outcome.code == "CANCELLED"
    assert arms(outcome) == ["response_created"]


async def test_metadata_reach_the_call(backend: GrpcBackend, client: CallClient) -> None:
    services = FakeServices(key="right")
    async with serving(backend, services) as (target, _):
        metadata = (("authorization", "Bearer right"), ("turnwire-resume", "1"))
        let_in = await client.call(target, Plan(CONNECT, metadata=metadata))
        wrong = (("authorization", "Bearer wrong"),)
        kept_out = [
            await client.call(target, Plan(CONNECT, metadata=wrong)),
            await client.call(target, get_model(metadata=wrong)),
            await client.call(target, get_model()),
        ]
    assert let_in.code == "OK"
    ((event, _size),) = services.connections[0].received
    assert event.turnwire_session_start.resume
    assert {outcome.code for outcome in kept_out} == {"UNAUTHENTICATED"}
    assert {outcome.reason for outcome in kept_out} == {"INVALID_API_KEY"}


async def test_too_many_headers_are_refused(
    backend: GrpcBackend, client: CallClient, client_name: ClientName
) -> None:
    metadata = tuple((f"x-{number}", "y" * 1000) for number in range(30))
    few = tuple((f"x-{number}", "y" * 1000) for number in range(10))
    async with serving(backend, FakeServices()) as (target, _):
        refused = await client.call(target, get_model(metadata=metadata))
        taken = await client.call(target, get_model(metadata=few))
        settled = await client.call(target, get_model())
    # grpcio's core forgets its limit where this client continues its headers in a second frame.
    forgets = backend == "grpcio" and client_name == "grpclib"
    assert refused.code == ("OK" if forgets else "RESOURCE_EXHAUSTED")
    assert (taken.code, settled.code) == ("OK", "OK")


async def test_a_message_over_the_limit_is_refused(
    backend: GrpcBackend, client: CallClient
) -> None:
    services = FakeServices(max_message_bytes=100_000)
    async with serving(backend, services) as (target, _):
        events = (create(instructions="x" * 90_000), create(instructions="x" * 110_000))
        stream = await client.call(target, Plan(CONNECT, events, half_closes=False))
        unary = await client.call(target, get_model("m" * 110_000))
        async with asyncio.timeout(WAIT_S):
            await services.connections[0].ended.wait()
    assert (stream.code, unary.code) == ("RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED")
    assert stream.details.startswith("SERVER: Received message larger than max (1100")
    assert len(services.connections[0].received) == 1


async def test_messages_larger_than_any_window_pass(
    backend: GrpcBackend, client: CallClient
) -> None:
    services = FakeServices(lambda connection, event: [created("r" * 3_000_000), completed()])
    async with serving(backend, services) as (target, _):
        data = create(instructions="x" * 9_000_000)
        outcome = await client.call(target, Plan(CONNECT, (data,)))
    assert outcome.code == "OK"
    assert services.connections[0].received[0][1] == len(data)
    assert len(b"".join(outcome.messages)) > 3_000_000


async def test_compressed_messages_are_read(
    backend: GrpcBackend, client: CallClient, client_name: ClientName
) -> None:
    if client_name == "grpclib":
        pytest.skip("grpclib cannot compress")
    services = FakeServices(max_message_bytes=100_000)
    async with serving(backend, services) as (target, _):
        stream = await client.call(
            target, Plan(CONNECT, (create(instructions="x" * 90_000),), compress=True)
        )
        unary = await client.call(target, get_model(compress=True))
        bomb = await client.call(target, get_model("m" * 110_000, compress=True))
    assert (stream.code, unary.code) == ("OK", "OK")
    assert len(services.connections[0].received[0][0].response_create.instructions) == 90_000
    assert bomb.code == "RESOURCE_EXHAUSTED"


async def test_health_is_told(backend: GrpcBackend, client: CallClient) -> None:
    services = FakeServices()
    async with serving(backend, services) as (target, _):

        async def check(name: str) -> Outcome:
            request = health_pb2.HealthCheckRequest(service=name).SerializeToString()
            return await client.call(target, Plan("/grpc.health.v1.Health/Check", (request,)))

        serving_status = await check("turnwire.v1.SessionService")
        unknown = await check("nobody")
        services.accepting = False
        draining = await check("")
        watched = await client.call(
            target, Plan("/grpc.health.v1.Health/Watch", (b"",), cancel_after=1)
        )
    statuses = [
        health_pb2.HealthCheckResponse.FromString(outcome.messages[0]).status
        for outcome in (serving_status, draining, watched)
    ]
    assert statuses == [1, 2, 2]
    assert unknown.code == "NOT_FOUND"


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_services_are_listed_by_reflection(
    backend: GrpcBackend, client: CallClient, version: str
) -> None:
    requests = (
        reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString(),
        reflection_pb2.ServerReflectionRequest(
            file_containing_symbol="turnwire.v1.SessionService"
        ).SerializeToString(),
    )
    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    async with serving(backend, FakeServices()) as (target, _):
        outcome = await client.call(target, Plan(path, requests))
    assert outcome.code == "OK"
    listed, file = map(reflection_pb2.ServerReflectionResponse.FromString, outcome.messages)
    assert "turnwire.v1.SessionService" in {
        service.name for service in listed.list_services_response.service
    }
    assert file.file_descriptor_response.file_descriptor_proto


async def test_a_server_that_stops_lets_calls_end(
    backend: GrpcBackend, client: CallClient, client_name: ClientName
) -> None:
    services = held()
    async with serving(backend, services) as (target, server):
        call = asyncio.create_task(
            client.call(target, Plan(CONNECT, (create(),), half_closes=False))
        )
        connection = await services.connection()
        await services.until(lambda: bool(connection.received))
        stopping = asyncio.create_task(server.stop(WAIT_S))
        with client_of("grpcio-aio") as another:
            assert another is not None
            late = await another.call(target, get_model())
        connection.send(completed())
        connection.end(Ending("drain"))
        outcome = await call
        async with asyncio.timeout(WAIT_S):
            await stopping
    assert late.code == "UNAVAILABLE"
    assert outcome.code == "UNAVAILABLE"
    if client_name == "grpclib":
        return  # It gives all its calls up at a GOAWAY.
    assert outcome.reason == "SERVER_IS_OVERLOADED"
    assert arms(outcome) == ["response_created", "response_completed"]


async def test_a_server_that_waited_long_enough_ends_calls(
    backend: GrpcBackend, client: CallClient
) -> None:
    services = held()
    async with serving(backend, services) as (target, server):
        call = asyncio.create_task(
            client.call(target, Plan(CONNECT, (create(),), half_closes=False))
        )
        connection = await services.connection()
        await services.until(lambda: bool(connection.received))
        async with asyncio.timeout(WAIT_S):
            await server.stop(0.1)
            await connection.ended.wait()
        outcome = await call
    assert outcome.code == "UNAVAILABLE"


async def test_calls_go_over_tls(backend: GrpcBackend, client: CallClient, tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    roots = files.certificate.read_bytes()
    async with serving(backend, FakeServices(), files) as (target, _):
        port = target.rpartition(":")[2]
        stream = await client.call(f"localhost:{port}", Plan(CONNECT, (create(),)), roots)
        unary = await client.call(f"localhost:{port}", get_model(), roots)
        plain = await client.call(target, get_model(timeout_s=3.0))
    assert (stream.code, unary.code) == ("OK", "OK")
    assert plain.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
