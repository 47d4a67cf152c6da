"""A synchronous client for the calls beside the turns, without an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from turnwire._grpc_errors import unary_error
from turnwire._request import CreateOptions, RequestInput, build_create
from turnwire._response import Response
from turnwire._unary_values import ItemPage, ModelInfo, item_page, items_request, model_infos
from turnwire._wire import WireSettings, parse_target
from turnwire._wire_grpc import CHANNEL_OPTIONS, channel_credentials
from turnwire.v1.models_service_pb2 import ListModelsRequest
from turnwire.v1.models_service_pb2_grpc import ModelsServiceStub
from turnwire.v1.responses_service_pb2 import CancelRequest, DeleteRequest, GetRequest
from turnwire.v1.responses_service_pb2_grpc import ResponsesServiceStub

__all__ = ["UnaryClient"]

RequestT = TypeVar("RequestT", bound=Message)
ResultT = TypeVar("ResultT", bound=Message)


class UnaryClient:
    """Looks after stored responses over gRPC from plain synchronous code.

    For turns there is `turnwire.connect_sync`. Safe to share between threads. Each call raises
    `NotFound`, `InvalidRequest`, `AuthenticationFailed`, `ConnectionFailed` or `Timeout`.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        root_certificates: bytes | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """Prepare a channel; it connects at the first call.

        Args:
            url: `grpc://host:port` or `grpcs://host:port`.
            api_key: Sent as a bearer token.
            model: The model of `count_tokens` when it names none.
            root_certificates: PEM of the authorities to trust instead of the system's.
            timeout_s: Bound on each call, in seconds.

        Raises:
            ValueError: `url` is no such URL.
        """
        target = parse_target(url)
        if target.kind != "grpc":
            raise ValueError(f"{url!r}: this client speaks gRPC only")
        if target.secure:
            credentials = channel_credentials(root_certificates)
            channel = grpc.secure_channel(target.authority, credentials, options=CHANNEL_OPTIONS)
        else:
            channel = grpc.insecure_channel(target.authority, options=CHANNEL_OPTIONS)
        self._use(channel, WireSettings(api_key=api_key, unary_timeout_s=timeout_s), model)

    def _use(self, channel: grpc.Channel, settings: WireSettings, model: str | None) -> None:
        self._channel = channel
        self._responses = ResponsesServiceStub(channel)
        self._models = ModelsServiceStub(channel)
        self._metadata = tuple(settings.all_headers().items())
        self._timeout_s = settings.unary_timeout_s
        self._model = model

    def get(self, response_id: str, *, include: Sequence[str] = ()) -> Response:
        """Return a stored response."""
        request = GetRequest(response_id=response_id, include=include)
        return Response(self._call(self._responses.Get, request))

    def delete(self, response_id: str) -> None:
        """Forget a stored response."""
        self._call(self._responses.Delete, DeleteRequest(response_id=response_id))

    def cancel(self, response_id: str) -> Response:
        """End a running response and return it; one that is over is returned as it is."""
        request = CancelRequest(response_id=response_id)
        return Response(self._call(self._responses.Cancel, request))

    def list_input_items(
        self,
        response_id: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> ItemPage:
        """Return a page of what a stored response was given.

        Args:
            response_id: The response.
            after: Id of the item to list after.
            limit: Most items, 1 to 100; 20 when not given.
            order: Newest first (`desc`) when not given.
        """
        request = items_request(response_id, after, limit, order)
        return item_page(self._call(self._responses.ListInputItems, request))

    def count_input_tokens(
        self,
        input: RequestInput | None = None,
        *,
        previous_response_id: str | None = None,
        **options: Unpack[CreateOptions],
    ) -> int:
        """Return how many tokens the whole prompt of such a create would have."""
        create = build_create(
            input, options, model=self._model, previous_response_id=previous_response_id
        )
        return self._call(self._responses.CountInputTokens, create).input_tokens

    def list_models(self) -> list[ModelInfo]:
        """Return the models that the server serves."""
        return model_infos(self._call(self._models.ListModels, ListModelsRequest()))

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(
        self, method: grpc.UnaryUnaryMultiCallable[RequestT, ResultT], request: RequestT
    ) -> ResultT:
        try:
            return method(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            # What a channel raises is a call as well, which its type does not say.
            assert isinstance(error, grpc.Call)
            trailers = tuple(error.trailing_metadata() or ())
            raise unary_error(error.code(), error.details(), trailers) from None


def over_channel(
    channel: grpc.Channel, *, api_key: str | None = None, model: str | None = None
) -> UnaryClient:
    """Return a client on a channel that exists, for example grpcio-testing's."""
    client = UnaryClient.__new__(UnaryClient)
    client._use(channel, WireSettings(api_key=api_key), model)
    return client
