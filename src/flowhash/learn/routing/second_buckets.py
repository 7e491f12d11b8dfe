"""``second_buckets``: a further bucket for items that queries near them would miss.

A query votes for the items that it would miss, in the buckets that it opens: for item i and bucket
b, P(i's own bucket stays closed) · P(b is opened), where a bucket's chance to be opened is a soft
step of its worth around the threshold. What all votes for a pair come to is divided by a price, the
root of how often b is opened: in a bucket that every second query opens, an item is scanned by
every second query. The items with the largest such gain get their best bucket as a second one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import expit

from flowhash.learn.routing.neighbour_graph import BLOCK
from flowhash.learn.routing.neighbour_router import NeighbourRouter, bucket_worths
from flowhash.progress_bars import tracked

CANDIDATES = 12  # buckets that a query votes for at the most
SOFTNESS = 1.0  # of the step, in units of a bucket's worth
LEAST_MISSED, LEAST_VOTE = 0.05, 0.02  # votes below these are left out


@dataclass(frozen=True, eq=False)
class SecondBuckets:
    """The best second bucket of each item, and what it would gain.

    Attributes:
        buckets: [n], -1 where no query misses the item.
        gains: [n].
    """

    buckets: NDArray[np.int32]
    gains: NDArray[np.float32]

    def codes(self, homes: NDArray[np.int32], share: float) -> NDArray[np.int32]:
        """The buckets of each item [n, 2]: its first, and its second or -1.

        Args:
            homes: the first bucket of each item [n].
            share: of the items that have a second one, those with the largest gains.
        """
        made = np.stack((homes, np.full_like(homes, -1)), axis=1)
        chosen = np.argsort(-self.gains, kind="stable")[: int(share * len(homes))]
        made[chosen, 1] = self.buckets[chosen]
        return made


def second_buckets(
    router: NeighbourRouter,
    vectors: NDArray[np.float32],
    neighbours: NDArray[np.int32],
    homes: NDArray[np.int32],
    threshold: float,
    *,
    show: bool = False,
) -> SecondBuckets:
    """The best second bucket of each item, by the queries that have it among their neighbours.

    Args:
        router: trained for the first buckets.
        vectors: queries [q, dim].
        neighbours: of each, as ``neighbour_graph`` has them [q, m].
        homes: the first bucket of each item [n].
        threshold: the worth from which on queries open buckets.
        show: a bar with the time left, on the error stream.
    """
    count, buckets = len(homes), len(router.weights)
    loads = np.bincount(homes, minlength=buckets)
    most = min(CANDIDATES, buckets)
    opened = np.zeros(buckets)
    votes: list[tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]] = []
    starts = range(0, len(vectors), BLOCK)
    for start in tracked(starts, "second buckets", len(starts), show):
        near = neighbours[start : start + BLOCK]
        worth = bucket_worths(router, vectors[start : start + BLOCK], loads)
        chances = expit((worth - threshold) / SOFTNESS)
        opened += chances.sum(axis=0)
        best = np.argpartition(-worth, most - 1, axis=1)[:, :most].astype(np.int32)
        likely = np.take_along_axis(chances, best, 1)
        missed = 1 - np.take_along_axis(chances, homes[np.maximum(near, 0)], 1)
        missed[near < 0] = 0
        queries, places = np.nonzero(missed > LEAST_MISSED)
        items = near[queries, places]
        values = missed[queries, places][:, None] * likely[queries]
        chosen = best[queries]
        kept = (values > LEAST_VOTE) & (chosen != homes[items][:, None])
        names = np.broadcast_to(items[:, None], chosen.shape)[kept]
        votes.append((values[kept].astype(np.float32), names, chosen[kept]))
    values, items, chosen = (np.concatenate(part) for part in zip(*votes, strict=True))
    gains = csr_matrix((values, (items, chosen)), (count, buckets))
    gains.sum_duplicates()
    gains.data /= np.sqrt(np.maximum(opened / max(1, len(vectors)), 1e-9))[gains.indices]
    return _best_of_rows(gains)


def _best_of_rows(gains: csr_matrix) -> SecondBuckets:
    """The largest entry of each row; of several, the first."""
    held = np.flatnonzero(np.diff(gains.indptr))
    best = np.zeros(gains.shape[0], np.float32)
    chosen = np.full(gains.shape[0], -1, np.int32)
    if len(held):
        best[held] = np.maximum.reduceat(gains.data, gains.indptr[held])
        rows = np.repeat(np.arange(gains.shape[0]), np.diff(gains.indptr))
        top = np.flatnonzero(gains.data == best[rows])[::-1]  # the first is written last
        chosen[rows[top]] = gains.indices[top]
    return SecondBuckets(chosen, best)
