"""What users give to an engine, checked by the table's own code, so that the words are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import plain_integer
from flowhash.errors import InputError
from flowhash.table import (
    LARGEST_ID,
    HashTable,
    TableSettings,
    allowed_rows,
    check_search,
    check_vectors,
    read_ids,
    read_queries,
    state_of,
)

WHERE = (
    "It is a list or set of ids, a boolean mask, or a dict of payload fields and what each may be, "
    'such as {"label": ["cat", "dog"]}'
)


def memory_table(settings: TableSettings) -> HashTable:
    """An empty table in memory with these settings."""
    return HashTable.create(
        buckets=settings.buckets,
        dim=settings.dim,
        active=settings.active,
        metric=settings.metric,
        dtype=settings.dtype,
        ids=settings.ids,
        encoder=settings.encoder,
    )


@dataclass(frozen=True, eq=False)
class EngineItems:
    """Items that passed every check of a table.

    Attributes:
        table: holds them, in memory, each id once.
        ids: as the user gave them, or counted from 0 [n].
        counted: whether the engine is to count the ids: 0 stands for its next id.
    """

    table: HashTable
    ids: NDArray[Any]
    counted: bool

    def counted_from(self, next_id: int) -> NDArray[Any]:
        """The ids [n], once it is known where counting goes on.

        Raises:
            InputError: no number is left.
        """
        if self.counted and next_id + len(self.ids) - 1 > LARGEST_ID:
            raise InputError(
                f"ids count on from the largest one, {next_id - 1}, and no number is left; give ids"
            )
        return self.ids + next_id if self.counted else self.ids


def new_items(
    settings: TableSettings,
    codes: ArrayLike,
    embeddings: ArrayLike,
    ids: Any,
    payloads: Sequence[dict[str, Any] | None] | None,
    encoder: str | None,
) -> EngineItems:
    """Check the arguments of ``add``.

    Raises:
        InputError: as :meth:`flowhash.HashTable.add` does.
    """
    table = memory_table(settings)
    known = table.add(codes, embeddings, ids, payloads, encoder=encoder)
    return EngineItems(table, known, ids is None)


@dataclass(frozen=True, eq=False)
class EngineQueries:
    """Queries that passed every check of a table.

    Attributes:
        order: buckets in the order to open them [q, m].
        queries: [q, dim].
        top: how many to return.
        probe: buckets that every query opens.
        at_least: open more until so many items are found, or None.
    """

    order: NDArray[np.int32]
    queries: NDArray[np.float32]
    top: int
    probe: int
    at_least: int | None


def asked(
    empty: HashTable,
    ordered_buckets: ArrayLike,
    queries: ArrayLike,
    top: int,
    probe: int | None,
    at_least: int | None,
    threads: int | None,
    encoder: str | None,
) -> EngineQueries:
    """Check the arguments of ``search``.

    Args:
        empty: a table of :func:`memory_table`.
        ordered_buckets: as of :meth:`flowhash.HashTable.search`, and so are the others.
        queries: [q, dim].
        top: hits wanted.
        probe: buckets to open; None is k.
        at_least: items to find.
        threads: only checked; an engine has its own.
        encoder: the fingerprint of the queries' encoder.

    Raises:
        InputError: as :meth:`flowhash.HashTable.search` does.
    """
    check_vectors(empty.encoder, encoder)
    order, vectors = read_queries(empty._settings, ordered_buckets, queries)
    probe = empty.active if probe is None else plain_integer(probe)
    top = plain_integer(top)
    check_search(order, top, probe, at_least, threads)
    # The kernels look at the numbers, in an empty table as in a full one.
    empty.search(order, vectors, 1, probe=probe if at_least is None else order.shape[1])
    return EngineQueries(order, vectors, top, probe, None if at_least is None else int(at_least))


def allowed_ids(empty: HashTable, where: Any) -> list[Any]:
    """``where`` as ids: a list, a set, an array of them, or a mask.

    Raises:
        InputError: it is neither, or of the wrong kind.
    """
    settings = empty._settings
    if isinstance(where, Iterator):  # which can be read once, and is checked first
        where = list(where)
    allowed_rows(settings, state_of(empty), where, WHERE)  # the table's own checks
    array = np.asarray(where) if isinstance(where, (np.ndarray, list, tuple)) else None
    if array is not None and array.dtype == bool:
        allowed: list[Any] = np.flatnonzero(array).tolist()
        return allowed
    found = read_ids(where, settings.ids)
    return [found.value(place) for place in range(len(found))]
