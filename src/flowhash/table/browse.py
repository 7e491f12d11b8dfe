"""Many items at once, for those who look at a table: samples, loads, codes.

A server must not walk over a million ids to draw twenty of them, so these methods read the state as
the table's own do.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import DamagedFileError
from flowhash.table.hits import Item
from flowhash.table.ids import read_ids
from flowhash.table.plan import add_bucket_sizes
from flowhash.table.segment import Segment
from flowhash.table.state import State
from flowhash.table.stats import Stats, table_stats
from flowhash.table.view import TableView

Piece = tuple[Segment, NDArray[np.int64]]  # live rows of one segment
# Is told of what cannot be read: the item whose payload it is, or None where it is not a payload.
Lost = Callable[["int | str | None", DamagedFileError], None]
Read = TypeVar("Read")


class Browsing(TableView):
    """The part of a table that a server shows to people; each method sees one state, whole.

    Where ``lost`` is given, what is drawn and cannot be read is told to it and left out; without
    it, the first such item raises DamagedFileError.
    """

    def sample(self, count: int, seed: int, lost: Lost | None = None) -> tuple[int, list[Item]]:
        """How many items there are, and a random sample of them; the same for the same seed."""
        state = self._open_state()
        wanted = draw(state.live, count, seed)
        drawn, start = list[tuple[Segment, int]](), 0
        for part in state.parts:
            here = wanted[(wanted >= start) & (wanted < start + part.live)] - start
            if len(here):
                drawn += [(part.segment, row) for row in part.live_rows()[here].tolist()]
            start += part.live
        return state.live, _read(drawn, _item_at, lost)

    def bucket_items(
        self, bucket: int, count: int, seed: int, lost: Lost | None = None
    ) -> list[Item]:
        """A random sample of the items in a bucket."""
        return _read(_drawn(self._bucket_rows(bucket), count, seed), _item_at, lost)

    def bucket_payloads(
        self, bucket: int, count: int, seed: int, lost: Lost | None = None
    ) -> tuple[int, list[dict[str, Any] | None]]:
        """How many items a bucket holds, and the payloads of a random sample of them."""
        rows = self._bucket_rows(bucket)
        load = sum(len(part) for _, part in rows)
        return load, _read(_drawn(rows, count, seed), Segment.payload_at, lost)

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
        return codes_at(state, *state.locate(read_ids(ids, self.id_kind)))

    def _bucket_rows(self, bucket: int) -> list[Piece]:
        found = []
        for part in self._open_state().parts:
            rows = part.segment.bucket_rows(bucket)
            found.append((part.segment, rows[part.alive[rows] == 1] if len(part.alive) else rows))
        return found


def state_of(table: Browsing) -> State:
    """The state of the moment; it never changes."""
    return table._open_state()


def codes_at(
    state: State, parts: NDArray[np.int64], rows: NDArray[np.int64]
) -> list[list[int] | None]:
    """The buckets of the items in rows of parts [n]; None where the part is -1."""
    found: list[list[int] | None] = [None] * len(parts)
    for number in set(parts.tolist()) - {-1}:
        places = np.flatnonzero(parts == number)
        codes = state.parts[number].segment.codes_at(rows[places])
        for place, code in zip(places.tolist(), codes.tolist(), strict=True):
            found[place] = code
    return found


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


def _read(
    drawn: list[tuple[Segment, int]], read: Callable[[Segment, int], Read], lost: Lost | None
) -> list[Read]:
    """What ``read`` gives for each row; rows that are damaged are told to ``lost``, if given."""
    found = []
    for segment, row in drawn:
        try:
            one = read(segment, row)
        except DamagedFileError as error:
            if lost is None:
                raise
            lost(_item_without_payload(segment, row), error)
            continue
        found.append(one)
    return found


def _item_without_payload(segment: Segment, row: int) -> int | str | None:
    """The id of a row that cannot be read, if its payload is all that is damaged."""
    try:
        segment.codes_at(np.array([row]))
        segment.embedding_at(row)
        return segment.id_at(row)
    except DamagedFileError:
        return None


def _item_at(segment: Segment, row: int) -> Item:
    code = segment.codes_at(np.array([row]))[0]
    return Item(segment.id_at(row), code, segment.embedding_at(row), segment.payload_at(row))
