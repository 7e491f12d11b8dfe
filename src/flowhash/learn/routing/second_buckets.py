"""``second_buckets``: a further bucket for items that queries near them would miss.

A query votes for the items that it would miss, in the buckets that it opens: for item i and bucket
b, P(i's own bucket stays closed) · P(b is opened), where a bucket's chance to be opened is a soft
step of its worth around the threshold. What all votes for a pair come to is divided by a price, the
root of how often b is opened: in a bucket that every second query opens, an item is scanned by
every second query. The items with the largest such gain get their best bucket as a second one.

An item that comes later gets one by the same rule. Its nearest items vote for it, and its gain must
be as large as what gives as many of the stored items, asked for in that way, a second bucket.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import expit

from flowhash.encoder import Encoded, search_encoded
from flowhash.errors import OldCalibrationWarning
from flowhash.learn.routing.neighbour_graph import BLOCK, LEAST_OPENED, NEIGHBOURS, OPENED
from flowhash.learn.routing.neighbour_router import bucket_worths
from flowhash.progress_bars import tracked
from flowhash.table import HashTable

CANDIDATES = 32  # buckets that a query votes for at the most
SOFTNESS = 1.0  # of the step, in units of a bucket's worth
LEAST_MISSED, LEAST_VOTE = 0.05, 0.02  # votes below these are left out
NEW_BLOCK = 512  # items that come later, of which the neighbours are looked at together
LEAST_RATE = 1e-9  # at which a bucket is opened
VOTE_RECALL = 0.9  # at which queries vote
SECOND_NOTE = "second-buckets"  # the name of the rule among a table's notes

# Makes the outputs of the buckets of vectors, as sharp as makes them chances.
Activations = Callable[[NDArray[np.float32]], NDArray[np.float32]]
# Makes the outputs of stored items, by their ids.
ActivationsOf = Callable[[NDArray[Any]], NDArray[np.float32]]


@dataclass(frozen=True)
class SecondRule:
    """By what an item that comes later gets a second bucket.

    Attributes:
        threshold: the worth from which on queries open buckets, at the recall that votes are for.
        gain: the least that is enough.
        sharpness: the factor on activations with which their softmax says where neighbours are.
        rates: how often queries open each bucket, of which its price is made [d].
    """

    threshold: float
    gain: float
    sharpness: float
    rates: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """As the value of a note."""
        return {**asdict(self), "rates": [float(f"{rate:.3g}") for rate in self.rates]}

    @classmethod
    def from_json(cls, value: Any) -> SecondRule | None:
        """The rule of a note; None of what is none."""
        known = isinstance(value, dict) and value.keys() == cls.__dataclass_fields__.keys()
        if not known or not isinstance(value["rates"], list):
            return None
        threshold, gain, sharpness, rates = (value[name] for name in cls.__dataclass_fields__)
        if not all(isinstance(one, int | float) for one in (threshold, gain, sharpness, *rates)):
            return None
        return cls(threshold, gain, sharpness, tuple(rates))


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
        chosen = np.argsort(-self.gains, kind="stable")[: int(share * len(homes))]
        return self._codes(homes, chosen)

    def codes_from(self, homes: NDArray[np.int32], gain: float) -> NDArray[np.int32]:
        """The same with a second bucket where that gains so much."""
        return self._codes(homes, np.flatnonzero(self.gains >= gain))

    def _codes(self, homes: NDArray[np.int32], chosen: NDArray[np.int64]) -> NDArray[np.int32]:
        made = np.stack((homes, np.full_like(homes, -1)), axis=1)
        made[chosen, 1] = self.buckets[chosen]
        return made

    def gain_of(self, share: float) -> float:
        """The gain that so many items have, of those that are missed at all."""
        held = np.sort(self.gains)[::-1][: max(1, int(share * len(self.gains)))]
        return float(held[held > 0].min(initial=np.inf))


def second_buckets(
    activations: Activations,
    vectors: NDArray[np.float32],
    neighbours: NDArray[np.int32],
    homes: NDArray[np.int32],
    buckets: int,
    threshold: float,
    *,
    show: bool = False,
) -> SecondBuckets:
    """The best second bucket of each item, by the queries that have it among their neighbours.

    Args:
        activations: of the buckets, for vectors.
        vectors: queries [q, dim].
        neighbours: of each, as ``neighbour_graph`` has them [q, m].
        homes: the first bucket of each item [n].
        buckets: d.
        threshold: the worth from which on queries open buckets.
        show: a bar with the time left, on the error stream.
    """
    loads = np.bincount(homes, minlength=buckets)
    starts = range(0, len(vectors), BLOCK)

    def blocks() -> Iterable[_Votes]:
        for start in tracked(starts, "second buckets", len(starts), show):
            near = neighbours[start : start + BLOCK]
            made = activations(vectors[start : start + BLOCK])
            queries, places = np.nonzero(near >= 0)
            yield _votes(
                bucket_worths(made, loads), threshold, queries, near[queries, places], homes
            )

    votes = list(blocks())
    opened = np.sum([part.opened for part in votes], axis=0)
    return _best(votes, homes, opened / max(1, sum(part.queries for part in votes)))


def second_codes(
    table: HashTable, made: Encoded, rule: SecondRule, activations_of: ActivationsOf
) -> NDArray[np.int32]:
    """The buckets of items that come later [n, 2]: the first, and a second or -1.

    Args:
        table: that they come to.
        made: the items.
        rule: of the table.
        activations_of: makes those of stored items, by their ids.
    """
    loads = table.bucket_loads()
    parts = [np.zeros((0, 2), np.int32)]
    for start in range(0, len(made), NEW_BLOCK):
        rows = slice(start, start + NEW_BLOCK)
        part = replace(made, embeddings=made.embeddings[rows], activations=made.activations[rows])
        parts.append(_second_codes(table, part, rule, activations_of, loads))
    return np.concatenate(parts)


def _second_codes(
    table: HashTable,
    made: Encoded,
    rule: SecondRule,
    activations_of: ActivationsOf,
    loads: NDArray[np.int64],
) -> NDArray[np.int32]:
    """The same of a few."""
    homes, top = made.codes[:, 0], min(NEIGHBOURS, len(table))
    first = np.stack((homes, np.full_like(homes, -1)), axis=1)
    if not top or len(rule.rates) != len(loads):
        return first
    known = table.calibration
    options: dict[str, Any] = {"recall": VOTE_RECALL}
    if known is None or max(known.thresholds) < top or known.highest <= VOTE_RECALL:
        options = {"probe": min(table.buckets, max(LEAST_OPENED, table.buckets // OPENED))}
    with warnings.catch_warnings():  # by an old calibration enough are found for this
        warnings.simplefilter("ignore", OldCalibrationWarning)
        hits = search_encoded(table, made, top, **options)
    some, near = unique_items(hits.ids, np.arange(hits.ids.shape[1]) < hits.counts[:, None])
    if not len(some):
        return first
    worth = bucket_worths(activations_of(some) * np.float32(rule.sharpness), loads)
    rates = np.array(rule.rates)
    return second_of_new(worth, near, homes, rule.threshold, rates).codes_from(homes, rule.gain)


def unique_items(
    ids: NDArray[Any], there: NDArray[np.bool_]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Each id once [u], and the place of each among these; -1 where there is none [n, m]."""
    known, places = np.unique(ids[there], return_inverse=True)
    near = np.full(ids.shape, -1, np.int64)
    near[there] = places
    return known, near


def second_of_new(
    worth: NDArray[np.float32],
    near: NDArray[np.int64],
    homes: NDArray[np.int32],
    threshold: float,
    rates: NDArray[np.float64],
) -> SecondBuckets:
    """The best second buckets of items that come later, by the stored items near to them.

    Args:
        worth: of the buckets, for the stored items [u, d].
        near: which of these are the nearest of each, -1 where there are fewer [n, m].
        homes: the first bucket of each item [n].
        threshold: the worth from which on queries open buckets.
        rates: how often queries open each bucket [d].
    """
    items, places = np.nonzero(near >= 0)
    voted = _votes(worth, threshold, near[items, places], items, homes)
    return _best([voted], homes, rates)


def opening_rates(worth: NDArray[np.float32], threshold: float) -> NDArray[np.float64]:
    """How often queries with these worths [q, d] open each bucket, softly [d]."""
    rates: NDArray[np.float64] = expit((worth - threshold) / SOFTNESS).mean(0, dtype=np.float64)
    return rates


@dataclass(frozen=True, eq=False)
class _Votes:
    """Votes of some queries: how much, for which item, in which bucket; and what they open [d]."""

    values: NDArray[np.float32]
    items: NDArray[np.int64]
    buckets: NDArray[np.int32]
    opened: NDArray[np.float64]
    queries: int


def _votes(
    worth: NDArray[np.float32],
    threshold: float,
    queries: NDArray[np.integer],
    items: NDArray[np.integer],
    homes: NDArray[np.int32],
) -> _Votes:
    """What queries, by the worth of their buckets [q, d], vote in pairs of query and item."""
    most = min(CANDIDATES, worth.shape[1])
    chances = expit((worth - threshold) / SOFTNESS)
    best = np.argpartition(-worth, most - 1, axis=1)[:, :most].astype(np.int32)
    likely = np.take_along_axis(chances, best, 1)
    missed = 1 - chances[queries, homes[items]]
    some = missed > LEAST_MISSED
    queries, items, missed = queries[some], items[some], missed[some]
    values, chosen = missed[:, None] * likely[queries], best[queries]
    kept = (values > LEAST_VOTE) & (chosen != homes[items][:, None])
    names = np.broadcast_to(items[:, None], chosen.shape)[kept]
    opened = chances.sum(axis=0, dtype=np.float64)
    return _Votes(values[kept].astype(np.float32), names, chosen[kept], opened, len(worth))


def _best(
    votes: list[_Votes], homes: NDArray[np.int32], rates: NDArray[np.float64]
) -> SecondBuckets:
    """The pairs with the most votes, by the price of their buckets.

    The list is emptied: votes are what takes most memory of a fit, and are not held twice.
    """
    columns = [[part.values, part.items, part.buckets] for part in votes]
    votes.clear()
    values, items, chosen = (
        np.concatenate([column.pop(0) for column in columns]) for _ in range(3)
    )
    gains = csr_matrix((values, (items, chosen)), (len(homes), len(rates)))
    gains.sum_duplicates()
    gains.data /= np.sqrt(np.maximum(rates, LEAST_RATE))[gains.indices]
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
