"""Stores on every back end, opened as often as a test wants processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.clock import ManualClock
from turnwire.v1 import content_pb2, item_pb2, response_pb2
from turnwire_server.adapters.database.engine import Database
from turnwire_server.adapters.database.settings import DatabaseSettings
from turnwire_server.adapters.stores.conversations import MemoryConversationStore
from turnwire_server.adapters.stores.memory import MemoryResponseStore, MemoryStoreSettings
from turnwire_server.adapters.stores.segments import SegmentBook
from turnwire_server.adapters.stores.sql import SqlResponseStore
from turnwire_server.adapters.stores.sql_conversations import SqlConversationStore
from turnwire_server.ports.clock import Clock
from turnwire_server.ports.conversations import ConversationStore
from turnwire_server.ports.store import ResponseStore, StoredResponse
from turnwire_server.session.conversation import EMPTY, Conversation
from turnwire_server.session.prompt import Prompt

__all__ = [
    "BACKENDS",
    "Backend",
    "Backends",
    "SqlStores",
    "Stores",
    "message",
    "sql_stores",
    "sqlite_url",
    "stored",
]

Backend = Literal["memory", "sqlite", "postgres"]
BACKENDS: tuple[Backend, ...] = ("memory", "sqlite", "postgres")


@dataclass(frozen=True)
class Stores:
    """The stores of one server process."""

    responses: ResponseStore
    conversations: ConversationStore


@dataclass(frozen=True)
class SqlStores(Stores):
    """Those on a database."""

    responses: SqlResponseStore
    conversations: SqlConversationStore
    database: Database


class Backends:
    """Opens stores of one back end; those of a database see the same rows."""

    def __init__(self, kind: Backend, url: str, exits: AsyncExitStack) -> None:
        """Open on `url`; everything is closed by `exits`."""
        self.kind = kind
        self.url = url
        self.clock = ManualClock()
        self._exits = exits

    async def open(self, **settings: Any) -> Stores:
        """Return the stores of one more process, which for memory has nothing."""
        if self.kind == "memory":
            responses = MemoryResponseStore(MemoryStoreSettings(), wall=self.clock.wall)
            return Stores(responses, MemoryConversationStore())
        return await self.open_sql(**settings)

    async def open_sql(self, **settings: Any) -> SqlStores:
        """Return the stores of one more process on the database."""
        return await self._exits.enter_async_context(sql_stores(self.url, self.clock, **settings))


@asynccontextmanager
async def sql_stores(url: str, clock: Clock, **settings: Any) -> AsyncIterator[SqlStores]:
    """Open a database and the stores on it."""
    database = Database(DatabaseSettings(url=url, **settings))
    await database.start()
    book = SegmentBook()
    stores = SqlStores(
        SqlResponseStore(database, clock, book), SqlConversationStore(database, book), database
    )
    try:
        yield stores
    finally:
        await stores.responses.close()
        await stores.conversations.close()
        await database.close()


def sqlite_url(folder: Path) -> str:
    """Return the URL of a file in a folder."""
    return f"sqlite:///{folder / 'turnwire.db'}"


# Records.


def message(item_id: str, text: str = "", *, role: str = "user") -> item_pb2.Item:
    """Return a message; its text names it unless one is given."""
    content = content_pb2.Content(text=text or f"of {item_id}")
    return item_pb2.Item(message=item_pb2.MessageItem(id=item_id, role=role, content=content))


def stored(
    response_id: str,
    *items: item_pb2.Item,
    parent: StoredResponse | None = None,
    output: tuple[item_pb2.Item, ...] = (),
    prompt: Prompt | None = None,
    base: Conversation = EMPTY,
    **members: Any,
) -> StoredResponse:
    """Return the record of a response.

    Args:
        response_id: Its id.
        *items: Its input.
        parent: What it continues.
        output: Its output.
        prompt: Its token ids.
        base: The conversation that it continues, without a parent.
        **members: Other members of the record.
    """
    conversation = (base if parent is None else parent.conversation).extended(items)
    return StoredResponse(
        **{
            "response_id": response_id,
            "tenant": "a",
            "response": response_pb2.Response(id=response_id, output=output).SerializeToString(),
            "input_items": tuple(item.SerializeToString() for item in items),
            "conversation": conversation.extended(output),
            "prompt": prompt,
            "created_at": 1_800_000_000,
            "expires_at": 1_800_000_100,
            "item_ids": tuple(item.message.id for item in (*items, *output)),
            **members,
        }
    )
