"""PostgreSQL with pgvector, on one server or spread over many by Citus.

The layout is one row for each bucket of each item. The nearest of a union of buckets are among the
nearest of each bucket, so that one bucket after the other, merged, is exact; and one bucket is one
range of the primary key, and one shard.
"""

from flowhash.engines.postgres.postgres_table import PostgresTable
from flowhash.engines.postgres.table_load import PostgresLoading

open_stored = PostgresTable.open
create_stored = PostgresTable.create
exists = PostgresTable.exists
remove = PostgresTable.remove
loading = PostgresLoading

__all__ = ["PostgresLoading", "PostgresTable"]
