"""One change after the other, on an engine without transactions and without locks."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from typing import Any

from flowhash.engines.qdrant import writing
from flowhash.engines.qdrant.browsing import QdrantBrowsing
from flowhash.engines.qdrant.connecting import PATIENCE, Store
from flowhash.engines.qdrant.marker import Facts, set_facts
from flowhash.engines.qdrant.points import NAME, PointId, item_id, point_id
from flowhash.errors import LockedTableError, StorageError
from flowhash.table import HashTable
from flowhash.table.ids import INT64

# Seconds after which a writer that says nothing is taken for dead. It speaks between requests, so
# that one which waits for a slow server must not be.
LEASE = 2 * PATIENCE


class QdrantChanging(QdrantBrowsing):
    """The part of a table on Qdrant that says when changes begin and end."""

    def __init__(self, store: Store, facts: Facts, writable: bool) -> None:
        super().__init__(store, facts, writable)
        self._token = secrets.token_hex(8)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Facts]:
        """The facts to change, after what an earlier writer left behind was taken back."""
        with self._writing:
            self._check_writable()
            facts = self._now()
            self._refuse_others(facts)
            if facts.pending is not None:
                low, high = facts.pending
                with self._change(facts):
                    writing.take(self._store, list(range(low, high)))
                facts = self._now()
            yield facts

    @contextlib.contextmanager
    def _change(self, facts: Facts, **changed: Any) -> Iterator[None]:
        """Between the two, readers keep nothing that they count.

        Args:
            facts: of :meth:`_changing`; those of the table are overwritten by threads that search.
            **changed: what the change makes of them.
        """
        begun = {name: value for name, value in changed.items() if name != "next_id"}
        set_facts(self._store, writing=self._claim(), **begun)
        yield
        last: dict[str, Any] = {"change": facts.change + 1, "writing": "", "pending": None}
        if "next_id" in changed:
            last["next_id"] = changed["next_id"]
        set_facts(self._store, **last)
        self._now()

    def _claim(self) -> str:
        return f"{self._token} {time.time():.0f}"

    def _refuse_others(self, facts: Facts) -> None:
        """Refuse to write while somebody else does, who has said so within ``LEASE`` seconds.

        Qdrant has no locks: who begins within the same blink is not seen.
        """
        who, _, since = facts.writing.partition(" ")
        if who and who != self._token and abs(time.time() - float(since)) < LEASE:
            raise LockedTableError(
                f"{self.address} is being changed by somebody else; wait for the end, or, if that "
                f"one died, {LEASE} s, and do the same again"
            )

    def _refuse_strangers(self, items: HashTable) -> None:
        """Refuse a string whose point is another string's, should that ever happen."""
        if self._facts.settings.ids == INT64:
            return
        owners: dict[PointId, str] = {}
        for stored in items.batches(payloads=False):
            names = stored.ids.tolist()
            for name in names:
                if owners.setdefault(point_id(name), name) != name:
                    raise StorageError(f"the ids {name!r} and another have one point; change one")
            for point in self._retrieved(names, [NAME], vectors=False):
                if item_id(self._facts.settings, point) != owners[point.id]:
                    raise StorageError(
                        f"the id {owners[point.id]!r} has the point of another id that is stored; "
                        "change it"
                    )
