"""A table on PostgreSQL as one looks at it: its items, its figures, its notes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.engines import given
from flowhash.engines.postgres import browsing, schema, writing
from flowhash.engines.postgres.address import Address
from flowhash.engines.postgres.connecting import Connection, Server
from flowhash.engines.postgres.counting import Counts, Wanted, count_opened
from flowhash.engines.postgres.filters import NO_FILTER
from flowhash.engines.postgres.names import Names
from flowhash.engines.postgres.schema import Facts
from flowhash.engines.postgres.searching import snapshot
from flowhash.errors import InputError, StorageError
from flowhash.table import Item, Stats, Stored
from flowhash.table.hash_table import draw
from flowhash.table.ids import INT64, read_ids
from flowhash.table.settings import SettingsProperties


class PostgresView(SettingsProperties):
    """The part of a table that reads.

    Args:
        server: open; closed with the table.
        names: of the table's parts.
        facts: what the registry said when it was opened.
        writable: whether it was opened to be changed.
        permitted: whether the server lets this user change it, as far as that is known.

    Attributes:
        distributed: whether Citus spreads it over nodes.
    """

    def __init__(
        self, server: Server, names: Names, facts: Facts, writable: bool, permitted: bool = True
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
        self._empty = given.memory_table(facts.settings)

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

    def notes(self) -> dict[str, Any]:
        """What commands have noted about the table."""
        with self._using() as connection:
            return self._facts(connection).notes

    def refresh(self) -> bool:
        """See what others have changed; whether that was anything."""
        with self._using() as connection:
            facts = self._facts(connection)
            if self._writable:
                self._permitted = schema.may_change(connection, self._names)
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
            measured = browsing.stats(connection, self._names, facts, sizes, found)
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
            items = browsing.sample(connection, self._names, self._settings, sizes, count, seed)
        return facts.items, items

    def bucket_items(self, bucket: int, count: int, seed: int) -> list[Item]:
        """A random sample of the items in a bucket."""
        _, rows = self._bucket_rows(browsing.ITEM, bucket, count, seed)
        return [browsing.item_of(row, self._settings) for row in rows]

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
            found = browsing.codes_by_id(connection, self._names, self._settings, wanted)
        return [found.get(name) for name in wanted]

    def batches(self, size: int = 8192, payloads: bool = True) -> Iterator[Stored]:
        """All items of one state, some at a time; a connection is held meanwhile."""
        if size < 1:
            raise InputError(f"size is {size}; expected one or more items")
        with self._using() as connection, snapshot(connection):
            yield from browsing.batches(connection, self._names, self._settings, size, payloads)

    def close(self) -> None:
        """Close all connections; closing twice is fine."""
        if self._open:
            self._open = False
            self._server.close()

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
            found = browsing.items_by_id(connection, self._names, self._settings, [wanted])
        if wanted not in found:
            raise KeyError(item)
        return found[wanted]

    def __repr__(self) -> str:
        state = f"{self._count} items" if self._open else "closed"
        return (
            f"<{type(self).__name__} at {self.address}: {state}, buckets={self.buckets}, "
            f"dim={self.dim}, active={self.active}, metric={self.metric!r}>"
        )

    @property
    def _place(self) -> Address:
        return self._server.address

    @contextlib.contextmanager
    def _using(self) -> Iterator[Connection]:
        self._check_open()
        with self._server.using() as connection:
            yield connection

    def _check_open(self) -> None:
        if not self._open:
            raise StorageError(f"{self.address} is closed; open it again")

    def _facts(self, connection: Connection) -> Facts:
        facts = schema.read_facts(connection, self._names, self._place)
        return writing.usable(facts, self._settings, self._place)

    def _known(self, facts: Facts) -> dict[Wanted, int]:
        """Counts that hold: on many nodes none do, their states may differ for a moment."""
        return {} if facts.distributed else self._counts.of(facts.changes)

    def _sizes(self, connection: Connection, facts: Facts) -> NDArray[np.int64]:
        kept = self._loads  # which other threads may exchange meanwhile
        if kept is None or kept[0] != facts.changes or facts.distributed:
            kept = (facts.changes, browsing.loads(connection, self._names, self.buckets))
            self._loads = kept
        return kept[1]

    def _others_found(
        self, connection: Connection, facts: Facts, sizes: NDArray[np.int64]
    ) -> float:
        """The mean number of others that an item finds in its own buckets."""
        if facts.items < 2:
            return 0.0
        if self.active == 1:
            return float((sizes * (sizes - 1)).sum()) / facts.items
        drawn = browsing.sample(
            connection, self._names, self._settings, sizes, browsing.SUF_SAMPLE, 0
        )
        order = np.stack([item.code for item in drawn])
        asked = given.Asked(order, np.empty((len(order), 0), np.float32), 1, self.active, None)
        known = self._known(facts)
        found = count_opened(connection, self._names, self.active, asked, NO_FILTER, known).found
        return float((found - 1).mean())

    def _bucket_rows(
        self, columns: str, bucket: int, count: int, seed: int
    ) -> tuple[int, list[tuple[Any, ...]]]:
        with self._using() as connection, snapshot(connection):
            load = int(self._sizes(connection, self._facts(connection))[bucket])
            places = draw(load, count, seed).tolist()
            return load, browsing.rows_at(connection, self._names, columns, bucket, places)

    def _known_ids(self, ids: Any) -> list[Any]:
        found = read_ids(ids, self.id_kind)
        known: list[Any] = [found.value(place) for place in range(len(found))]
        if self.id_kind != INT64:  # no row of PostgreSQL has such an id
            known = [None if "\0" in str(name) else name for name in known]
        return known
