"""Tables of an encoder: made for it, filled with its items, searched with its queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.encoder.encoded_items import Encoded
from flowhash.engines import Engine, RemoteEngine, create_engine, is_address
from flowhash.errors import InputError
from flowhash.table import HashTable, Hits, check_vectors

if TYPE_CHECKING:
    from flowhash.encoder.encoder import Encoder


def create_table(
    encoder: Encoder, path: str | Path | None, options: dict[str, Any]
) -> HashTable | RemoteEngine:
    """An empty table with the encoder's sizes and fingerprint."""
    _check_metric(encoder, options.get("metric", "euclidean"))
    sizes: dict[str, Any] = {
        "buckets": encoder.buckets,
        "dim": encoder.dim,
        "active": encoder.active,
        "encoder": encoder.fingerprint,
    }
    if isinstance(path, str) and is_address(path):
        return create_engine(path, **sizes, **options)
    return HashTable.create(path, **sizes, **options)


def _check_metric(encoder: Encoder, metric: Any) -> None:
    """Refuse angles and products of vectors that the encoder has moved: they are other ones."""
    if metric in MOVED and moves_vectors(encoder):
        raise InputError(MOVED[metric])


MOVED = {
    metric: f"metric is {metric!r}, but the encoder subtracts a mean from the vectors and ranks by "
    f"what is left, whose angles and products are other ones; {way}"
    for metric, way in {
        "cosine": "bring items and queries to length one and choose euclidean, which orders alike",
        "inner": 'choose euclidean, or learn with FlowHasher(metric="inner")',
    }.items()
}


def moves_vectors(encoder: Encoder) -> bool:
    """Whether it ranks by the vectors themselves, but moved, or scaled by more than one number."""
    taken = encoder.preprocessing
    scaled = taken.std.size > 1 and bool(np.ptp(taken.std))
    as_they_are = encoder.base is not None and encoder.base.passes_through
    return as_they_are and (bool(np.any(taken.mean)) or scaled)


def check_table(encoder: Encoder, table: Engine) -> None:
    """Refuse a table of another encoder, or one of other sizes, before anything is encoded.

    A table of more buckets would take the codes, but some of its buckets would stay empty for ever.
    """
    check_vectors(table.encoder, encoder.fingerprint)
    for name in ("buckets", "dim", "active"):
        has, makes = getattr(table, name), getattr(encoder, name)
        if has != makes:
            raise InputError(
                f"the table has {name}={has}, but this encoder makes {name}={makes}; use a table "
                "of encoder.create_table()"
            )


def add(
    encoder: Encoder,
    table: Engine,
    parts: Iterator[Encoded],
    total: int | None,
    ids: Any,
    payloads: Sequence[dict[str, Any] | None] | None,
) -> NDArray[Any]:
    """Add encoded parts one after the other; the ids [n].

    Args:
        encoder: makes the parts.
        table: takes them.
        parts: of the items, in order.
        total: how many items there are, None where that shows only at the end.
        ids: one an item, or None.
        payloads: one an item, or None.
    """
    check_table(encoder, table)
    given = {"ids": ids, "payloads": payloads}
    for name, values in given.items():
        if values is not None and not (
            hasattr(values, "__len__") and hasattr(values, "__getitem__")
        ):
            raise InputError(f"{name} is a {type(values).__name__}; expected an array or a list")
    _check_lengths(given, total, "nothing was added")
    added: list[NDArray[Any]] = []
    count = 0
    for part in parts:
        rows = slice(count, count + len(part))
        some = {name: None if values is None else values[rows] for name, values in given.items()}
        added.append(table.add(part.codes, part.embeddings, **some, encoder=part.fingerprint))
        count += len(part)
    _check_lengths(given, count, "the items were added")
    return np.concatenate(added) if added else np.zeros(0, np.int64)


def _check_lengths(given: dict[str, Any], count: int | None, state: str) -> None:
    for name, values in given.items():
        if values is not None and count is not None and len(values) != count:
            raise InputError(
                f"{name} has {len(values)} entries for {count} items; expected one each; {state}"
            )


def search(table: Engine, queries: Encoded, top: int, options: dict[str, Any]) -> Hits:
    """Search with as many ordered buckets as the options may open."""
    first: int | None = None
    if options.get("at_least") is None:
        wanted = options.get("probe") or queries.active
        # What is no number of buckets goes to the table as it is, which says so.
        first = min(wanted, table.buckets) if isinstance(wanted, int) and wanted > 0 else None
    return table.search(
        queries.ordered_buckets(first),
        queries.embeddings,
        top,
        encoder=queries.fingerprint,
        **options,
    )
