"""Precision, recall and what a search scans, by the paper's rules, for queries in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import ordered_buckets, topk_codes
from flowhash.errors import InputError
from flowhash.quality.bucket_purity import normalised_information
from flowhash.quality.labelled_table import LabelledTable, Queries
from flowhash.table import Hits

QUERIES_AT_ONCE = 4096
HITS_AT_ONCE = 4_000_000  # of all queries of a block together, so that memory stays small


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
    sums = _Sums(tops, probe)
    for block in _in_pieces(blocks, _depth(index, tops, average)):
        _QueryBlock(index, block, sums, exact, average).count()
    if sums.queries == 0:
        raise InputError("there are no queries; expected one or more")
    return sums.measured(len(index))


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
            spare = 0 if piece.own is None else 1
            deep = min(top + spare, len(index))
            found = index.table.search(order, piece.embeddings, top=deep, probe=index.buckets)
            parts.append(_others(found, piece.own).ids[:, :top])
    return Exact(every, np.concatenate(parts))


def _depth(index: LabelledTable, tops: tuple[int, ...], average: bool) -> int:
    return max(max(tops), int(index.sizes.max()) if average else 0) + 1


def _in_pieces(blocks: Iterable[Queries], depth: int) -> Iterator[Queries]:
    """The same queries in blocks whose hits fit into memory."""
    size = max(1, min(QUERIES_AT_ONCE, HITS_AT_ONCE // depth))
    for block in blocks:
        for start in range(0, len(block), size):
            yield block.rows(slice(start, start + size))


def _others(found: Hits, own: NDArray[np.int64] | None) -> Hits:
    """Hits without the queries themselves, where these are items of the table."""
    return found if own is None else found.without(own)


@dataclass
class _Sums:
    """What adds up over the blocks."""

    tops: tuple[int, ...]
    probe: int
    queries: int = 0
    itself: bool = False
    counts: list[NDArray[np.unsignedinteger]] = field(default_factory=list)
    right: dict[int, list[NDArray[np.unsignedinteger]]] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)
    agreed: dict[int, int] = field(default_factory=dict)
    compared: int = 0
    average: float = 0.0
    averaged: int = 0

    def measured(self, items: int) -> Measured:
        others = items - self.itself
        right = {top: np.concatenate(parts) for top, parts in self.right.items()}
        counts = np.concatenate(self.counts)
        scanned = int(counts.sum(dtype=np.int64))
        return Measured(
            self.queries,
            {top: int(found.sum(dtype=np.int64)) / (top * self.queries)
             for top, found in right.items()},
            self._speed_up(others, scanned),
            {top: self._speed_up(others, opened) for top, opened in self.opened.items()},
            scanned / self.queries,
            {top: agreed / (top * self.compared) for top, agreed in self.agreed.items()}
            if self.compared
            else None,
            self.average / self.averaged if self.averaged else None,
            right,
            counts,
        )  # fmt: skip

    def _speed_up(self, others: int, scanned: int) -> float:
        # Where nobody finds anything it is still finite: as if one query had found one item.
        return others * self.queries / max(scanned, 1)


class _QueryBlock:
    """One block of queries on its way through the table."""

    def __init__(
        self,
        index: LabelledTable,
        queries: Queries,
        sums: _Sums,
        exact: Exact | None,
        average: bool,
    ) -> None:
        self.index, self.queries, self.sums = index, queries, sums
        self.exact, self.average = exact, average
        self.spare = 0 if queries.own is None else 1
        others = len(index) - self.spare
        if max(sums.tops) > others:
            raise InputError(
                f"there are {len(index)} items and Pr@{max(sums.tops)} is asked for; expected more "
                "items"
            )
        if sums.queries and sums.itself != bool(self.spare):
            raise InputError(
                "some blocks of queries have own and others have not; expected one way"
            )
        labels = queries.labels
        if len(labels) and not (labels.min() >= 0 and labels.max() < len(index.counts)):
            raise InputError(
                f"labels of queries go from {labels.min()} to {labels.max()}; expected 0 to "
                f"{len(index.counts) - 1}, as in the table"
            )
        self.order = ordered_buckets(queries.activations)
        self._check_own()

    def count(self) -> None:
        """Search at the plain k once, and again for the queries that found too little."""
        sums, queries = self.sums, self.queries
        deep = min(_depth(self.index, sums.tops, self.average), len(self.index))
        found = self.index.table.search(self.order, queries.embeddings, top=deep, probe=sums.probe)
        found = _others(found, queries.own)
        ids, scanned = found.ids, found.scanned
        for top in sums.tops:
            self._count_top(top, ids[:, :top], scanned)
        if self.average:
            self._count_average(ids)
        sums.counts.append(scanned.astype(np.min_scalar_type(len(self.index))))
        sums.itself = self.spare == 1
        sums.queries += len(queries)

    def _count_top(self, top: int, ids: NDArray[np.int64], scanned: NDArray[np.int64]) -> None:
        sums, queries = self.sums, self.queries
        few = np.flatnonzero(scanned < top)
        if few.size:
            ids, scanned = ids.copy(), scanned.copy()
            wanted = top + self.spare
            more = self.index.table.search(
                self.order[few], queries.embeddings[few], top=wanted, probe=sums.probe,
                at_least=wanted,
            )  # fmt: skip
            own = None if queries.own is None else queries.own[few]
            more = _others(more, own)
            ids[few], scanned[few] = more.ids, more.scanned
        same = self.index.labels[np.maximum(ids, 0)] == queries.labels[:, None]
        right = (same & (ids >= 0)).sum(axis=1, dtype=np.min_scalar_type(top))
        sums.right.setdefault(top, []).append(right)
        sums.opened[top] = sums.opened.get(top, 0) + int(scanned.sum())
        self._count_recall(top, ids)

    def _count_recall(self, top: int, ids: NDArray[np.int64]) -> None:
        if self.exact is None:
            return
        every = self.exact.every
        rows = np.arange(-self.sums.queries % every, len(ids), every)
        places = (self.sums.queries + rows) // every
        if (len(places) and places[-1] >= len(self.exact.ids)) or self.exact.ids.shape[1] < top:
            raise InputError(
                f"exact has {len(self.exact.ids)} answers of {self.exact.ids.shape[1]} items; "
                f"expected one for every {every}. query, of {top} items at least"
            )
        truth = self.exact.ids[places, :top]
        both = (ids[rows][:, :, None] == truth[:, None, :]).any(axis=2)
        self.sums.agreed[top] = self.sums.agreed.get(top, 0) + int(both.sum())
        if top == self.sums.tops[0]:
            self.sums.compared += len(rows)

    def _count_average(self, ids: NDArray[np.int64]) -> None:
        """AP@R: the mean over the first R places of the precision at each right one."""
        wanted = self.index.sizes[self.queries.labels] - self.spare
        asked = wanted > 0
        ids, wanted = ids[asked][:, : int(wanted.max(initial=0))], wanted[asked]
        same = self.index.labels[np.maximum(ids, 0)] == self.queries.labels[asked][:, None]
        places = np.arange(1, ids.shape[1] + 1)
        right = same & (ids >= 0) & (places <= wanted[:, None])
        precision = np.cumsum(right, axis=1) / places
        self.sums.average += float(((precision * right).sum(axis=1) / wanted).sum())
        self.sums.averaged += int(asked.sum())

    def _check_own(self) -> None:
        """A query in the table must lie in a bucket that it opens, or it cannot be left out."""
        own = self.queries.own
        if own is None:
            return
        opened = self.order[:, None, : self.sums.probe]
        inside = (self.index.codes[own][:, :, None] == opened).any(axis=(1, 2))
        if not inside.all():
            first = int(np.flatnonzero(~inside)[0])
            raise InputError(
                f"query {first} is said to be item {own[first]} of the table, which lies in none "
                "of the buckets that the query opens; give the same activations to both, or "
                "own=None"
            )
