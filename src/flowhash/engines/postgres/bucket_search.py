"""Searching: the nearest rows of each opened bucket, merged, measured again, and proven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import Cursor, sql

from flowhash.engines.engine_arguments import EngineQueries
from flowhash.engines.exact_answers import (
    GROWTH,
    SPARE,
    EngineCandidates,
    exact_distances,
    least_possible,
    ranked,
)
from flowhash.engines.postgres.bucket_counts import BucketCounts, OpenedBuckets, Wanted
from flowhash.engines.postgres.connection_pool import Connection, Vector
from flowhash.engines.postgres.payload_filter import Filter
from flowhash.engines.postgres.schema import Names, TableFacts
from flowhash.table import INT64, Hits, TableSettings, padded_codes

STATEMENTS_AT_ONCE = 128  # in one pipeline; enough that the server seldom waits for the next
QUERIES_AT_ONCE = 2048  # counted and ranked together, so that a large batch fits the memory


def search_buckets(
    connection: Connection,
    names: Names,
    facts: TableFacts,
    known: dict[Wanted, int],
    asked: EngineQueries,
    chosen: Filter,
    payloads: bool,
    buckets: bool,
) -> Hits:
    """Answer queries from the state of the table that the connection's transaction sees.

    ``known`` are counts of that state with this filter; it gets what is counted now.
    """
    counts = BucketCounts(connection, names, facts.settings.active, chosen, known)
    pieces = []
    for start in range(0, max(1, len(asked.queries)), QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        some = replace(asked, order=asked.order[part], queries=asked.queries[part])
        opened = counts.opened(some)
        if not chosen and not facts.distributed:
            # All buckets are read alike. Left to itself the server plans each query anew or
            # not, as its first few happened to look, and that takes as long as reading one.
            connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        asking = _Asking(connection, names, facts, some, chosen, payloads, buckets)
        pieces.append(asking.answer(opened))
    return Hits.concatenate(pieces)


class _Asking:
    """One batch of queries on one state of a table."""

    def __init__(
        self, connection: Connection, names: Names, facts: TableFacts, asked: EngineQueries,
        chosen: Filter, payloads: bool, buckets: bool,
    ) -> None:  # fmt: skip
        self._asked = asked
        self._vectors = [Vector(query) for query in asked.queries]
        self._lengths = np.linalg.norm(asked.queries.astype(np.float64), axis=1)
        self._connection = connection
        self._settings = facts.settings
        self._largest = facts.largest
        self._chosen = chosen
        self._payloads, self._buckets = payloads, buckets
        more = ", payload" * payloads + ", bucket, others" * buckets
        self._command = sql.SQL(
            "SELECT id, embedding, {} AS distance{} FROM {} WHERE bucket = %s{}"
            " ORDER BY distance LIMIT %s"
        ).format(
            names.distance(facts.settings), sql.SQL(more), names.table, chosen.condition,
        ).as_bytes(connection)  # fmt: skip

    def answer(self, opened: OpenedBuckets) -> Hits:
        """The exact answer: lists are asked for anew, longer, until nothing can be behind them."""
        asked = self._asked
        wanted: list[Wish] = [
            (query, bucket, asked.top + SPARE)
            for query, line in enumerate(opened.useful)
            for bucket in line
        ]
        # The queries of a bucket one after the other: its rows are in the server's cache then.
        wanted.sort(key=lambda wish: wish[1])
        found: list[MeasuredRows] = []
        while True:
            taken = self._measured(wanted)
            found += taken
            candidates, distances = all_of(found)
            hits, worst = ranked(
                candidates, distances, self._settings.ids, len(asked.queries), asked.top,
                opened.found, opened.counts,
            )  # fmt: skip
            # Those of earlier rounds are proven: what has come since was only nearer.
            wanted = self._unproven(taken, worst)
            if not wanted:
                return hits

    def _measured(self, wanted: Sequence[Wish]) -> list[MeasuredRows]:
        """The lists. While the server works on some of them, the ones before are measured."""
        found: list[MeasuredRows] = []
        earlier: Sequence[Wish] = []
        cursor = self._connection.cursor(binary=True)

        def given(wishes: Sequence[Wish]) -> Iterator[tuple[Any, ...]]:
            for turn, (query, bucket, limit) in enumerate(wishes, 1):
                if turn == len(wishes) and earlier:
                    # The server has all but the last statement to work on.
                    found.append(self._read(earlier, cursor))
                yield self._vectors[query], bucket, *self._chosen.parameters, limit

        for start in range(0, len(wanted), STATEMENTS_AT_ONCE):
            wishes = wanted[start : start + STATEMENTS_AT_ONCE]
            # One cursor for all: the driver prepares the statement once and pipelines the rest.
            results = self._connection.cursor(binary=True)
            results.executemany(self._command, given(wishes), returning=True)
            earlier, cursor = wishes, results
        return [*found, self._read(earlier, cursor)]

    def _read(self, wishes: Sequence[Wish], cursor: Cursor[tuple[Any, ...]]) -> MeasuredRows:
        """Read what has come, and measure it."""
        lists = []
        for _ in wishes:
            lists.append(cursor.fetchall())
            cursor.nextset()
        cursor.close()
        sizes = [len(rows) for rows in lists]
        queries = np.array([query for query, _, _ in wishes], np.int64)
        candidates = self._candidates(np.repeat(queries, sizes), list(chain.from_iterable(lists)))
        return MeasuredRows(
            wishes,
            sizes,
            [rows[-1][2] if rows else 0.0 for rows in lists],
            # A slice of none would keep them all.
            replace(candidates, embeddings=np.empty((0, self._settings.dim), np.float32)),
            exact_distances(self._settings.metric, self._asked.queries, candidates),
        )

    def _candidates(
        self, queries: NDArray[np.int64], rows: Sequence[tuple[Any, ...]]
    ) -> EngineCandidates:
        settings = self._settings
        numbers = settings.ids == INT64
        ids = np.empty(len(rows), np.int64 if numbers else object)
        ids[:] = [row[0] for row in rows]
        payloads = [row[3] for row in rows] if self._payloads else None
        codes = None
        if self._buckets:
            each = [sorted([row[-2], *(row[-1] or ())]) for row in rows]
            codes = padded_codes(each, settings.active)
        return EngineCandidates(
            queries, ids, embeddings_of([row[1] for row in rows], settings), payloads, codes
        )

    def _unproven(self, lists: Sequence[MeasuredRows], worst: NDArray[np.float64]) -> list[Wish]:
        """The lists behind whose end a hit may be, with the length to ask for next."""
        cut = [
            (wish, end)
            for piece in lists
            for wish, size, end in zip(piece.wishes, piece.sizes, piece.ends, strict=True)
            if size == wish[2]
        ]
        if not cut:
            return []
        queries = np.array([query for (query, _, _), _ in cut])
        ends = np.array([end for _, end in cut], np.float64)
        settings = self._settings
        least = least_possible(
            settings.metric, settings.dim, ends, self._lengths[queries], self._largest
        )
        # Not "worst >= least": with numbers that are none, the list is asked for in full.
        unsure = ~(worst[queries] < least)
        return [
            (query, bucket, limit * GROWTH if limit and np.isfinite(end) else None)
            for ((query, bucket, limit), end), unproven in zip(cut, unsure.tolist(), strict=True)
            if unproven
        ]


def embeddings_of(texts: Sequence[bytes], settings: TableSettings) -> NDArray[np.float32]:
    """Embeddings from the server's bytes [m, dim]; each begins with four bytes of its own."""
    kind, size = (">f4", 4) if settings.dtype == "float32" else (">f2", 2)
    joined = np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), 4 + size * settings.dim)
    return np.ascontiguousarray(joined[:, 4:]).view(kind).astype(np.float32)


Wish = tuple[int, int, int | None]  # the list of a query in a bucket, of this length or all of it


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """The nearest rows of some buckets, each for one query, with exact distances.

    Attributes:
        wishes: what was asked for, one list each.
        sizes: rows of each list.
        ends: the distance of its last row, as the server has it [l]; 0 where it has none.
        candidates: all rows, without their embeddings, which are of no more use.
        distances: of the rows [m].
    """

    wishes: Sequence[Wish]
    sizes: list[int]
    ends: list[float]
    candidates: EngineCandidates
    distances: NDArray[np.float64]


def all_of(pieces: Sequence[MeasuredRows]) -> tuple[EngineCandidates, NDArray[np.float64]]:
    """The rows of all pieces, and their distances."""
    given = [piece.candidates for piece in pieces]
    payloads = None
    if given[0].payloads is not None:
        payloads = [payload for one in given for payload in one.payloads or ()]
    codes = [one.codes for one in given if one.codes is not None]
    return (
        EngineCandidates(
            np.concatenate([one.queries for one in given]),
            np.concatenate([one.ids for one in given]),
            given[0].embeddings,
            payloads,
            np.concatenate(codes) if codes else None,
        ),
        np.concatenate([piece.distances for piece in pieces]),
    )
