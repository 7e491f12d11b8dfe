"""A hash table on PostgreSQL: what users hold in their hands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from psycopg import sql

from flowhash.argument_checks import plain_integer
from flowhash.engines import engine_arguments
from flowhash.engines.postgres.bucket_counts import Counts, Wanted, count_opened
from flowhash.engines.postgres.bucket_search import embeddings_of, search, snapshot
from flowhash.engines.postgres.connection_pool import Connection, Server, has_vector
from flowhash.engines.postgres.payload_filter import NO_FILTER, read_filter
from flowhash.engines.postgres.postgres_address import PostgresAddress, read_address
from flowhash.engines.postgres.schema import (
    Names,
    TableFacts,
    drop_table,
    find_names,
    make_table,
    may_change,
    read_facts,
    write_notes,
)
from flowhash.engines.postgres.transactions import add, delete, locked, missing, transaction, usable
from flowhash.errors import InputError, StorageError
from flowhash.table import (
    INT64,
    Hits,
    Item,
    SettingsProperties,
    Stats,
    Stored,
    TableSettings,
    changed_notes,
    check_encoder,
    draw_sample,
    read_ids,
    stats_of,
)


class PostgresTable(SettingsProperties):
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
        super().__init__(facts.settings)
        self._server = server
        self._names = names
        self._writable = writable
        self._permitted = permitted
        self.distributed = facts.distributed
        self._open = True
        self._count = facts.items
        self._changes = facts.changes
        self._counts = Counts()
        self._loads: tuple[int, NDArray[np.int64]] | None = None
        self._stats: tuple[int, Stats] | None = None
        self._empty = engine_arguments.memory_table(facts.settings)

    @classmethod
    def create(
        cls,
        place: str,
        *,
        buckets: int,
        dim: int,
        active: int = 1,
        metric: str = "euclidean",
        dtype: str = "float32",
        ids: str = "int64",
        encoder: str | None = None,
        distribute: bool = False,
    ) -> PostgresTable:
        """Make an empty table.

        Args:
            place: ``postgresql://user@host/database?table=name``, where no such table is.
            buckets: d; and so on, as in :meth:`flowhash.HashTable.create`.
            dim: numbers in an embedding, at most 16,000.
            active: k.
            metric: "euclidean", "cosine" or "inner".
            dtype: "float32" or "float16".
            ids: "int64" or "string".
            encoder: the fingerprint of the encoder.
            distribute: spread the rows over the nodes of Citus, by bucket.

        Raises:
            InputError: a setting that cannot be.
            StorageError: the server refuses, or has a table of that name.
        """
        settings = TableSettings(
            plain_integer(buckets), plain_integer(dim), plain_integer(active), metric, dtype, ids,
            encoder,
        )  # fmt: skip
        settings.check()
        address = read_address(place)
        server = Server(address, read_only=False, extend=True)
        try:
            with server.using() as connection:
                names = find_names(connection, address)
                with transaction(connection):
                    make_table(
                        connection, names, address, settings, ready=True, distribute=distribute
                    )
                facts = read_facts(connection, names, address)
            assert facts is not None
            return cls(server, names, facts, writable=True)
        except BaseException:
            server.close()
            raise

    @classmethod
    def open(cls, place: str, mode: str = "r", *, encoder: str | None = None) -> PostgresTable:
        """Open a table.

        Args:
            place: its address.
            mode: "r" to search, "r+" to change it too; a user without the right can still search,
                and ``writable`` says so.
            encoder: if given, the fingerprint that it must have been made with.

        Raises:
            InputError: the mode or the encoder is another one.
            StorageError: the server does not answer or refuses, or there is no such table.
        """
        if mode not in ("r", "r+"):
            raise InputError(f'mode is {mode!r}; expected "r" to search or "r+" to change it')
        address = read_address(place)
        server = Server(address, read_only=mode == "r")
        try:
            with server.using() as connection:
                names = find_names(connection, address)
                facts = read_facts(connection, names, address)
                permitted = mode == "r+" and may_change(connection, names)
            if facts is None or not facts.ready:
                raise missing(address, facts)
            check_encoder(facts.settings.encoder, encoder, address.shown)
            return cls(server, names, facts, mode == "r+", permitted)
        except BaseException:
            server.close()
            raise

    @staticmethod
    def exists(place: str) -> bool:
        """Whether there is a table of FlowHash, be it an unfinished copy."""
        return found_facts(place) is not None

    @staticmethod
    def remove(place: str) -> None:
        """Remove a table, with all that is in it; one that is not there is passed over."""
        address = read_address(place)
        server = Server(address, read_only=False)
        try:
            with server.using() as connection:
                if not has_vector(connection):
                    return
                names = find_names(connection, address)
                with transaction(connection):
                    if read_facts(connection, names, address, lock=True) is not None:
                        drop_table(connection, names)
        finally:
            server.close()

    @property
    def address(self) -> str:
        """Where it is, without a password."""
        return self._place.shown

    @property
    def writable(self) -> bool:
        """Whether items can be changed; :meth:`refresh` asks again for the right to it."""
        return self._writable and self._permitted and self._open

    @property
    def next_id(self) -> int:
        """The id of the next item that is added without one."""
        with self._using() as connection:
            return self._facts(connection).next_id

    def add(
        self,
        codes: ArrayLike,
        embeddings: ArrayLike,
        ids: Any = None,
        payloads: Sequence[dict[str, Any] | None] | None = None,
        *,
        encoder: str | None = None,
        notes: Mapping[str, Any] | None = None,
        expected_notes: Mapping[str, Any] | None = None,
    ) -> NDArray[Any]:
        """Add items and notes in one transaction; an id that is there already is replaced.

        Arguments, answer and errors are those of :meth:`flowhash.HashTable.add`. What is expected
        of the notes is looked at while nobody else can change the table.
        """
        self._check_writable()
        items = engine_arguments.new_items(
            self._settings, codes, embeddings, ids, payloads, encoder
        )
        if not len(items.table) and not notes and not expected_notes:
            return items.ids
        with self._using() as connection:
            known, self._count = add(
                connection, self._names, self._place, self._settings, items, notes, expected_notes
            )
        return known

    def delete(self, ids: Any) -> int:
        """Delete items in one transaction; ids that are not there are passed over.

        Returns:
            How many were deleted.
        """
        self._check_writable()
        wanted = read_ids(ids, self.id_kind)
        with self._using() as connection:
            gone, self._count = delete(connection, self._names, self._place, self._settings, wanted)
        return gone

    def search(
        self,
        ordered_buckets: ArrayLike,
        queries: ArrayLike,
        top: int = 16,
        *,
        probe: int | None = None,
        at_least: int | None = None,
        where: Any = None,
        threads: int | None = None,
        payloads: bool = False,
        buckets: bool = False,
        encoder: str | None = None,
    ) -> Hits:
        """The nearest items among those in the buckets that each query opens.

        Arguments, answer and errors are those of :meth:`flowhash.HashTable.search`, with one more
        kind of ``where``: a dict of payload fields and the value, or a list of the values, that
        each may have. ``threads`` is not used: the server has its own.
        """
        asked = engine_arguments.asked(
            self._empty, ordered_buckets, queries, top, probe, at_least, threads, encoder
        )
        chosen = read_filter(self._empty, where)
        with self._using() as connection:
            hits, facts = search(
                connection,
                self._names,
                self._place,
                self._settings,
                self._counts,
                asked,
                chosen,
                payloads,
                buckets,
            )
        self._count = facts.items
        return hits

    def note(self, name: str, value: Any) -> None:
        """Note something, durably; None removes it."""
        self._check_writable()
        with self._using() as connection, transaction(connection):
            facts = locked(connection, self._names, self._place, self._settings)
            changed = changed_notes(facts.notes, {name: value})
            if changed is not None:
                write_notes(connection, self._names, changed)

    def notes(self) -> dict[str, Any]:
        """What was noted about the table."""
        with self._using() as connection:
            return self._facts(connection).notes

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
            kept = self._stats  # which other threads may exchange meanwhile
            if kept is not None and kept[0] == facts.changes and not facts.distributed:
                return kept[1]
            sizes = self._sizes(connection, facts)
            found = self._others_found(connection, facts, sizes)
            measured = stats(connection, self._names, facts, sizes, found)
        self._stats = (facts.changes, measured)
        return measured

    def bucket_loads(self) -> NDArray[np.int64]:
        """How many items each bucket holds [d]."""
        with self._using() as connection, snapshot(connection):
            return self._sizes(connection, self._facts(connection)).copy()

    def sample(self, count: int, seed: int) -> tuple[int, list[Item]]:
        """How many items there are, and a random sample of them; the same for the same seed."""
        with self._using() as connection, snapshot(connection):
            facts = self._facts(connection)
            sizes = self._sizes(connection, facts)
            items = sample(connection, self._names, self._settings, sizes, count, seed)
        return facts.items, items

    def bucket_items(self, bucket: int, count: int, seed: int) -> list[Item]:
        """A random sample of the items in a bucket."""
        _, rows = self._bucket_rows(ITEM, bucket, count, seed)
        return [item_of(row, self._settings) for row in rows]

    def bucket_payloads(
        self, bucket: int, count: int, seed: int
    ) -> tuple[int, list[dict[str, Any] | None]]:
        """How many items a bucket holds, and the payloads of a random sample of them."""
        load, rows = self._bucket_rows("payload", bucket, count, seed)
        return load, [row[0] for row in rows]

    def codes_of(self, ids: list[Any]) -> list[list[int] | None]:
        """The buckets of each item, ascending; None for those that are not there."""
        wanted = self._known_ids(ids)
        with self._using() as connection:
            found = codes_by_id(connection, self._names, self._settings, wanted)
        return [found.get(name) for name in wanted]

    def batches(self, size: int = 8192, payloads: bool = True) -> Iterator[Stored]:
        """All items of one state, some at a time; a connection is held meanwhile."""
        if size < 1:
            raise InputError(f"size is {size}; expected one or more items")
        with self._using() as connection, snapshot(connection):
            yield from batches(connection, self._names, self._settings, size, payloads)

    def close(self) -> None:
        """Close all connections; closing twice is fine."""
        if self._open:
            self._open = False
            self._server.close()

    def __enter__(self) -> PostgresTable:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        self._check_open()
        return self._count

    def __contains__(self, item: object) -> bool:
        try:
            self[item]
        except KeyError:
            return False
        return True

    def __getitem__(self, item: Any) -> Item:
        try:
            (wanted,) = self._known_ids([item])
        except (InputError, ValueError):
            raise KeyError(item) from None
        with self._using() as connection:
            found = items_by_id(connection, self._names, self._settings, [wanted])
        if wanted not in found:
            raise KeyError(item)
        return found[wanted]

    def __repr__(self) -> str:
        state = f"{self._count} items" if self._open else "closed"
        return (
            f"<{type(self).__name__} at {self.address}: {state}, buckets={self.buckets}, "
            f"dim={self.dim}, active={self.active}, metric={self.metric!r}>"
        )

    def _check_writable(self) -> None:
        self._check_open()
        if not self._writable:
            raise StorageError(
                f"{self.address} was opened to be searched only; open it with "
                'mode="r+" to change it'
            )

    @property
    def _place(self) -> PostgresAddress:
        return self._server.address

    @contextlib.contextmanager
    def _using(self) -> Iterator[Connection]:
        self._check_open()
        with self._server.using() as connection:
            yield connection

    def _check_open(self) -> None:
        if not self._open:
            raise StorageError(f"{self.address} is closed; open it again")

    def _facts(self, connection: Connection) -> TableFacts:
        facts = read_facts(connection, self._names, self._place)
        return usable(facts, self._settings, self._place)

    def _known(self, facts: TableFacts) -> dict[Wanted, int]:
        """Counts that hold: on many nodes none do, their states may differ for a moment."""
        return {} if facts.distributed else self._counts.of(facts.changes)

    def _sizes(self, connection: Connection, facts: TableFacts) -> NDArray[np.int64]:
        kept = self._loads  # which other threads may exchange meanwhile
        if kept is None or kept[0] != facts.changes or facts.distributed:
            kept = (facts.changes, loads(connection, self._names, self.buckets))
            self._loads = kept
        return kept[1]

    def _others_found(
        self, connection: Connection, facts: TableFacts, sizes: NDArray[np.int64]
    ) -> float:
        """The mean number of others that an item finds in its own buckets."""
        if facts.items < 2:
            return 0.0
        if self.active == 1:
            return float((sizes * (sizes - 1)).sum()) / facts.items
        drawn = sample(connection, self._names, self._settings, sizes, SUF_SAMPLE, 0)
        order = np.stack([item.code for item in drawn])
        asked = engine_arguments.EngineQueries(
            order, np.empty((len(order), 0), np.float32), 1, self.active, None
        )
        known = self._known(facts)
        found = count_opened(connection, self._names, self.active, asked, NO_FILTER, known).found
        return float((found - 1).mean())

    def _bucket_rows(
        self, columns: str, bucket: int, count: int, seed: int
    ) -> tuple[int, list[tuple[Any, ...]]]:
        with self._using() as connection, snapshot(connection):
            load = int(self._sizes(connection, self._facts(connection))[bucket])
            places = draw_sample(load, count, seed).tolist()
            return load, rows_at(connection, self._names, columns, bucket, places)

    def _known_ids(self, ids: Any) -> list[Any]:
        found = read_ids(ids, self.id_kind)
        known: list[Any] = [found.value(place) for place in range(len(found))]
        if self.id_kind != INT64:  # no row of PostgreSQL has such an id
            known = [None if "\0" in str(name) else name for name in known]
        return known


def found_facts(place: str) -> TableFacts | None:
    """What the registry says of a table; None where there is none."""
    address = read_address(place)
    server = Server(address, read_only=True)
    try:
        with server.using() as connection:
            if not has_vector(connection):
                return None
            names = find_names(connection, address)
            return read_facts(connection, names, address)
    finally:
        server.close()


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


def item_of(row: Sequence[Any], settings: TableSettings) -> Item:
    """An item from one of its rows, with the columns ``ITEM``, in binary."""
    bucket, name, others, payload, embedding = row
    code = np.array(sorted([bucket, *(others or [])]), np.int32)
    return Item(name, code, embeddings_of([embedding], settings)[0], payload)


def items_by_id(
    connection: Connection, names: Names, settings: TableSettings, ids: Sequence[Any]
) -> dict[Any, Item]:
    """The items that are there, by their ids."""
    command = sql.SQL("SELECT {} FROM {} WHERE id = ANY(%s::{}) AND {}").format(
        sql.SQL(ITEM), names.table, id_list(settings), sql.SQL(FIRST)
    )
    cursor = connection.cursor(binary=True).execute(command, (list(ids),), prepare=True)
    found = (item_of(row, settings) for row in cursor)
    return {item.id: item for item in found}


def codes_by_id(
    connection: Connection, names: Names, settings: TableSettings, ids: Sequence[Any]
) -> dict[Any, list[int]]:
    """The codes of the items that are there, by their ids."""
    command = sql.SQL("SELECT id, bucket, others FROM {} WHERE id = ANY(%s::{}) AND {}").format(
        names.table, id_list(settings), sql.SQL(FIRST)
    )
    rows = connection.execute(command, (list(ids),), prepare=True).fetchall()
    return {name: sorted([bucket, *(others or [])]) for name, bucket, others in rows}


def id_list(settings: TableSettings) -> sql.SQL:
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
    connection: Connection, names: Names, settings: TableSettings, sizes: NDArray[np.int64],
    count: int, seed: int,
) -> list[Item]:  # fmt: skip
    """A random sample of items: rows are drawn, and an item that came twice is drawn once."""
    total = int(sizes.sum())
    # Twice as many as are needed: with k > 1 some rows are of one item.
    drawn = draw_sample(total, count if settings.active == 1 else 2 * settings.active * count, seed)
    ends = np.cumsum(sizes)
    buckets = np.searchsorted(ends, drawn, side="right")
    found: dict[Any, Item] = {}
    for bucket in np.unique(buckets).tolist():
        places = drawn[buckets == bucket] - (int(ends[bucket]) - int(sizes[bucket]))
        for row in rows_at(connection, names, ITEM, bucket, places.tolist()):
            item = item_of(row, settings)
            found.setdefault(item.id, item)
    items = list(found.values())
    kept = draw_sample(len(items), count, seed)
    return [items[place] for place in kept.tolist()]


def batches(
    connection: Connection, names: Names, settings: TableSettings, size: int, payloads: bool
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
    connection: Connection, names: Names, facts: TableFacts, sizes: NDArray[np.int64], found: float
) -> Stats:
    """Figures of a table; ``found`` is the mean number of others that an item finds."""
    function = "citus_total_relation_size" if facts.distributed else "pg_total_relation_size"
    row = connection.execute(
        sql.SQL("SELECT {}(%s::regclass)").format(sql.SQL(function)),
        (names.table.as_string(connection),),
    ).fetchone()
    return stats_of(facts.settings, facts.items, sizes, found, int(row[0]) if row else 0)
