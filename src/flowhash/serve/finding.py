"""Searching the table: what a query is, and what is found for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.engines import BrowsedEngine
from flowhash.table import HashTable, Hits
from flowhash.table.hash_table import codes_at, search_state, state_of
from flowhash.table.search.scan import ROW_BITS, ROW_MASK
from flowhash.table.search.small_batch import FEW
from flowhash.table.segments.segment import State

WIDE = 16  # times k buckets: a search that opens more waits in a line of its own
LONG = 256  # hits with payloads: an answer with more is written in that line, too
REPEATS = 3  # of a search whose time is compared; the fastest counts
NOWHERE = np.empty(0, np.int64)


PayloadAt = Callable[[int], tuple[int, "dict[str, Any] | None"]]


@dataclass(eq=False)
class Query:
    """What one request asks for.

    Attributes:
        rows: vectors or images to encode, or, with ``order``, embeddings [n, …].
        order: the buckets of each row in the order to open them [n, m]; None: the encoder's.
        top: hits of each row.
        probe: buckets to open; None: k.
        at_least: open more until so many items are found.
        payloads: whether to show what is stored with the hits.
        without: an id that is not to be among the hits.
        picture: the address of the query's own picture.
        compare: with what opening every bucket finds.
    """

    rows: NDArray[Any]
    order: NDArray[np.int32] | None
    top: int
    probe: int | None
    at_least: int | None
    payloads: bool
    without: int | str | None = None
    picture: str | None = None
    compare: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def group(self) -> Hashable:
        """Queries that one call of ``HashTable.search`` can answer; what is timed is alone."""
        if self.compare:
            return id(self)
        width = None if self.order is None else self.order.shape[1]
        return (self.wanted, self.probe, self.at_least, self.payloads, width, self.rows.shape[1:])

    @property
    def wanted(self) -> int:
        """Hits to search for: one more where one may have to be left out."""
        return self.top if self.without is None else self.top + 1


@dataclass(eq=False)
class Found:
    """What a batch found.

    Attributes:
        hits: of the table.
        codes: the buckets of all hits, one after the other, where they are to be shown.
        payload_at: reads the payload of one of these, with the bytes that it takes; payloads may
            be large, so that they are read one by one while the answer is written.
        opened: the buckets that each query opened.
        milliseconds: that the table took.
    """

    hits: Hits
    codes: list[list[int] | None] | None
    payload_at: PayloadAt
    opened: list[list[int]]
    milliseconds: float


def is_wide(query: Query, table: BrowsedEngine) -> bool:
    """Whether a search may open so many buckets that it takes long."""
    return query.at_least is not None or (query.probe or 0) > WIDE * table.active


def is_long(query: Query) -> bool:
    """Whether an answer may have so many payloads that writing it takes long."""
    return query.payloads and len(query) * query.top > LONG


def find(
    table: BrowsedEngine,
    query: Query,
    order: NDArray[np.int32],
    embeddings: NDArray[np.float32],
    threads: int | None,
    repeats: int = 1,
) -> Found:
    """Search the table.

    Args:
        table: that is searched.
        query: how it is searched.
        order: buckets to open [n, m].
        embeddings: [n, dim].
        threads: None lets the table choose, but one for what is over in a millisecond: the other
            cores have requests to read.
        repeats: how often, to measure; the fastest time is told.
    """
    state = state_of(table) if isinstance(table, HashTable) else None
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        hits, places = _hits(table, state, query, order, embeddings, threads)
        times.append((time.perf_counter() - start) * 1e3)
    codes = None
    payload_at: PayloadAt = _no_payload
    if query.payloads and state is not None:
        codes, payload_at = _stored(state, places)
    elif query.payloads:
        lines = zip(hits.ids.tolist(), hits.counts.tolist(), strict=True)
        codes = table.codes_of([item for line, count in lines for item in line[:count]])
        payload_at = _payloads_of(hits)
    opened = [
        line[:count] for line, count in zip(order.tolist(), hits.opened.tolist(), strict=True)
    ]
    return Found(hits, codes, payload_at, opened, min(times))


def _no_payload(place: int) -> tuple[int, dict[str, Any] | None]:
    return 0, None


def _payloads_of(hits: Hits) -> PayloadAt:
    """Payloads that came with the hits; an engine reads them all at once."""
    payloads = [payload for line in hits.payloads or () for payload in line]
    return lambda place: (0, payloads[place])


def _stored(state: State, places: NDArray[np.int64]) -> tuple[list[list[int] | None], PayloadAt]:
    """The buckets of hits, and their payloads as they are stored; both of the state searched.

    Args:
        state: that was searched.
        places: of the hits in it, -1 where there is none [q, top].
    """
    found = places[places >= 0]
    parts, rows = found >> ROW_BITS, found & ROW_MASK
    codes = codes_at(state, parts, rows)
    where = list(zip(parts.tolist(), rows.tolist(), strict=True))

    def payload_at(place: int) -> tuple[int, dict[str, Any] | None]:
        part, row = where[place]
        segment = state.parts[part].segment
        offsets = segment.payloads.offsets
        size = int(offsets[row + 1] - offsets[row]) if len(offsets) else 0
        return size, segment.payload_at(row)

    return codes, payload_at


def find_everywhere(
    table: BrowsedEngine, query: Query, embeddings: NDArray[np.float32], threads: int | None
) -> dict[str, Any]:
    """What opening every bucket finds for one query, and how long that takes, for an answer."""
    order = np.arange(table.buckets, dtype=np.int32)[None]
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        hits = table.search(order, embeddings, query.wanted, probe=table.buckets, threads=threads)
        times.append((time.perf_counter() - start) * 1e3)
    count = int(hits.counts[0])
    pairs = zip(hits.ids[0, :count].tolist(), hits.distances[0, :count], strict=True)
    kept = [pair for pair in pairs if query.without is None or pair[0] != query.without]
    kept = kept[: query.top]
    answer = {"ids": [pair[0] for pair in kept], "distances": [pair[1] for pair in kept]}
    return {
        "milliseconds": round(min(times), 4),
        "scanned": int(hits.scanned[0]),
        "answers": [answer],
    }


def _hits(
    table: BrowsedEngine,
    state: State | None,
    query: Query,
    order: NDArray[np.int32],
    embeddings: NDArray[np.float32],
    threads: int | None,
) -> tuple[Hits, NDArray[np.int64]]:
    """The hits, and their places in the state of a table of ours; other engines have neither."""
    wide = is_wide(query, table)
    threads = threads or (None if wide else 1)
    if not isinstance(table, HashTable) or state is None:
        hits = table.search(
            order, embeddings, query.wanted, probe=query.probe, at_least=query.at_least,
            threads=threads, payloads=query.payloads,
        )  # fmt: skip
        return hits, NOWHERE

    def search(part: slice) -> tuple[Hits, NDArray[np.int64]]:
        return search_state(
            table, state, order[part], embeddings[part], query.wanted, probe=query.probe,
            at_least=query.at_least, threads=threads,
        )  # fmt: skip

    # The table's code for a few queries takes half the time of that for batches, unless many
    # queries of a batch open the same bucket.
    step = max(1, FEW // (query.probe or table.active))
    apart = len(order) * (query.probe or table.active) <= table.buckets
    if wide or not apart or len(order) <= step or len(state.parts) != 1:
        return search(slice(None))
    found = [search(slice(start, start + step)) for start in range(0, len(order), step)]
    parts = [hits for hits, _ in found]
    return Hits(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.distances for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.scanned for part in parts]),
        np.concatenate([part.opened for part in parts]),
    ), np.concatenate([places for _, places in found])
