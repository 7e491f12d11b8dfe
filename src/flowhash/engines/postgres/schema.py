"""The tables of a FlowHash table on PostgreSQL, their names, and the row that says what it is."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from psycopg import sql

from flowhash.engines.postgres.connection_pool import Connection, PostgresAddress
from flowhash.errors import InputError, StorageError, reason
from flowhash.table import TableSettings

VERSION = 2  # of tables with items in fewer than k buckets
ALL_BUCKETS = 1  # of others
MOST_NUMBERS = 16_000  # of a vector of pgvector
PLAIN_ROW = 7_000  # bytes of an embedding that fits into a page of 8 KiB beside the rest
COLUMNS = "bucket, id, others, payload, embedding"  # of a row, as they are sent and read
FACTS = "settings, items, next_id, changes, largest, ready, progress, notes, distributed"


@dataclass(frozen=True)
class TableFacts:
    """What the registry says of a table."""

    settings: TableSettings
    items: int
    next_id: int
    changes: int
    largest: float
    ready: bool
    progress: dict[str, Any] | None
    notes: dict[str, Any]
    distributed: bool


def read_facts(
    connection: Connection,
    names: Names,
    address: PostgresAddress,
    *,
    lock: bool = False,
    was_there: bool = False,
) -> TableFacts | None:
    """What the registry says; None where it does not know the table.

    Args:
        connection: to the server.
        names: of the table.
        address: for messages.
        lock: whether others are to wait for the end of this transaction.
        was_there: a search asks no more than it must: the table was there when it was opened.

    Raises:
        StorageError: it was made by a newer FlowHash, or what is there is none of ours.
    """
    query = sql.SQL("SELECT version, {} FROM {} WHERE name = %s {}").format(
        sql.SQL(FACTS), names.registry, sql.SQL("FOR UPDATE" if lock else "")
    )
    # A table that somebody has dropped is none, whatever the registry says.
    if not was_there and not all(
        _is_there(connection, names, name) for name in (REGISTRY, names.name)
    ):
        return None
    with _naming_damage(address):
        row = connection.execute(query, (names.name,), prepare=was_there or None).fetchone()
        if row is None:
            return None
        if row[0] not in (ALL_BUCKETS, VERSION):
            raise StorageError(
                f"{address.shown} has version {row[0]} of the layout, and this FlowHash knows "
                f"{ALL_BUCKETS} and {VERSION}; use the FlowHash that made it, or a newer one"
            )
        return _facts_of(row[1:])


@contextlib.contextmanager
def _naming_damage(address: PostgresAddress) -> Iterator[None]:
    """Whatever a line of the registry holds that no FlowHash writes is said in one line.

    The driver reads JSON as it fetches the line: what nests too deeply, or has numbers of thousands
    of digits, fails there.
    """
    try:
        yield
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise StorageError(
            f"{address.shown}: its line in {REGISTRY} is damaged ({type(error).__name__}: "
            f"{reason(error)}); restore it from a backup, or drop the table and copy again"
        ) from error


def _facts_of(row: Sequence[Any]) -> TableFacts:
    """A line of the registry, with the columns ``FACTS``.

    Raises:
        TypeError: it is not what FlowHash writes; or a KeyError, an OverflowError, a ValueError.
    """
    settings, items, next_id, changes, largest, ready, progress, notes, distributed = row
    found = TableFacts(
        TableSettings(**settings), int(items), int(next_id), int(changes), float(largest),
        bool(ready), _object("progress", progress), _object("notes", notes) or {},
        bool(distributed),
    )  # fmt: skip
    found.settings.check()
    if found.items < 0 or not (math.isfinite(found.largest) and found.largest >= 0):
        raise ValueError(f"items is {found.items}, largest {found.largest}")
    if not found.ready and found.progress is not None:
        rows, token = found.progress["rows"], found.progress["token"]
        if not isinstance(rows, int) or rows < 0 or not isinstance(token, str):
            raise ValueError(f"progress has the rows {rows!r} and the token {token!r}")
    return found


def _object(name: str, value: Any) -> dict[str, Any] | None:
    if value is None or isinstance(value, dict):
        return value
    raise TypeError(f"{name} is {value!r}, no object")


def _is_there(connection: Connection, names: Names, name: str) -> bool:
    """Whether the schema has a relation of this name."""
    row = connection.execute(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (names.schema, name),
    ).fetchone()
    return row is not None


def may_change(connection: Connection, names: Names) -> bool:
    """Whether this user has the rights that a change needs, on a server that takes changes."""
    row = connection.execute(
        "SELECT current_setting('transaction_read_only') = 'off'"
        # Rights to some columns may be enough, and the server says it if they are not.
        " AND has_any_column_privilege(to_regclass(%(rows)s), 'INSERT')"
        " AND has_table_privilege(to_regclass(%(rows)s), 'DELETE')"
        " AND has_any_column_privilege(to_regclass(%(registry)s), 'UPDATE')",
        {
            "rows": names.table.as_string(connection),
            "registry": names.registry.as_string(connection),
        },
    ).fetchone()
    return row is not None and row[0] is True  # null where there is no such table


def make_table(
    connection: Connection,
    names: Names,
    address: PostgresAddress,
    settings: TableSettings,
    *,
    ready: bool,
    distribute: bool,
    progress: dict[str, Any] | None = None,
) -> None:
    """Make the rows' table and its line in the registry, inside a transaction.

    A table that is to be loaded gets its keys afterwards: that is faster.

    Raises:
        InputError: PostgreSQL cannot hold such a table.
        StorageError: something of that name is there.
    """
    if settings.dim > MOST_NUMBERS:
        raise InputError(f"dim is {settings.dim}; pgvector holds at most {MOST_NUMBERS}")
    citus = "SELECT 1 FROM pg_extension WHERE extname = 'citus'"
    if distribute and connection.execute(citus).fetchone() is None:
        raise StorageError(
            f"{address.shown} has no Citus, and cannot distribute a table; leave --distribute out, "
            "or have an administrator run CREATE EXTENSION citus"
        )
    row = connection.execute("SHOW server_encoding").fetchone()
    if row is None or row[0] != "UTF8":
        raise StorageError(
            f"{address.shown} is a database of {row and row[0]}; FlowHash needs one of UTF8 "
            "(CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0)"
        )
    if _is_there(connection, names, names.name):
        raise StorageError(
            f"{address.shown}: there is a table {names.name!r} already; choose another with "
            "?table=NAME"
        )
    _make_registry(connection, names)
    identity = "bigint" if settings.ids == "int64" else 'text COLLATE "C"'
    wide = settings.dim * (4 if settings.dtype == "float32" else 2) > PLAIN_ROW
    connection.execute(
        sql.SQL(
            # What a search reads of every row stands before what may be null, where the server
            # knows its place without looking.
            "CREATE TABLE {} (bucket integer NOT NULL, id {} NOT NULL, embedding {} NOT NULL,"
            " others integer[], payload json)"
        ).format(names.table, sql.SQL(cast(Any, identity)), names.kind(settings))
    )
    # In the row itself, and never packed: a search reads every embedding of a bucket.
    connection.execute(
        sql.SQL("ALTER TABLE {} ALTER embedding SET STORAGE {}").format(
            names.table, sql.SQL("EXTERNAL" if wide else "PLAIN")
        )
    )
    if distribute:
        connection.execute(
            "SELECT create_distributed_table(%s::regclass, 'bucket')",
            (names.table.as_string(connection),),
        )
    if ready:
        make_keys(connection, names)
    connection.execute(
        sql.SQL("DELETE FROM {} WHERE name = %s").format(names.registry), (names.name,)
    )
    connection.execute(
        sql.SQL(
            "INSERT INTO {} (name, version, settings, ready, progress, distributed)"
            " VALUES (%s, %s, %s, %s, %s, %s)"
        ).format(names.registry),
        (
            names.name, ALL_BUCKETS, json.dumps(asdict(settings)), ready,
            None if progress is None else json.dumps(progress), distribute,
        ),
    )  # fmt: skip


def _make_registry(connection: Connection, names: Names) -> None:
    # Two that make it at once: the lock lets one go first.
    connection.execute("SELECT pg_advisory_xact_lock(hashtext('flowhash_tables'))")
    connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, version integer NOT NULL,"
            " settings json NOT NULL, items bigint NOT NULL DEFAULT 0,"
            " next_id numeric(20) NOT NULL DEFAULT 0,"
            # From the clock: a table that is made anew must not look like the one before it to
            # those who keep counts of it.
            " changes bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000),"
            " largest float8 NOT NULL DEFAULT 0, ready boolean NOT NULL,"
            " progress json, notes json, distributed boolean NOT NULL)"
        ).format(names.registry)
    )


def make_keys(connection: Connection, names: Names) -> None:
    """The primary key, by bucket, and an index to find an item by its id."""
    connection.execute(
        sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} PRIMARY KEY (bucket, id)").format(
            names.table, sql.Identifier(f"{names.name}_pkey")
        )
    )
    connection.execute(
        sql.SQL("CREATE INDEX {} ON {} (id)").format(
            sql.Identifier(f"{names.name}_by_id"), names.table
        )
    )


def drop_table(connection: Connection, names: Names) -> None:
    """Remove a table and its line in the registry."""
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(names.table))
    connection.execute(
        sql.SQL("DELETE FROM {} WHERE name = %s").format(names.registry), (names.name,)
    )


def note_short_codes(connection: Connection, names: Names) -> None:
    """Let those that take every item to be in k buckets refuse the table from now on."""
    connection.execute(
        sql.SQL("UPDATE {} SET version = %s WHERE name = %s").format(names.registry),
        (VERSION, names.name),
    )


def write_notes(connection: Connection, names: Names, notes: dict[str, Any]) -> None:
    """Put notes in the place of the earlier ones."""
    connection.execute(
        sql.SQL("UPDATE {} SET notes = %s WHERE name = %s").format(names.registry),
        (json.dumps(notes), names.name),
    )


REGISTRY = "flowhash_tables"
FUNCTIONS = {
    # Functions, not the operators: those could be led to an index that is not exact.
    "euclidean": "vector_l2_squared_distance",
    "cosine": "cosine_distance",
    "inner": "vector_negative_inner_product",
}


@dataclass(frozen=True)
class Names:
    """What a table's parts are called, as the driver quotes them."""

    schema: str
    name: str
    extension: str  # the schema of pgvector

    @property
    def table(self) -> sql.Identifier:
        """The rows."""
        return sql.Identifier(self.schema, self.name)

    @property
    def registry(self) -> sql.Identifier:
        """The table of tables."""
        return sql.Identifier(self.schema, REGISTRY)

    def kind(self, settings: TableSettings) -> sql.Composable:
        """The type of an embedding."""
        name = "vector" if settings.dtype == "float32" else "halfvec"
        kind = sql.Identifier(self.extension, name)
        return sql.SQL("{}({})").format(kind, sql.Literal(settings.dim))

    def distance(self, settings: TableSettings) -> sql.Composable:
        """The distance of a row from the query ``%s``, whose numbers are not rounded to halves."""
        function = sql.Identifier(self.extension, FUNCTIONS[settings.metric])
        stored: sql.Composable = sql.Identifier("embedding")
        if settings.dtype == "float16":
            stored = sql.SQL("{}::{}").format(stored, sql.Identifier(self.extension, "vector"))
        return sql.SQL("{}({}, %s)").format(function, stored)

    def send(self, settings: TableSettings) -> sql.Identifier:
        """The function that gives an embedding's bytes."""
        name = "vector_send" if settings.dtype == "float32" else "halfvec_send"
        return sql.Identifier(self.extension, name)


def find_names(connection: Connection, address: PostgresAddress) -> Names:
    """The names of a table's parts; pgvector must be there."""
    row = connection.execute(
        "SELECT coalesce(%s::text, current_schema()), (SELECT n.nspname FROM pg_extension e"
        " JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector')",
        (address.schema,),
    ).fetchone()
    assert row is not None
    schema, extension = row
    if schema is None:
        raise StorageError(f"{address.shown}: no schema of the search path is there; name one")
    offered = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
    if extension is None and connection.execute(offered).fetchone() is not None:
        raise StorageError(
            f"{address.shown}: there is no FlowHash table, and no extension vector; `flowhash "
            "index --to` or `flowhash copy` make both, or run CREATE EXTENSION vector in this "
            "database"
        )
    if extension is None:
        raise StorageError(
            f"{address.shown}: the server has no pgvector; install pgvector there, then run CREATE "
            "EXTENSION vector in this database"
        )
    return Names(schema, address.name, extension)
