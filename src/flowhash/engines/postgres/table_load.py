"""A copy of a hash table into PostgreSQL: streamed in bucket order, gone on with, checked."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from flowhash.engines.postgres.connection_pool import (
    Connection,
    Server,
    read_address,
    transaction,
)
from flowhash.engines.postgres.row_stream import RowStream, copy_rows
from flowhash.engines.postgres.schema import (
    TableFacts,
    drop_table,
    find_names,
    make_keys,
    make_table,
    note_short_codes,
    read_facts,
)
from flowhash.errors import InputError, StorageError
from flowhash.table import INT64, STRING, HashTable

AHEAD = 2  # pieces that are made ready while another is sent
CHECKERS = 2  # connections that compare checksums


class PostgresLoading:
    """Copies a table piece by piece; each is a transaction that also says how far it came.

    A finished copy knows what it is a copy of until it is changed: whoever got no answer to the
    last step and does the same again hears that it is complete.

    Args:
        table: open.
        place: the address of the copy.
        distribute: spread it over the nodes of Citus, by bucket.
        restart: remove an unfinished copy first.

    Raises:
        InputError: the address holds something else.
        StorageError: the server does not answer, or refuses.
    """

    def __init__(
        self, table: HashTable, place: str, *, distribute: bool = False, restart: bool = False
    ) -> None:
        self._table = table
        self._settings = table._settings
        self._source = RowStream(table)
        self._place = read_address(place)
        if self._source.has_zeros():
            raise InputError(
                "an id of the table has a zero character, which PostgreSQL cannot store; replace "
                "that item"
            )
        self._digests: dict[tuple[int, int], str] = {}
        self._server = Server(self._place, read_only=False, extend=True)
        self.total = len(table)
        try:
            with self._server.using() as connection:
                self._names = find_names(connection, self._place)
                facts = self._begin(connection, distribute, restart)
            self._apart, self._complete = facts.distributed, facts.ready
            progress = facts.progress or {}
            self._copied = len(self._source) if facts.ready else int(progress["rows"])
            self._token = progress.get("token")
            self.done = self._items(self._copied)
        except BaseException:
            self._server.close()
            raise

    def parts(self) -> Iterator[range]:
        """Copy what is left; while the server takes one piece, the next is made ready."""
        pieces = self._source.pieces(self._copied, self._source.at_once, self._apart)
        before = self.done
        with (
            self._server.using() as connection,
            ThreadPoolExecutor(1, thread_name_prefix="flowhash-rows") as pool,
        ):
            ahead = [pool.submit(self._prepared, *piece) for piece in pieces[:AHEAD]]
            for number, (start, stop) in enumerate(pieces):
                content = ahead.pop(0).result()
                if number + AHEAD < len(pieces):
                    ahead.append(pool.submit(self._prepared, *pieces[number + AHEAD]))
                self._copy(connection, start, stop, content)
                reached = self._items(stop)
                yield range(before, reached)
                before = reached

    def checks(self) -> Iterator[range]:
        """Make the keys, then compare counts and checksums of all rows."""
        with self._server.using() as connection:
            self._make_keys(connection)
        pieces = self._source.pieces(0, self._source.at_once, self._apart)
        before = 0
        with ThreadPoolExecutor(CHECKERS, thread_name_prefix="flowhash-check") as pool:
            expected = [self._digest(*piece) for piece in pieces]
            for (_, stop), sent, stored in zip(
                pieces, expected, pool.map(self._stored, pieces), strict=True
            ):
                if sent != stored:
                    raise self._differs(stop)
                reached = self._items(stop)
                yield range(before, reached)
                before = reached
        with self._server.using() as connection:
            command = sql.SQL("SELECT count(*) FROM {}").format(self._names.table)
            row = connection.execute(command).fetchone()
        if row is None or row[0] != len(self._source):
            raise self._differs(len(self._source))

    def finish(self, notes: Mapping[str, Any]) -> None:
        """Open the copy, with these notes, for searches."""
        if self._complete:
            return
        with self._server.using() as connection:
            connection.execute(sql.SQL("VACUUM ANALYZE {}").format(self._names.table))
        with self._server.using() as connection, transaction(connection):
            self._own_progress(connection, len(self._source))
            next_id = self._table.next_id if self._settings.ids == INT64 else 0
            command = sql.SQL(
                "UPDATE {} SET items = %s, next_id = %s, largest = %s, changes = changes + 1,"
                " ready = true, progress = json_build_object('source', %s::text, 'changes',"
                " changes + 1), notes = %s WHERE name = %s"
            ).format(self._names.registry)
            given = (self.total, next_id, self._source.largest, self._table.version)
            connection.execute(command, (*given, json.dumps(dict(notes)), self._names.name))

    def close(self) -> None:
        """Let go of the connections."""
        self._server.close()

    def _begin(self, connection: Connection, distribute: bool, restart: bool) -> TableFacts:
        """The copy that is there, unfinished or complete, or a new one."""
        version = self._table.version
        with transaction(connection):
            facts = read_facts(connection, self._names, self._place, lock=True)
            complete = {"source": version, "changes": facts and facts.changes}
            if facts is not None and facts.ready and facts.progress != complete:
                raise InputError(
                    f"{self._place.shown} holds a table with {facts.items:,} items already; choose "
                    "another with ?table=NAME, or drop it first; --restart is for unfinished copies"
                )
            if facts is not None and restart and not facts.ready:
                drop_table(connection, self._names)
                facts = None
            if facts is None:
                make_table(
                    connection, self._names, self._place, self._settings, ready=False,
                    distribute=distribute,
                    progress={"source": version, "rows": 0, "token": secrets.token_hex(8)},
                )  # fmt: skip
                if self._source.has_short_codes:
                    note_short_codes(connection, self._names)
                facts = read_facts(connection, self._names, self._place)
        assert facts is not None
        source = (facts.progress or {}).get("source")
        if source != version or asdict(facts.settings) != asdict(self._settings):
            raise InputError(
                f"{self._place.shown} holds an unfinished copy of another table, or of this one "
                "before it was changed; give --restart to remove it and begin anew"
            )
        if distribute and not facts.distributed:
            raise InputError(
                f"{self._place.shown} holds a copy that is not distributed; leave --distribute "
                "out, or, where it is unfinished, give --restart to remove it and begin anew"
            )
        return facts

    def _prepared(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The bytes of a piece; its checksum is kept for the end."""
        rows = self._source.rows(start, stop)
        self._digests[start, stop] = rows.digest()
        return rows.copied()

    def _copy(
        self, connection: Connection, start: int, stop: int, content: NDArray[np.uint8]
    ) -> None:
        """Store one piece, and how far that is, for good."""
        with transaction(connection):
            progress = {**self._own_progress(connection, start), "rows": stop}
            copy_rows(connection, self._names, [content])
            connection.execute(
                sql.SQL("UPDATE {} SET progress = %s WHERE name = %s").format(self._names.registry),
                (json.dumps(progress), self._names.name),
            )

    def _own_progress(self, connection: Connection, rows: int) -> dict[str, Any]:
        """How far the copy is, which must be where this attempt left it; nobody else goes on now.

        Raises:
            StorageError: somebody else has copied on, begun anew, or finished it.
        """
        facts = read_facts(connection, self._names, self._place, lock=True)
        progress = None if facts is None or facts.ready else facts.progress
        if progress is None or (progress["token"], progress["rows"]) != (self._token, rows):
            raise StorageError(
                f"{self._place.shown} is being copied to by somebody else too; let one of them "
                "finish"
            )
        return progress

    def _make_keys(self, connection: Connection) -> None:
        """The keys, unless an earlier attempt made them; rows that are there twice show here."""
        with transaction(connection):
            row = connection.execute(
                "SELECT 1 FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'",
                (self._names.table.as_string(connection),),
            ).fetchone()
            if row is None:
                make_keys(connection, self._names)

    def _digest(self, start: int, stop: int) -> str:
        return self._digests.get((start, stop)) or self._source.rows(start, stop).digest()

    def _stored(self, piece: tuple[int, int]) -> str:
        """The checksum of a piece, from what the server has stored."""
        start, stop = piece
        first, last = self._source.buckets_of(start, stop)
        begin = int(self._source.starts[first])
        name = "convert_to(id, 'UTF8')" if self._settings.ids == STRING else "int8send(id)"
        others = " || array_send(others)" if self._settings.active > 1 else ""
        command = sql.SQL(
            "SELECT encode(sha256(coalesce(string_agg(int4send(bucket) || {name}{others}"
            " || coalesce(convert_to(payload::text, 'UTF8'), '') || {send}(embedding),"
            " ''::bytea ORDER BY bucket, id), '')), 'hex') FROM"
            " (SELECT * FROM {table} WHERE {where} ORDER BY bucket, id LIMIT %s OFFSET %s) AS piece"
        ).format(
            name=sql.SQL(name), others=sql.SQL(others), send=self._names.send(self._settings),
            table=self._names.table,
            where=sql.SQL("bucket = %s" if first == last else "bucket BETWEEN %s AND %s"),
        )  # fmt: skip
        buckets = (first,) if first == last else (first, last)
        # A piece that begins inside a bucket ends there too.
        with self._server.using() as connection:
            # One more than were sent: a row too many must not hide behind the limit.
            whole = stop == int(self._source.starts[last + 1])
            limit = stop - start + (1 if whole else 0)
            row = connection.execute(command, (*buckets, limit, start - begin)).fetchone()
        return "" if row is None else str(row[0])

    def _differs(self, stop: int) -> StorageError:
        bucket = self._source.buckets_of(max(0, stop - 1), stop)[1] if len(self._source) else 0
        what = "Drop it and copy again" if self._complete else "Run the copy again with --restart"
        return StorageError(
            f"{self._place.shown}: what is stored is not what was sent (up to bucket {bucket}); "
            f"somebody has changed it, or the server lost it. {what}"
        )

    def _items(self, rows: int) -> int:
        """Items of the first rows: with k > 1 an item counts with its share."""
        return rows * self.total // max(1, len(self._source))
