"""k-means whose clusters are not larger than a cap: each assignment an exact flow, certified."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import finite, matrix, numbers, whole_number
from flowhash.codes.capped_flow import capped_assignment
from flowhash.codes.top_buckets import ordered_buckets
from flowhash.compile import filter_kernel, inner_kernel
from flowhash.errors import InputError
from flowhash.threads import in_shards

CANDIDATES = 16  # buckets that an item may go to, the cheapest ones
BLOCK = 1 << 24  # candidates of all items that are assigned at once, 12 bytes each
PART = 1 << 22  # distances that are in memory at once
PER_BUCKET = 64  # items of the sample on which centres are found first, for each bucket
POOL = 8  # items for each bucket among which the first centres are chosen
LEAST = 4_096  # items of the sample, and of that pool
FEW = 64  # up to so many buckets several starts are tried
STARTS = 8
SCATTERED = 1 << 16  # rows beyond which memory is slow unless those of a bucket lie together
CHECKS = 24  # how often a block gets more candidates at the most until no other bucket is cheaper
NEW = 4  # candidates that an item gets at a check, at the least; more where memory allows
GROWTH = 4  # how much larger each sample is than the one before
COARSE = 10  # times the tolerance: how far a start goes before it is compared with others
NO_GAP = 1e-12  # of the inertia and the prices that are paid: rounding
HALF = 2.0**-24  # the relative error of one operation in float32
TINY = 2.0**-100  # more than what products lose below float32, where rows are at most 1 to 2
ROUNDING = 2.0**-46  # of a priced cost in float64


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BalancedClusters:
    """Clusters of limited size, and how near they are to the best for their centres.

    Attributes:
        labels: the cluster of each item [n] int32.
        centres: of the clusters [buckets, dim] float32.
        sizes: items of each cluster [buckets] int64.
        inertia: the sum of squared distances of items to the centres of their clusters.
        prices: what a place in each cluster costs [buckets] float64, in squared distance; zero
            where there is room left. They prove the gap; of several blocks, that of the last.
        gaps: for each block of items that was assigned at once [blocks] float64: its inertia less
            a lower bound on that of every assignment of these items to these centres in the room
            that the others left. Zero up to rounding in float64, of the inertia and the prices,
            means that none is better; more means that one may be better by as much.
    """

    labels: NDArray[np.int32]
    centres: NDArray[np.float32]
    sizes: NDArray[np.int64]
    inertia: float
    prices: NDArray[np.float64]
    gaps: NDArray[np.float64]

    @property
    def gap(self) -> float:
        """The sum of ``gaps``."""
        return float(self.gaps.sum())

    def __repr__(self) -> str:
        return (
            f"BalancedClusters({len(self.labels)} items in {len(self.sizes)} clusters of "
            f"{self.sizes.min()} to {self.sizes.max()}, inertia {self.inertia:.6g}, "
            f"gap {self.gap:.1e})"
        )


def balanced_kmeans(
    X: ArrayLike,  # noqa: N803
    buckets: int,
    largest: float = 1.05,
    *,
    starts: int | None = None,
    rounds: int = 50,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> BalancedClusters:
    """k-means in which no cluster has more than ``ceil(largest * n / buckets)`` items.

    Rounds of two steps, as in k-means: items go to clusters, and centres to the means of their
    items. The first step is a minimum-cost flow, solved exactly over the candidates of each item:
    the 16 clusters that are nearest with their prices. As k-means does, the whole ends in a local
    minimum.

    Centres are found on a sample of 64 items a bucket first (4,096 at least), then on four times as
    many, and so on up to all. At the end items get every cluster that is cheaper for them as a
    further candidate, until there is none: then no other assignment within the cap has a smaller
    sum of squared distances to these centres, which the prices of the result prove. More than a
    million items are assigned in blocks, each in the room that the others leave. It always gets
    there where items times buckets are 16.8 million or fewer; with more it may stop before, and
    ``gap`` says by how much the sum may be above the least.

    Args:
        X: the items [n, dim], read as float32; n >= buckets. For clusters by angle (cosine), give
            vectors of length 1.
        buckets: how many clusters.
        largest: the largest cluster allowed, in parts of the mean size; 1 or more. With 1, clusters
            have equal sizes if ``buckets`` divides n, and otherwise the mean rounded up or fewer.
            With ``buckets`` or more there is no cap.
        starts: how often centres are sought anew on the sample, of which the best go on. None: 8
            for up to 64 buckets, otherwise 1.
        rounds: of k-means at the most, on each sample and on all items.
        tolerance: a round that makes the inertia smaller by less than this part of it is the last.
        seed: of the sample and of where the centres start. The same seed gives the same clusters
            on the same machine.

    Raises:
        InputError: fewer items than buckets, NaN, infinity or what float32 cannot hold, or an
            argument out of its range.

    Example:
        >>> import numpy as np
        >>> points = np.array([[0.0], [0.1], [0.2], [0.3], [9.0], [9.1]])
        >>> clusters = balanced_kmeans(points, 2, largest=1.0)
        >>> clusters.sizes.tolist()
        [3, 3]
        >>> sorted(np.flatnonzero(clusters.labels == clusters.labels[5]).tolist())
        [3, 4, 5]
    """
    with np.errstate(over="ignore"):  # said below
        rows = matrix(X, "X", "numbers", (np.float32,))
    count = whole_number("buckets", buckets, 1)
    whole_number("rounds", rounds, 1)
    whole_number("seed", seed, 0)
    if len(rows) < count:
        raise InputError(
            f"X has {len(rows)} rows and buckets is {count}; expected at least one item a bucket"
        )
    if not _real(largest):
        raise InputError(
            f"largest is {largest!r}; expected a number from 1. Leave it out for 1.05; without a "
            f"limit give the number of clusters, {count}"
        )
    if not 1 <= largest < math.inf:
        raise InputError(
            f"largest is {largest}; expected a number from 1: with less, not all items have room"
        )
    if not _real(tolerance) or not 0 <= tolerance < 1:
        raise InputError(
            f"tolerance is {tolerance!r}; expected a number from 0, below 1; 1e-4 is the default"
        )
    _held_by_float32(rows, X)
    tries = (STARTS if count <= FEW else 1) if starts is None else whole_number("starts", starts, 1)
    # About zero and below one, so that products lose few digits and never overflow; by a power of
    # two, which rounds nothing.
    exponent = int(np.frexp(np.abs(rows).max())[1])
    given = np.ldexp(rows, -exponent)
    middle = given.mean(axis=0, dtype=np.float64).astype(np.float32)
    rows = given - middle
    scale = 2.0**exponent
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    size = min(max(LEAST, PER_BUCKET * count), len(rows))
    part = rows[np.sort(order[:size])]
    attempts = []
    for _ in range(tries):
        attempts.append(_Clusters(part, _first_centres(part, count, rng), largest))
        attempts[-1].improve(rounds, COARSE * tolerance if tries > 1 else tolerance)
    found = min(attempts, key=lambda attempt: attempt.inertia)
    if tries > 1:
        found.improve(rounds, tolerance)
    while size < len(rows):
        size = min(GROWTH * size, len(rows))
        part = rows[np.sort(order[:size])] if size < len(rows) else rows
        found = _Clusters(part, found.centres, largest, found.prices)
        found.improve(rounds, tolerance)
    gaps = found.certify(given, middle)
    labels = np.empty_like(found.labels)
    labels[found.order] = found.labels
    return BalancedClusters(
        labels,
        (found.centres * scale).astype(np.float32),
        np.bincount(labels, minlength=count),
        found.inertia * scale**2,
        found.prices * scale**2,
        gaps * scale**2,
    )


def _real(value: object) -> bool:
    """Whether it is a real number, of Python or numpy."""
    return not isinstance(value, bool) and isinstance(value, (int, float, np.integer, np.floating))


def _held_by_float32(rows: NDArray[np.float32], source: ArrayLike) -> None:
    """Refuse NaN, infinity, and what became infinite when ``source`` was read as float32."""
    try:
        finite(rows, "X")
    except InputError:
        wide = numbers(source, "X")
        finite(np.require(wide, np.float64, "C"), "X")
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise InputError(
            f"X[{row}, {column}] is {wide[row, column]}; X is read as float32, expected numbers "
            f"of at most {np.finfo(np.float32).max:.3g}. Divide X by a constant, which leaves "
            f"clusters as they are"
        ) from None


def cap_of(items: int, buckets: int, largest: float) -> int:
    """How many items a bucket may have; ``largest`` 1.1 is 1.1 and no hair more."""
    wanted = math.ceil(round(float(min(largest, buckets)) * items / buckets, 6))
    return min(max(wanted, -(-items // buckets)), items)


class _Clusters:
    """Clusters while they are sought.

    Args:
        rows: the items [n, dim], about zero.
        centres: to begin with [d, dim].
        largest: see ``balanced_kmeans``.
        prices: to begin with [d]; zero by default.
    """

    def __init__(
        self,
        rows: NDArray[np.float32],
        centres: NDArray[np.float32],
        largest: float,
        prices: NDArray[np.float64] | None = None,
    ) -> None:
        self.rows, self.centres = rows, centres
        self.cap = cap_of(len(rows), len(centres), largest)
        self.prices = np.zeros(len(centres)) if prices is None else prices
        self.width = min(CANDIDATES, len(centres))
        blocks = -(-len(rows) * self.width // BLOCK)
        self.blocks = [slice(first, None, blocks) for first in range(blocks)]
        self.labels = np.full(len(rows), -1, np.int32)
        self.order = np.arange(len(rows))  # which item each row is
        self.inertia = np.inf
        self.middle = np.zeros(rows.shape[1], np.float32)  # what products are relative to

    def improve(self, rounds: int, tolerance: float) -> None:
        """Rounds of k-means until one gains less than ``tolerance`` of the inertia."""
        for _ in range(rounds):
            before = self.inertia
            if before < np.inf:
                self.centres = moved_centres(self.rows, self.labels, self.centres)
            for block in self.blocks:
                self._assign(block)
            self.inertia = float(self._costs(slice(None), self.labels[:, None]).sum())
            if before == np.inf and len(self.rows) > SCATTERED:
                self._gather()
            if not self.inertia < before * (1 - tolerance):
                break

    def _gather(self) -> None:
        """Let the rows of a bucket lie together, which makes flows over many rows twice as fast."""
        order = np.argsort(self.labels, kind="stable")
        self.rows, self.labels = self.rows[order], self.labels[order]
        self.order = self.order[order]

    def certify(
        self, given: NDArray[np.float32], middle: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Assign until no bucket is cheaper for any item of a block; the gap of each block.

        What is proved is of the very numbers that come in and go out: centres move to where
        float32 has them when ``middle`` is added, rows become ``given``, the items before it was
        taken away, in the order in which they came.
        """
        self.rows = given if len(self.rows) <= SCATTERED else given[self.order]
        self.centres = (self.centres.astype(np.float64) + middle).astype(np.float32)
        self.middle = middle
        gaps = np.array([self._settle(block) for block in self.blocks])
        self.inertia = float(self._costs(slice(None), self.labels[:, None]).sum())
        return gaps

    def _settle(self, block: slice) -> float:
        """Assign a block with more and more candidates: column generation; its gap at the end.

        Candidates stay and those buckets come that prices show to be cheaper. If candidates were
        found anew at each price, those of a group of items that is too large for the buckets near
        it would for ever lie within it.
        """
        items, size = len(self.labels[block]), len(self.centres)
        room, whole = self._room(block), items * size <= BLOCK
        most = size if whole else min(size, max(2 * self.width, BLOCK // items))
        buckets = self._candidates(block)
        costs = self._costs(block, buckets)
        for check in range(CHECKS + 1):
            found = capped_assignment(buckets, costs, room, self.prices)
            self.labels[block], self.prices = found.labels, found.prices
            more = max(NEW, min(buckets.shape[1], BLOCK // items - buckets.shape[1]))
            gap, paid, cheaper = self._gap(block, buckets, min(more, size))
            if gap <= NO_GAP * paid or check == CHECKS or not (cheaper >= 0).any():
                break
            if whole and check == CHECKS - 1:
                buckets = np.tile(np.arange(size, dtype=np.int32), (items, 1))
                costs = self._costs(block, buckets)
            else:
                buckets, costs = self._longer(block, buckets, costs, cheaper, most)
        return gap

    def _longer(
        self,
        block: slice,
        buckets: NDArray[np.int32],
        costs: NDArray[np.float64],
        cheaper: NDArray[np.int32],
        most: int,
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Candidates and ``cheaper`` together, and their costs; the cheapest if there are too many.

        Items that have fewer than others have one of theirs again at an infinite cost, which never
        is chosen.
        """
        real = np.isfinite(costs).sum(axis=1)
        width = int((real + (cheaper >= 0).sum(axis=1)).max())
        wide = np.repeat(buckets[:, :1], width, axis=1)
        wide_costs = np.full(wide.shape, np.inf)
        wide[:, : buckets.shape[1]], wide_costs[:, : buckets.shape[1]] = buckets, costs
        added = self._costs(block, np.maximum(cheaper, 0))
        for slot in range(cheaper.shape[1]):
            items = np.flatnonzero(cheaper[:, slot] >= 0)
            wide[items, real[items] + slot] = cheaper[items, slot]
            wide_costs[items, real[items] + slot] = added[items, slot]
        if width <= most:
            return wide, wide_costs
        priced = wide_costs + self.prices[wide]
        priced[(wide == self.labels[block][:, None]) & np.isfinite(wide_costs)] = -np.inf
        kept = np.argsort(priced, axis=1, kind="stable")[:, :most]
        return np.take_along_axis(wide, kept, 1), np.take_along_axis(wide_costs, kept, 1)

    def _room(self, block: slice) -> NDArray[np.int64]:
        """Places that the items outside a block leave in each bucket [d]."""
        others = np.bincount(self.labels[self.labels >= 0], minlength=len(self.centres))
        own = self.labels[block]
        others -= np.bincount(own[own >= 0], minlength=len(self.centres))
        return np.maximum(self.cap - others, 0)

    def _assign(self, block: slice) -> None:
        """Assign the items of a block at the least cost in the room that the others leave."""
        rows, own = self.rows[block], self.labels[block]
        room = self._room(block)
        if len(rows) < len(self.rows) and own[0] < 0:
            # The first time round each block leaves later ones their share of every bucket.
            later = np.count_nonzero(self.labels < 0) - len(rows)
            share = self.cap * later // len(self.rows)
            room = np.maximum(room - share, 0)
        buckets = self._candidates(block)
        costs = self._costs(block, buckets)
        found = capped_assignment(buckets, costs, room, self.prices)
        self.labels[block], self.prices = found.labels, found.prices
        if found.homeless:
            self._house(block, room)

    def _candidates(self, block: slice) -> NDArray[np.int32]:
        """The buckets that are cheapest for a block's items, and those in which they are."""
        own = self.labels[block]
        buckets = self._nearest(self.rows[block], self.width)
        if own[0] >= 0:  # so that what is there stays possible
            lost = ~(buckets == own[:, None]).any(axis=1)
            buckets[lost, -1] = own[lost]
        return buckets

    def _house(self, block: slice, room: NDArray[np.int64]) -> None:
        """Find room in any bucket for those items that have none among their candidates."""
        labels = self.labels[block]
        order = np.argsort(labels, kind="stable")
        sizes = np.bincount(labels, minlength=len(room))
        firsts = np.cumsum(sizes) - sizes
        beyond = np.arange(len(labels)) - firsts[labels[order]] >= room[labels[order]]
        homeless = order[beyond]
        free = np.maximum(room - sizes, 0)
        every = np.arange(len(room), dtype=np.int32)
        size = max(1, PART // len(room))
        for start in range(0, len(homeless), size):
            chosen = homeless[start : start + size]
            buckets = np.tile(every, (len(chosen), 1))
            costs = np.empty(buckets.shape)
            squared_distances(self.rows[block][chosen], self.centres, buckets, costs)
            labels[chosen] = capped_assignment(buckets, costs, free).labels
            free -= np.bincount(labels[chosen], minlength=len(room))
        self.labels[block] = labels

    def _gap(
        self, block: slice, buckets: NDArray[np.int32], more: int
    ) -> tuple[float, float, NDArray[np.int32]]:
        """The inertia of a block less what the prices prove that it has at least.

        All buckets are looked at. A product in float32 finds those that may be cheaper, with a
        bound of its error; their costs are found in float64.

        Returns:
            The gap; what is paid with prices, for its rounding; and up to ``more`` buckets for
            each item [n, more] that are cheaper and not among its ``buckets``, -1 behind them.
        """
        rows, own = self.rows[block], self.labels[block]
        priced = self._costs(block, own[:, None])[:, 0] + self.prices[own]
        least, cheaper = priced.copy(), np.full((len(rows), more), -1, np.int32)
        middle = self.middle.astype(np.float64)
        lengths = np.square(self.centres - middle).sum(axis=1)
        # Rounded down, and by as much as the difference from the product may be.
        offsets = np.nextafter(
            ((lengths + self.prices) / 2 * (1 - 2 * HALF)).astype(np.float32), np.float32(-1)
        )
        # A sum of dim products, the difference, and both factors are rounded.
        error = 1.1 * (rows.shape[1] + 6) * HALF * math.sqrt(lengths.max())
        near_middle = (self.centres - self.middle).T

        size = max(1, PART // len(self.centres))
        for start in range(0, len(rows), size):
            here = slice(start, start + size)
            near = (rows[here] - self.middle) @ near_middle
            near -= offsets
            squares = np.square(rows[here] - middle).sum(axis=1)
            bounds = (squares * (1 - ROUNDING) - priced[here] * (1 + ROUNDING)) / 2
            bounds -= error * np.sqrt(squares) + TINY

            def work(
                first: int,
                last: int,
                start: int = start,
                near: NDArray[np.float32] = near,
                bounds: NDArray[np.float64] = bounds,
            ) -> None:
                part = slice(start + first, start + last)
                find_cheaper(
                    near[first:last],
                    bounds[first:last],
                    rows[part],
                    self.centres,
                    self.prices,
                    own[part],
                    buckets[part],
                    least[part],
                    cheaper[part],
                    np.empty(more),
                )

            in_shards(work, len(near))
        vacant = self._room(block) - np.bincount(own, minlength=len(self.centres))
        gap = float((priced - least).sum() + vacant @ self.prices)
        return gap, float(priced.sum()), cheaper

    def _nearest(self, rows: NDArray[np.float32], width: int) -> NDArray[np.int32]:
        """The buckets that are cheapest for each row, price included, best first [n, width]."""
        size = len(self.centres)
        if width == size:
            return np.tile(np.arange(size, dtype=np.int32), (len(rows), 1))
        centres = self.centres - self.middle
        offsets = (np.square(centres, dtype=np.float64).sum(axis=1) + self.prices) / 2
        found = np.empty((len(rows), width), np.int32)
        part = max(1, PART // size)
        for start in range(0, len(rows), part):
            near = (rows[start : start + part] - self.middle) @ centres.T
            near -= offsets.astype(np.float32)
            found[start : start + part] = ordered_buckets(near, width)
        return found

    def _costs(self, block: slice, buckets: NDArray[np.int32]) -> NDArray[np.float64]:
        """Squared distances of a block's items to these buckets' centres [n, k]."""
        rows, costs = self.rows[block], np.empty(buckets.shape)

        def work(start: int, stop: int) -> None:
            part = slice(start, stop)
            squared_distances(rows[part], self.centres, buckets[part], costs[part])

        in_shards(work, len(rows))
        return costs


@filter_kernel
def squared_distances(
    rows: NDArray[np.float32],
    centres: NDArray[np.float32],
    buckets: NDArray[np.int32],
    costs: NDArray[np.float64],
) -> None:
    """From rows [n, dim] to the centres of buckets [n, k], into costs [n, k]."""
    for row in range(rows.shape[0]):
        for slot in range(buckets.shape[1]):
            bucket = buckets[row, slot]
            total = 0.0
            for column in range(rows.shape[1]):
                apart = np.float64(rows[row, column]) - np.float64(centres[bucket, column])
                total += apart * apart
            costs[row, slot] = total


@filter_kernel
def find_cheaper(
    near: NDArray[np.float32],
    bounds: NDArray[np.float64],
    rows: NDArray[np.float32],
    centres: NDArray[np.float32],
    prices: NDArray[np.float64],
    own: NDArray[np.int32],
    buckets: NDArray[np.int32],
    least: NDArray[np.float64],
    cheaper: NDArray[np.int32],
    values: NDArray[np.float64],
) -> None:
    """What each row costs at least, and the cheapest buckets not in its list that cost less.

    Args:
        near: [n, d], large where a bucket is cheap.
        bounds: [n]; a bucket with less in ``near`` is certainly not cheaper.
        rows: [n, dim].
        centres: [d, dim].
        prices: [d].
        own: where each row is [n].
        buckets: its list [n, k].
        least: [n] what it costs, price included; in place.
        cheaper: [n, more] found buckets, cheapest first; -1 before.
        values: [more] room for their costs.
    """
    for row in range(near.shape[0]):
        held, count = least[row], 0
        for bucket in range(near.shape[1]):
            if near[row, bucket] < bounds[row] or bucket == own[row]:
                continue
            total = 0.0
            for column in range(rows.shape[1]):
                apart = np.float64(rows[row, column]) - np.float64(centres[bucket, column])
                total += apart * apart
            total += prices[bucket]
            least[row] = min(least[row], total)
            if total >= held * (1 - ROUNDING):
                continue
            if count == cheaper.shape[1] and total >= values[count - 1]:
                continue
            known = False
            for slot in range(buckets.shape[1]):
                known |= buckets[row, slot] == bucket
            if known:
                continue
            slot = min(count, cheaper.shape[1] - 1)
            while slot > 0 and values[slot - 1] > total:
                values[slot], cheaper[row, slot] = values[slot - 1], cheaper[row, slot - 1]
                slot -= 1
            values[slot], cheaper[row, slot] = total, bucket
            count = min(count + 1, cheaper.shape[1])


@inner_kernel
def add_rows(
    rows: NDArray[np.float32], labels: NDArray[np.int32], sums: NDArray[np.float64]
) -> None:
    """Add each row to the sum of its bucket, in place."""
    for row in range(rows.shape[0]):
        bucket = labels[row]
        for column in range(rows.shape[1]):
            sums[bucket, column] += rows[row, column]


def moved_centres(
    rows: NDArray[np.float32], labels: NDArray[np.int32], centres: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The means of each bucket's rows; the centre of an empty one stays."""
    sums = np.zeros(centres.shape)
    add_rows(rows, labels, sums)
    sizes = np.bincount(labels, minlength=len(centres))
    moved = centres.copy()
    moved[sizes > 0] = sums[sizes > 0] / sizes[sizes > 0, None]
    return moved


def _first_centres(
    rows: NDArray[np.float32], count: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Rows far from one another, each drawn by its squared distance to those before (k-means++)."""
    most = max(LEAST, POOL * count)
    pool = rows if len(rows) <= most else rows[np.sort(rng.choice(len(rows), most, replace=False))]
    chosen = np.empty(count, np.int64)
    far, near = np.ones((2, len(pool), 1))
    first = np.zeros(near.shape, np.int32)
    for index, lot in enumerate(rng.random(count)):
        sums = far[:, 0].cumsum()
        if not sums[-1] > 0:  # all rows are among those chosen
            sums = np.arange(1.0, len(pool) + 1)
        chosen[index] = np.searchsorted(sums, lot * sums[-1], side="right")
        squared_distances(pool, pool[chosen[index], None], first, near)
        far = np.minimum(far, near) if index else near.copy()
    return pool[chosen]
