"""Changes: one transaction each, so that a reader sees all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import IsolationLevel, sql

from flowhash.engines.engine_arguments import EngineItems
from flowhash.engines.postgres.connection_pool import Connection
from flowhash.engines.postgres.copy_rows import HEADER, TRAILER
from flowhash.engines.postgres.postgres_address import PostgresAddress
from flowhash.engines.postgres.row_source import RowStream
from flowhash.engines.postgres.schema import Names, TableFacts, read_facts, write_notes
from flowhash.errors import InputError, StorageError
from flowhash.table import INT64, Ids, TableSettings, changed_notes

COLUMNS = "bucket, id, others, payload, embedding"


def locked(
    connection: Connection, names: Names, address: PostgresAddress, settings: TableSettings
) -> TableFacts:
    """The facts of a table, which nobody else changes until this transaction ends.

    Raises:
        StorageError: the table was removed or made anew, or is a copy that is not finished.
    """
    return usable(read_facts(connection, names, address, lock=True), settings, address)


def usable(
    facts: TableFacts | None, settings: TableSettings, address: PostgresAddress
) -> TableFacts:
    """The facts of a table that is ready and still the one that was opened.

    Raises:
        StorageError: it is not.
    """
    if facts is None or not facts.ready:
        raise missing(address, facts)
    if facts.settings != settings:
        raise StorageError(
            f"{address.shown} was made anew with other settings, or another encoder; open it again"
        )
    return facts


def missing(address: PostgresAddress, facts: TableFacts | None) -> StorageError:
    """Why a table cannot be used."""
    if facts is None:
        return StorageError(
            f"{address.shown}: there is no FlowHash table {address.name!r}; `flowhash index --to` "
            "or `flowhash copy` makes one"
        )
    return StorageError(
        f"{address.shown} is an unfinished copy; run the same `flowhash copy` again, which goes on "
        "where it stopped"
    )


def transaction(connection: Connection) -> Any:
    """A transaction in which a row that is waited for is read as it is then."""
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    return connection.transaction()


def add(
    connection: Connection,
    names: Names,
    address: PostgresAddress,
    settings: TableSettings,
    items: EngineItems,
    notes: Mapping[str, Any] | None = None,
    expected_notes: Mapping[str, Any] | None = None,
) -> tuple[NDArray[Any], int]:
    """Store items in place of those with the same ids; the ids, and how many items there are."""
    refuse_zeros(items)
    with transaction(connection):
        facts = locked(connection, names, address, settings)
        changed = changed_notes(facts.notes, notes, expected_notes)
        if changed is not None:
            write_notes(connection, names, changed)
        if not len(items.table):
            return items.ids, facts.items
        ids = items.counted_from(facts.next_id)
        source = RowStream(items.table, facts.next_id if items.counted else 0)
        gone = 0 if items.counted else _delete(connection, names, facts.settings, items.ids)
        pieces = source.pieces(0, source.at_once, False)
        copy_rows(connection, names, (source.rows(*piece).copied() for piece in pieces))
        total = facts.items - gone + len(items.table)
        next_id = facts.next_id
        if facts.settings.ids == INT64 and len(ids):
            next_id = max(next_id, int(ids.max()) + 1)
        _changed(connection, names, total, next_id, max(facts.largest, source.largest))
    return ids, total


def delete(
    connection: Connection,
    names: Names,
    address: PostgresAddress,
    settings: TableSettings,
    ids: Ids,
) -> tuple[int, int]:
    """Delete items; how many there were, and how many are left."""
    with transaction(connection):
        facts = locked(connection, names, address, settings)
        wanted = np.array([ids.value(place) for place in range(len(ids))], object)
        gone = _delete(connection, names, facts.settings, wanted)
        if gone:
            _changed(connection, names, facts.items - gone, facts.next_id, facts.largest)
    return gone, facts.items - gone


def copy_rows(connection: Connection, names: Names, groups: Iterable[NDArray[np.uint8]]) -> None:
    """Send rows, in groups of their bytes, to the server."""
    command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        names.table, sql.SQL(COLUMNS)
    )
    with connection.cursor() as cursor, cursor.copy(command) as stream:
        stream.write(HEADER)
        for group in groups:
            stream.write(group.data)
        stream.write(TRAILER)


def refuse_zeros(items: EngineItems) -> None:
    """PostgreSQL's texts hold every character but one."""
    if items.table.id_kind == INT64:
        return
    for name in items.ids.tolist():
        if "\0" in name:
            raise InputError(
                f"the id {name!r:.80} has a zero character, which PostgreSQL cannot store; leave "
                "it out"
            )


def _delete(connection: Connection, names: Names, settings: TableSettings, ids: Any) -> int:
    """Delete the rows of items; how many items that were."""
    kind = "bigint[]" if settings.ids == INT64 else "text[]"
    listed = ids.tolist()
    if settings.ids != INT64:
        listed = [name for name in listed if "\0" not in name]
    command = sql.SQL("DELETE FROM {} WHERE id = ANY(%s::{})").format(names.table, sql.SQL(kind))
    gone = connection.execute(command, (listed,)).rowcount
    return gone // settings.active


def _changed(
    connection: Connection, names: Names, items: int, next_id: int, largest: float
) -> None:
    command = sql.SQL(
        "UPDATE {} SET items = %s, next_id = %s, largest = %s, changes = changes + 1"
        " WHERE name = %s"
    )
    connection.execute(command.format(names.registry), (items, next_id, largest, names.name))
