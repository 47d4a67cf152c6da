"""The conversation port: conversations that are kept by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from turnwire.v1 import item_pb2
from turnwire_server.session.conversation import EMPTY, Conversation
from turnwire_server.session.prompt import Prompt

__all__ = ["ConversationConflict", "ConversationStore", "StoredConversation"]


class ConversationConflict(Exception):
    """Somebody else has changed or deleted the conversation since it was read."""


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation and what it takes to continue it."""

    id: str
    tenant: str
    created_at: int
    """Unix seconds."""
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The client's own pairs."""
    items: tuple[bytes, ...] = ()
    """All serialized items, oldest first: what is listed."""
    context: Conversation = EMPTY
    """What a model is told: the same, unless a compaction took the place of some."""
    prompt: Prompt | None = None
    """Token ids of `context` and their fingerprint, None when they were not kept."""
    version: int = 0
    """Which state of the conversation this is; 0 for a new one, the store counts the rest."""


class ConversationStore(Protocol):
    """Keeps conversations. Every call names the tenant; others see nothing."""

    async def put(self, record: StoredConversation) -> None:
        """Keep `record`; when this returns, `get` finds it, as its next version.

        A new conversation is one of version 0. Any other takes the place of the one that it was
        made of, which must still be of the same version: this process lets no two callers change
        one conversation at the same time, but another process may.

        Raises:
            ConversationConflict: Nothing was kept, because there is another version, or none.
            StoreFailure: It could not be kept.
        """
        ...

    async def get(self, conversation_id: str, *, tenant: str) -> StoredConversation | None:
        """Return the record, or None when unknown, deleted or another tenant's."""
        ...

    async def find_item(self, item_id: str, *, tenant: str) -> item_pb2.Item | None:
        """Return an item of any of the tenant's conversations by its id, a new message."""
        ...

    async def delete(self, conversation_id: str, *, tenant: str) -> bool:
        """Forget the record; return whether there was one."""
        ...

    async def close(self) -> None:
        """Give everything back. Idempotent."""
        ...
