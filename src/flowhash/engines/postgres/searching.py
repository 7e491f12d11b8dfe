"""Searching: the nearest rows of each opened bucket, merged, measured again, and proven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import IsolationLevel, sql

from flowhash.engines.exact import (
    Candidates,
    exact_distances,
    least_possible,
    ranked,
)
from flowhash.engines.given import Asked
from flowhash.engines.postgres.address import Address
from flowhash.engines.postgres.connecting import Connection
from flowhash.engines.postgres.counting import Counts, Opened, count_opened
from flowhash.engines.postgres.filters import Filter
from flowhash.engines.postgres.names import Names
from flowhash.engines.postgres.parts import Listed, Part, Wish, joined, some_of
from flowhash.engines.postgres.schema import FACTS, Facts, facts_of
from flowhash.engines.postgres.writing import usable
from flowhash.table import Hits
from flowhash.table.ids import INT64
from flowhash.table.manifest import Settings

STATEMENTS_AT_ONCE = 128  # in one pipeline; enough that the server seldom waits for the next
GROWTH = 4  # how much longer a list is asked for that float32 could not cut
QUERIES_AT_ONCE = 2048  # whose buckets are counted together


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
            some = some_of(asked, part)
            opened = count_opened(connection, names, settings.active, some, chosen, known)
            if not chosen and not facts.distributed:
                # All buckets are read alike. Left to itself the server plans each query anew or
                # not, as its first few happened to look, and that takes as long as reading one.
                connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            asking = _Asking(connection, names, settings, facts.largest, chosen, payloads)
            pieces.append(asking.answer(some, opened))
    return joined(pieces), facts


def _facts_now(connection: Connection, names: Names) -> Facts | None:
    row = connection.execute(
        sql.SQL("SELECT {} FROM {} WHERE name = %s").format(sql.SQL(FACTS), names.registry),
        (names.name,),
        prepare=True,
    ).fetchone()
    return None if row is None else facts_of(row)


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
        """The exact answer. While the server works on some queries, the ones before are ranked."""
        width = max(1, max(map(len, opened.useful), default=1))
        step = max(1, STATEMENTS_AT_ONCE // width)
        done: list[Hits] = []
        earlier: Part | None = None
        for start in range(0, max(1, len(asked.queries)), step):
            some = slice(start, start + step)
            part = Part(some_of(asked, some), opened.useful[some], opened.found[some])
            self._ask(part, earlier)
            if earlier is not None:
                done.append(self._proven(earlier))
            earlier = part
        assert earlier is not None
        self._rank(earlier)
        return joined([*done, self._proven(earlier)])

    def _ask(self, part: Part, earlier: Part | None = None) -> None:
        """Have the server answer what ``part`` wants, and rank ``earlier`` while it does."""

        def given() -> Iterator[tuple[Any, ...]]:
            for turn, (query, bucket, limit) in enumerate(part.wanted, 1):
                if turn == len(part.wanted) and earlier is not None:
                    self._rank(earlier)  # the server has all but the last statement to work on
                yield part.vectors[query], bucket, *self._chosen.parameters, limit

        # One cursor for all: the driver prepares the statement once and pipelines the rest.
        part.lists = self._connection.cursor(binary=True)
        if part.wanted:
            part.lists.executemany(self._command, given(), returning=True)
        elif earlier is not None:
            self._rank(earlier)

    def _rank(self, part: Part) -> None:
        """Read the lists that have come, rank all that a part has, and find what it wants yet."""
        assert part.lists is not None
        for query, bucket, limit in part.wanted:
            part.found[query, bucket] = Listed(query, bucket, limit, part.lists.fetchall())
            part.lists.nextset()
        part.lists.close()
        asked, found = part.asked, list(part.found.values())
        candidates = self._candidates(found)
        distances = exact_distances(self._settings.metric, asked.queries, candidates)
        part.hits, worst = ranked(
            candidates, distances, self._settings.ids, len(asked.queries), asked.top, part.scanned
        )
        part.wanted = self._unproven(found, worst, part.lengths)

    def _proven(self, part: Part) -> Hits:
        """Lists are asked for anew, longer, until nothing can be behind them."""
        while part.wanted:
            self._ask(part)
            self._rank(part)
        assert part.hits is not None
        return part.hits

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
    ) -> list[Wish]:
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
