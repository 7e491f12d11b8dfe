"""Qdrant, on a server or in the client's local mode.

One point for each item. The buckets of its code are a payload field with an index; a query filters
by the buckets that it opens and ranks what is left by brute force, so that there is no graph to
build and nothing approximate.
"""

from flowhash.engines.qdrant.qdrant_table import QdrantTable
from flowhash.engines.qdrant.table_upload import QdrantLoading

open_stored = QdrantTable.open
create_stored = QdrantTable.create
exists = QdrantTable.exists
remove = QdrantTable.remove
loading = QdrantLoading

__all__ = ["QdrantLoading", "QdrantTable"]
