"""Searching: the nearest rows of each opened bucket, merged, measured again, and proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import IsolationLevel, sql

from flowhash.engines.exact import (
    SPARE,
    Candidates,
    exact_distances,
    least_possible,
    ranked,
)
from flowhash.engines.given import Asked
from flowhash.engines.postgres.address import Address
from flowhash.engines.postgres.connecting import Connection, Vector
from flowhash.engines.postgres.counting import Counts, Opened, count_opened
from flowhash.engines.postgres.filters import Filter
from flowhash.engines.postgres.names import Names
from flowhash.engines.postgres.schema import FACTS, Facts, facts_of
from flowhash.engines.postgres.writing import usable
from flowhash.table import Hits
from flowhash.table.ids import INT64
from flowhash.table.manifest import Settings

STATEMENTS_AT_ONCE = 512  # in one pipeline, so that answers do not pile up
GROWTH = 4  # how much longer a list is asked for that float32 could not cut
QUERIES_AT_ONCE = 2048  # so that the candidates of a large batch do not fill the memory


@dataclass(frozen=True)
class Listed:
    """The nearest rows of one bucket for one query, as the server ranks them.

    Attributes:
        query: its number.
        bucket: the bucket.
        limit: rows asked for; None for all.
        rows: id, embedding as bytes, distance, and, where asked for, payload.
    """

    query: int
    bucket: int
    limit: int | None
    rows: list[tuple[Any, ...]]

    @property
    def cut(self) -> bool:
        """Whether the bucket may hold more."""
        return self.limit is not None and len(self.rows) == self.limit


def snapshot(connection: Connection) -> Any:
    """A transaction that sees one state of the table, whole."""
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    return connection.transaction()


def search(
    connection: Connection,
    names: Names,
    address: Address,
    settings: Settings,
    counts: Counts,
    asked: Asked,
    chosen: Filter,
    payloads: bool,
) -> tuple[Hits, Facts]:
    """Answer queries from one state of the table; that state's facts, too."""
    pieces = []
    with connection.pipeline(), snapshot(connection):
        facts = _facts_now(connection, names)
        facts = usable(facts, settings, address)
        # On many nodes nothing says that the counts are those of the registry's state.
        known = {} if chosen or facts.distributed else counts.of(facts.changes)
        for start in range(0, max(1, len(asked.queries)), QUERIES_AT_ONCE):
            part = slice(start, start + QUERIES_AT_ONCE)
            some = Asked(
                asked.order[part], asked.queries[part], asked.top, asked.probe, asked.at_least
            )
            opened = count_opened(connection, names, settings.active, some, chosen, known)
            if not chosen and not facts.distributed:
                # All buckets are read alike. Left to itself the server plans each query anew or
                # not, as its first few happened to look, and that takes as long as reading one.
                connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            asking = _Asking(connection, names, settings, facts.largest, chosen, payloads)
            pieces.append(asking.answer(some, opened))
    return _joined(pieces), facts


def _facts_now(connection: Connection, names: Names) -> Facts | None:
    row = connection.execute(
        sql.SQL("SELECT {} FROM {} WHERE name = %s").format(sql.SQL(FACTS), names.registry),
        (names.name,),
        prepare=True,
    ).fetchone()
    return None if row is None else facts_of(row)


def _joined(pieces: Sequence[Hits]) -> Hits:
    if len(pieces) == 1:
        return pieces[0]
    texts = None
    if pieces[0].payloads is not None:
        texts = [line for piece in pieces for line in piece.payloads or ()]
    return Hits(
        np.concatenate([piece.ids for piece in pieces]),
        np.concatenate([piece.distances for piece in pieces]),
        np.concatenate([piece.counts for piece in pieces]),
        np.concatenate([piece.scanned for piece in pieces]),
        texts,
    )


class _Asking:
    """One batch of queries on one state of a table."""

    def __init__(
        self, connection: Connection, names: Names, settings: Settings, largest: float,
        chosen: Filter, payloads: bool,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._settings = settings
        self._largest = largest
        self._chosen = chosen
        self._payloads = payloads
        self._command = sql.SQL(
            "SELECT id, embedding, {} AS distance{} FROM {} WHERE bucket = %s{}"
            " ORDER BY distance LIMIT %s"
        ).format(
            names.distance(settings), sql.SQL(", payload" if payloads else ""), names.table,
            chosen.condition,
        ).as_bytes(connection)  # fmt: skip

    def answer(self, asked: Asked, opened: Opened) -> Hits:
        """The exact answer: lists are asked for anew, longer, until nothing can be behind them."""
        vectors = [Vector(query) for query in asked.queries]
        lengths = np.linalg.norm(asked.queries.astype(np.float64), axis=1)
        wanted: list[tuple[int, int, int | None]] = [
            (query, bucket, asked.top + SPARE)
            for query, line in enumerate(opened.useful)
            for bucket in line
        ]
        found: dict[tuple[int, int], Listed] = {}
        while True:
            for one in self._lists(vectors, wanted):
                found[one.query, one.bucket] = one
            lists = list(found.values())
            candidates = self._candidates(lists)
            distances = exact_distances(self._settings.metric, asked.queries, candidates)
            hits, worst = ranked(
                candidates, distances, self._settings.ids, len(asked.queries), asked.top,
                opened.found,
            )  # fmt: skip
            wanted = self._unproven(lists, worst, lengths)
            if not wanted:
                return hits

    def _lists(
        self, vectors: Sequence[Vector], wanted: Sequence[tuple[int, int, int | None]]
    ) -> list[Listed]:
        found = []
        for start in range(0, len(wanted), STATEMENTS_AT_ONCE):
            some = wanted[start : start + STATEMENTS_AT_ONCE]
            given = [
                (vectors[query], bucket, *self._chosen.parameters, limit)
                for query, bucket, limit in some
            ]
            # One cursor for all: the driver prepares the statement once and pipelines the rest.
            with self._connection.cursor(binary=True) as cursor:
                cursor.executemany(self._command, given, returning=True)
                for query, bucket, limit in some:
                    found.append(Listed(query, bucket, limit, cursor.fetchall()))
                    cursor.nextset()
        return found

    def _candidates(self, lists: Sequence[Listed]) -> Candidates:
        settings = self._settings
        rows = [row for one in lists for row in one.rows]
        queries = np.repeat(
            np.array([one.query for one in lists], np.int64), [len(one.rows) for one in lists]
        )
        numbers = settings.ids == INT64
        ids = np.empty(len(rows), np.int64 if numbers else object)
        ids[:] = [row[0] for row in rows]
        payloads = [row[3] for row in rows] if self._payloads else None
        return Candidates(queries, ids, embeddings_of([row[1] for row in rows], settings), payloads)

    def _unproven(
        self, lists: Sequence[Listed], worst: NDArray[np.float64], lengths: NDArray[np.float64]
    ) -> list[tuple[int, int, int | None]]:
        """The lists behind whose end a hit may be, with the length to ask for next."""
        cut = [one for one in lists if one.cut]
        if not cut:
            return []
        queries = np.array([one.query for one in cut])
        last = np.array([one.rows[-1][2] for one in cut], np.float64)
        settings = self._settings
        least = least_possible(settings.metric, settings.dim, last, lengths[queries], self._largest)
        # Not "worst >= least": with numbers that are none, the list is asked for in full.
        unsure = ~(worst[queries] < least)
        again = []
        for one, value, unproven in zip(cut, last.tolist(), unsure.tolist(), strict=True):
            if unproven:
                assert one.limit is not None
                known = np.isfinite(value)
                again.append((one.query, one.bucket, one.limit * GROWTH if known else None))
        return again


def embeddings_of(texts: Sequence[bytes], settings: Settings) -> NDArray[np.float32]:
    """Embeddings from the server's bytes [m, dim]; each begins with four bytes of its own."""
    kind, size = (">f4", 4) if settings.dtype == "float32" else (">f2", 2)
    joined = np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), 4 + size * settings.dim)
    return np.ascontiguousarray(joined[:, 4:]).view(kind).astype(np.float32)
