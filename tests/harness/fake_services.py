"""Services and connections that do what a test says, for tests of one wire alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from turnwire.v1.client_event_pb2 import ClientEvent, ResponseCreate
from turnwire.v1.error_pb2 import (
    ERROR_REASON_INVALID_API_KEY,
    ERROR_REASON_MODEL_NOT_FOUND,
    ERROR_REASON_RESPONSE_NOT_FOUND,
    ERROR_REASON_UNSUPPORTED_VALUE,
)
from turnwire.v1.models_service_pb2 import ListModelsResult, Model
from turnwire.v1.response_pb2 import (
    RESPONSE_STATUS_CANCELLED,
    RESPONSE_STATUS_COMPLETED,
    RESPONSE_STATUS_FAILED,
    RESPONSE_STATUS_IN_PROGRESS,
    Response,
    ResponseStatus,
)
from turnwire.v1.responses_service_pb2 import (
    CompactRequest,
    CompactResult,
    CountInputTokensResult,
    DeleteResult,
    ListInputItemsRequest,
    ListInputItemsResult,
)
from turnwire.v1.server_event_pb2 import (
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ServerEvent,
)
from turnwire_server.runtime.connection import Ending
from turnwire_server.runtime.outbox import Sink
from turnwire_server.runtime.registry import ModelRegistry
from turnwire_server.runtime.settings import RuntimeSettings
from turnwire_server.runtime.validate import Validator
from turnwire_server.session.errors import Rejection
from turnwire_server.session.events import Delta, Outgoing, Part

__all__ = [
    "FakeConnection",
    "FakeServices",
    "FakeUnaryApi",
    "completed",
    "created",
    "failed",
    "greeting",
]

_NO_MODELS = ModelRegistry((), any_model=False)

Script = Callable[["FakeConnection", ClientEvent], Iterable[Outgoing]]


def created(response_id: str = "resp_1", stream_id: str | None = None) -> ServerEvent:
    response = Response(
        id=response_id, object="response", status=RESPONSE_STATUS_IN_PROGRESS, model="m"
    )
    return ServerEvent(
        sequence_number=0, stream_id=stream_id, response_created=ResponseCreated(response=response)
    )


def completed(
    response_id: str = "resp_1", stream_id: str | None = None, sequence_number: int = 4
) -> ServerEvent:
    response = Response(
        id=response_id, object="response", status=RESPONSE_STATUS_COMPLETED, model="m"
    )
    return ServerEvent(
        sequence_number=sequence_number,
        stream_id=stream_id,
        response_completed=ResponseCompleted(response=response),
    )


def failed(response_id: str = "resp_1") -> ServerEvent:
    response = Response(id=response_id, object="response", status=RESPONSE_STATUS_FAILED, model="m")
    return ServerEvent(sequence_number=1, response_failed=ResponseFailed(response=response))


def greeting(stream_id: str | None = None) -> list[Outgoing]:
    """A turn: created, three deltas, completed. Not a whole one; a wire does not mind."""
    part = Part("response_output_text_delta", "msg_1", 0, 0, stream_id)
    deltas = [Delta(part, index + 1, text) for index, text in enumerate(("Hel", 'lo "', "삶😀"))]
    return [created(stream_id=stream_id), *deltas, completed(stream_id=stream_id)]


def answer_creates(connection: FakeConnection, event: ClientEvent) -> Iterable[Outgoing]:
    """Answer each create with a greeting and everything else with nothing."""
    del connection
    if event.WhichOneof("event") != "response_create":
        return []
    return greeting(event.stream_id if event.HasField("stream_id") else None)


class FakeConnection:
    """Records what a transport does and writes what the script says, batch by batch."""

    def __init__(self, services: FakeServices, sink: Sink, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.sink = sink
        self.received: list[tuple[ClientEvent, int]] = []
        self.rejected: list[dict[str, Any]] = []
        self.was_lost: Callable[[], bool] | None = None
        """What the transport says of a client that is gone."""
        self.is_half_closed = False
        self.disconnected = asyncio.Event()
        self.started = asyncio.Event()
        self.was_cancelled = False
        self.ended = asyncio.Event()
        self._services = services
        self._batches: asyncio.Queue[list[bytes] | Ending] = asyncio.Queue()
        self._over: Ending | None = None

    @property
    def is_crowded(self) -> bool:
        """Never: a fake keeps all that it sends."""
        return False

    @property
    def is_resumable(self) -> bool:
        """Never: a fake has no session."""
        return False

    async def calm(self) -> None:
        """Return at once."""

    def receive(self, event: ClientEvent, size: int) -> None:
        self.received.append((event, size))
        self._services.something_happened.set()
        self.send(*self._services.script(self, event))

    def reject(self, rejection: Rejection, **details: Any) -> None:
        self.rejected.append({"rejection": rejection, **details})
        self.send(rejection.event(stream_id=details["stream_id"], event_id=details["event_id"]))

    def send(self, *events: Outgoing) -> None:
        """Write the events as one batch."""
        if events:
            self._batches.put_nowait([self.sink.encode(event) for event in events])

    def beat(self) -> None:
        """Write the transport's own sign of life."""
        if (beat := self.sink.heartbeat()) is not None:
            self._batches.put_nowait([beat])

    def end(self, ending: Ending) -> None:
        """Let `run` return after what was sent."""
        self._batches.put_nowait(ending)

    def half_close(self) -> None:
        self.is_half_closed = True
        self._services.something_happened.set()
        if not self._services.hold_after_half_close:
            self.end(Ending("finished"))

    def disconnect(self) -> None:
        self.disconnected.set()
        self._services.something_happened.set()
        self.end(Ending("disconnected"))

    def vanish(self) -> None:
        self.disconnect()

    def lose(self) -> None:
        self.disconnect()

    async def run(self) -> Ending:
        self.started.set()
        try:
            while True:
                batch = await self._batches.get()
                if isinstance(batch, Ending):
                    return batch
                try:
                    await self.sink.write(batch)
                except ConnectionError:
                    self.disconnect()
        except asyncio.CancelledError:
            self.was_cancelled = True
            self.disconnect()
            raise
        finally:
            self.ended.set()


class FakeServices:
    """What transports ask of `Services`."""

    def __init__(
        self,
        script: Script = answer_creates,
        *,
        max_message_bytes: int = 64 * 1024 * 1024,
        key: str | None = None,
    ) -> None:
        self.script = script
        self.settings = RuntimeSettings(
            max_message_bytes=max_message_bytes, auth_keys=(key,) if key else ()
        )
        self.accepting = True
        self.hold_after_half_close = False
        self.connections: list[FakeConnection] = []
        self.something_happened = asyncio.Event()
        self.validator = Validator(_NO_MODELS, str, strict_content=False)
        self._key = key

    def authorize(self, token: str | None) -> str | Rejection:
        if self._key is None or token == self._key:
            return "default"
        return Rejection(ERROR_REASON_INVALID_API_KEY, "The key is missing or wrong.")

    def connect(self, sink: Sink, **arguments: Any) -> FakeConnection:
        was_lost = arguments.pop("was_lost", None)
        connection = FakeConnection(self, sink, arguments)
        connection.was_lost = was_lost
        self.connections.append(connection)
        self.something_happened.set()
        return connection

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is looked at whenever something happened."""
        async with asyncio.timeout(20):
            while not condition():
                self.something_happened.clear()
                await self.something_happened.wait()

    async def connection(self) -> FakeConnection:
        """Wait for the first connection to run."""
        await self.until(lambda: bool(self.connections))
        async with asyncio.timeout(20):
            await self.connections[0].started.wait()
        return self.connections[0]


class FakeUnaryApi:
    """Answers that name what was asked; ids with `missing` in them are not found."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    async def get(self, response_id: str, *, tenant: str) -> Response | Rejection:
        return self._response(response_id, RESPONSE_STATUS_COMPLETED)

    async def cancel(self, response_id: str, *, tenant: str) -> Response | Rejection:
        return self._response(response_id, RESPONSE_STATUS_CANCELLED)

    def _response(self, response_id: str, status: ResponseStatus) -> Response | Rejection:
        if "missing" in response_id:
            return _not_found(response_id)
        return Response(id=response_id, object="response", status=status, model="m")

    async def delete(self, response_id: str, *, tenant: str) -> DeleteResult | Rejection:
        if "missing" in response_id:
            return _not_found(response_id)
        return DeleteResult(id=response_id, object="response", deleted=True)

    async def list_input_items(
        self, request: ListInputItemsRequest, *, tenant: str
    ) -> ListInputItemsResult | Rejection:
        self.asked.append(request)
        return ListInputItemsResult(object="list")

    async def count_input_tokens(
        self, create: ResponseCreate, *, tenant: str
    ) -> CountInputTokensResult | Rejection:
        self.asked.append(create)
        return CountInputTokensResult(object="response.input_tokens", input_tokens=7)

    async def compact(self, request: CompactRequest, *, tenant: str) -> CompactResult | Rejection:
        self.asked.append(request)
        return Rejection(ERROR_REASON_UNSUPPORTED_VALUE, "Not here.", "model")

    def list_models(self) -> ListModelsResult:
        return ListModelsResult(object="list", data=[Model(id="m", object="model")])

    def get_model(self, name: str) -> Model | Rejection:
        if name == "boom":
            raise RuntimeError("/secret/path is on fire")
        if name not in ("m", "org/m"):
            return Rejection(ERROR_REASON_MODEL_NOT_FOUND, "No such model.", "model")
        return Model(id=name, object="model")


def _not_found(response_id: str) -> Rejection:
    return Rejection(ERROR_REASON_RESPONSE_NOT_FOUND, f"No response {response_id}.", "response_id")
