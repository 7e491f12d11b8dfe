"""``NeighbourRouter``: a linear layer that says in which buckets a query's neighbours lie.

It starts at the centres of the buckets, as sharp as makes the buckets of neighbours likeliest, and
learns by cross-entropy in which buckets the nearest items of a query are. As an order of buckets at
a fixed number of them it is hardly better than the centres; but its probabilities mean the same for
each query, so that one threshold on them opens many buckets where neighbours lie scattered, and few
where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp

from flowhash.learn.routing.neighbour_graph import centre_scores
from flowhash.progress_bars import tracked

LEAST_STEPS, MOST_STEPS, BATCH = 300, 2_000, 1_024
SEEN = 30  # times that a query is learned from, between these numbers of steps
RATE = 0.07  # of Adam, in units of the start's mean weight
WARM_UP = 25  # steps
SHARPNESS = tuple(2.0 ** (power / 2) for power in range(-4, 21))  # tried, times the scores' spread
SHARPEST_ITEMS = 4_096  # that choose how sharp the start is, about


@dataclass(frozen=True, eq=False)
class NeighbourRouter:
    """Weights [d, dim] and biases [d] of the layer."""

    weights: NDArray[np.float32]
    biases: NDArray[np.float32]

    def activations(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """The outputs for vectors [n, d]."""
        made: NDArray[np.float32] = vectors @ self.weights.T
        made += self.biases
        return made

    def towards(self, other: NeighbourRouter, part: float) -> NeighbourRouter:
        """A router between both: this one at 0, the other at 1."""
        weights = self.weights + np.float32(part) * (other.weights - self.weights)
        biases = self.biases + np.float32(part) * (other.biases - self.biases)
        return NeighbourRouter(weights, biases)


def router_at_centres(
    centres: NDArray[np.float32],
    vectors: NDArray[np.float32],
    neighbours: NDArray[np.int32],
    homes: NDArray[np.int32],
    inner: bool = False,
) -> NeighbourRouter:
    """The start: scores of the centres, times what makes the buckets of neighbours likeliest.

    Args:
        centres: of the buckets [d, dim].
        vectors: queries [q, dim].
        neighbours: of each, as :func:`neighbour_graph` has them [q, m].
        homes: the bucket of each item [n].
        inner: whether the nearest are those with the largest inner product.
    """
    some = slice(None, None, sharpest_step(len(vectors)))
    sharp = sharpness(centre_scores(vectors[some], centres, inner), neighbours[some], homes)
    biases = np.zeros(len(centres)) if inner else -0.5 * sharp * np.square(centres).sum(axis=1)
    return NeighbourRouter((sharp * centres).astype(np.float32), biases.astype(np.float32))


def sharpest_step(count: int) -> int:
    """Every which of so many queries chooses how sharp scores are; all of them would take long."""
    return max(1, count // SHARPEST_ITEMS)


def sharpness(
    scores: NDArray[np.float32], neighbours: NDArray[np.int32], homes: NDArray[np.int32]
) -> float:
    """The factor on scores [q, d] with which their softmax makes neighbours' buckets likeliest.

    Args:
        scores: of the buckets, for each query [q, d].
        neighbours: of each, as :func:`neighbour_graph` has them [q, m].
        homes: the bucket of each item [n].
    """
    there = neighbours >= 0
    wide = scores.astype(np.float64)
    spread = float(wide.std(axis=1).mean()) or 1.0
    targets = homes[np.maximum(neighbours, 0)]
    best, sharp = -np.inf, 1.0 / spread
    for factor in SHARPNESS:
        made = wide * (factor / spread)
        likely = np.take_along_axis(made, targets, 1) - logsumexp(made, axis=1, keepdims=True)
        mean = float(likely[there].mean()) if there.any() else 0.0
        if mean > best:
            best, sharp = mean, factor / spread
    return sharp


def train_router(
    start: NeighbourRouter,
    vectors: NDArray[np.float32],
    neighbours: NDArray[np.int32],
    codes: NDArray[np.int32],
    *,
    seed: int = 0,
    steps: int | None = None,
    show: bool = False,
) -> NeighbourRouter:
    """Learn in which buckets the neighbours of queries are, by cross-entropy.

    A neighbour in several buckets is found in any of them: their probabilities are added up.

    Args:
        start: weights and biases to begin at.
        vectors: queries [q, dim].
        neighbours: of each, as :func:`neighbour_graph` has them [q, m].
        codes: the buckets of each item, -1 behind its last [n, k].
        seed: of the batches.
        steps: of Adam; None sees each query about thirty times, in 300 to 2,000 steps.
        show: a bar with the time left, on the error stream.
    """
    if steps is None:
        steps = int(np.clip(SEEN * len(vectors) / BATCH, LEAST_STEPS, MOST_STEPS))
    weights = torch.from_numpy(start.weights.copy()).requires_grad_()
    biases = torch.from_numpy(start.biases.copy()).requires_grad_()
    rate = RATE * float(start.weights.std()) or RATE
    optimiser = torch.optim.Adam([weights, biases], lr=rate)
    rng = np.random.default_rng(seed)
    for step in tracked(range(steps), "router", steps, show):
        falling = 0.5 * (1 + np.cos(np.pi * step / steps))
        optimiser.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / WARM_UP) * falling
        rows = rng.integers(0, len(vectors), min(BATCH, len(vectors)))
        near = neighbours[rows]
        buckets = codes[np.maximum(near, 0)]  # [b, m, k]
        held = torch.from_numpy((buckets >= 0) & (near >= 0)[:, :, None])
        places = torch.from_numpy(np.maximum(buckets, 0).astype(np.int64))
        likely = (torch.from_numpy(vectors[rows]) @ weights.t() + biases).log_softmax(1)
        each = likely.gather(1, places.flatten(1)).view(places.shape)
        each = each.masked_fill(~held, -torch.inf)
        there = held.any(2)
        if not there.any():
            continue
        loss = -each[there].logsumexp(1).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return NeighbourRouter(weights.detach().numpy(), biases.detach().numpy())


def bucket_worths(
    activations: NDArray[np.float32], loads: NDArray[np.int64]
) -> NDArray[np.float32]:
    """What buckets are worth: log P(bucket) - log(its share of the items) [q, d].

    Minus infinity where a bucket is empty.

    Args:
        activations: of queries, as sharp as makes P the chance of their neighbours [q, d].
        loads: items in each bucket [d].
    """
    made: NDArray[np.float32] = activations - logsumexp(activations, axis=1, keepdims=True).astype(
        np.float32
    )
    with np.errstate(divide="ignore"):
        shares = np.log(loads / max(1, loads.sum()))
    made -= shares.astype(np.float32)
    made[:, loads == 0] = -np.inf
    return made
