"""How many items the buckets of a query hold, each counted once.

A row knows the other buckets of its item. Opened one after the other, a bucket adds the rows that
are in none of the earlier ones; those counts are kept until the table changes. A query that opens
many buckets is counted by one statement instead, which finds the first of them for each item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from flowhash.engines.engine_arguments import EngineQueries
from flowhash.engines.postgres.connection_pool import Connection
from flowhash.engines.postgres.payload_filter import Filter
from flowhash.engines.postgres.schema import Names

FEW = 8  # buckets of a query that are counted one by one
FIRST_REACH = 32  # buckets that are looked at first when more are opened until enough is found
Wanted = tuple[int, tuple[int, ...]]  # a bucket, and those that were opened before it


@dataclass(frozen=True, eq=False)
class OpenedBuckets:
    """What queries open.

    Attributes:
        counts: buckets that each query opens [q] int32.
        found: items that those hold, each once [q] int64.
        useful: of the opened buckets of each query, those that hold an item which no earlier one
            has; the others need not be searched.
    """

    counts: NDArray[np.int32]
    found: NDArray[np.int64]
    useful: list[list[int]]


class BucketCounts:
    """Counts in one state of a table.

    Args:
        connection: in a transaction that sees that state.
        names: of the table.
        active: k.
        chosen: rows that count.
        known: counts of this state with this filter, which gets what is counted now.
    """

    def __init__(
        self, connection: Connection, names: Names, active: int, chosen: Filter,
        known: dict[Wanted, int],
    ) -> None:  # fmt: skip
        self._connection = connection
        self._names = names
        self._active = active
        self._chosen = chosen
        self._known = known

    def opened(self, asked: EngineQueries) -> OpenedBuckets:
        """Count what each query opens."""
        if asked.at_least is None:
            counts = asked.probe
            added = self.added(asked.order[:, : counts.max(initial=0)])
            added[np.arange(added.shape[1]) >= counts[:, None]] = 0
        else:
            added, counts = self._until(asked, asked.at_least)
        useful = [
            [bucket for bucket, new in zip(line, fresh, strict=True) if new]
            for line, fresh in zip(asked.order[:, : added.shape[1]].tolist(), added, strict=True)
        ]
        return OpenedBuckets(counts, added.sum(axis=1), useful)

    def _until(
        self, asked: EngineQueries, at_least: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """What the opened buckets add [q, m], and how many each query opens [q]."""
        width = asked.order.shape[1]
        reach = min(width, max(int(asked.probe.max(initial=0)), FIRST_REACH))
        added = np.zeros((len(asked.order), reach), np.int64)
        short = np.arange(len(asked.order))
        while True:
            # As far as ``reach``, for those that have too little with less.
            added[short] = self.added(asked.order[short, :reach])
            short = short[added[short].sum(axis=1) < at_least]
            if not len(short) or reach == width:
                break
            reach = min(width, 2 * reach)
            added = np.pad(added, ((0, 0), (0, reach - added.shape[1])))
        enough = np.cumsum(added, axis=1) >= at_least
        counts = np.where(enough.any(axis=1), enough.argmax(axis=1) + 1, width)
        counts = np.maximum(counts, asked.probe).astype(np.int32)
        added[np.arange(reach) >= counts[:, None]] = 0
        return added, counts

    def added(self, order: NDArray[np.int32]) -> NDArray[np.int64]:
        """The items that each bucket has and no earlier one of its query [q, m]."""
        if self._active == 1:
            return self._of_buckets(order)
        if order.shape[1] <= FEW:
            return self._one_by_one(order)
        return self._in_prefixes(order)

    def _of_buckets(self, order: NDArray[np.int32]) -> NDArray[np.int64]:
        """With k = 1 no item is in two buckets, whichever were opened before."""
        numbers, places = np.unique(order, return_inverse=True)
        new = [bucket for bucket in numbers.tolist() if (bucket, ()) not in self._known]
        if new:
            command = sql.SQL(
                "SELECT bucket, count(*) FROM {} WHERE bucket = ANY(%s){} GROUP BY bucket"
            ).format(self._names.table, self._chosen.condition)
            rows = self._connection.execute(command, (new, *self._chosen.parameters)).fetchall()
            self._known.update({(bucket, ()): 0 for bucket in new})
            self._known.update({(bucket, ()): count for bucket, count in rows})
        counts = [self._known[bucket, ()] for bucket in numbers.tolist()]
        return np.array(counts, np.int64)[places].reshape(order.shape)

    def _one_by_one(self, order: NDArray[np.int32]) -> NDArray[np.int64]:
        """Each bucket by itself, which one node of a cluster can answer."""
        wanted: list[list[Wanted]] = [
            [(bucket, tuple(sorted(line[:turn]))) for turn, bucket in enumerate(line)]
            for line in order.tolist()
        ]
        new = [
            key
            for key in dict.fromkeys(key for line in wanted for key in line)
            if key not in self._known
        ]
        command = sql.SQL(
            "SELECT count(*) FROM {} WHERE bucket = %s AND NOT others && %s::integer[]{}"
        ).format(self._names.table, self._chosen.condition)
        given = [(bucket, list(before), *self._chosen.parameters) for bucket, before in new]
        self._known.update(zip(new, self._numbers(command, given), strict=True))
        counts = [[self._known[key] for key in line] for line in wanted]
        return np.array(counts, np.int64).reshape(order.shape)

    def _in_prefixes(self, order: NDArray[np.int32]) -> NDArray[np.int64]:
        """All buckets of a query by one statement: the first of them that each item is in."""
        command = sql.SQL(
            "SELECT first, count(*) FROM (SELECT min(array_position(%s::integer[], bucket)) AS"
            " first FROM {} WHERE bucket = ANY(%s::integer[]){} GROUP BY id) AS items"
            " GROUP BY first"
        ).format(self._names.table, self._chosen.condition)
        added = np.zeros(order.shape, np.int64)
        for query, line in enumerate(order.tolist()):
            given = (line, line, *self._chosen.parameters)
            for first, count in self._connection.execute(command, given, prepare=True):
                added[query, first - 1] = count
        return added

    def _numbers(self, command: sql.Composed, given: Sequence[tuple[object, ...]]) -> list[int]:
        """The single numbers that a statement gives for each of some parameters."""
        if not given:
            return []
        found = []
        with self._connection.cursor() as cursor:
            cursor.executemany(command, given, returning=True)
            for _ in given:
                row = cursor.fetchone()
                assert row is not None
                found.append(int(row[0]))
                cursor.nextset()
        return found
