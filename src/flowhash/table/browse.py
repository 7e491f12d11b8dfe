"""Many items at once, for those who look at a table: samples, loads, codes, what a query opens.

A server must not walk over a million ids to draw twenty of them, so this module reads the state as
the table's own methods do.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.table.hits import Item
from flowhash.table.ids import read_ids
from flowhash.table.opening import open_until
from flowhash.table.plan import add_bucket_sizes
from flowhash.table.segment import Segment
from flowhash.table.state import State
from flowhash.table.stats import Stats, table_stats
from flowhash.table.table import HashTable


def state_of(table: HashTable) -> State:
    """The state of the moment; it never changes."""
    return table._open_state()


def random_items(table: HashTable, count: int, seed: int) -> tuple[int, list[Item]]:
    """How many items there are, and a random sample of them; the same for the same seed."""
    state = state_of(table)
    wanted = _draw(state.live, count, seed)
    found, start = [], 0
    for part in state.parts:
        here = wanted[(wanted >= start) & (wanted < start + part.live)] - start
        if len(here):
            found += [item_at(part.segment, row) for row in part.live_rows()[here].tolist()]
        start += part.live
    return state.live, found


def bucket_rows(table: HashTable, bucket: int) -> list[tuple[Segment, NDArray[np.int64]]]:
    """The live rows of a bucket in each segment."""
    found = []
    for part in state_of(table).parts:
        rows = part.segment.bucket_rows(bucket)
        found.append((part.segment, rows[part.alive[rows] == 1] if len(part.alive) else rows))
    return found


def drawn(
    pieces: list[tuple[Segment, NDArray[np.int64]]], count: int, seed: int
) -> list[tuple[Segment, int]]:
    """A random sample of rows, in their order."""
    ends = np.cumsum([len(rows) for _, rows in pieces])
    wanted = _draw(int(ends[-1]) if len(ends) else 0, count, seed)
    numbers = np.searchsorted(ends, wanted, side="right")
    found = []
    for place, number in zip(wanted.tolist(), numbers.tolist(), strict=True):
        segment, rows = pieces[number]
        found.append((segment, int(rows[place - (int(ends[number]) - len(rows))])))
    return found


def item_at(segment: Segment, row: int) -> Item:
    """One stored item."""
    code = segment.codes_at(np.array([row]))[0]
    return Item(segment.id_at(row), code, segment.embedding_at(row), segment.payload_at(row))


def bucket_loads(table: HashTable) -> NDArray[np.int64]:
    """How many items each bucket holds [d]."""
    loads = np.zeros(table.buckets, np.int64)
    for part in state_of(table).parts:
        fault = add_bucket_sizes(part.segment.arrays, part.alive, loads)
        if fault != -1:
            part.segment.fail(fault)
    return loads


def codes_of(table: HashTable, ids: list[Any]) -> list[list[int] | None]:
    """The buckets of each item; None for those that were deleted meanwhile."""
    state = state_of(table)
    parts, rows = state.locate(read_ids(ids, table.id_kind))
    found: list[list[int] | None] = [None] * len(ids)
    for number in np.unique(parts[parts >= 0]).tolist():
        places = np.flatnonzero(parts == number)
        codes = state.parts[number].segment.codes_at(rows[places])
        for place, code in zip(places.tolist(), codes.tolist(), strict=True):
            found[place] = code
    return found


def opened_counts(
    table: HashTable, order: NDArray[np.int32], probe: int, at_least: int | None
) -> NDArray[np.int32]:
    """How many of its buckets each query opens [q]."""
    opened = np.full(len(order), probe, np.int32)
    if at_least is not None:
        state = state_of(table)
        alive = [part.alive for part in state.parts]
        open_until(state.parts, alive, order, opened, at_least, table.buckets, table.active)
    return opened


class CachedStats:
    """The figures of a table, measured anew only when it changed."""

    def __init__(self, table: HashTable) -> None:
        self._table = table
        # Weakly, or files that a merge has replaced would be kept until somebody asks again.
        self._kept: tuple[weakref.ref[State], Stats] | None = None

    def __call__(self) -> Stats:
        """The figures of this moment."""
        state, kept = state_of(self._table), self._kept
        if kept is None or kept[0]() is not state:
            kept = (weakref.ref(state), table_stats(self._table._settings, state))
            self._kept = kept
        return kept[1]


def _draw(total: int, count: int, seed: int) -> NDArray[np.int64]:
    """Up to ``count`` different numbers below ``total``, ascending."""
    if count >= total:
        return np.arange(total, dtype=np.int64)
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(total, count, replace=False, shuffle=False))
