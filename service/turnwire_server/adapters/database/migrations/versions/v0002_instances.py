"""The server processes that use the database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "instances",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_instances"),
    )
