"""``PostgresTable``: a hash table on PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from flowhash.engines.engine_arguments import EngineItems, EngineQueries
from flowhash.engines.postgres.bucket_counts import BucketCounts
from flowhash.engines.postgres.bucket_search import embeddings_of, search_buckets
from flowhash.engines.postgres.connection_pool import (
    Connection,
    PostgresAddress,
    Server,
    read_address,
    snapshot,
    transaction,
)
from flowhash.engines.postgres.payload_filter import NO_FILTER, filter_of, id_list
from flowhash.engines.postgres.row_stream import RowStream, copy_rows
from flowhash.engines.postgres.schema import (
    COLUMNS,
    Names,
    TableFacts,
    drop_table,
    find_names,
    make_table,
    may_change,
    note_short_codes,
    read_facts,
    write_notes,
)
from flowhash.engines.remote_table import KnownCounts, RemoteTable
from flowhash.errors import InputError, StorageError
from flowhash.table import (
    INT64,
    Hits,
    Item,
    Stats,
    Stored,
    TableSettings,
    changed_notes,
    check_encoder,
    draw_sample,
    padded_codes,
    stats_of,
)

# Of an item's rows, the one in its first bucket stands for it.
FIRST = "(others IS NULL OR bucket < ALL (others))"
SUF_SAMPLE = 200  # items whose own buckets are counted to measure SUF with k > 1


class PostgresTable(RemoteTable):
    """A table on a PostgreSQL server, used as :class:`flowhash.HashTable` is.

    Make one with :meth:`create`, open one with :meth:`open`. Searches may run in many threads, up
    to eight at once; each sees one state of the table. Changes are transactions.
    """

    def __init__(
        self,
        server: Server,
        names: Names,
        facts: TableFacts,
        writable: bool,
        permitted: bool = True,
    ) -> None:
        super().__init__(facts.settings, writable)
        self._server = server
        self._place = server.address
        self._names = names
        self._permitted = permitted
        self.distributed = facts.distributed
        self._count = facts.items
        self._changes = facts.changes

    @classmethod
    def _create(cls, place: str, settings: TableSettings, distribute: bool) -> PostgresTable:
        address = read_address(place)
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(
                contextlib.closing(Server(address, read_only=False, extend=True))
            )
            with server.using() as connection:
                names = find_names(connection, address)
                with transaction(connection):
                    make_table(
                        connection, names, address, settings, ready=True, distribute=distribute
                    )
                facts = read_facts(connection, names, address)
            assert facts is not None
            table = cls(server, names, facts, writable=True)
            stack.pop_all()  # it stays open
            return table

    @classmethod
    def _open_stored(cls, place: str, writable: bool, encoder: str | None) -> PostgresTable:
        address = read_address(place)
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(
                contextlib.closing(Server(address, read_only=not writable))
            )
            with server.using() as connection:
                names = find_names(connection, address)
                facts = _ready(read_facts(connection, names, address), address)
                permitted = writable and may_change(connection, names)
            check_encoder(facts.settings.encoder, encoder, address.shown)
            table = cls(server, names, facts, writable, permitted)
            stack.pop_all()  # it stays open
            return table

    @staticmethod
    def exists(place: str) -> bool:
        """Whether there is a table of FlowHash, be it an unfinished copy."""
        address = read_address(place)
        with contextlib.closing(Server(address, read_only=True)) as server:
            if not server.vector_type:
                return False
            with server.using() as connection:
                names = find_names(connection, address)
                return read_facts(connection, names, address) is not None

    @staticmethod
    def remove(place: str) -> None:
        """Remove a table, with all that is in it; one that is not there is passed over."""
        address = read_address(place)
        with contextlib.closing(Server(address, read_only=False)) as server:
            if not server.vector_type:
                return
            with server.using() as connection:
                names = find_names(connection, address)
                with transaction(connection):
                    if read_facts(connection, names, address, lock=True) is not None:
                        drop_table(connection, names)

    @property
    def address(self) -> str:
        """Where it is, without a password."""
        return self._place.shown

    @property
    def writable(self) -> bool:
        """Whether items can be changed; :meth:`refresh` asks again for the right to it."""
        return super().writable and self._permitted

    @property
    def next_id(self) -> int:
        """The id of the next item that is added without one."""
        with self._using() as connection:
            return self._facts(connection).next_id

    def _add(
        self,
        items: EngineItems,
        notes: Mapping[str, Any] | None,
        expected_notes: Mapping[str, Any] | None,
    ) -> NDArray[Any]:
        """All in one transaction; nobody else changes notes while they are compared."""
        if not len(items.table) and not notes and not expected_notes:
            return items.ids
        _refuse_zeros(items)
        with self._changing() as (connection, facts):
            changed = changed_notes(facts.notes, notes, expected_notes)
            if changed is not None:
                write_notes(connection, self._names, changed)
            if not len(items.table):
                return items.ids
            ids = items.counted_from(facts.next_id)
            source = RowStream(items.table, facts.next_id if items.counted else 0)
            gone = 0 if items.counted else self._delete_rows(connection, items.ids.tolist())
            pieces = source.pieces(0, source.at_once, False)
            if source.has_short_codes:
                note_short_codes(connection, self._names)
            copy_rows(connection, self._names, (source.rows(*piece).copied() for piece in pieces))
            next_id = facts.next_id
            if self.id_kind == INT64:
                next_id = max(next_id, int(ids.max()) + 1)
            total = facts.items - gone + len(items.table)
            self._note_change(connection, total, next_id, max(facts.largest, source.largest))
        self._count = total
        return ids

    def _delete(self, ids: list[Any]) -> int:
        """All in one transaction."""
        with self._changing() as (connection, facts):
            gone = self._delete_rows(connection, ids)
            if gone:
                self._note_change(connection, facts.items - gone, facts.next_id, facts.largest)
        self._count = facts.items - gone
        return gone

    def _delete_rows(self, connection: Connection, ids: list[Any]) -> int:
        """Delete the rows of items; how many items that were."""
        kind, listed = id_list(self.id_kind, ids)
        rows = sql.SQL("FROM {} WHERE id = ANY(%s::{})").format(self._names.table, kind)
        count = sql.SQL("SELECT count(*) {} AND {}").format(rows, sql.SQL(FIRST))
        found = None if self.active == 1 else connection.execute(count, (listed,)).fetchone()
        deleted = connection.execute(sql.SQL("DELETE {}").format(rows), (listed,)).rowcount
        return deleted if found is None else int(found[0])

    def _note_change(
        self, connection: Connection, items: int, next_id: int, largest: float
    ) -> None:
        command = sql.SQL(
            "UPDATE {} SET items = %s, next_id = %s, largest = %s, changes = changes + 1"
            " WHERE name = %s"
        ).format(self._names.registry)
        connection.execute(command, (items, next_id, largest, self._names.name))

    def _search(self, asked: EngineQueries, payloads: bool, buckets: bool) -> Hits:
        chosen = filter_of(asked.where, self.id_kind)
        with self._using() as connection, connection.pipeline(), snapshot(connection):
            facts = self._facts(connection, was_there=True)
            known = KnownCounts() if chosen else self._known_of(facts)
            hits = search_buckets(
                connection, self._names, facts, known.counts, asked, chosen, payloads, buckets
            )
        self._count = facts.items
        return hits

    def note(self, name: str, value: Any) -> None:
        """Note something, durably; None removes it."""
        self._check_writable()
        with self._changing() as (connection, facts):
            changed = changed_notes(facts.notes, {name: value})
            if changed is not None:
                write_notes(connection, self._names, changed)

    def notes(self) -> dict[str, Any]:
        """What was noted about the table."""
        with self._using() as connection:
            facts = self._facts(connection)
        self._count = facts.items
        return facts.notes

    def refresh(self) -> bool:
        """See what others have changed; whether that was anything."""
        with self._using() as connection:
            facts = self._facts(connection)
            if self._writable:
                self._permitted = may_change(connection, self._names)
        changed = facts.changes != self._changes
        self._count, self._changes = facts.items, facts.changes
        return changed

    def stats(self) -> Stats:
        """Loads of buckets, measured and expected SUF, bytes; kept until the table changes."""
        with self._using() as connection, snapshot(connection):
            facts = self._facts(connection)
            known = self._known_of(facts)
            if known.stats is None:
                loads = self._loads(connection, known)
                found = self._others_found(connection, facts, known)
                kind = "citus" if facts.distributed else "pg"
                command = sql.SQL("SELECT {}_total_relation_size(%s::regclass)")
                row = connection.execute(
                    command.format(sql.SQL(kind)), (self._names.table.as_string(connection),)
                ).fetchone()
                size = int(row[0]) if row else 0
                known.stats = stats_of(self._settings, facts.items, loads, found, size)
            return known.stats

    def bucket_loads(self) -> NDArray[np.int64]:
        """How many items each bucket holds [d]."""
        with self._using() as connection, snapshot(connection):
            return self._loads(connection, self._known_of(self._facts(connection))).copy()

    def sample(self, count: int, seed: int) -> tuple[int, list[Item]]:
        """How many items there are, and a random sample of them; the same for the same seed."""
        with self._using() as connection, snapshot(connection):
            facts = self._facts(connection)
            return facts.items, self._sample(connection, self._known_of(facts), count, seed)

    def bucket_items(self, bucket: int, count: int, seed: int) -> list[Item]:
        """A random sample of the items in a bucket."""
        _, rows = self._bucket_rows(COLUMNS, bucket, count, seed)
        return [self._item_of(row) for row in rows]

    def bucket_payloads(
        self, bucket: int, count: int, seed: int
    ) -> tuple[int, list[dict[str, Any] | None]]:
        """How many items a bucket holds, and the payloads of a random sample of them."""
        load, rows = self._bucket_rows("payload", bucket, count, seed)
        return load, [row[0] for row in rows]

    def batches(self, size: int = 8192, payloads: bool = True) -> Iterator[Stored]:
        """All items of one state, some at a time; a connection is held meanwhile."""
        if size < 1:
            raise InputError(f"size is {size}; expected one or more items")
        columns = COLUMNS if payloads else COLUMNS.replace("payload", "NULL::json")
        command = sql.SQL("SELECT {} FROM {} WHERE {}").format(
            sql.SQL(columns), self._names.table, sql.SQL(FIRST)
        )
        with (
            self._using() as connection,
            snapshot(connection),
            connection.cursor("flowhash_batches", binary=True) as cursor,
        ):
            cursor.execute(command)
            while rows := cursor.fetchmany(size):
                buckets, ids, others, texts, embeddings = zip(*rows, strict=True)
                known = np.empty(len(ids), np.int64 if self.id_kind == INT64 else object)
                known[:] = ids
                codes = [_code(*pair) for pair in zip(buckets, others, strict=True)]
                vectors = embeddings_of(embeddings, self._settings)
                yield Stored(known, padded_codes(codes, self.active), vectors, list(texts))

    def close(self) -> None:
        """Close all connections; closing twice is fine."""
        if self._open:
            self._open = False
            self._server.close()

    @contextlib.contextmanager
    def _using(self) -> Iterator[Connection]:
        self._check_open()
        with self._server.using() as connection:
            yield connection

    @contextlib.contextmanager
    def _changing(self) -> Iterator[tuple[Connection, TableFacts]]:
        """A transaction, and the facts of the table, which nobody else changes until it ends."""
        with self._using() as connection, transaction(connection):
            yield connection, self._facts(connection, lock=True)

    def _facts(self, connection: Connection, **how: bool) -> TableFacts:
        """The facts of a table that is ready and still the one that was opened.

        Raises:
            StorageError: it was removed or made anew, or is a copy that is not finished.
        """
        facts = _ready(read_facts(connection, self._names, self._place, **how), self._place)
        if facts.settings != self._settings:
            raise StorageError(
                f"{self.address} was made anew with other settings, or another encoder; open it "
                "again"
            )
        return facts

    def _known_of(self, facts: TableFacts) -> KnownCounts:
        """Counts that hold: on many nodes none do, their states may differ for a moment."""
        return KnownCounts() if facts.distributed else self._known_in(facts.changes)

    def _loads(self, connection: Connection, known: KnownCounts) -> NDArray[np.int64]:
        """How many items each bucket holds [d]."""
        if known.loads is None:
            known.loads = self._counted(connection, "true")
        return known.loads

    def _first_loads(self, connection: Connection, known: KnownCounts) -> NDArray[np.int64]:
        """How many items each bucket is the first one of [d]."""
        if self.active == 1:
            return self._loads(connection, known)
        if known.firsts is None:
            known.firsts = self._counted(connection, FIRST)
        return known.firsts

    def _counted(self, connection: Connection, only: str) -> NDArray[np.int64]:
        """How many rows of each bucket pass a condition [d]."""
        counts = np.zeros(self.buckets, np.int64)
        command = sql.SQL("SELECT bucket, count(*) FROM {} WHERE {} GROUP BY bucket")
        for bucket, count in connection.execute(command.format(self._names.table, sql.SQL(only))):
            counts[bucket] = count
        return counts

    def _others_found(self, connection: Connection, facts: TableFacts, known: KnownCounts) -> float:
        """The mean number of others that an item finds in its own buckets."""
        loads = self._loads(connection, known)
        if facts.items < 2:
            return 0.0
        if self.active == 1:
            return float((loads * (loads - 1)).sum()) / facts.items
        drawn = self._sample(connection, known, SUF_SAMPLE, 0)
        order = padded_codes([item.code.tolist() for item in drawn], self.active)
        probe = (order >= 0).sum(axis=1).astype(np.int32)
        asked = EngineQueries(order, np.empty((len(order), 0), np.float32), 1, probe, None)
        counts = BucketCounts(connection, self._names, self.active, NO_FILTER, known.counts)
        return float((counts.opened(asked).found - 1).mean())

    def _bucket_rows(
        self, columns: str, bucket: int, count: int, seed: int
    ) -> tuple[int, list[tuple[Any, ...]]]:
        with self._using() as connection, snapshot(connection):
            load = int(self._loads(connection, self._known_of(self._facts(connection)))[bucket])
            places = draw_sample(load, count, seed)
            return load, self._rows_at(connection, columns, bucket, places)

    def _rows_at(
        self,
        connection: Connection,
        columns: str,
        bucket: int,
        places: NDArray[np.int64],
        only: str = "true",
    ) -> list[tuple[Any, ...]]:
        """Rows of a bucket that pass a condition, by their places in the order of the ids."""
        command = sql.SQL(
            "SELECT {columns} FROM (SELECT *, row_number() OVER (ORDER BY id) - 1 AS place"
            " FROM {table} WHERE bucket = %s AND {only}) AS counted WHERE place = ANY(%s)"
            " ORDER BY place"
        ).format(columns=sql.SQL(columns), table=self._names.table, only=sql.SQL(only))
        cursor = connection.cursor(binary=True)
        return cursor.execute(command, (bucket, places.tolist())).fetchall()

    def _sample(
        self, connection: Connection, known: KnownCounts, count: int, seed: int
    ) -> list[Item]:
        """A random sample of items, each as likely as any other, in however many buckets it is."""
        ends = np.cumsum(firsts := self._first_loads(connection, known))
        drawn = draw_sample(int(ends[-1]), count, seed)
        buckets = np.searchsorted(ends, drawn, side="right")
        found: list[Item] = []
        for bucket in np.unique(buckets).tolist():
            places = drawn[buckets == bucket] - (int(ends[bucket]) - int(firsts[bucket]))
            rows = self._rows_at(connection, COLUMNS, bucket, places, FIRST)
            found += [self._item_of(row) for row in rows]
        return found

    def _item_of(self, row: Sequence[Any]) -> Item:
        """An item from one of its rows, in binary."""
        bucket, name, others, payload, embedding = row
        code = np.array(_code(bucket, others), np.int32)
        return Item(name, code, embeddings_of([embedding], self._settings)[0], payload)

    def _items_by_id(self, ids: list[Any]) -> dict[Any, Item]:
        items = (self._item_of(row) for row in self._first_rows(COLUMNS, ids))
        return {item.id: item for item in items}

    def _codes_by_id(self, ids: list[Any]) -> dict[Any, list[int]]:
        rows = self._first_rows("id, bucket, others", ids)
        return {name: _code(bucket, others) for name, bucket, others in rows}

    def _first_rows(self, columns: str, ids: list[Any]) -> list[tuple[Any, ...]]:
        """One row of each item that is there."""
        kind, listed = id_list(self.id_kind, ids)
        command = sql.SQL("SELECT {} FROM {} WHERE id = ANY(%s::{}) AND {}").format(
            sql.SQL(columns), self._names.table, kind, sql.SQL(FIRST)
        )
        with self._using() as connection:
            cursor = connection.cursor(binary=True)
            return cursor.execute(command, (listed,), prepare=True).fetchall()


def _ready(facts: TableFacts | None, address: PostgresAddress) -> TableFacts:
    """The facts of a table that can be used.

    Raises:
        StorageError: it is not there, or an unfinished copy.
    """
    if facts is None:
        raise StorageError(
            f"{address.shown}: there is no FlowHash table {address.name!r}; `flowhash index --to` "
            "or `flowhash copy` makes one"
        )
    if not facts.ready:
        raise StorageError(
            f"{address.shown} is an unfinished copy; run the same `flowhash copy` again, which "
            "goes on where it stopped"
        )
    return facts


def _refuse_zeros(items: EngineItems) -> None:
    """PostgreSQL's texts hold every character but one."""
    if items.table.id_kind == INT64:
        return
    for name in items.ids.tolist():
        if "\0" in name:
            raise InputError(
                f"the id {name!r:.80} has a zero character, which PostgreSQL cannot store; leave "
                "it out"
            )


def _code(bucket: int, others: Sequence[int] | None) -> list[int]:
    """The buckets of an item, ascending, from one of its rows."""
    return sorted([bucket, *(others or ())])
