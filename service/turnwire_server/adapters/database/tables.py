"""The tables. `docs/store.md` says what refers to what.

Every row belongs to a tenant, but for those of `instances`, which are server processes.
Content (items, responses, token ids) is in binary columns only, so that any text fits, U+0000 too.
Times are Unix seconds. A change here needs a migration in `migrations/versions`.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    UniqueConstraint,
)

__all__ = [
    "METADATA",
    "conversation_items",
    "conversations",
    "instances",
    "response_items",
    "responses",
    "segments",
    "usage_outbox",
    "usage_records",
]

METADATA: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_RowNumber = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts up only what is called INTEGER."""

segments: Final = Table(
    "segments",
    METADATA,
    # Random behind a time: new rows go to the end of the index.
    Column("id", String(32), primary_key=True),
    Column("tenant", String(64), nullable=False),
    # What this one continues: the same conversation up to there.
    Column("parent_id", String(32), ForeignKey("segments.id"), index=True),
    Column("items", LargeBinary, nullable=False),
    Column("facts", LargeBinary, nullable=False),
    # Token ids, 4 bytes each, behind the first `kept_ids` of the parent's; NULL: none were kept.
    Column("ids", LargeBinary),
    Column("kept_ids", Integer, nullable=False),
)

responses: Final = Table(
    "responses",
    METADATA,
    Column("id", String(256), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("segment_id", String(32), ForeignKey("segments.id"), nullable=False, index=True),
    Column("status", String(32), nullable=False),
    # Id of the instance that runs it, "" for one that is over.
    Column("owner", String(64), nullable=False, index=True),
    Column("background", Boolean, nullable=False),
    Column("idempotency_key", String(256)),
    Column("request_digest", LargeBinary),
    Column("response", LargeBinary, nullable=False),
    Column("input_items", LargeBinary, nullable=False),
    Column("item_ids", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    UniqueConstraint("tenant", "idempotency_key"),
)

instances: Final = Table(
    "instances",
    METADATA,
    # Owner of responses: a server process that lives, or is not known to be dead.
    Column("id", String(64), primary_key=True),
    # Counts up while it lives.
    Column("beat", BigInteger, nullable=False),
)

response_items: Final = Table(
    "response_items",
    METADATA,
    # Of several responses that have an item, the newest has the highest number.
    Column("number", _RowNumber, primary_key=True, autoincrement=True),
    Column("tenant", String(64), nullable=False),
    # A digest: clients choose ids of any length.
    Column("item_key", LargeBinary(16), nullable=False),
    Column("response_id", String(256), ForeignKey("responses.id"), nullable=False, index=True),
    Index(None, "tenant", "item_key"),
)

conversations: Final = Table(
    "conversations",
    METADATA,
    Column("id", String(256), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("segment_id", String(32), ForeignKey("segments.id"), nullable=False, index=True),
    # Goes up with every change, so that nobody overwrites what they have not seen.
    Column("version", Integer, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

conversation_items: Final = Table(
    "conversation_items",
    METADATA,
    Column("conversation_id", String(256), ForeignKey("conversations.id"), nullable=False),
    # Orders the items; there may be gaps.
    Column("position", BigInteger, nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("item_key", LargeBinary(16), nullable=False),
    Column("item", LargeBinary, nullable=False),
    PrimaryKeyConstraint("conversation_id", "position"),
    Index(None, "tenant", "item_key"),
)

usage_records: Final = Table(
    "usage_records",
    METADATA,
    # No foreign key: what was used outlives the response.
    Column("response_id", String(256), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("model", String(256), nullable=False),
    # Public status of the response, or `interrupted`.
    Column("status", String(32), nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False, index=True),
    Column("closed_at", BigInteger, nullable=False),
    Index(None, "tenant", "created_at"),
)

usage_outbox: Final = Table(
    "usage_outbox",
    METADATA,
    Column("sink", String(64), nullable=False),
    Column("response_id", String(256), ForeignKey("usage_records.response_id"), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("sink", "response_id"),
    Index(None, "sink", "next_at"),
    Index(None, "response_id"),
)
