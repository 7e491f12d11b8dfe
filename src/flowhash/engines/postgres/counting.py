"""How many items the buckets of a query hold, each counted once.

A row knows the other buckets of its item. Opened one after the other, a bucket adds the rows that
are in none of the earlier ones; those counts are kept until the table changes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from flowhash.engines.given import Asked
from flowhash.engines.postgres.connecting import Connection
from flowhash.engines.postgres.filters import Filter
from flowhash.engines.postgres.schema import Names

KEPT = 200_000  # counts that are remembered
Wanted = tuple[int, tuple[int, ...]]  # a bucket, and those that were opened before it


@dataclass
class Counts:
    """Counts of one state of a table, safe to share between threads."""

    changes: int = -1
    known: dict[Wanted, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, changes: int) -> dict[Wanted, int]:
        """What is known of the state with this number of changes."""
        with self.lock:
            if changes != self.changes or len(self.known) > KEPT:
                self.changes, self.known = changes, {}
            return self.known


def count_opened(
    connection: Connection,
    names: Names,
    active: int,
    asked: Asked,
    chosen: Filter,
    known: dict[Wanted, int],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """How many buckets each query opens [q], and how many items those hold [q].

    Args:
        connection: in the transaction of the search.
        names: of the table.
        active: k.
        asked: the queries.
        chosen: rows that may be found.
        known: counts of this state with this filter, which gets what is counted now.
    """
    order = asked.order.tolist()
    opened = np.full(len(order), asked.probe, np.int32)
    found = np.zeros(len(order), np.int64)
    turns = [(query, turn) for query in range(len(order)) for turn in range(asked.probe)]
    while turns:
        wanted = [_key(order[query], turn, active) for query, turn in turns]
        _count(connection, names, active, chosen, wanted, known)
        for (query, _), key in zip(turns, wanted, strict=True):
            found[query] += known[key]
        if asked.at_least is None:
            break
        short = np.flatnonzero((found < asked.at_least) & (opened < asked.order.shape[1]))
        turns = [(query, int(opened[query])) for query in short.tolist()]
        opened[short] += 1
    return opened, found


def _key(order: Sequence[int], turn: int, active: int) -> Wanted:
    # With k = 1 no item is in two buckets, whichever were opened before.
    return order[turn], tuple(sorted(order[:turn])) if active > 1 else ()


def _count(
    connection: Connection,
    names: Names,
    active: int,
    chosen: Filter,
    wanted: Sequence[Wanted],
    known: dict[Wanted, int],
) -> None:
    new = [key for key in dict.fromkeys(wanted) if key not in known]
    if not new:
        return
    fresh = sql.SQL(" AND NOT others && %s::integer[]" if active > 1 else "")
    command = sql.SQL("SELECT count(*) FROM {} WHERE bucket = %s{}{}").format(
        names.table, fresh, chosen.condition
    )
    with connection.pipeline():
        cursors = [
            connection.execute(
                command,
                (bucket, *([list(before)] if active > 1 else []), *chosen.parameters),
                prepare=True,
            )
            for bucket, before in new
        ]
        for key, cursor in zip(new, cursors, strict=True):
            row = cursor.fetchone()
            assert row is not None
            known[key] = row[0]
