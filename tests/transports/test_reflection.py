"""A client that knows the reflection API and nothing else finds, builds and calls `Connect`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha.reflection_pb2 import (
    ServerReflectionRequest,
    ServerReflectionResponse,
)

from harness.fake_services import FakeServices
from harness.wire_servers import serving_grpc

pytestmark = pytest.mark.usefixtures("each_grpc_backend")

NAMES = ["grpc.reflection.v1alpha", "grpc.reflection.v1"]


async def ask(channel: grpc.aio.Channel, package: str, **request: Any) -> ServerReflectionResponse:
    call = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=ServerReflectionRequest.SerializeToString,
        response_deserializer=ServerReflectionResponse.FromString,
    )(iter([ServerReflectionRequest(**request)]))
    async with asyncio.timeout(20):
        return await call.read()


def files(answer: ServerReflectionResponse) -> Iterator[descriptor_pb2.FileDescriptorProto]:
    for data in answer.file_descriptor_response.file_descriptor_proto:
        yield descriptor_pb2.FileDescriptorProto.FromString(data)


@pytest.mark.parametrize("package", NAMES)
async def test_every_service_is_listed(package: str) -> None:
    async with serving_grpc(FakeServices()) as channel:
        answer = await ask(channel, package, list_services="")
    assert {service.name for service in answer.list_services_response.service} == {
        "turnwire.v1.SessionService",
        "turnwire.v1.ResponsesService",
        "turnwire.v1.ModelsService",
        "grpc.health.v1.Health",
        f"{package}.ServerReflection",
    }


@pytest.mark.parametrize("package", NAMES)
async def test_connect_is_called_from_fetched_descriptors(package: str) -> None:
    async with serving_grpc(FakeServices()) as channel:
        known: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        answer = await ask(channel, package, file_containing_symbol="turnwire.v1.SessionService")
        wanted = [file.name for file in files(answer)]
        known.update((file.name, file) for file in files(answer))
        while wanted:
            for name in known[wanted.pop()].dependency:
                if name not in known:
                    answer = await ask(channel, package, file_by_filename=name)
                    known.update((file.name, file) for file in files(answer))
                    wanted.append(name)
        pool = descriptor_pool.DescriptorPool()
        for file in sorted(known.values(), key=lambda file: depth(file, known)):
            pool.Add(file)
        method = pool.FindServiceByName("turnwire.v1.SessionService").methods_by_name["Connect"]
        request_type = message_factory.GetMessageClass(method.input_type)
        frame_type = message_factory.GetMessageClass(method.output_type)
        request = request_type()
        request.response_create.model = "m"
        call = channel.stream_stream(
            "/turnwire.v1.SessionService/Connect",
            request_serializer=request_type.SerializeToString,
            response_deserializer=frame_type.FromString,
        )(iter([request]))
        async with asyncio.timeout(20):
            frame = await call.read()
    assert frame.events[0].response_created.response.model == "m"
    assert frame.events[-1].WhichOneof("event") == "response_completed"


def depth(
    file: descriptor_pb2.FileDescriptorProto,
    known: dict[str, descriptor_pb2.FileDescriptorProto],
) -> int:
    return 1 + max((depth(known[name], known) for name in file.dependency), default=0)
