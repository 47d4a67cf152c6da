"""The store port: responses that outlive their session."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from turnwire.v1 import item_pb2
from turnwire_server.session.conversation import Conversation
from turnwire_server.session.prompt import Prompt

__all__ = [
    "CountsDropped",
    "IdempotencyKeyTaken",
    "ResponseStore",
    "StoreFailure",
    "StoredResponse",
]


class StoreFailure(Exception):
    """The store cannot do it now. `str()` is for the log: it never holds content."""


class IdempotencyKeyTaken(Exception):
    """Another response of the tenant has the idempotency key; `find_by_key` returns it."""


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
    status: str = "completed"
    """Public status: `queued` and `in_progress` of one that is not over yet."""
    owner: str = ""
    """Id of the server instance that runs it, "" for one that is over."""
    background: bool = False
    """Whether it runs without a client."""
    idempotency_key: str | None = None
    """What its client called the request; one response of a tenant has it."""
    request_digest: bytes | None = None
    """Digest of the request, so that another one with the same key is told apart."""

    @property
    def is_over(self) -> bool:
        """Whether it has its final status."""
        return self.status not in ("queued", "in_progress")


class ResponseStore(Protocol):
    """Keeps responses with `store` != false. Every call names the tenant; others see nothing."""

    async def put(self, record: StoredResponse) -> None:
        """Keep `record`, in the place of one with the same id.

        When this returns, `get` finds it, also in another process and after this one was killed,
        if the store is durable at all. Cancelling it leaves open whether it is kept.

        Raises:
            IdempotencyKeyTaken: Nothing was kept, because another response has its key.
            StoreFailure: It could not be kept.
        """
        ...

    async def get(self, response_id: str, *, tenant: str) -> StoredResponse | None:
        """Return the record, or None when unknown, expired, deleted or another tenant's.

        Every call may raise StoreFailure.
        """
        ...

    async def find_by_key(self, tenant: str, idempotency_key: str) -> StoredResponse | None:
        """Return the response that has the idempotency key, None when there is none to `get`."""
        ...

    async def find_item(self, item_id: str, *, tenant: str) -> item_pb2.Item | None:
        """Return an item by its id, a new message: that of the newest response that has it.

        None when no response of the tenant that `get` finds has it as its own.
        """
        ...

    async def delete(self, response_id: str, *, tenant: str) -> bool:
        """Forget the record; return whether there was one."""
        ...

    async def fail_orphans(self, owners: Collection[str]) -> int:
        """Mark what dead server instances have left running as failed.

        Args:
            owners: Ids of instances that are dead for sure.

        Returns:
            How many responses, of all tenants.
        """
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
