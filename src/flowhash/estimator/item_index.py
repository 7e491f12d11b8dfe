"""Encoded items in a table in memory, and what a table holds, in the order of its ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.encoder import Encoded, Encoder
from flowhash.errors import InputError
from flowhash.networks import device_of, run_networks
from flowhash.table import HashTable, Hits

ROWS = 8_192  # items that are encoded at once
METRIC_NAMES = {  # the names that people know them by
    "euclidean": "euclidean", "l2": "euclidean", "cosine": "cosine",
    "inner": "inner", "ip": "inner", "dot": "inner",
}  # fmt: skip


def new_table(encoder: Encoder, metric: str, path: Path | None = None) -> HashTable:
    """An empty table that ranks by ``metric``, one of the values of ``METRICS``.

    Rows of length one have the same order by Euclidean distance as by cosine.
    """
    return encoder.create_table(path, metric="inner" if metric == "inner" else "euclidean")


def add_items(
    encoder: Encoder, table: HashTable, items: NDArray[np.float32], device: str
) -> NDArray[np.int64]:
    """Encode items and add them; the ids, which count from the number of items before."""
    parts = encoder.stream(items, ROWS, device)
    added = [table.add(part.codes, part.embeddings, encoder=part.fingerprint) for part in parts]
    table.compact()  # one segment is the fastest to search
    return np.concatenate(added)


def check_unchanged(table: HashTable, items: int) -> None:
    """Refuse a table whose ids are no longer the positions 0 to ``items`` - 1."""
    if len(table) != items or table.next_id != items:
        raise InputError(
            f"table_ was changed from outside: it has {len(table)} items and would number the next "
            f"one {table.next_id}, expected {items} for both, because labels belong to positions. "
            "Put items in with add, or fit again; to delete some, keep a HashTable of your own"
        )


def contents(table: HashTable, items: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Codes [n, k] and embeddings [n, dim] of all ``items``, in the order of their ids."""
    check_unchanged(table, items)
    codes = np.empty((len(table), table.active), np.int32)
    embeddings = np.empty((len(table), table.dim), np.float32)
    for part in table.batches(ROWS, payloads=False):
        codes[part.ids] = part.codes
        embeddings[part.ids] = part.embeddings
    return codes, embeddings


def encode_stored(encoder: Encoder, table: HashTable, device: str) -> Encoded:
    """The items of a table as queries: activations are computed anew from their embeddings."""
    _, embeddings = contents(table, len(table))
    if encoder.base is None:  # the hash network's outputs are the embeddings
        return Encoded(embeddings, embeddings, encoder.active, encoder.fingerprint)
    # The base passes vectors on as they are, so that embeddings are what the hash network takes.
    chosen = device_of(device)
    blocks = (embeddings[start : start + ROWS] for start in range(0, len(embeddings), ROWS))
    network = encoder.hash.to(chosen)
    made = np.concatenate([part for (part,) in run_networks([network], blocks, chosen)])
    return Encoded(embeddings, made, encoder.active, encoder.fingerprint)


def search_items(
    table: HashTable, queries: Encoded, top: int, itself: bool, **options: Any
) -> Hits:
    """Search; with ``itself`` query i is item i of the table, which is neither found nor scanned.

    Where many items are the same as the query, it may not be among the nearest; then the last of
    them is left out, as scikit-learn does.
    """
    first = None if options.get("at_least") is not None else options.get("probe") or queries.active
    spare = 1 if itself else 0
    if options.get("at_least") is not None:
        options["at_least"] += spare
    found = table.search(
        queries.ordered_buckets(first), queries.embeddings, top + spare,
        encoder=queries.fingerprint, **options,
    )  # fmt: skip
    return found.without(np.arange(len(found))) if itself else found
