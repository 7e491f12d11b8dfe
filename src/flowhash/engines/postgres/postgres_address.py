"""Where a table is on PostgreSQL: the server as libpq has it, and the table's name."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from flowhash.engines.engine_address import hidden
from flowhash.errors import InputError

DEFAULT = "flowhash"
LONGEST = 55  # bytes of a name: PostgreSQL has 63, and the index on ids has the name and more


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
