"""Alembic's entry: migrate over the connection that `migrate.upgrade` has opened and locked."""

from __future__ import annotations

from alembic import context

from turnwire_server.adapters.database.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    # Also on SQLite, where `BEGIN IMMEDIATE` was said: all migrations or none.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
