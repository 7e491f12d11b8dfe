"""How many items buckets hold, each counted once, in as few requests as can be.

With one bucket an item, loads of buckets add up; a facet gives all of them at once. With more, each
union that a query opens is counted once, and remembered until the table changes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from flowhash.engines.qdrant.client_connection import Store
from flowhash.engines.qdrant.point_filter import Chosen
from flowhash.engines.qdrant.points import CODE
from flowhash.engines.remote_table import KnownCounts
from flowhash.table import TableSettings

FEW = 8  # unions with a filter that are counted one by one rather than all loads

Union = frozenset[int]


class PointCounts:
    """Counts points of a collection that a filter lets through.

    Args:
        store: the collection.
        settings: of the table.
        chosen: which points count.
        known: counts with this filter that may be used, and are added to.
    """

    def __init__(
        self, store: Store, settings: TableSettings, chosen: Chosen, known: KnownCounts
    ) -> None:
        self._store = store
        self._settings = settings
        self._chosen = chosen
        self._known = known

    def loads(self) -> NDArray[np.int64]:
        """How many points each bucket holds [d]."""
        if self._known.loads is None:
            loads = np.zeros(self._settings.buckets, np.int64)
            if not self._chosen.nothing:
                answer = self._store.ask(
                    "facet", key=CODE, facet_filter=self._chosen.filter(),
                    limit=self._settings.buckets, exact=True,
                )  # fmt: skip
                for hit in answer.hits:
                    loads[int(hit.value)] = hit.count
            self._known.loads = loads
        return self._known.loads

    def unions(self, wanted: Iterable[Union]) -> dict[Union, int]:
        """How many points are in one of the buckets, of each set of buckets."""
        sets = set(wanted)
        if self._chosen.nothing:
            return dict.fromkeys(sets, 0)
        loads = self._known.loads
        if self._settings.active == 1 and (
            loads is not None or not self._chosen or len(sets) > FEW
        ):
            loads = self.loads()
            return {union: int(loads[list(union)].sum()) for union in sets}
        known = self._known.counts
        new = [union for union in sets if union not in known]
        known.update(zip(new, self._store.each(self._count, new), strict=True))
        return {union: known[union] for union in sets}

    def _count(self, union: Union) -> int:
        answer = self._store.ask("count", count_filter=self._chosen.filter(union), exact=True)
        return int(answer.count)

    def opened(
        self, order: NDArray[np.int32], probe: NDArray[np.int32], at_least: int | None
    ) -> NDArray[np.int32]:
        """How many of its buckets each query opens: ``probe``, or more to reach ``at_least`` [q].

        A union is at least as large as its largest bucket and at most the sum of all. Between those
        bounds the first prefix that is large enough is found by halving: counts only grow.
        """
        count, most = order.shape
        if at_least is None or not count:
            return probe.copy()
        sizes = self.loads()[order]
        low = _first(np.cumsum(sizes, axis=1), at_least, probe, most)
        if self._settings.active == 1:
            return low
        high = _first(np.maximum.accumulate(sizes, axis=1), at_least, probe, most)
        while len(asking := np.flatnonzero(low < high)):
            middle = (low + high) // 2
            unions = {row: frozenset(order[row, : middle[row]].tolist()) for row in asking.tolist()}
            counts = self.unions(unions.values())
            for row, union in unions.items():
                if counts[union] >= at_least:
                    high[row] = middle[row]
                else:
                    low[row] = middle[row] + 1
        return low


def _first(
    reached: NDArray[np.int64], at_least: int, probe: NDArray[np.int32], most: int
) -> NDArray[np.int32]:
    """The first number of buckets from ``probe`` on that reaches ``at_least``, or all of them."""
    enough = reached >= at_least  # which only becomes true along a line
    found = np.where(enough.any(axis=1), enough.argmax(axis=1) + 1, most)
    return np.maximum(found, probe).astype(np.int32)
