"""Connections: a pool of them, and errors of the server in the words of the house."""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import psycopg_pool
from numpy.typing import NDArray
from psycopg.adapt import Dumper
from psycopg.pq import Format

from flowhash.engines.postgres.postgres_address import PostgresAddress
from flowhash.errors import ForbiddenError, InputError, StorageError

Connection = psycopg.Connection[tuple[Any, ...]]
CONNECTIONS = 8  # of one engine, at the most
PATIENCE = 10.0  # seconds until somebody who waits for a connection gives up
# Texts are sent as UTF-8, also where the user's settings say otherwise.
OPTIONS: dict[str, Any] = {
    "autocommit": True, "application_name": "flowhash", "client_encoding": "UTF8"
}  # fmt: skip
QUICK = 0.5  # seconds until somebody who waits asks whether the server is there at all

# Without a handler Python would print what the driver warns of; errors are raised anyway.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


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
    """

    def __init__(self, address: PostgresAddress, read_only: bool, extend: bool = False) -> None:
        self.address = address
        self._read_only = read_only
        self._vector_type = 0
        self._suspect = False  # whether the server was lost, and not seen since
        with self.said():  # once by hand: a pool would only say that it waited
            with self._connect() as connection:
                if extend and not has_vector(connection):
                    make_extension(connection, address)
                self._vector_type = vector_type(connection)
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
            raise in_our_words(error, self.address) from error

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def _connect(self) -> Connection:
        return psycopg.connect(self.address.server, **OPTIONS)

    def _configure(self, connection: Connection) -> None:
        # Nothing is SET for the session, which behind a pooler others would share.
        connection.read_only = True if self._read_only else None
        if self._vector_type:
            kind = {"oid": self._vector_type, "format": Format.BINARY, "dump": _dump}
            connection.adapters.register_dumper(Vector, type("VectorDumper", (Dumper,), kind))


def _dump(self: Dumper, value: Vector) -> bytes:
    return value.content


def vector_type(connection: Connection) -> int:
    """The number of the type ``vector`` in this database; 0 where pgvector is not there."""
    row = connection.execute(
        "SELECT t.oid FROM pg_type t JOIN pg_extension e ON e.extnamespace = t.typnamespace"
        " WHERE e.extname = 'vector' AND t.typname = 'vector'"
    ).fetchone()
    return 0 if row is None else int(row[0])


def has_vector(connection: Connection) -> bool:
    """Whether pgvector is in this database."""
    return vector_type(connection) != 0


def offers_vector(connection: Connection) -> bool:
    """Whether the server has pgvector, for databases to take it up."""
    found = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")
    return found.fetchone() is not None


def make_extension(connection: Connection, address: PostgresAddress) -> None:
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


def in_our_words(error: psycopg.Error, address: PostgresAddress) -> StorageError | InputError:
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
