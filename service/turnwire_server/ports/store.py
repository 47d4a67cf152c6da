"""The store port: responses that outlive their session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from turnwire.v1 import item_pb2
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.prompt import Prompt

__all__ = ["CountsDropped", "ResponseStore", "StoredResponse"]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and what it takes to continue it."""

    response_id: str
    tenant: str
    response: bytes
    """The serialized `turnwire.v1.Response`."""
    input_items: tuple[bytes, ...]
    """Serialized items that this response was given (its own input only), oldest first."""
    conversation: Conversation
    """The whole conversation, this response's output included."""
    prompt: Prompt | None
    """Token ids and fingerprint, None when they were not kept."""
    created_at: int
    expires_at: int
    """Unix seconds; after it the response is not found."""
    item_ids: tuple[str, ...] = ()
    """Ids of its own items, input and output."""


class ResponseStore(Protocol):
    """Keeps responses with `store` != false. Every call names the tenant; others see nothing."""

    async def put(self, record: StoredResponse) -> None:
        """Keep `record`; when this returns, `get` finds it."""
        ...

    async def get(self, response_id: str, *, tenant: str) -> StoredResponse | None:
        """Return the record, or None when unknown, expired, deleted or another tenant's."""
        ...

    async def find_item(self, item_id: str, *, tenant: str) -> item_pb2.Item | None:
        """Return an item by its id, a new message: that of the newest response that has it.

        None when no response of the tenant that `get` finds has it as its own.
        """
        ...

    async def delete(self, response_id: str, *, tenant: str) -> bool:
        """Forget the record; return whether there was one."""
        ...

    async def close(self) -> None:
        """Give everything back. Idempotent."""
        ...


@runtime_checkable
class CountsDropped(Protocol):
    """A store that knows how many records it forgot by itself."""

    @property
    def dropped(self) -> Mapping[str, int]:
        """`expired` and `evicted` (there was no room) -> records since the start."""
        ...
