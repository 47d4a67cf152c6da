"""What the calls beside the stream return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwire._json import JSONValue, plain
from turnwire.v1.item_pb2 import Item
from turnwire.v1.models_service_pb2 import ListModelsResult
from turnwire.v1.responses_service_pb2 import ListInputItemsRequest, ListInputItemsResult

__all__ = ["ItemPage", "ModelInfo", "item_page", "items_request", "model_infos"]


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Some of the items that a stored response was given."""

    items: Sequence[Item]
    """The items as `turnwire.v1` messages."""
    first_id: str | None
    """Id of the first item."""
    last_id: str | None
    """Id of the last item: `after` for the next page."""
    has_more: bool
    """Whether there is a next page."""

    def to_dicts(self) -> list[dict[str, JSONValue]]:
        """Return the items as in the public JSON."""
        return [plain(item) for item in self.items]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that the server serves."""

    id: str
    """Its name."""
    owned_by: str
    """The engine that runs it, for example `openvino`."""
    context_length: int | None
    """Most prompt plus output tokens."""
    simulated: bool
    """Whether no model runs behind the name."""


def items_request(
    response_id: str, after: str | None, limit: int | None, order: str | None
) -> ListInputItemsRequest:
    """Return the request for a page of items."""
    return ListInputItemsRequest(response_id=response_id, after=after, limit=limit, order=order)


def item_page(result: ListInputItemsResult) -> ItemPage:
    """Return a page of items."""
    return ItemPage(
        items=tuple(result.data),
        first_id=result.first_id if result.HasField("first_id") else None,
        last_id=result.last_id if result.HasField("last_id") else None,
        has_more=result.has_more,
    )


def model_infos(result: ListModelsResult) -> list[ModelInfo]:
    """Return the models."""
    return [
        ModelInfo(
            id=model.id,
            owned_by=model.owned_by,
            context_length=model.context_length if model.HasField("context_length") else None,
            simulated=model.simulated,
        )
        for model in result.data
    ]
