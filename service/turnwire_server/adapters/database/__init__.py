"""The SQL database: SQLite or PostgreSQL, its tables and their migrations.

Stores and the ledger are built on it. Optional: everything that imports SQLAlchemy is imported only
where a database is configured.
"""
