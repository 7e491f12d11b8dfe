"""What the parts of a table on PostgreSQL are called, as the driver quotes them."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from flowhash.engines.postgres.address import Address
from flowhash.engines.postgres.connecting import Connection, offers_vector
from flowhash.errors import StorageError
from flowhash.table.settings import Settings

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

    def kind(self, settings: Settings) -> sql.Composable:
        """The type of an embedding."""
        name = "vector" if settings.dtype == "float32" else "halfvec"
        kind = sql.Identifier(self.extension, name)
        return sql.SQL("{}({})").format(kind, sql.Literal(settings.dim))

    def distance(self, settings: Settings) -> sql.Composable:
        """The distance of a row from the query ``%s``, whose numbers are not rounded to halves."""
        function = sql.Identifier(self.extension, FUNCTIONS[settings.metric])
        stored: sql.Composable = sql.Identifier("embedding")
        if settings.dtype == "float16":
            stored = sql.SQL("{}::{}").format(stored, sql.Identifier(self.extension, "vector"))
        return sql.SQL("{}({}, %s)").format(function, stored)

    def send(self, settings: Settings) -> sql.Identifier:
        """The function that gives an embedding's bytes."""
        name = "vector_send" if settings.dtype == "float32" else "halfvec_send"
        return sql.Identifier(self.extension, name)


def find_names(connection: Connection, address: Address) -> Names:
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
    if extension is None and offers_vector(connection):
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
