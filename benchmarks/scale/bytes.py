"""Bytes of an item: in a table's files, in PostgreSQL, in Qdrant."""

from __future__ import annotations

SIZES = {"float16": 2, "float32": 4}
CHECKED = 1024  # bytes that share a checksum of 4


def item_bytes(dim: int, active: int, dtype: str, payload: int = 0) -> float:
    """Bytes of an item in a table's files (docs/format.md): ids are whole numbers."""
    size = 8 + 4 + 4 + dim * SIZES[dtype]  # ids, order, norms, embedding
    if active > 1:
        size += 8 * active  # codes, postings
    if payload:
        size += 8 + payload
    return size * (1 + 4 / CHECKED)


def postgres_bytes(dim: int, active: int, dtype: str, payload: int = 0) -> float:
    """Bytes of an item in PostgreSQL: k rows of (bucket, id, others, payload, vector), indexes."""
    row = 24 + 8 + 8  # header, bucket and what aligns the id, id
    if active > 1:
        row += 21 + 4 * (active - 1)  # a short array
    if payload:
        row += payload + (1 if payload < 127 else 4)
    row = -(-row // 4) * 4 + 8 + dim * SIZES[dtype]
    row = -(-row // 8) * 8 + 4  # and its line pointer
    on_page = max(1, (8192 - 24) // row)
    keys = (24 + 4 + 16 + 4) / 0.9  # primary key (bucket, id) and the index on id, 90 % full
    return active * (8192 / on_page + keys)


def qdrant_bytes(dim: int, payload: int = 0) -> float:
    """Bytes of memory of a point in Qdrant, by its own rule: vectors times 1.5; and the payload."""
    return 1.5 * 4 * dim + payload
