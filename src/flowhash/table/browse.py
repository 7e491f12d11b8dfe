"""Many items at once, for those who look at a table: samples, loads, codes.

A server must not walk over a million ids to draw twenty of them, so these methods read the state as
the table's own do.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.table.hits import Item
from flowhash.table.ids import read_ids
from flowhash.table.plan import add_bucket_sizes
from flowhash.table.segment import Segment
from flowhash.table.state import State
from flowhash.table.stats import Stats, table_stats
from flowhash.table.view import TableView

Piece = tuple[Segment, NDArray[np.int64]]  # the live rows of a bucket in one segment


class Browsing(TableView):
    """The part of a table that a server shows to people; each method sees one state, whole."""

    def sample(self, count: int, seed: int) -> tuple[int, list[Item]]:
        """How many items there are, and a random sample of them; the same for the same seed."""
        state = self._open_state()
        wanted = draw(state.live, count, seed)
        found, start = [], 0
        for part in state.parts:
            here = wanted[(wanted >= start) & (wanted < start + part.live)] - start
            if len(here):
                found += [_item_at(part.segment, row) for row in part.live_rows()[here].tolist()]
            start += part.live
        return state.live, found

    def bucket_items(self, bucket: int, count: int, seed: int) -> list[Item]:
        """A random sample of the items in a bucket."""
        rows = self._bucket_rows(bucket)
        return [_item_at(segment, row) for segment, row in _drawn(rows, count, seed)]

    def bucket_payloads(
        self, bucket: int, count: int, seed: int
    ) -> tuple[int, list[dict[str, Any] | None]]:
        """How many items a bucket holds, and the payloads of a random sample of them."""
        rows = self._bucket_rows(bucket)
        drawn = _drawn(rows, count, seed)
        return sum(len(part) for _, part in rows), [
            segment.payload_at(row) for segment, row in drawn
        ]

    def bucket_loads(self) -> NDArray[np.int64]:
        """How many items each bucket holds [d]."""
        loads = np.zeros(self.buckets, np.int64)
        for part in self._open_state().parts:
            fault = add_bucket_sizes(part.segment.arrays, part.alive, loads)
            if fault != -1:
                part.segment.fail(fault)
        return loads

    def codes_of(self, ids: list[Any]) -> list[list[int] | None]:
        """The buckets of each item; None for those that are not there (any more)."""
        state = self._open_state()
        parts, rows = state.locate(read_ids(ids, self.id_kind))
        found: list[list[int] | None] = [None] * len(ids)
        for number in np.unique(parts[parts >= 0]).tolist():
            places = np.flatnonzero(parts == number)
            codes = state.parts[number].segment.codes_at(rows[places])
            for place, code in zip(places.tolist(), codes.tolist(), strict=True):
                found[place] = code
        return found

    def _bucket_rows(self, bucket: int) -> list[Piece]:
        found = []
        for part in self._open_state().parts:
            rows = part.segment.bucket_rows(bucket)
            found.append((part.segment, rows[part.alive[rows] == 1] if len(part.alive) else rows))
        return found


def state_of(table: Browsing) -> State:
    """The state of the moment; it never changes."""
    return table._open_state()


class CachedStats:
    """The figures of a table, measured anew only when it changed."""

    def __init__(self, table: Browsing) -> None:
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


def draw(total: int, count: int, seed: int) -> NDArray[np.int64]:
    """Up to ``count`` different numbers below ``total``, ascending."""
    if count >= total:
        return np.arange(total, dtype=np.int64)
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(total, count, replace=False, shuffle=False))


def _drawn(pieces: list[Piece], count: int, seed: int) -> list[tuple[Segment, int]]:
    """A random sample of rows, in their order."""
    ends = np.cumsum([len(rows) for _, rows in pieces])
    wanted = draw(int(ends[-1]) if len(ends) else 0, count, seed)
    numbers = np.searchsorted(ends, wanted, side="right")
    found = []
    for place, number in zip(wanted.tolist(), numbers.tolist(), strict=True):
        segment, rows = pieces[number]
        found.append((segment, int(rows[place - (int(ends[number]) - len(rows))])))
    return found


def _item_at(segment: Segment, row: int) -> Item:
    code = segment.codes_at(np.array([row]))[0]
    return Item(segment.id_at(row), code, segment.embedding_at(row), segment.payload_at(row))
