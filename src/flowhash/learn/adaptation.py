"""Adaptation of an encoder's buckets to items that are in a table, without labels."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from flowhash.argument_checks import finite, matrix, numbers, whole_number
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.networks import BaseEmbeddings, EmbeddingNetwork, PlainVectors, run_networks
from flowhash.progress_bars import tracked
from flowhash.table import METRICS, draw_sample

PER_BUCKET = 256  # embeddings that centres are fitted to, for each bucket, at the most
LEAST_PER_BUCKET = 8
SAMPLE_BYTES = 1 << 28  # of embeddings that centres are fitted to, unless that is fewer than these
ROUNDS = 20  # of k-means at the most
SWAP_EVERY, LAST_SWAP = 3, 15  # rounds between two swaps of centres, and after which none is left
BLOCK = 8_192  # embeddings that are looked at at once
NEAREST_BYTES = 1 << 26  # of distances to all centres in memory at once
LEAST_ITEMS = 4  # of a bucket on average; where there are fewer, buckets are left empty
CLASS_WEIGHT = 0.6  # of the classes in the distance, between two that docs/learning.md compares
MOST_CLASSES = 256  # whose probabilities count; each makes a joint embedding one number longer
SHARPEST = 16  # half powers of two up to which a classifier's scores are sharpened
LAST = -1e30  # the output of a bucket without items: below all others, for vectors of any length


def adapt_encoder(
    encoder: Encoder,
    embeddings: ArrayLike,
    codes: ArrayLike | None = None,
    *,
    metric: str = "euclidean",
    class_weight: float = CLASS_WEIGHT,
    seed: int = 0,
    show: bool = False,
) -> Encoder:
    """An encoder whose buckets are fitted to these items, without labels.

    It ranks as before: its embeddings are the same. Its hash network is one linear layer on the
    embedding, whose outputs are largest for the buckets with the nearest centres; the centres start
    at the items of each trained bucket. So the codes of items in a table come from what the table
    stores (:meth:`~flowhash.Encoder.encode_stored`), and the base network runs once a query.

    Where the encoder knows whose its buckets are (the loss "codes" with groups of classes, 256
    classes at most), the trained classes count in the distance too: behind the embedding stand the
    square roots of their probabilities, by how near it is to the mean of the items that the trained
    buckets give to each. So the buckets of these classes stay their own, and items of new classes
    are told apart by what they look like, too.

    Args:
        encoder: what was trained; it stays as it is.
        embeddings: of the items, as it makes them and as a table stores them [n, dim]. Of many a
            sample is looked at, 256 a bucket; fewer, but 8, where these are more than 256 MB.
        codes: the buckets of each item [n, k], such as those it has in the table. None makes them
            of the embeddings, where the hash network takes those.
        metric: of the table. For "cosine" and "inner" the centres are directions.
        class_weight: of the classes in the distance, in units of how far embeddings are from their
            mean; 0 leaves them out. An encoder that was adapted with classes keeps their weight.
        seed: of the sample, and of where empty buckets begin.
        show: a bar with the time left, on the error stream.

    Raises:
        InputError: embeddings or codes do not fit the encoder, or codes are needed.

    Example:
        >>> from flowhash.learn import adapt_encoder  # doctest: +SKIP
        >>> made = encoder.encode(new_items)  # doctest: +SKIP
        >>> adapted = adapt_encoder(encoder, made.embeddings, made.codes)  # doctest: +SKIP
    """
    whole_number("seed", seed, 0)
    if metric not in METRICS:
        raise InputError(f"metric is {metric!r}; expected {', '.join(map(repr, METRICS))}")
    if not 0 <= class_weight < np.inf:
        raise InputError(f"class_weight is {class_weight}; expected a number, zero or more")
    rows = matrix(embeddings, "embeddings", "numbers", (np.float32,))
    if not len(rows) or rows.shape[1] != encoder.dim:
        raise InputError(
            f"embeddings have shape {rows.shape}; expected one row or more of {encoder.dim} "
            "numbers, as this encoder makes them"
        )
    finite(rows, "embeddings")
    given = None if codes is None else _codes(codes, len(rows), encoder.buckets)
    size = sample_size(encoder.buckets, encoder.dim)
    if len(rows) > size:
        chosen = draw_sample(len(rows), size, seed)
        rows, given = rows[chosen], None if given is None else given[chosen]
    if given is None:
        given = encoder.encode_stored(rows).codes
    directions = metric != "euclidean"
    if directions:
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        rows = (rows / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    classes = _class_embeddings(encoder, rows, given, class_weight, directions)
    if classes is not None:
        blocks = (rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK))
        made = run_networks([classes], blocks, torch.device("cpu"))
        rows = np.concatenate([part for (part,) in made])
    centres = fit_centres(rows, given, encoder.buckets, seed, show)
    return _with_centres(encoder, centres, directions, classes)


def sample_size(buckets: int, dim: int, more: int = 1) -> int:
    """How many embeddings the centres are fitted to, at the most; ``more`` times the usual."""
    fitting = max(more * SAMPLE_BYTES // (4 * dim), LEAST_PER_BUCKET * buckets)
    return min(more * PER_BUCKET * buckets, fitting)


def _codes(codes: ArrayLike, count: int, buckets: int) -> NDArray[np.int32]:
    found = numbers(codes, "codes")
    if found.ndim != 2 or len(found) != count or not found.shape[1] or found.dtype.kind not in "iu":
        raise InputError(
            f"codes have shape {found.shape} and dtype {found.dtype}; expected whole numbers "
            f"[{count}, k], a row for each embedding"
        )
    if found.min() < 0 or found.max() >= buckets:
        raise InputError(
            f"codes go from {found.min()} to {found.max()}; expected buckets of this encoder, 0 "
            f"to {buckets - 1}"
        )
    return found.astype(np.int32)


def _class_embeddings(
    encoder: Encoder,
    rows: NDArray[np.float32],
    codes: NDArray[np.int32],
    weight: float,
    directions: bool,
) -> BaseEmbeddings | None:
    """Embeddings with the trained classes' probabilities behind them; None where none are known.

    The likeliest class is that of the nearest mean of items that the trained buckets give to each
    class. How sharp the probabilities are is what makes those classes most likely.
    """
    known, order = encoder.hash.backbone, encoder.hash.order
    if isinstance(known, BaseEmbeddings) and known.classes:  # adapted before
        return copy.deepcopy(known)
    if order is None or not weight or len(order.shares) > MOST_CLASSES:
        return None
    shares = order.shares.cpu().numpy()
    chosen = np.flatnonzero(shares[:, codes[:, 0]].max(axis=0) > 0)  # not of buckets nobody has
    rows, labels = rows[chosen], shares.argmax(axis=0)[codes[chosen, :1]].astype(np.int32)
    points = np.zeros((len(shares), rows.shape[1]), np.float32)
    _move(points, rows, labels)
    idle = np.bincount(labels[:, 0], minlength=len(points)) == 0
    if np.count_nonzero(~idle) < 2:
        return None
    weights, biases = BucketCentres(points.astype(np.float64), idle).layer()
    scores = rows[:BLOCK] @ weights[~idle].T + biases[~idle]
    spread = float(scores.std(axis=1).mean())
    if not spread > 0:
        return None
    sharp = _sharpness(scores / spread, (np.cumsum(~idle) - 1)[labels[:BLOCK]]) / spread
    middle = rows.mean(axis=0, dtype=np.float64)
    squares = sum(float(np.square(part - middle).sum()) for part in _blocks(rows))
    made = BaseEmbeddings(encoder.dim, len(points), directions)
    made.class_weights.copy_(torch.from_numpy(sharp * weights))
    made.class_biases.copy_(torch.from_numpy(np.where(idle, LAST, sharp * biases)))
    made.factor.fill_(weight * float(np.sqrt(squares / len(rows))))
    return made


def _sharpness(scores: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> float:
    """The factor on scores [n, classes] with which their softmax makes labels [n, 1] likeliest."""
    best, found = -np.inf, 1.0
    for half in range(-4, SHARPEST + 1):
        factor = 2.0 ** (half / 2)
        sharper = factor * scores
        likely = np.take_along_axis(sharper, labels, 1)[:, 0] - logsumexp(sharper, axis=1)
        if likely.mean() > best:
            best, found = float(likely.mean()), factor
    return found


def _with_centres(
    encoder: Encoder, centres: BucketCentres, directions: bool, classes: BaseEmbeddings | None
) -> Encoder:
    """The encoder with a hash network that finds the nearest centres."""
    base = encoder.base or encoder.hash  # without a base, the hash network makes the embeddings
    # Vectors that rank as they are take no step in between, and older versions read the encoder.
    plain = PlainVectors if base.passes_through else BaseEmbeddings
    weights, biases = centres.layer(directions and classes is None)
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # leaves the caller's seeds alone
        network = EmbeddingNetwork(classes or plain(encoder.dim), encoder.buckets)
        for name, values in (("weight", weights), ("bias", biases)):
            network.head.get_parameter(name).copy_(torch.from_numpy(values))
    return Encoder(base, network, encoder.preprocessing, encoder.active, encoder.class_names)


@dataclass(frozen=True, eq=False)
class BucketCentres:
    """The centres of buckets.

    Attributes:
        points: the centre of each bucket [d, dim].
        idle: which buckets no item is nearest to [d]; a query opens them last.
    """

    points: NDArray[np.float64]
    idle: NDArray[np.bool_]

    def layer(self, directions: bool = False) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Weights [d, dim] and biases [d] of a linear layer whose largest outputs are the nearest.

        The output of bucket j is s·(x·c_j - |c_j|²/2) but for a number that all buckets have in
        common: of x·c_j the part of the centres' mean is left out, so that embeddings far from
        zero lose no digits. Idle buckets have one output, below all others, whatever x is.

        Args:
            directions: compare angles instead of distances, so that the length of x does not
                matter.
        """
        points = self.points
        if directions:
            lengths = np.linalg.norm(points, axis=1, keepdims=True)
            points = points / np.where(lengths > 0, lengths, 1.0)
        middle = points[~self.idle].mean(axis=0)
        weights = np.where(self.idle[:, None], 0.0, points - middle)
        biases = np.zeros(len(points))
        if not directions:
            biases = -0.5 * (weights * (points + middle)).sum(axis=1)
        scale = float(np.linalg.norm(weights, axis=1).max()) or 1.0
        biases = np.where(self.idle, LAST, biases / scale)
        return (weights / scale).astype(np.float32), biases.astype(np.float32)


def fit_centres(
    embeddings: NDArray[np.float32],
    codes: NDArray[np.int32],
    buckets: int,
    seed: int = 0,
    show: bool = False,
    *,
    rounds: int = ROUNDS,
    last_swap: int = LAST_SWAP,
) -> BucketCentres:
    """Centres for buckets, without labels: k-means that starts at the buckets that items have.

    A bucket whose centre is nobody's nearest begins anew at an item of the fullest one. There are
    four items a bucket at least, on average: of few items only the fullest buckets are kept. Every
    third round centres that are hardly missed move to where items are far from theirs, which
    k-means alone never does: it keeps a class that was cut in two, and two that share a bucket.

    Args:
        embeddings: [n, dim], one or more.
        codes: the buckets that the trained network gives each [n, k].
        buckets: d.
        seed: of the items at which buckets begin anew.
        show: a bar with the time left, on the error stream.
        rounds: of k-means, at the most.
        last_swap: the round after which no centre is moved to another bucket; 0 for none at all.
    """
    rng = np.random.default_rng(seed)
    middle = embeddings.mean(axis=0, dtype=np.float64)
    scale = max((float(np.abs(part - middle).max()) for part in _blocks(embeddings)), default=0.0)
    scale = scale or 1.0
    rows = np.empty_like(embeddings)
    for start in range(0, len(rows), BLOCK):
        rows[start : start + BLOCK] = (embeddings[start : start + BLOCK] - middle) / scale
    points = np.zeros((buckets, rows.shape[1]), np.float32)
    _move(points, rows, codes)
    loads = np.bincount(codes.ravel(), minlength=buckets)
    kept = np.sort(np.argsort(-loads, kind="stable")[: max(1, len(rows) // LEAST_ITEMS)])
    every, points = points, points[kept]
    if loads[kept].min() == 0:  # then all that have items are kept
        _fill(points, rows, np.searchsorted(kept, codes).astype(np.int32), rng)
    nearest = nearest_points(rows, points)
    for turn in tracked(range(1, rounds + 1), "fit", rounds, show):
        _move(points, rows, nearest)
        _fill(points, rows, nearest, rng)
        swapped = 0
        if turn % SWAP_EVERY == 0 and turn <= last_swap and len(points) > 1:
            swapped = _swap(points, rows, nearest_points(rows, points)[:, 0])
        before, nearest = nearest, nearest_points(rows, points)
        if turn >= last_swap and not swapped and np.array_equal(before, nearest):
            break
    idle = np.bincount(kept[nearest[:, 0]], minlength=buckets) == 0
    every[kept] = points
    return BucketCentres(every.astype(np.float64) * scale + middle, idle)


def _blocks(rows: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]


def _move(points: NDArray[np.float32], rows: NDArray[np.float32], codes: NDArray[np.int32]) -> None:
    """Move each point to the mean of the rows that have its bucket; the others stay."""
    sums = np.zeros(points.shape)
    loads = np.bincount(codes.ravel(), minlength=len(points))
    for start in range(0, len(rows), BLOCK):
        part = codes[start : start + BLOCK]
        order = np.argsort(part, axis=None, kind="stable")
        here, firsts = np.unique(part.ravel()[order], return_index=True)
        chosen = rows[start : start + BLOCK][order // part.shape[1]]
        sums[here] += np.add.reduceat(chosen.astype(np.float64), firsts)
    used = loads > 0
    points[used] = sums[used] / loads[used, None]


def _fill(
    points: NDArray[np.float32],
    rows: NDArray[np.float32],
    codes: NDArray[np.int32],
    rng: np.random.Generator,
) -> None:
    """Let each empty bucket begin anew at a row of the fullest, which then counts as two halves."""
    loads = np.bincount(codes.ravel(), minlength=len(points))
    fullness = loads.astype(np.float64)
    for bucket in np.flatnonzero(loads == 0):
        fullest = int(fullness.argmax())
        members = np.flatnonzero((codes == fullest).any(axis=1))
        points[bucket] = rows[rng.choice(members)]
        fullness[fullest] /= 2


def _swap(
    points: NDArray[np.float32], rows: NDArray[np.float32], nearest: NDArray[np.int32]
) -> int:
    """Move points whose loss costs less than a second one saves in another bucket; how many.

    Without its point a bucket's rows go to their second nearest. A second point, at the row of a
    bucket that is farthest from the first, takes the rows that are nearer to it. The cheapest go to
    where the squared distances add up to most, each bucket and its heirs once.

    Args:
        points: two or more [d, dim]; some are moved.
        rows: [n, dim].
        nearest: the nearest point of each [n].
    """
    apart, loss, heirs = _second(rows, points, nearest)
    count = len(points)
    costs = np.bincount(nearest, loss, count)
    errors = np.bincount(nearest, apart, count)
    order = np.lexsort((apart, nearest))  # bucket after bucket, the farthest row last
    ends = np.cumsum(np.bincount(nearest, minlength=count))
    starts = np.concatenate(([0], ends[:-1]))
    touched, moved = np.zeros(count, np.bool_), 0
    takers = iter(np.argsort(-errors, kind="stable"))
    for giver in np.argsort(costs, kind="stable"):
        if touched[giver]:
            continue
        taker = next((each for each in takers if not touched[each] and each != giver), None)
        if taker is None:
            break
        own = order[starts[taker] : ends[taker]]
        if not len(own):
            break
        near = np.square(rows[own] - rows[own[-1]]).sum(axis=1)
        if np.maximum(apart[own] - near, 0.0).sum() <= costs[giver]:
            break
        points[giver] = rows[own[-1]]
        touched[[giver, taker]] = True
        touched[heirs[order[starts[giver] : ends[giver]]]] = True  # which have more to do now
        moved += 1
    return moved


def _second(
    rows: NDArray[np.float32], points: NDArray[np.float32], nearest: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int32]]:
    """Squared distance to the nearest point, how much more to the second, and which that is."""
    halves = 0.5 * np.square(points).sum(axis=1)
    size = max(1, min(BLOCK, NEAREST_BYTES // (4 * len(points))))
    apart, loss = np.empty(len(rows)), np.empty(len(rows))
    heirs = np.empty(len(rows), np.int32)
    for start in range(0, len(rows), size):
        part, first = rows[start : start + size], nearest[start : start + size]
        near = part @ points.T - halves
        here = np.arange(len(part))
        best = near[here, first].astype(np.float64)
        near[here, first] = -np.inf
        second = near.argmax(axis=1)
        heirs[start : start + size] = second
        loss[start : start + size] = 2 * (best - near[here, second])
        apart[start : start + size] = np.square(part).sum(axis=1) - 2 * best
    return np.maximum(apart, 0.0), np.maximum(loss, 0.0), heirs


def nearest_points(rows: NDArray[np.float32], points: NDArray[np.float32]) -> NDArray[np.int32]:
    """The nearest point of each row [n, 1]; of several, the first."""
    halves = 0.5 * np.square(points).sum(axis=1)
    size = max(1, min(BLOCK, NEAREST_BYTES // (4 * len(points))))
    found = np.empty((len(rows), 1), np.int32)
    for start in range(0, len(rows), size):
        near = rows[start : start + size] @ points.T
        near -= halves
        found[start : start + size, 0] = near.argmax(axis=1)
    return found
