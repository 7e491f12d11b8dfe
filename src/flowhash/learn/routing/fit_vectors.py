"""``fit_vectors``: buckets of vectors that nobody labelled, for a recall that is asked for.

k-means gives each item its first bucket; a router learns in which buckets neighbours lie; some
items get a second bucket where queries would miss them, and the router learns again. Neighbours are
looked for in lists of another k-means, which miss others than those buckets do. Items that
the router did not learn from as queries choose: a step is kept only if they are found with fewer
comparisons. ``share_items`` gives second buckets beside learned ones, by the same choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from flowhash.data import Preprocessing
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn.adaptation import fit_centres, nearest_points, sample_size
from flowhash.learn.routing.neighbour_graph import centre_scores, neighbour_graph
from flowhash.learn.routing.neighbour_router import (
    NeighbourRouter,
    bucket_worths,
    router_at_centres,
    sharpest_step,
    sharpness,
    train_router,
)
from flowhash.learn.routing.second_buckets import (
    VOTE_RECALL,
    Activations,
    SecondBuckets,
    SecondRule,
    opening_rates,
    second_buckets,
    second_of_new,
    unique_items,
)
from flowhash.networks import EmbeddingNetwork, PlainVectors
from flowhash.table import draw_sample

RECALLS = (0.9, 0.95, 0.99)  # at which ways are compared
MORE_ITEMS, CENTRE_ROUNDS = 4, 30  # times the items that `adapt` fits centres to; its rounds
COARSER = 4  # times fewer lists, in which neighbours are looked for
# How far the router goes when it learns again. Who voted finds its neighbours more easily than
# other queries do: all the way, it would rely on that.
LEARNED_AGAIN = 0.25
COPIES = (0.2, 0.4)  # shares of items with a second bucket that are tried
LEAST_ITEMS = 1_000  # below it one bucket holds everything
LEAST_HELD_OUT, HELD_OUT, MOST_HELD_OUT = 500, 0.05, 2_000  # that choose; as many calibrate
PART_HELD_OUT = 0.2  # of few items, and of queries that were given
LEAST_QUERIES = 250  # that may be given
MOST_IN_NOTE = (
    6_000  # buckets whose rates a note of a table holds; beyond, `adapt` gives second ones
)
LEAST_IN_BUCKET = 2  # items on average
MOST_ASKED = 500_000  # items whose neighbours are looked for
ENOUGH_QUERIES = 5_000  # of the user's own, with which items are not asked with


@dataclass(frozen=True)
class RouterTrial:
    """A way to open buckets, and what it has to scan.

    Attributes:
        name: in words.
        copies: the share of the items with a second bucket.
        scanned: the share of all items that is scanned on average, for each of ``RECALLS``.
    """

    name: str
    copies: float
    scanned: dict[float, float]

    @property
    def cost(self) -> float:
        """The geometric mean of what is scanned."""
        return float(np.exp(np.mean(np.log(list(self.scanned.values())))))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        shares = {f"scanned_at_{recall:g}": share for recall, share in self.scanned.items()}
        return {"name": self.name, "copies": self.copies, **shares}

    def __str__(self) -> str:
        shares = ", ".join(f"{100 * share:.2f} %" for share in self.scanned.values())
        recalls = ", ".join(f"{recall:g}" for recall in self.scanned)
        return f"{self.name}: scans {shares} for a recall of {recalls}"


@dataclass(frozen=True, eq=False)
class ItemBuckets:
    """The buckets of items, and how they were chosen.

    Attributes:
        codes: the buckets of each item, -1 behind its last [n, 1 or 2].
        rule: by what items that come later get a second one; None where none has.
        held_out: positions of items, or of queries where some were given, that nothing was learned
            from and that chose nothing, for a calibration.
        trials: what was compared, the start first, the chosen last.
    """

    codes: NDArray[np.int32]
    rule: SecondRule | None
    held_out: NDArray[np.int64]
    trials: list[RouterTrial]


def router_encoder(router: NeighbourRouter, preprocessing: Preprocessing) -> Encoder:
    """An encoder that ranks vectors as they are and opens buckets by the router."""
    buckets, dim = router.weights.shape
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # leaves the caller's seeds alone
        network = EmbeddingNetwork(PlainVectors(dim), buckets)
        network.head.get_parameter("weight").copy_(torch.from_numpy(router.weights))
        network.head.get_parameter("bias").copy_(torch.from_numpy(router.biases))
    return Encoder(EmbeddingNetwork(PlainVectors(dim), None), network, preprocessing, 1)


def is_router(encoder: Encoder) -> bool:
    """Whether it opens buckets for neighbours, as :func:`router_encoder` does, and not by class."""
    if encoder.class_names:
        return False
    return encoder.base is not None and encoder.base.passes_through


def suit_router(items: int, buckets: int) -> bool:
    """Whether so many items are enough to fit so many buckets to them, without labels."""
    return buckets == 1 or items >= max(LEAST_QUERIES, LEAST_IN_BUCKET * buckets)


def bucket_count(items: int) -> int:
    """The number of buckets that suits so many items: a power of two near twice their root."""
    if items < LEAST_ITEMS:
        return 1
    return int(2 ** round(np.log2(2 * np.sqrt(items))))


def fit_vectors(
    vectors: NDArray[np.float32],
    buckets: int | None = None,
    *,
    copies: float | None = None,
    inner: bool = False,
    queries: NDArray[np.float32] | None = None,
    seed: int = 0,
    show: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[NeighbourRouter, ItemBuckets]:
    """Buckets for vectors without labels; k-means at a fixed number of them is the first trial.

    Args:
        vectors: the items [n, dim], one or more.
        buckets: d; None chooses by the number of items.
        copies: the share of the items with a second bucket; None chooses.
        inner: rank by the largest inner product instead of by Euclidean distance.
        queries: to learn from instead of the items, where real ones look different; with fewer
            than 5,000 items are asked with, too.
        seed: of everything drawn at random.
        show: bars with the time left, on the error stream.
        say: hears a line for each way that is tried, and which was taken.
    """
    if queries is not None and len(queries) < LEAST_QUERIES:
        raise InputError(
            f"there are {len(queries)} queries; expected {LEAST_QUERIES} or more, a fifth of which "
            "calibrate. Give more, or leave them out and calibrate afterwards"
        )
    if buckets is not None and buckets > 1 and len(vectors) < LEAST_QUERIES:
        raise InputError(
            f"there are {len(vectors)} items for {buckets} buckets; without labels expected "
            f"{LEAST_QUERIES} or more, a fifth of which calibrate. Leave the number of buckets out"
        )
    if buckets is not None and buckets > max(1, len(vectors) // LEAST_IN_BUCKET):
        raise InputError(
            f"there are {buckets} buckets for {len(vectors)} items; expected {LEAST_IN_BUCKET} "
            f"items a bucket or more. {bucket_count(len(vectors))} buckets would be usual"
        )
    count = bucket_count(len(vectors)) if buckets is None else buckets
    lists = _Lists.fitted(vectors, count, inner, seed, show)
    learn, choose, held_out = _parts(len(vectors), seed)
    own = queries is None or len(queries) < ENOUGH_QUERIES
    # Second buckets are for neighbours that these lists miss, so others have to find them.
    others = _Lists.fitted(vectors, max(1, count // COARSER), inner, seed, show)
    near = others.ask(vectors[learn], learn, show=show) if own else None
    if queries is not None:
        learn, choose, held_out = _parts(len(queries), seed)
        theirs = others.ask(queries[learn], show=show)
        near = theirs if near is None else near.and_also(theirs)
    assert near is not None
    if queries is None:
        judge = others.ask(vectors[choose], choose, everything=True, show=show)
    else:
        judge = others.ask(queries[choose], everything=True, show=show)
    homes, first = lists.homes, lists.homes[:, None]
    start = router_at_centres(lists.centres, near.vectors, near.neighbours, homes, inner)
    if count == 1 or not len(choose):
        return start, ItemBuckets(first, None, held_out, [])
    chosen = start, first, judge.trial("centres and a threshold", start.activations, first, count)
    trials = [judge.fixed_probe(lists), chosen[2]]

    def learned(begin: NeighbourRouter, codes: NDArray[np.int32]) -> NeighbourRouter:
        return train_router(begin, near.vectors, near.neighbours, codes, seed=seed, show=show)

    def judged(name: str, made: NeighbourRouter, codes: NDArray[np.int32]) -> None:
        nonlocal chosen
        trials.append(judge.trial(name, made.activations, codes, count))
        if trials[-1].cost < chosen[2].cost:
            chosen = made, codes, trials[-1]

    judged("a trained router", learned(start, first), first)
    router = chosen[0]
    if copies is None or copies > 0:
        second = _voted(router.activations, near, judge, homes, count, show)
        for share in COPIES if copies is None else (copies,):
            codes = second.codes(homes, share)
            judged(_name(share), router.towards(learned(router, codes), LEARNED_AGAIN), codes)
    router, codes, best = chosen
    _tell(trials, best, say)
    rule = _rule(router.activations, near, judge, vectors, codes, count)
    return router, ItemBuckets(codes, rule, held_out, _last(trials, best))


def share_items(
    vectors: NDArray[np.float32],
    homes: NDArray[np.int32],
    buckets: int,
    activations: Activations,
    *,
    inputs: NDArray[np.float32] | None = None,
    copies: float | None = None,
    inner: bool = False,
    seed: int = 0,
    show: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> ItemBuckets:
    """Second buckets beside learned ones, for a recall that is asked for.

    Args:
        vectors: what ranks the items [n, dim].
        homes: the first bucket of each [n].
        buckets: d.
        activations: of the network that opens them, for ``inputs``.
        inputs: what that network takes, where that is not ``vectors`` [n, features].
        copies: the share of the items with a second bucket, kept if fewer are scanned with it; None
            tries two.
        inner: rank by the largest inner product instead of by Euclidean distance.
        seed: of everything drawn at random.
        show: bars with the time left, on the error stream.
        say: hears a line for each way that is tried.
    """
    taken = vectors if inputs is None else inputs
    learn, choose, held_out = _parts(len(vectors), seed)
    first = homes[:, None]
    if buckets == 1 or not len(choose):
        return ItemBuckets(first, None, held_out, [])
    # Neighbours are looked for in lists of their own: learned buckets may keep them apart.
    coarse = max(1, bucket_count(len(vectors)) // COARSER)
    lists = _Lists.fitted(vectors, coarse, inner, seed, show)
    near = lists.ask(vectors[learn], learn, taken[learn], show=show)
    judge = lists.ask(vectors[choose], choose, taken[choose], everything=True, show=show)
    some = slice(None, None, sharpest_step(len(learn)))
    sharp = sharpness(activations(near.vectors[some]), near.neighbours[some], homes)

    def sharper(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return activations(rows) * np.float32(sharp)

    best = judge.trial("learned buckets and a threshold", sharper, first, buckets)
    codes, trials = first, [best]
    second = _voted(sharper, near, judge, homes, buckets, show)
    for share in COPIES if copies is None else (copies,):
        tried = second.codes(homes, share)
        trials.append(judge.trial(_name(share), sharper, tried, buckets))
        if trials[-1].cost < best.cost:
            codes, best = tried, trials[-1]
    _tell(trials, best, say)
    rule = _rule(sharper, near, judge, taken, codes, buckets, sharp)
    return ItemBuckets(codes, rule, held_out, _last(trials, best))


def _name(share: float) -> str:
    return f"second buckets for {100 * share:g} % of the items"


def _tell(trials: list[RouterTrial], best: RouterTrial, say: Callable[[str], None]) -> None:
    for trial in trials:
        say(str(trial))
    say(f"taken: {best.name}")


def _last(trials: list[RouterTrial], best: RouterTrial) -> list[RouterTrial]:
    """The trials with the chosen one behind the others."""
    return [*(trial for trial in trials if trial is not best), best]


def _voted(
    activations: Activations,
    near: _Asked,
    judge: _Asked,
    homes: NDArray[np.int32],
    buckets: int,
    show: bool,
) -> SecondBuckets:
    """Second buckets by the votes of queries, at the threshold that the judge finds."""
    worth = bucket_worths(activations(judge.vectors), np.bincount(homes, minlength=buckets))
    threshold = judge.threshold(worth, homes[:, None], VOTE_RECALL)
    return second_buckets(
        activations, near.vectors, near.neighbours, homes, buckets, threshold, show=show
    )


def _rule(
    activations: Activations,
    near: _Asked,
    judge: _Asked,
    inputs: NDArray[np.float32],
    codes: NDArray[np.int32],
    buckets: int,
    sharp: float = 1.0,
) -> SecondRule | None:
    """By what items that come later get second buckets: some that are known come once more."""
    share = float((codes[:, 1:] >= 0).mean()) if codes.shape[1] > 1 else 0.0
    if not share:
        return None
    loads = _loads(codes, buckets)
    worth = bucket_worths(activations(judge.vectors), loads)
    threshold = judge.threshold(worth, codes, VOTE_RECALL)
    some = slice(None, None, max(1, len(near.vectors) // MOST_HELD_OUT))
    rates = opening_rates(worth, threshold)
    known, places = unique_items(near.neighbours[some], near.neighbours[some] >= 0)
    homes = activations(near.vectors[some]).argmax(axis=1).astype(np.int32)
    worth = bucket_worths(activations(inputs[known]), loads)
    gain = second_of_new(worth, places, homes, threshold, rates).gain_of(share)
    if not np.isfinite(gain) or buckets > MOST_IN_NOTE:
        return None
    return SecondRule(threshold, gain, sharp, tuple(rates.tolist()))


def _centres(
    vectors: NDArray[np.float32], count: int, seed: int, show: bool
) -> NDArray[np.float32]:
    """k-means from items by lot.

    Of many more items and rounds than ``adapt`` takes: how the router starts decides how it ends.
    """
    size = sample_size(count, vectors.shape[1], MORE_ITEMS)
    sample = vectors
    if size < len(vectors):
        sample = vectors[draw_sample(len(vectors), size, seed)]
    begin = sample[draw_sample(len(sample), count, seed + 1)]
    near = nearest_points(sample, begin)
    found = fit_centres(sample, near, count, seed, show, rounds=CENTRE_ROUNDS, last_swap=0)
    return found.points.astype(np.float32)


@dataclass(frozen=True, eq=False)
class _Lists:
    """k-means lists, in which neighbours are looked for."""

    vectors: NDArray[np.float32]
    homes: NDArray[np.int32]
    centres: NDArray[np.float32]
    inner: bool

    @classmethod
    def fitted(
        cls,
        vectors: NDArray[np.float32],
        count: int,
        inner: bool,
        seed: int,
        show: bool,
    ) -> _Lists:
        centres = _centres(vectors, count, seed, show)
        return cls(vectors, nearest_points(vectors, centres)[:, 0], centres, inner)

    def ask(
        self,
        queries: NDArray[np.float32],
        own: NDArray[np.int64] | None = None,
        inputs: NDArray[np.float32] | None = None,
        *,
        everything: bool = False,
        show: bool = False,
    ) -> _Asked:
        """Queries, ``own`` where they are items, and their neighbours among all of these."""
        found = neighbour_graph(
            self.vectors, self.homes, self.centres, queries, own,
            inner=self.inner, everything=everything, show=show,
        )  # fmt: skip
        return _Asked(queries if inputs is None else inputs, found, len(self.vectors))


def _parts(count: int, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Positions to ask with, those that choose, and those that calibrate."""
    few = min(LEAST_HELD_OUT, PART_HELD_OUT * count)
    held = int(min(MOST_HELD_OUT, max(few, HELD_OUT * count)))
    order = np.random.default_rng(seed).permutation(count)
    choose, calibrate, learn = np.split(order, (held, 2 * held))
    return np.sort(learn[:MOST_ASKED]), np.sort(choose), np.sort(calibrate)


def _loads(codes: NDArray[np.int32], buckets: int) -> NDArray[np.int64]:
    return np.bincount(codes[codes >= 0], minlength=buckets)


@dataclass(frozen=True, eq=False)
class _Asked:
    """Queries and their neighbours among ``items`` items."""

    vectors: NDArray[np.float32]
    neighbours: NDArray[np.int32]
    items: int

    def and_also(self, other: _Asked) -> _Asked:
        vectors = np.concatenate((self.vectors, other.vectors))
        return _Asked(vectors, np.concatenate((self.neighbours, other.neighbours)), self.items)

    def threshold(
        self, worth: NDArray[np.float32], codes: NDArray[np.int32], recall: float
    ) -> float:
        """The largest worth from which on opened buckets hold that share of the neighbours."""
        there = self.neighbours >= 0
        buckets = codes[np.maximum(self.neighbours, 0)]
        found = worth[np.arange(len(worth))[:, None, None], buckets]
        reached = np.sort(np.where(buckets >= 0, found, -np.inf).max(axis=2)[there])[::-1]
        return float(reached[int(np.ceil(recall * len(reached))) - 1])

    def trial(
        self, name: str, activations: Activations, codes: NDArray[np.int32], buckets: int
    ) -> RouterTrial:
        """What each recall scans, where one threshold decides which buckets are opened."""
        loads = _loads(codes, buckets)
        worth = bucket_worths(activations(self.vectors), loads)
        twice = codes[codes[:, -1] >= 0] if codes.shape[1] == 2 else codes[:0]
        pairs = csr_matrix(
            (np.ones(len(twice), np.float32), (twice[:, 0], twice[:, -1])), (len(loads),) * 2
        )
        scanned = {}
        for recall in RECALLS:
            opened = (worth >= self.threshold(worth, codes, recall)).astype(np.float32)
            both = np.multiply(opened @ pairs, opened).sum(dtype=np.float64)
            total = float((opened @ loads).sum(dtype=np.float64)) - float(both)
            scanned[recall] = total / (len(worth) * self.items)
        return RouterTrial(name, len(twice) / len(codes), scanned)

    def fixed_probe(self, lists: _Lists) -> RouterTrial:
        """The same for k-means, where each query opens as many buckets: IVF."""
        homes = lists.homes
        scores = centre_scores(self.vectors, lists.centres, lists.inner)
        order = np.argsort(-scores, axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(order.shape[1])[None], 1)
        there = self.neighbours >= 0
        needed = np.take_along_axis(ranks, homes[np.maximum(self.neighbours, 0)], 1)[there]
        loads = np.bincount(homes, minlength=len(lists.centres))
        shares = np.cumsum(loads[order].mean(axis=0)) / self.items
        recalls = np.cumsum(np.bincount(needed, minlength=len(loads))) / len(needed)
        scanned = {recall: float(np.interp(recall, recalls, shares)) for recall in RECALLS}
        return RouterTrial("k-means, the same number of buckets for each query", 0.0, scanned)
