"""Precision, recall and what the search of a labelled table scans, by the paper's rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import ordered_buckets, topk_codes
from flowhash.errors import InputError
from flowhash.quality.bucket_purity import normalised_information
from flowhash.table import HashTable, Hits

QUERIES_AT_ONCE = 4096
HITS_AT_ONCE = 4_000_000  # of all queries of a block together, so that memory stays small


@dataclass(frozen=True, eq=False)
class Queries:
    """A block of queries.

    Attributes:
        activations: [q, d]; the largest k are the buckets that are opened.
        embeddings: [q, dim], to rank by.
        labels: [q].
        own: where each query is itself in the table, the position at which it was added [q]; None
            where queries are not in the table.
    """

    activations: NDArray[np.float32]
    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]
    own: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        arrays = (self.activations, self.embeddings, self.labels, self.own)
        if len({len(array) for array in arrays if array is not None}) > 1:
            raise InputError(
                f"there are {len(self.activations)} activations, {len(self.embeddings)} embeddings "
                f"and {len(self.labels)} labels of queries; expected one of each a query"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, chosen: slice | NDArray[np.bool_] | NDArray[np.int64]) -> Queries:
        """Some of the queries."""
        own = None if self.own is None else self.own[chosen]
        return Queries(self.activations[chosen], self.embeddings[chosen], self.labels[chosen], own)


class LabelledTable:
    """A hash table in memory whose items have labels; blocks of items are added to it.

    Args:
        buckets: d.
        dim: numbers in an embedding.
        active: k.
        classes: how many there are.
    """

    def __init__(self, buckets: int, dim: int, active: int, classes: int) -> None:
        self.table = HashTable.create(buckets=buckets, dim=dim, active=active)
        self.buckets, self.active = buckets, active
        self.counts = np.zeros((classes, buckets), np.int64)
        self._labels: list[NDArray[np.int64]] = []
        self._codes: list[NDArray[np.int32]] = []

    def __len__(self) -> int:
        return len(self.table)

    def add(
        self,
        codes: NDArray[np.int32],
        embeddings: NDArray[np.float32],
        labels: NDArray[np.int64],
    ) -> None:
        """Add a block of items: codes [n, k], embeddings [n, dim], labels [n]."""
        labels = np.asarray(labels, np.int64)
        if labels.size and not (labels.min() >= 0 and labels.max() < len(self.counts)):
            raise InputError(
                f"labels go from {labels.min()} to {labels.max()}; expected 0 to "
                f"{len(self.counts) - 1}"
            )
        self.table.add(codes, embeddings, np.arange(len(self), len(self) + len(labels)))
        pairs = labels[:, None] * self.buckets + codes
        counts = np.bincount(pairs[np.asarray(codes) >= 0], minlength=self.counts.size)
        self.counts += counts.reshape(self.counts.shape)
        self._labels.append(labels)
        self._codes.append(codes)

    @property
    def labels(self) -> NDArray[np.int64]:
        """Of all items [n], by position."""
        if len(self._labels) != 1:
            self._labels = [np.concatenate([np.zeros(0, np.int64), *self._labels])]
        return self._labels[0]

    @property
    def codes(self) -> NDArray[np.int32]:
        """Of all items [n, k], by position."""
        if len(self._codes) != 1:
            empty = np.zeros((0, self.active), np.int32)
            self._codes = [np.concatenate([empty, *self._codes])]
        return self._codes[0]

    @property
    def loads(self) -> NDArray[np.int64]:
        """Items in each bucket [d]."""
        return np.asarray(self.counts.sum(axis=0))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Items of each class [classes]."""
        return np.bincount(self.labels, minlength=len(self.counts))

    def compact(self) -> None:
        """Bring all blocks together: the fastest to search."""
        self.table.compact()


@dataclass(frozen=True)
class Exact:
    """What exhaustive search finds for a sample of the queries.

    Attributes:
        every: the sample is query 0, ``every``, 2·``every``, …
        ids: positions of the nearest items [sample, top], the query itself left out.
    """

    every: int
    ids: NDArray[np.int64]


@dataclass(frozen=True)
class Measured:
    """What a search came to; shares are from 0 to 1.

    Attributes:
        queries: how many there were.
        precision: Pr@K for each K.
        speed_up: SUF at the plain k buckets.
        speed_ups: SUF for each K, where further buckets are opened until K items are found.
        scanned: items scanned a query at the plain k, on average.
        recall: recall@K against exhaustive search, or None.
        average_precision: mAP@R at the plain k, or None: R is the number of items of the query's
            class; what the buckets do not hold counts as not found; a query whose class is not in
            the table is left out.
        right: right ones among the first K of each query [queries], for each K, in the order in
            which the queries came; small integers, for ``resampled_sums``.
        counts: items that each query scanned at the plain k [queries], likewise.
    """

    queries: int
    precision: dict[int, float]
    speed_up: float
    speed_ups: dict[int, float]
    scanned: float
    recall: dict[int, float] | None
    average_precision: float | None
    right: dict[int, NDArray[np.unsignedinteger]] = field(compare=False, repr=False)
    counts: NDArray[np.unsignedinteger] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Quality:
    """What a search among labelled items came to.

    Attributes:
        precision: Pr@K for each K asked for, each from 0 to 1.
        speed_up: SUF, items in the table over items scanned at the plain k buckets.
        loads: items in each bucket [d].
        nmi: normalised mutual information of buckets and labels at k = 1, else None.
    """

    precision: dict[int, float]
    speed_up: float
    loads: NDArray[np.int64]
    nmi: float | None


def measure(
    index: LabelledTable,
    blocks: Iterable[Queries],
    tops: tuple[int, ...] = (1, 4, 16),
    *,
    probe: int | None = None,
    exact: Exact | None = None,
    average: bool = False,
) -> Measured:
    """Put queries to a labelled table, by the rules of the paper's released evaluation.

    A query opens its k best buckets; if they hold fewer than K items, further ones in the order of
    its activations until there are K. A query that is itself in the table counts neither as found
    nor as scanned, and Pr@K divides by K always.

    Args:
        index: what is searched.
        blocks: the queries, block after block; used and let go.
        tops: the K of Pr@K.
        probe: buckets that a query opens; k by default.
        exact: of ``exact_answers``, for recall@K.
        average: whether to compute mAP@R, for which R items a query are ranked.

    Raises:
        InputError: there are no queries, or fewer items than the largest K; or a query is said to
            be in the table but not in its own buckets.
    """
    if not tops or min(tops) < 1:
        raise InputError(f"tops is {tops}; expected the K of Pr@K, each one or more")
    probe = index.active if probe is None else probe
    if not 1 <= probe <= index.buckets:
        raise InputError(f"probe is {probe}; expected 1 to {index.buckets}, the number of buckets")
    found = _Measurement(index, tops, probe, exact, average)
    for block in _in_pieces(blocks, found.depth):
        found.add(block)
    if found.queries == 0:
        raise InputError("there are no queries; expected one or more")
    return found.measured()


def search_quality(
    activations: NDArray[np.float32],
    embeddings: NDArray[np.float32],
    labels: NDArray[np.int64],
    active: int,
    tops: tuple[int, ...] = (1,),
) -> Quality:
    """Search each item among all the others, by the paper's rules; see ``measure``.

    Args:
        activations: [n, d].
        embeddings: [n, dim], for ranking.
        labels: [n].
        active: k.
        tops: the K of Pr@K.
    """
    count = len(labels)
    if count < 2 or max(tops) > count - 1:
        raise InputError(
            f"there are {count} items and Pr@{max(tops)} is asked for; expected more items"
        )
    classes = int(labels.max()) + 1
    index = LabelledTable(activations.shape[1], embeddings.shape[1], active, classes)
    index.add(topk_codes(activations, active), embeddings, labels)
    found = measure(index, [Queries(activations, embeddings, labels, np.arange(count))], tops)
    nmi = normalised_information(index.counts) if active == 1 else None
    return Quality(found.precision, found.speed_up, index.loads, nmi)


def exact_answers(
    index: LabelledTable, blocks: Iterable[Queries], top: int, every: int = 1
) -> Exact:
    """What exhaustive search finds, for ``measure``.

    Args:
        index: what is searched; all its buckets are opened, in any order.
        blocks: the queries.
        top: how many to find.
        every: only query 0, ``every``, 2·``every``, … are answered: exhaustive search is slow.
    """
    parts, seen = [], 0
    for block in blocks:
        chosen = block.rows(np.arange(-seen % every, len(block), every))
        seen += len(block)
        for piece in _in_pieces([chosen], top + 1):
            order = np.tile(np.arange(index.buckets, dtype=np.int32), (len(piece), 1))
            deep = min(top + (piece.own is not None), len(index))
            found = index.table.search(order, piece.embeddings, top=deep, probe=index.buckets)
            parts.append(_others(found, piece.own).ids[:, :top])
    return Exact(every, np.concatenate(parts))


def _in_pieces(blocks: Iterable[Queries], depth: int) -> Iterator[Queries]:
    """The same queries in blocks whose hits fit into memory."""
    size = max(1, min(QUERIES_AT_ONCE, HITS_AT_ONCE // depth))
    for block in blocks:
        for start in range(0, len(block), size):
            yield block.rows(slice(start, start + size))


def _others(found: Hits, own: NDArray[np.int64] | None) -> Hits:
    """Hits without the queries themselves, where these are items of the table."""
    return found if own is None else found.without(own)


class _Measurement:
    """What adds up over the blocks of queries."""

    def __init__(
        self,
        index: LabelledTable,
        tops: tuple[int, ...],
        probe: int,
        exact: Exact | None,
        average: bool,
    ) -> None:
        self.index, self.tops, self.probe = index, tops, probe
        self.exact, self.average = exact, average
        self.depth = max(max(tops), int(index.sizes.max()) if average else 0) + 1
        self.queries, self.itself = 0, False
        self.counts: list[NDArray[np.unsignedinteger]] = []
        self.right: dict[int, list[NDArray[np.unsignedinteger]]] = {top: [] for top in tops}
        self.opened, self.agreed = dict.fromkeys(tops, 0), dict.fromkeys(tops, 0)
        self.compared = self.averaged = 0
        self.averages = 0.0

    def add(self, block: Queries) -> None:
        """Search at the plain k once, and again for the queries that found too little."""
        order = ordered_buckets(block.activations)
        self._check(block, order)
        deep = min(self.depth, len(self.index))
        found = self.index.table.search(order, block.embeddings, top=deep, probe=self.probe)
        found = _others(found, block.own)
        for top in self.tops:
            self._count_top(block, order, top, found)
        if self.average:
            self._count_average(block, found.ids)
        self.counts.append(found.scanned.astype(np.min_scalar_type(len(self.index))))
        self.itself = block.own is not None
        self.queries += len(block)

    def measured(self) -> Measured:
        """All blocks together."""
        right = {top: np.concatenate(parts) for top, parts in self.right.items()}
        counts = np.concatenate(self.counts)
        scanned = int(counts.sum(dtype=np.int64))
        return Measured(
            self.queries,
            {top: int(found.sum(dtype=np.int64)) / (top * self.queries)
             for top, found in right.items()},
            self._speed_up(scanned),
            {top: self._speed_up(opened) for top, opened in self.opened.items()},
            scanned / self.queries,
            {top: agreed / (top * self.compared) for top, agreed in self.agreed.items()}
            if self.compared
            else None,
            self.averages / self.averaged if self.averaged else None,
            right,
            counts,
        )  # fmt: skip

    def _speed_up(self, scanned: int) -> float:
        # Where nobody finds anything it is still finite: as if one query had found one item.
        return (len(self.index) - self.itself) * self.queries / max(scanned, 1)

    def _check(self, block: Queries, order: NDArray[np.int32]) -> None:
        itself, items = block.own is not None, len(self.index)
        if max(self.tops) > items - itself:
            raise InputError(
                f"there are {items} items and Pr@{max(self.tops)} is asked for; expected more items"
            )
        if self.queries and self.itself != itself:
            raise InputError(
                "some blocks of queries have own and others have not; expected one way"
            )
        labels, classes = block.labels, len(self.index.counts)
        if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
            raise InputError(
                f"labels of queries go from {labels.min()} to {labels.max()}; expected 0 to "
                f"{classes - 1}, as in the table"
            )
        if block.own is None:
            return
        # A query in the table must lie in a bucket that it opens, or it cannot be left out.
        opened = order[:, None, : self.probe]
        inside = (self.index.codes[block.own][:, :, None] == opened).any(axis=(1, 2))
        if not inside.all():
            first = int(np.flatnonzero(~inside)[0])
            raise InputError(
                f"query {first} is said to be item {block.own[first]} of the table, which lies in "
                "none of the buckets that the query opens; give the same activations to both, or "
                "own=None"
            )

    def _count_top(self, block: Queries, order: NDArray[np.int32], top: int, found: Hits) -> None:
        ids, scanned = found.ids[:, :top], found.scanned
        few = np.flatnonzero(scanned < top)
        if few.size:
            ids, scanned, asked = ids.copy(), scanned.copy(), block.rows(few)
            wanted = top + (asked.own is not None)
            more = self.index.table.search(
                order[few], asked.embeddings, top=wanted, probe=self.probe, at_least=wanted
            )
            more = _others(more, asked.own)
            ids[few], scanned[few] = more.ids, more.scanned
        right = self._right(block.labels, ids).sum(axis=1, dtype=np.min_scalar_type(top))
        self.right[top].append(right)
        self.opened[top] += int(scanned.sum())
        if self.exact is not None:
            self._count_recall(self.exact, top, ids)

    def _right(self, labels: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the found items have the query's class [q, top]."""
        same = self.index.labels[np.maximum(ids, 0)] == labels[:, None]
        return np.asarray(same & (ids >= 0))

    def _count_recall(self, exact: Exact, top: int, ids: NDArray[np.int64]) -> None:
        rows = np.arange(-self.queries % exact.every, len(ids), exact.every)
        places = (self.queries + rows) // exact.every
        if (len(places) and places[-1] >= len(exact.ids)) or exact.ids.shape[1] < top:
            raise InputError(
                f"exact has {len(exact.ids)} answers of {exact.ids.shape[1]} items; expected one "
                f"for every {exact.every}. query, of {top} items at least"
            )
        truth = exact.ids[places, :top]
        both = (ids[rows][:, :, None] == truth[:, None, :]).any(axis=2)
        self.agreed[top] += int(both.sum())
        if top == self.tops[0]:
            self.compared += len(rows)

    def _count_average(self, block: Queries, ids: NDArray[np.int64]) -> None:
        """AP@R: the mean over the first R places of the precision at each right one."""
        wanted = self.index.sizes[block.labels] - (block.own is not None)
        asked = wanted > 0
        ids, wanted = ids[asked][:, : int(wanted.max(initial=0))], wanted[asked]
        places = np.arange(1, ids.shape[1] + 1)
        right = self._right(block.labels[asked], ids) & (places <= wanted[:, None])
        precision = np.cumsum(right, axis=1) / places
        self.averages += float(((precision * right).sum(axis=1) / wanted).sum())
        self.averaged += int(asked.sum())
