"""Where a table is on PostgreSQL, a pool of connections to there, and its errors in our words."""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import numpy as np
import psycopg
import psycopg_pool
from numpy.typing import NDArray
from psycopg import IsolationLevel
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format

from flowhash.engines.engine_registry import hidden
from flowhash.errors import ForbiddenError, InputError, StorageError

Connection = psycopg.Connection[tuple[Any, ...]]
DEFAULT = "flowhash"
LONGEST = 55  # bytes of a name: PostgreSQL has 63, and the index on ids has the name and more
CONNECTIONS = 8  # of one engine, at the most
PATIENCE = 10.0  # seconds until somebody who waits for a connection gives up
# Texts are sent as UTF-8, also where the user's settings say otherwise.
OPTIONS: dict[str, Any] = {
    "autocommit": True, "application_name": "flowhash", "client_encoding": "UTF8"
}  # fmt: skip
QUICK = 0.5  # seconds until somebody who waits asks whether the server is there at all

# Without a handler Python would print what the driver warns of; errors are raised anyway.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class PostgresAddress:
    """A table on a server.

    Attributes:
        server: the address without the table, for libpq; it may hold a password.
        shown: the whole address for people, without a password.
        schema: that the table is in; None is the first of the search path.
        name: of the table.
    """

    server: str
    shown: str
    schema: str | None
    name: str


def read_address(text: str) -> PostgresAddress:
    """Take an address apart: ``postgresql://user@host:port/database?table=schema.name``.

    Raises:
        InputError: it names no table that PostgreSQL could have.
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        raise _unreadable(text) from None
    if parts.fragment or parts.netloc.count("@") > 1:
        raise _unreadable(text)
    given = parse_qsl(parts.query, keep_blank_values=True)
    tables = [value for key, value in given if key == "table"]
    if len(tables) > 1:
        raise InputError(f"{hidden(text)} names {len(tables)} tables; give one table=")
    rest = [(key, value) for key, value in given if key != "table"]
    # libpq takes %20, but no plus, for a space.
    server = parts._replace(
        scheme="postgresql", query=urlencode(rest, quote_via=quote), fragment=""
    ).geturl()
    if "://" not in server:  # an address without a host lost its slashes
        server = server.replace("postgresql:", "postgresql://", 1)
    try:
        conninfo_to_dict(server)
    except psycopg.Error:  # whose words would have the password in them
        raise _unreadable(text) from None
    schema, dot, name = (tables[0] if tables else DEFAULT).rpartition(".")
    for part in (schema, name) if dot else (name,):
        # A per cent sign in a name would be a place for a parameter to the driver.
        if not part or {"\0", "%"} & {*part} or len(part.encode()) > LONGEST:
            raise InputError(
                f"table={tables[0]!r:.80} in {hidden(text)} names no table; expected NAME or "
                f"SCHEMA.NAME, of at most {LONGEST} bytes each, without a per cent sign"
            )
    return PostgresAddress(server, hidden(text), schema if dot else None, name)


def _unreadable(text: str) -> InputError:
    return InputError(
        f"{hidden(text)} cannot be read as an address; expected "
        "postgresql://USER@HOST:PORT/DATABASE?table=NAME. In a password write % as %25, / as %2F, "
        "? as %3F, # as %23, @ as %40 and [ as %5B, or give it in PGPASSWORD"
    )


class Vector:
    """An embedding as the server reads it, of the type ``vector``."""

    __slots__ = ("content",)

    def __init__(self, embedding: NDArray[np.float32]) -> None:
        self.content = struct.pack(">hh", len(embedding), 0) + embedding.astype(">f4").tobytes()


class Server:
    """A server that may go away and come back.

    Args:
        address: of the table.
        read_only: the server itself refuses changes through these connections.
        extend: put pgvector into the database where it is not yet.

    Attributes:
        vector_type: the number of pgvector's type there; 0 where pgvector is not.
    """

    def __init__(self, address: PostgresAddress, read_only: bool, extend: bool = False) -> None:
        self.address = address
        self._read_only = read_only
        self._suspect = False  # whether the server was lost, and not seen since
        with self.said():  # once by hand: a pool would only say that it waited
            with self._connect() as connection:
                self.vector_type = _vector_type(connection)
                if extend and not self.vector_type:
                    _make_extension(connection, address)
                    self.vector_type = _vector_type(connection)
            self._pool = psycopg_pool.ConnectionPool(
                conninfo=address.server,
                kwargs=OPTIONS,
                min_size=0,
                max_size=CONNECTIONS,
                timeout=PATIENCE,
                reconnect_timeout=1.0,  # later attempts are made by those who want a connection
                configure=self._configure,
                open=True,
                name=f"flowhash {address.name}",
            )

    @contextlib.contextmanager
    def using(self) -> Iterator[Connection]:
        """A connection of the pool that answers.

        Those that a restarted server has cut off are thrown away before the work begins.
        """
        with self.said(), self._borrowed() as connection:
            yield connection

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[Connection]:
        for _ in range(CONNECTIONS + 1):
            if self._suspect:
                # A pool would wait for the server; whether it is there is known at once.
                self._connect().close()
                self._suspect = False
            connection = self._taken()
            try:
                connection.execute("SELECT 1")
            except psycopg.OperationalError:
                self._suspect = True
                self._pool.putconn(connection)  # broken: the pool drops it
                continue
            try:
                yield connection
            except psycopg.OperationalError:
                self._suspect = True
                raise
            finally:
                self._pool.putconn(connection)
            return
        raise StorageError(f"{self.address.shown}: the server cuts off every connection; try later")

    def _taken(self) -> Connection:
        try:
            return self._pool.getconn(timeout=QUICK)
        except psycopg_pool.PoolTimeout:
            self._connect().close()  # which says so if it is the server that is not there
            return self._pool.getconn()

    @contextlib.contextmanager
    def said(self) -> Iterator[None]:
        """Errors of the server as one line of ours."""
        try:
            yield
        except psycopg_pool.PoolTimeout as error:
            raise StorageError(
                f"{self.address.shown}: all {CONNECTIONS} connections were in use for "
                f"{PATIENCE:.0f} s; search with fewer threads"
            ) from error
        except psycopg.Error as error:
            raise _in_our_words(error, self.address) from error

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def _connect(self) -> Connection:
        return psycopg.connect(self.address.server, **OPTIONS)

    def _configure(self, connection: Connection) -> None:
        # Nothing is SET for the session, which behind a pooler others would share.
        connection.read_only = True if self._read_only else None
        if self.vector_type:
            kind = {"oid": self.vector_type, "format": Format.BINARY, "dump": _dump}
            connection.adapters.register_dumper(Vector, type("VectorDumper", (Dumper,), kind))


def transaction(connection: Connection) -> AbstractContextManager[Any]:
    """A transaction in which a row that is waited for is read as it is then."""
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    return connection.transaction()


def snapshot(connection: Connection) -> AbstractContextManager[Any]:
    """A transaction that sees one state of the table, whole."""
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    return connection.transaction()


def _dump(self: Dumper, value: Vector) -> bytes:
    return value.content


def _vector_type(connection: Connection) -> int:
    row = connection.execute(
        "SELECT t.oid FROM pg_type t JOIN pg_extension e ON e.extnamespace = t.typnamespace"
        " WHERE e.extname = 'vector' AND t.typname = 'vector'"
    ).fetchone()
    return 0 if row is None else int(row[0])


def _make_extension(connection: Connection, address: PostgresAddress) -> None:
    """Put pgvector into the database.

    Raises:
        StorageError: the server does not have it, or this user may not.
    """
    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject):
        pass  # somebody else did at the same moment
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile) as error:
        raise StorageError(
            f"{address.shown}: the server has no pgvector ({error.diag.message_primary}); install "
            "it there"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise StorageError(
            f"{address.shown} has no extension vector, and this user may not add it; have an "
            "administrator run CREATE EXTENSION vector in this database"
        ) from error


def _in_our_words(error: psycopg.Error, address: PostgresAddress) -> StorageError | InputError:
    """What the server, or libpq, said, in one line."""
    words = str(error.diag.message_primary or error).strip()
    # libpq's advice is on lines of its own, behind a tab; ours comes in its place.
    words = " ".join(line.strip() for line in words.splitlines() if not line.startswith("\t"))
    place = address.shown
    state = error.sqlstate or ""
    lost = isinstance(error, psycopg.OperationalError)
    if "password" in words and state in ("", "28P01", "28000"):
        return StorageError(
            f"{place}: {_after_colon(words)}; give the right one in the address, in PGPASSWORD or "
            "in the file ~/.pgpass"
        )
    if state == "42501":
        return ForbiddenError(f"{place}: {words}; ask for the right to it, or use another user")
    if state == "25006":
        return ForbiddenError(
            f"{place}: {words}; the server is a standby, or set to be read only. Use the one that "
            "takes changes"
        )
    if state in ("53100", "53200", "53300"):
        return StorageError(f"{place}: {words}; the server has no room left. Nothing was changed")
    if state == "54000":  # an index of PostgreSQL holds a third of a page
        return InputError(
            f"{place}: {words}; PostgreSQL takes ids of up to 2,600 bytes. Put long texts into the "
            "payload"
        )
    if state in ("57014", "55P03"):
        return StorageError(
            f"{place}: {words}; the server's own limit was reached. Ask for less, or raise it"
        )
    if state == "3D000" or words.endswith('" does not exist'):
        return StorageError(f"{place}: {_after_colon(words)}; create it, or name another")
    if lost:
        return StorageError(
            f"{place}: {_after_colon(words)}; see that the server runs and that the address is "
            "right, then do the same again"
        )
    return StorageError(f"{place}: the server refused: {words}")


def _after_colon(words: str) -> str:
    """Without libpq's "connection to server at ... failed: FATAL:" in front."""
    for mark in ("FATAL: ", "failed: "):
        words = words.split(mark)[-1]
    return words.strip()[:300]
