"""A hash table on PostgreSQL: what users hold in their hands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike, NDArray

from flowhash.engines import given
from flowhash.engines.postgres import schema, searching, writing
from flowhash.engines.postgres.address import read_address
from flowhash.engines.postgres.connecting import Server, has_vector
from flowhash.engines.postgres.filters import read_filter
from flowhash.engines.postgres.names import find_names
from flowhash.engines.postgres.schema import Facts
from flowhash.engines.postgres.view import PostgresView
from flowhash.errors import InputError, StorageError
from flowhash.table import Hits
from flowhash.table.arguments import whole_number
from flowhash.table.ids import read_ids
from flowhash.table.settings import Settings, check_encoder


class PostgresTable(PostgresView):
    """A table on a PostgreSQL server, used as :class:`flowhash.HashTable` is.

    Make one with :meth:`create`, open one with :meth:`open`. Searches may run in many threads, up
    to eight at once; each sees one state of the table. Changes are transactions.
    """

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
        settings = Settings(
            whole_number(buckets), whole_number(dim), whole_number(active), metric, dtype, ids,
            encoder,
        )  # fmt: skip
        settings.check()
        address = read_address(place)
        server = Server(address, read_only=False, extend=True)
        try:
            with server.using() as connection:
                names = find_names(connection, address)
                with writing.transaction(connection):
                    schema.make_table(
                        connection, names, address, settings, ready=True, distribute=distribute
                    )
                facts = schema.read_facts(connection, names, address)
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
                facts = schema.read_facts(connection, names, address)
                permitted = mode == "r+" and schema.may_change(connection, names)
            if facts is None or not facts.ready:
                raise writing.missing(address, facts)
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
                with writing.transaction(connection):
                    if schema.read_facts(connection, names, address, lock=True) is not None:
                        schema.drop_table(connection, names)
        finally:
            server.close()

    def add(
        self,
        codes: ArrayLike,
        embeddings: ArrayLike,
        ids: Any = None,
        payloads: Sequence[dict[str, Any] | None] | None = None,
        *,
        encoder: str | None = None,
    ) -> NDArray[Any]:
        """Add items in one transaction; an id that is there already is replaced.

        Arguments, answer and errors are those of :meth:`flowhash.HashTable.add`.
        """
        self._check_writable()
        items = given.new_items(self._settings, codes, embeddings, ids, payloads, encoder)
        if not len(items.table):
            return items.ids
        with self._using() as connection:
            known, self._count = writing.add(
                connection, self._names, self._place, self._settings, items
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
            gone, self._count = writing.delete(
                connection, self._names, self._place, self._settings, wanted
            )
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
        encoder: str | None = None,
    ) -> Hits:
        """The nearest items among those in the buckets that each query opens.

        Arguments, answer and errors are those of :meth:`flowhash.HashTable.search`, with one more
        kind of ``where``: a dict of payload fields and the value, or a list of the values, that
        each may have. ``threads`` is not used: the server has its own.
        """
        asked = given.asked(
            self._empty, ordered_buckets, queries, top, probe, at_least, threads, encoder
        )
        chosen = read_filter(self._empty, where)
        with self._using() as connection:
            hits, facts = searching.search(
                connection,
                self._names,
                self._place,
                self._settings,
                self._counts,
                asked,
                chosen,
                payloads,
            )
        self._count = facts.items
        return hits

    def note(self, name: str, value: Any) -> None:
        """Note something, durably; None removes it."""
        self._check_writable()
        with self._using() as connection, writing.transaction(connection):
            facts = writing.locked(connection, self._names, self._place, self._settings)
            schema.write_notes(connection, self._names, {**facts.notes, name: value})

    def __enter__(self) -> PostgresTable:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_writable(self) -> None:
        self._check_open()
        if not self._writable:
            raise StorageError(
                f"{self.address} was opened to be searched only; open it with "
                'mode="r+" to change it'
            )


def found_facts(place: str) -> Facts | None:
    """What the registry says of a table; None where there is none."""
    address = read_address(place)
    server = Server(address, read_only=True)
    try:
        with server.using() as connection:
            if not has_vector(connection):
                return None
            names = find_names(connection, address)
            return schema.read_facts(connection, names, address)
    finally:
        server.close()
