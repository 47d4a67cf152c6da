"""The calls that match the HTTP API beside creating: get, delete, cancel, list, count, models."""

from __future__ import annotations

from collections.abc import Sequence

from turnwire.v1 import (
    client_event_pb2,
    error_pb2,
    item_pb2,
    models_service_pb2,
    response_pb2,
    responses_service_pb2,
)
from turnwire_server.ports.renderer import RenderFailure
from turnwire_server.ports.store import StoredResponse
from turnwire_server.runtime.resolve import Parent, not_found
from turnwire_server.runtime.services import Services
from turnwire_server.session.errors import Rejection, quoted

__all__ = ["UnaryApi"]

_MAX_LIMIT = 100
_DEFAULT_LIMIT = 20


class UnaryApi:
    """Answers with the message, or with the `Rejection` that says why not."""

    def __init__(self, services: Services) -> None:
        """Make the calls of one server."""
        self._services = services

    async def get(self, response_id: str, *, tenant: str) -> response_pb2.Response | Rejection:
        """Return a stored response."""
        record = await self._find(response_id, tenant)
        if isinstance(record, Rejection):
            return record
        return response_pb2.Response.FromString(record.response)

    async def delete(
        self, response_id: str, *, tenant: str
    ) -> responses_service_pb2.DeleteResult | Rejection:
        """Forget a stored response."""
        if not await self._services.store.delete(response_id, tenant=tenant):
            return _unknown(response_id)
        return responses_service_pb2.DeleteResult(id=response_id, object="response", deleted=True)

    async def cancel(self, response_id: str, *, tenant: str) -> response_pb2.Response | Rejection:
        """End a running response and return it; one that is over is returned as it is."""
        running = self._services.running.get(response_id)
        if running is not None and running[1].tenant == tenant:
            connection, run = running
            connection.cancel(response_id)
            response = await run.over
            if response is not None:
                return response
        return await self.get(response_id, tenant=tenant)

    async def list_input_items(
        self, request: responses_service_pb2.ListInputItemsRequest, *, tenant: str
    ) -> responses_service_pb2.ListInputItemsResult | Rejection:
        """List the items that a stored response was given."""
        limit = request.limit if request.HasField("limit") else _DEFAULT_LIMIT
        if not 1 <= limit <= _MAX_LIMIT:
            return _invalid("limit", f"limit must be from 1 to {_MAX_LIMIT}.")
        order = request.order or "desc"
        if order not in ("asc", "desc"):
            return _invalid("order", "order must be 'asc' or 'desc'.")
        record = await self._find(request.response_id, tenant)
        if isinstance(record, Rejection):
            return record
        items = [item_pb2.Item.FromString(encoded) for encoded in record.input_items]
        if order == "desc":
            items.reverse()
        start = 0
        if request.after:
            ids = _ids(items)
            if request.after not in ids:
                return _invalid("after", f"No item has the id {quoted(request.after)}.")
            start = ids.index(request.after) + 1
        page = items[start : start + limit]
        ids = _ids(page)
        return responses_service_pb2.ListInputItemsResult(
            object="list",
            data=page,
            first_id=ids[0] if ids else None,
            last_id=ids[-1] if ids else None,
            has_more=start + limit < len(items),
        )

    async def count_input_tokens(
        self, create: client_event_pb2.ResponseCreate, *, tenant: str
    ) -> responses_service_pb2.CountInputTokensResult | Rejection:
        """Count the tokens of the whole prompt that `create` would have."""
        parent = Parent()
        if create.previous_response_id:
            record = await self._services.store.get(create.previous_response_id, tenant=tenant)
            if record is None:
                return not_found(create.previous_response_id)
            parent = Parent(record.conversation, record.prompt)
        checked = self._services.validator.check(
            create,
            parent,
            find_item=lambda _: None,
            stream_id=None,
            is_persistent=False,
            is_warm_up=False,
        )
        if isinstance(checked, Rejection):
            return checked
        try:
            rendered = checked.model.renderer.render(checked.render_request(parent))
        except RenderFailure as failure:
            return Rejection(error_pb2.ERROR_REASON_INVALID_PROMPT, str(failure), param="input")
        return responses_service_pb2.CountInputTokensResult(
            object="response.input_tokens", input_tokens=len(rendered.prompt.ids)
        )

    async def compact(
        self, request: responses_service_pb2.CompactRequest, *, tenant: str
    ) -> responses_service_pb2.CompactResult | Rejection:
        """Refuse: compaction is not there yet. What is missing in the request is said first."""
        del tenant
        if not request.model:
            return Rejection(
                error_pb2.ERROR_REASON_MISSING_REQUIRED_PARAMETER,
                "Missing required parameter: 'model'.",
                param="model",
            )
        model = self._services.models.find(request.model)
        if isinstance(model, Rejection):
            return model
        return Rejection(
            error_pb2.ERROR_REASON_UNSUPPORTED_VALUE,
            "This server does not compact conversations yet.",
            param="model",
        )

    def list_models(self) -> models_service_pb2.ListModelsResult:
        """List the models by name."""
        return models_service_pb2.ListModelsResult(
            object="list", data=[model.message() for model in self._services.models.models]
        )

    def get_model(self, name: str) -> models_service_pb2.Model | Rejection:
        """Return one model."""
        model = self._services.models.find(name)
        return model if isinstance(model, Rejection) else model.message()

    async def _find(self, response_id: str, tenant: str) -> StoredResponse | Rejection:
        record = await self._services.store.get(response_id, tenant=tenant)
        return record if record is not None else _unknown(response_id)


def _ids(items: Sequence[item_pb2.Item]) -> list[str]:
    return [getattr(item, item.WhichOneof("item") or "").id for item in items]


def _unknown(response_id: str) -> Rejection:
    return Rejection(
        error_pb2.ERROR_REASON_RESPONSE_NOT_FOUND,
        f"Response with id {quoted(response_id)} not found.",
        param="response_id",
    )


def _invalid(path: str, message: str) -> Rejection:
    return Rejection(error_pb2.ERROR_REASON_INVALID_VALUE, message, param=path)
