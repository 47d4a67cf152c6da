"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "segments",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("parent_id", sa.String(32)),
        sa.Column("items", sa.LargeBinary, nullable=False),
        sa.Column("facts", sa.LargeBinary, nullable=False),
        sa.Column("ids", sa.LargeBinary),
        sa.Column("kept_ids", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_segments"),
        sa.ForeignKeyConstraint(["parent_id"], ["segments.id"], name="fk_segments_parent_id"),
    )
    op.create_index("ix_segments_parent_id", "segments", ["parent_id"])
    op.create_table(
        "responses",
        sa.Column("id", sa.String(256), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("segment_id", sa.String(32), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("idempotency_key", sa.String(256)),
        sa.Column("request_digest", sa.LargeBinary),
        sa.Column("response", sa.LargeBinary, nullable=False),
        sa.Column("input_items", sa.LargeBinary, nullable=False),
        sa.Column("item_ids", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_responses"),
        sa.ForeignKeyConstraint(["segment_id"], ["segments.id"], name="fk_responses_segment_id"),
        sa.UniqueConstraint(
            "tenant", "idempotency_key", name="uq_responses_tenant_idempotency_key"
        ),
    )
    op.create_index("ix_responses_segment_id", "responses", ["segment_id"])
    op.create_index("ix_responses_owner", "responses", ["owner"])
    op.create_index("ix_responses_expires_at", "responses", ["expires_at"])
    op.create_table(
        "response_items",
        sa.Column("number", _ROW_NUMBER, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("item_key", sa.LargeBinary(16), nullable=False),
        sa.Column("response_id", sa.String(256), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_response_items"),
        sa.ForeignKeyConstraint(
            ["response_id"], ["responses.id"], name="fk_response_items_response_id"
        ),
    )
    op.create_index("ix_response_items_response_id", "response_items", ["response_id"])
    op.create_index("ix_response_items_tenant_item_key", "response_items", ["tenant", "item_key"])
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(256), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("segment_id", sa.String(32), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_conversations"),
        sa.ForeignKeyConstraint(
            ["segment_id"], ["segments.id"], name="fk_conversations_segment_id"
        ),
    )
    op.create_index("ix_conversations_segment_id", "conversations", ["segment_id"])
    op.create_table(
        "conversation_items",
        sa.Column("conversation_id", sa.String(256), nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("item_key", sa.LargeBinary(16), nullable=False),
        sa.Column("item", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("conversation_id", "position", name="pk_conversation_items"),
        sa.ForeignKeyConstraint(
            ["conversation_id"], ["conversations.id"], name="fk_conversation_items_conversation_id"
        ),
    )
    op.create_index(
        "ix_conversation_items_tenant_item_key", "conversation_items", ["tenant", "item_key"]
    )
    op.create_table(
        "usage_records",
        sa.Column("response_id", sa.String(256), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("closed_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("response_id", name="pk_usage_records"),
    )
    op.create_index("ix_usage_records_created_at", "usage_records", ["created_at"])
    op.create_index("ix_usage_records_tenant_created_at", "usage_records", ["tenant", "created_at"])
    op.create_table(
        "usage_outbox",
        sa.Column("sink", sa.String(64), nullable=False),
        sa.Column("response_id", sa.String(256), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("sink", "response_id", name="pk_usage_outbox"),
        sa.ForeignKeyConstraint(
            ["response_id"], ["usage_records.response_id"], name="fk_usage_outbox_response_id"
        ),
    )
    op.create_index("ix_usage_outbox_sink_next_at", "usage_outbox", ["sink", "next_at"])
    op.create_index("ix_usage_outbox_response_id", "usage_outbox", ["response_id"])
