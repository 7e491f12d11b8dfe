"""Qdrant, on a server or in the client's local mode.

One point for each item. The buckets of its code are a payload field with an index; a query filters
by the buckets that it opens and ranks what is left by brute force, so that there is no graph to
build and nothing approximate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.engines.qdrant.qdrant_table import QdrantTable
    from flowhash.engines.qdrant.table_upload import QdrantLoading
    from flowhash.table import HashTable


def _engine() -> type[QdrantTable]:
    require("qdrant_client", "qdrant")
    from flowhash.engines.qdrant.qdrant_table import QdrantTable

    return QdrantTable


def open_stored(address: str, mode: str = "r", *, encoder: str | None = None) -> QdrantTable:
    """Open the collection at an address; see :meth:`QdrantTable.open`."""
    return _engine().open(address, mode, encoder=encoder)


def create_stored(address: str, *, buckets: int, dim: int, **settings: Any) -> QdrantTable:
    """Make an empty collection; see :meth:`QdrantTable.create`."""
    return _engine().create(address, buckets=buckets, dim=dim, **settings)


def exists(address: str) -> bool:
    """Whether there is a collection of that name, whoever made it."""
    return _engine().exists(address)


def remove(address: str) -> None:
    """Delete a collection that FlowHash made; nothing happens where there is none."""
    _engine().remove(address)


def loading(
    table: HashTable, address: str, *, distribute: bool = False, restart: bool = False
) -> QdrantLoading:
    """Begin to copy a table, or go on with it."""
    require("qdrant_client", "qdrant")
    from flowhash.engines.qdrant.table_upload import QdrantLoading

    return QdrantLoading(table, address, distribute=distribute, restart=restart)
