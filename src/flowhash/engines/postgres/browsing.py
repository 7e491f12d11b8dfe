"""Looking at what is stored: single items, samples, loads, figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from flowhash.engines.postgres.connecting import Connection
from flowhash.engines.postgres.names import Names
from flowhash.engines.postgres.schema import Facts
from flowhash.engines.postgres.searching import embeddings_of
from flowhash.table import Item, Stats, Stored
from flowhash.table.hash_table import draw
from flowhash.table.ids import INT64
from flowhash.table.settings import Settings
from flowhash.table.statistics import stats_of

ITEM = "bucket, id, others, payload, embedding"
# Of an item's rows, the one in its first bucket stands for it.
FIRST = "(others IS NULL OR bucket < ALL (others))"
SUF_SAMPLE = 200  # items whose own buckets are counted to measure SUF with k > 1


def loads(connection: Connection, names: Names, buckets: int) -> NDArray[np.int64]:
    """How many items each bucket holds [d]."""
    found = np.zeros(buckets, np.int64)
    command = sql.SQL("SELECT bucket, count(*) FROM {} GROUP BY bucket").format(names.table)
    rows = connection.execute(command).fetchall()
    if rows:
        numbers, counts = zip(*rows, strict=True)
        found[list(numbers)] = counts
    return found


def item_of(row: Sequence[Any], settings: Settings) -> Item:
    """An item from one of its rows, with the columns ``ITEM``, in binary."""
    bucket, name, others, payload, embedding = row
    code = np.array(sorted([bucket, *(others or [])]), np.int32)
    return Item(name, code, embeddings_of([embedding], settings)[0], payload)


def items_by_id(
    connection: Connection, names: Names, settings: Settings, ids: Sequence[Any]
) -> dict[Any, Item]:
    """The items that are there, by their ids."""
    command = sql.SQL("SELECT {} FROM {} WHERE id = ANY(%s::{}) AND {}").format(
        sql.SQL(ITEM), names.table, id_list(settings), sql.SQL(FIRST)
    )
    cursor = connection.cursor(binary=True).execute(command, (list(ids),), prepare=True)
    found = (item_of(row, settings) for row in cursor)
    return {item.id: item for item in found}


def codes_by_id(
    connection: Connection, names: Names, settings: Settings, ids: Sequence[Any]
) -> dict[Any, list[int]]:
    """The codes of the items that are there, by their ids."""
    command = sql.SQL("SELECT id, bucket, others FROM {} WHERE id = ANY(%s::{}) AND {}").format(
        names.table, id_list(settings), sql.SQL(FIRST)
    )
    rows = connection.execute(command, (list(ids),), prepare=True).fetchall()
    return {name: sorted([bucket, *(others or [])]) for name, bucket, others in rows}


def id_list(settings: Settings) -> sql.SQL:
    """The type of a list of ids."""
    return sql.SQL("bigint[]" if settings.ids == INT64 else "text[]")


def rows_at(
    connection: Connection, names: Names, columns: str, bucket: int, places: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Rows of a bucket by their places in the order of the ids."""
    command = sql.SQL(
        "SELECT {columns} FROM (SELECT *, row_number() OVER (ORDER BY id) - 1 AS place"
        " FROM {table} WHERE bucket = %s) AS counted WHERE place = ANY(%s) ORDER BY place"
    ).format(columns=sql.SQL(columns), table=names.table)
    cursor = connection.cursor(binary=True)
    return cursor.execute(command, (bucket, list(places))).fetchall()


def sample(
    connection: Connection, names: Names, settings: Settings, sizes: NDArray[np.int64], count: int,
    seed: int,
) -> list[Item]:  # fmt: skip
    """A random sample of items: rows are drawn, and an item that came twice is drawn once."""
    total = int(sizes.sum())
    # Twice as many as are needed: with k > 1 some rows are of one item.
    drawn = draw(total, count if settings.active == 1 else 2 * settings.active * count, seed)
    ends = np.cumsum(sizes)
    buckets = np.searchsorted(ends, drawn, side="right")
    found: dict[Any, Item] = {}
    for bucket in np.unique(buckets).tolist():
        places = drawn[buckets == bucket] - (int(ends[bucket]) - int(sizes[bucket]))
        for row in rows_at(connection, names, ITEM, bucket, places.tolist()):
            item = item_of(row, settings)
            found.setdefault(item.id, item)
    items = list(found.values())
    kept = draw(len(items), count, seed)
    return [items[place] for place in kept.tolist()]


def batches(
    connection: Connection, names: Names, settings: Settings, size: int, payloads: bool
) -> Iterator[Stored]:
    """All items, in the transaction that the connection is in."""
    chosen = ITEM if payloads else ITEM.replace("payload", "NULL::json")
    command = sql.SQL("SELECT {} FROM {} WHERE {}").format(
        sql.SQL(chosen),
        names.table,
        sql.SQL(FIRST),
    )
    with connection.cursor("flowhash_batches", binary=True) as cursor:
        cursor.execute(command)
        while rows := cursor.fetchmany(size):
            buckets, ids, others, texts, embeddings = zip(*rows, strict=True)
            known = np.empty(len(ids), np.int64 if settings.ids == INT64 else object)
            known[:] = ids
            codes = [
                sorted([one, *(more or [])]) for one, more in zip(buckets, others, strict=True)
            ]
            yield Stored(
                known, np.array(codes, np.int32), embeddings_of(embeddings, settings), list(texts)
            )


def stats(
    connection: Connection, names: Names, facts: Facts, sizes: NDArray[np.int64], found: float
) -> Stats:
    """Figures of a table; ``found`` is the mean number of others that an item finds."""
    function = "citus_total_relation_size" if facts.distributed else "pg_total_relation_size"
    row = connection.execute(
        sql.SQL("SELECT {}(%s::regclass)").format(sql.SQL(function)),
        (names.table.as_string(connection),),
    ).fetchone()
    return stats_of(facts.settings, facts.items, sizes, found, int(row[0]) if row else 0)
