"""What a server puts before people: samples, loads, codes, figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.engines.qdrant.filters import ALL, Chosen
from flowhash.engines.qdrant.marker import MARKER, Facts
from flowhash.engines.qdrant.points import (
    CODE,
    NAME,
    TEXT,
    PointId,
    code_of,
    item_id,
    item_of,
    point_id,
    unpacked,
)
from flowhash.engines.qdrant.view import POINTS, QdrantView
from flowhash.table import Item, Stats
from flowhash.table.hash_table import draw
from flowhash.table.ids import STRING, read_ids
from flowhash.table.statistics import SAMPLE, stats_of

LISTED = 2048  # points whose ids are listed to draw from them; of more, stretches are drawn
STRETCHES = 16  # places where a sample begins to read
COUNTED = 200  # items of a large table whose own buckets are counted to measure SUF with k > 1


class QdrantBrowsing(QdrantView):
    """The part of a table on Qdrant that looks at many items.

    A sample of a large table, or bucket, reads what follows 16 random places in the order of the
    points: as good as random for strings, and for numbers unless neighbours in number are alike.
    """

    _figures: tuple[int, Stats] | None = None

    def sample(self, count: int, seed: int) -> tuple[int, list[Item]]:
        """How many items there are, and a random sample of them; the same for the same seed."""
        facts = self._now()
        return self._items, self._items_of(self._drawn(facts, ALL, self._items, count, seed))

    def bucket_items(self, bucket: int, count: int, seed: int) -> list[Item]:
        """A random sample of the items in a bucket."""
        facts = self._now()
        total = self._load(facts, bucket)
        return self._items_of(self._drawn(facts, _inside(bucket), total, count, seed))

    def bucket_payloads(
        self, bucket: int, count: int, seed: int
    ) -> tuple[int, list[dict[str, Any] | None]]:
        """How many items a bucket holds, and the payloads of a random sample of them."""
        facts = self._now()
        total = self._load(facts, bucket)
        drawn = self._drawn(facts, _inside(bucket), total, count, seed, [TEXT])
        return total, [unpacked(point.payload) for point in drawn]

    def bucket_loads(self) -> NDArray[np.int64]:
        """How many items each bucket holds [d]."""
        return self._counter(self._now()).loads().copy()

    def codes_of(self, ids: list[Any]) -> list[list[int] | None]:
        """The buckets of each item, ascending; None for those that are not there."""
        self._check_open()
        settings = self._facts.settings
        wanted = read_ids(ids, settings.ids)
        names = [wanted.value(place) for place in range(len(wanted))]
        found = self._points(names, [CODE, NAME], vectors=False)
        codes = {item_id(settings, point): code_of(settings, point) for point in found}
        return [codes.get(name) for name in names]

    def stats(self) -> Stats:
        """Loads of buckets, measured and expected SUF, bytes; kept until the table changes."""
        facts = self._now()
        kept = self._figures
        if kept is None or kept[0] != facts.change or facts.writing:
            kept = (facts.change, self._measured(facts))
            self._figures = kept
        return kept[1]

    def _load(self, facts: Facts, bucket: int) -> int:
        return self._counter(facts).unions([frozenset([bucket])])[frozenset([bucket])]

    def _items_of(self, points: list[Any]) -> list[Item]:
        """Items of points that have no more than their ids, in the same order."""
        settings = self._facts.settings
        found = self._points([item_id(settings, point) for point in points])
        items = {point.id: item_of(settings, point) for point in found}
        return [items[point.id] for point in points if point.id in items]

    def _drawn(
        self, facts: Facts, chosen: Chosen, total: int, count: int, seed: int,
        fields: list[str] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Up to ``count`` points of a filter that ``total`` points pass, in the order of ids."""
        wanted = [*(fields or []), *([NAME] if facts.settings.ids == STRING else [])]
        options: dict[str, Any] = {"with_payload": wanted or False, "with_vectors": False}
        if total <= max(LISTED, count):
            points = [point for page in self._pages(POINTS, chosen, **options) for point in page]
            return [points[place] for place in draw(len(points), count, seed).tolist()]
        generator = np.random.default_rng(seed)
        found: dict[PointId, Any] = {}
        stretch = -(-count // STRETCHES) + 1  # one more: the marker may be among them
        # Stretches may overlap; where ids leave gaps, many do. More of them only help so far.
        for _ in range(4 * STRETCHES):
            if len(found) >= count:
                break
            for point in self._stretch(_place(facts, generator), stretch, chosen, options):
                found[point.id] = point
        if len(found) < count:
            for point in self._stretch(0, 2 * count, chosen, options):
                found.setdefault(point.id, point)
        points = [
            found[name] for name in sorted(found, key=lambda name: (isinstance(name, str), name))
        ]
        return [points[place] for place in draw(len(points), count, seed).tolist()]

    def _stretch(
        self, start: PointId, size: int, chosen: Chosen, options: dict[str, Any]
    ) -> list[Any]:
        """The points that follow a place, and after the last one those from the first on."""
        found: list[Any] = []
        for offset in (start, None):
            if len(found) < size:
                points, _ = self._store.ask(
                    "scroll", scroll_filter=chosen.filter(), limit=size - len(found),
                    offset=offset, **options,
                )  # fmt: skip
                found += points
        return [point for point in found if point.id != MARKER]

    def _measured(self, facts: Facts) -> Stats:
        loads = self._counter(facts).loads()
        segments = int(self._store.ask("get_collection").segments_count or 1)
        return stats_of(
            facts.settings, self._items, loads, self._others_found(facts, loads), self._bytes(),
            segments=segments, number_bytes=4,
        )  # fmt: skip

    def _bytes(self) -> int:
        """Of the folder in local mode; a server does not say, so there it is that of vectors."""
        address = self._store.address
        if address.folder is not None:
            place: Path = address.folder / "collection" / address.collection
            return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        return 4 * self.dim * self._items * (2 if self.metric == "cosine" else 1)

    def _others_found(self, facts: Facts, loads: NDArray[np.int64]) -> float:
        """The mean number of others that an item finds in its own buckets."""
        settings = facts.settings
        if self._items < 2:
            return 0.0
        if settings.active == 1:
            return float((loads * (loads - 1)).sum()) / self._items
        if self._items <= SAMPLE:  # few enough to read all codes
            options: dict[str, Any] = {"with_payload": [CODE, NAME], "with_vectors": False}
            pages = self._pages(POINTS, **options)
            codes = np.array([code_of(settings, point) for page in pages for point in page])
            member = np.zeros((len(codes), settings.buckets), bool)
            np.put_along_axis(member, codes, True, axis=1)
            return float(np.mean([member[:, code].any(axis=1).sum() - 1 for code in codes]))
        drawn = self._drawn(facts, ALL, self._items, COUNTED, 0, [CODE])
        unions = [frozenset(code_of(settings, point)) for point in drawn]
        counts = self._counter(facts).unions(unions)
        return float(np.mean([counts[union] - 1 for union in unions]))


def _inside(bucket: int) -> Chosen:
    """The points in a bucket."""
    only = ALL.filter([bucket])
    assert only is not None
    return Chosen((only,))


def _place(facts: Facts, generator: np.random.Generator) -> PointId:
    """A random place in the order of the points."""
    if facts.settings.ids == STRING:
        return point_id(str(generator.integers(1 << 62)))
    low, high = facts.lowest, max(facts.lowest + 1, facts.next_id)
    return point_id(low + int(generator.random() * (high - low)))
