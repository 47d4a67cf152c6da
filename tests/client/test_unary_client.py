"""The synchronous client on grpcio-testing's channel: what it sends, what it makes of answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import grpc
import grpc_testing
import pytest
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

import turnwire
from turnwire._json import plain
from turnwire._unary_client import over_channel
from turnwire.v1 import models_service_pb2, response_pb2, responses_service_pb2
from turnwire.v1.item_pb2 import Item, MessageItem

RESPONSES = responses_service_pb2.DESCRIPTOR.services_by_name["ResponsesService"]
MODELS = models_service_pb2.DESCRIPTOR.services_by_name["ModelsService"]

ResultT = TypeVar("ResultT")


class Server:
    """The other end of a test channel."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._channel = grpc_testing.channel([RESPONSES, MODELS], grpc_testing.strict_real_time())
        self.client = over_channel(self._channel, api_key="sesame", model="m")

    def answer(
        self,
        call: Callable[[], ResultT],
        method: str,
        result: Message | None,
        *,
        code: grpc.StatusCode = grpc.StatusCode.OK,
        trailers: tuple[tuple[str, bytes], ...] = (),
    ) -> tuple[Message, ResultT]:
        """Answer the one RPC that `call` makes; returns its request and what `call` returned."""
        calling = self._pool.submit(call)
        service = MODELS if method in MODELS.methods_by_name else RESPONSES
        taking = self._pool.submit(self._channel.take_unary_unary, service.methods_by_name[method])
        metadata, request, rpc = taking.result(5)
        assert ("authorization", "Bearer sesame") in metadata
        rpc.send_initial_metadata(())
        rpc.terminate(result, trailers, code, "why")
        return request, calling.result(5)


@pytest.fixture
def server() -> Iterator[Server]:
    with ThreadPoolExecutor(2) as pool:
        yield Server(pool)


def test_get_returns_the_response(server: Server) -> None:
    stored = response_pb2.Response(id="resp_1", status=response_pb2.RESPONSE_STATUS_COMPLETED)
    request, response = server.answer(
        lambda: server.client.get("resp_1", include=["x"]), "Get", stored
    )
    assert request == responses_service_pb2.GetRequest(response_id="resp_1", include=["x"])
    assert (response.id, response.status) == ("resp_1", "completed")


def test_delete_and_cancel_name_the_response(server: Server) -> None:
    gone = responses_service_pb2.DeleteResult(id="resp_1", deleted=True)
    request, _ = server.answer(lambda: server.client.delete("resp_1"), "Delete", gone)
    assert request == responses_service_pb2.DeleteRequest(response_id="resp_1")
    ended = response_pb2.Response(status=response_pb2.RESPONSE_STATUS_CANCELLED)
    request, response = server.answer(lambda: server.client.cancel("resp_1"), "Cancel", ended)
    assert request == responses_service_pb2.CancelRequest(response_id="resp_1")
    assert response.status == "cancelled"


def test_list_input_items_returns_a_page(server: Server) -> None:
    result = responses_service_pb2.ListInputItemsResult(
        data=[Item(message=MessageItem(id="msg_1", role="user"))], last_id="msg_1", has_more=True
    )
    request, page = server.answer(
        lambda: server.client.list_input_items("resp_1", limit=1, order="asc"),
        "ListInputItems",
        result,
    )
    assert request == responses_service_pb2.ListInputItemsRequest(
        response_id="resp_1", limit=1, order="asc"
    )
    assert [item.message.id for item in page.items] == ["msg_1"]
    assert (page.first_id, page.last_id, page.has_more) == (None, "msg_1", True)


def test_count_input_tokens_sends_a_create_with_the_model(server: Server) -> None:
    result = responses_service_pb2.CountInputTokensResult(input_tokens=12)
    request, count = server.answer(
        lambda: server.client.count_input_tokens("Hi", instructions="Be brief."),
        "CountInputTokens",
        result,
    )
    assert count == 12
    assert plain(request) == {
        "model": "m",
        "instructions": "Be brief.",
        "input": "Hi",
    }


def test_list_models_returns_them(server: Server) -> None:
    model = models_service_pb2.Model(id="sim", owned_by="sim", simulated=True)
    result = models_service_pb2.ListModelsResult(data=[model])
    _, models = server.answer(server.client.list_models, "ListModels", result)
    assert models == [turnwire.ModelInfo("sim", "sim", None, simulated=True)]


def test_a_reason_in_the_status_details_is_the_error(server: Server) -> None:
    detail = any_pb2.Any()
    detail.Pack(
        error_details_pb2.ErrorInfo(
            reason="MODEL_NOT_FOUND", domain="turnwire.dev", metadata={"param": "model"}
        )
    )
    status = status_pb2.Status(code=5, message="why", details=[detail])
    with pytest.raises(turnwire.NotFound) as refused:
        server.answer(
            lambda: server.client.get("resp_1"),
            "Get",
            None,
            code=grpc.StatusCode.NOT_FOUND,
            trailers=(("grpc-status-details-bin", status.SerializeToString()),),
        )
    assert (refused.value.code, refused.value.status) == ("model_not_found", 404)
    assert (refused.value.param, refused.value.message) == ("model", "why")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, turnwire.NotFound),
        (grpc.StatusCode.UNAUTHENTICATED, turnwire.AuthenticationFailed),
        (grpc.StatusCode.INVALID_ARGUMENT, turnwire.InvalidRequest),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, turnwire.RateLimited),
        (grpc.StatusCode.UNAVAILABLE, turnwire.ConnectionFailed),
        (grpc.StatusCode.DEADLINE_EXCEEDED, turnwire.Timeout),
        (grpc.StatusCode.INTERNAL, turnwire.ServerFailed),
    ],
)
def test_a_bare_status_is_an_error_too(
    server: Server, code: grpc.StatusCode, kind: type[turnwire.TurnwireError]
) -> None:
    trailers = (("grpc-status-details-bin", b"\xff not ours"),)
    with pytest.raises(kind):
        server.answer(
            lambda: server.client.get("resp_1"), "Get", None, code=code, trailers=trailers
        )


def test_a_target_of_another_wire_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="gRPC"):
        turnwire.UnaryClient("ws://127.0.0.1:1")


def test_nobody_listening_is_a_connection_that_failed() -> None:
    with (
        turnwire.UnaryClient("grpc://127.0.0.1:1", timeout_s=5) as client,
        pytest.raises(turnwire.ConnectionFailed),
    ):
        client.list_models()
