"""Which items make a batch: classes and items in turn, evenly, the same for the same seed.

pytorch-metric-learning's ``MPerClassSampler`` draws each batch anew from one generator of the whole
process: some items come up several times before others come up once, and a run could not go on in
the middle of an epoch bit for bit. Here a batch is a function of the seed and the step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.argument_checks import whole_number
from flowhash.compile import inner_kernel
from flowhash.data import checked_pairs
from flowhash.errors import InputError


def share(values: NDArray[Any], rank: int, world: int) -> NDArray[Any]:
    """One rank's part of a batch: contiguous, all parts of one size, in order of the ranks.

    Items of a class lie side by side, so that no class is split where ``world`` divides the number
    of classes in the batch.

    Args:
        values: the batch's positions, labels or draws, [batch, ...].
        rank: from 0 to ``world`` - 1.
        world: how many ranks there are.
    """
    if not 0 <= rank < world:
        raise InputError(f"rank is {rank} of {world}; expected 0 to {world - 1}")
    if len(values) % world:
        raise InputError(
            f"a batch of {len(values)} cannot be shared by {world} processes evenly; choose a "
            f"batch that is a multiple of {world}"
        )
    part = len(values) // world
    return values[rank * part : (rank + 1) * part]


class ClassBalancedSampler:
    """Batches of ``classes_per_batch`` classes with ``items_per_class`` items each.

    Classes are dealt from a shuffled deck, and so are the items of each class. What holds:

    - a batch has different classes, and different items of each, side by side;
    - over every epoch, and over the first e epochs for every e, the numbers of times that two
      classes came up differ by at most one, and so do those of two items of one class.

    Classes come up evenly whatever their size, so that items of small classes come up more often.

    Args:
        labels: [n] whole numbers; a class is a label that occurs.
        classes_per_batch: at most the number of classes.
        items_per_class: at most the size of the smallest class.
        seed: a whole number from 0.
        steps_per_epoch: batches of an epoch; ceil(n / batch) by default. Where that is too few for
            each class to come up, counts are even over the fewest epochs that are enough.

    Raises:
        InputError: labels or numbers that cannot be met; a class that is too small is named.

    Example:
        >>> sampler = ClassBalancedSampler([0, 0, 1, 1, 2, 2], 2, 2, seed=0)
        >>> len(sampler.batch(0)), sampler.steps_per_epoch
        (4, 2)
    """

    def __init__(
        self,
        labels: NDArray[np.int64] | list[int],
        classes_per_batch: int,
        items_per_class: int,
        seed: int,
        steps_per_epoch: int | None = None,
    ) -> None:
        labels = np.asarray(labels)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.size == 0:
            raise InputError(
                f"labels have shape {labels.shape} and dtype {labels.dtype}; expected one whole "
                "number for each item"
            )
        names, classes, self._sizes = np.unique(labels, return_inverse=True, return_counts=True)
        self.classes_per_batch = whole_number("classes_per_batch", classes_per_batch, 1)
        self.items_per_class = whole_number("items_per_class", items_per_class, 1)
        self.seed = whole_number("seed", seed, 0)
        _check_sizes(names, self._sizes, self.classes_per_batch, self.items_per_class)
        batch = self.classes_per_batch * self.items_per_class
        steps = -(-labels.size // batch) if steps_per_epoch is None else steps_per_epoch
        self.steps_per_epoch = whole_number("steps_per_epoch", steps, 1)
        slots = self.steps_per_epoch * self.classes_per_batch
        self._plan_steps = self.steps_per_epoch * math.ceil(names.size / slots)
        self._positions = np.argsort(classes, kind="stable")
        self._firsts = np.concatenate(([0], np.cumsum(self._sizes)))
        self._prepare_decks()
        self._plan: tuple[int, NDArray[np.int64]] | None = None

    def _prepare_decks(self) -> None:
        """The order in which incomplete rounds go around; shuffled once, for the whole run."""
        generator = np.random.default_rng([self.seed, 0])
        count = self._sizes.size
        self._class_deck = generator.permutation(count)
        self._place_in_deck = np.argsort(self._class_deck)
        owner = np.repeat(np.arange(count), self._sizes)
        shuffled = np.lexsort((generator.random(owner.size), owner))
        self._item_decks = shuffled - self._firsts[owner]
        self._stamps = np.zeros(max(count, int(self._sizes.max())), np.int64)

    @property
    def batch_size(self) -> int:
        """Items in a batch."""
        return self.classes_per_batch * self.items_per_class

    def batch(self, step: int) -> NDArray[np.int64]:
        """Positions [batch_size] of the items of batch ``step``, those of a class side by side."""
        number, row = divmod(whole_number("step", step, 0), self._plan_steps)
        plan = self._plan
        if plan is None or plan[0] != number:
            plan = (number, self._planned(number))
            self._plan = plan
        positions: NDArray[np.int64] = plan[1][row].copy()
        return positions

    def _times(self, plans: int) -> NDArray[np.int64]:
        """How often each class came up in the first ``plans`` plans."""
        slots = plans * self._plan_steps * self.classes_per_batch
        rounds, rest = divmod(slots, self._sizes.size)
        return rounds + (self._place_in_deck < rest)

    def _planned(self, number: int) -> NDArray[np.int64]:
        """All batches of one plan, [steps, batch_size]."""
        generator = np.random.default_rng([self.seed, 1 + number])
        slots = self._plan_steps * self.classes_per_batch
        stamps = np.zeros_like(self._stamps)
        classes = np.empty(slots, np.int64)
        start = number * slots % self._sizes.size
        uniform = generator.random(slots)
        deal(self._class_deck, start, self.classes_per_batch, uniform, stamps, classes)

        before = self._times(number)
        times = np.bincount(classes, minlength=self._sizes.size)
        edges = np.concatenate(([0], np.cumsum(times))) * self.items_per_class
        items = np.empty(edges[-1], np.int64)
        deal_all(
            self._item_decks, self._firsts, before * self.items_per_class % self._sizes, edges,
            self.items_per_class, generator.random(items.size), stamps, items,
        )  # fmt: skip
        by_class = np.argsort(classes, kind="stable")
        plan = np.empty((slots, self.items_per_class), np.int64)
        in_class = items.reshape(slots, self.items_per_class)
        plan[by_class] = self._positions[self._firsts[classes[by_class], None] + in_class]
        return plan.reshape(self._plan_steps, self.batch_size)

    share = staticmethod(share)


def _check_sizes(
    names: NDArray[Any], sizes: NDArray[np.int64], classes_per_batch: int, items_per_class: int
) -> None:
    if classes_per_batch > names.size:
        raise InputError(
            f"classes_per_batch is {classes_per_batch}, but there are {names.size} classes; choose "
            f"at most {names.size}"
        )
    smallest = int(np.argmin(sizes))
    if sizes[smallest] < items_per_class:
        size = "a single item" if sizes[smallest] == 1 else f"{sizes[smallest]} items"
        raise InputError(
            f"class {names[smallest]} is a class with {size}, but items_per_class is "
            f"{items_per_class}; leave such classes out, add items to them, or choose fewer items "
            "a class"
        )


class PairSampler:
    """Batches of positive pairs, each pair a class of its own.

    All other items of a batch are a pair's negatives. Two pairs that share an item would be each
    other's false negatives, so they never meet in a batch: the later one waits for the next batch.

    Over an epoch of ceil(p / pairs_per_batch) batches each pair comes up once, and some once more
    to fill the last batch. Only an item that is in more pairs than fit (more than there are
    batches, or bunched at the end) makes pairs wait beyond the epoch's end: they are left out of
    that epoch, others come up again in their place, and the next epoch shuffles anew.

    Args:
        pairs: [p, 2] positions of items.
        pairs_per_batch: how many; at most the number of pairs that can stand side by side.
        seed: a whole number from 0.

    Raises:
        InputError: pairs of an item with itself, or too few pairs that share no item.

    Example:
        >>> positions, labels = PairSampler([[0, 1], [2, 3], [4, 5]], 3, seed=0).batch(0)
        >>> labels
        array([0, 0, 1, 1, 2, 2])
    """

    def __init__(
        self, pairs: NDArray[np.int64] | list[list[int]], pairs_per_batch: int, seed: int
    ) -> None:
        self._positions, self._pairs = checked_pairs(pairs)
        self.pairs_per_batch = whole_number("pairs_per_batch", pairs_per_batch, 1)
        self.seed = whole_number("seed", seed, 0)
        # Pairs of rare items first: what they leave over is the largest, as a rule.
        degrees = np.bincount(self._pairs.ravel())[self._pairs]
        order = np.argsort(degrees.max(axis=1) * 2 * len(self._pairs) + degrees.sum(axis=1))
        self._apart = order[: pairs_apart(self._pairs, order, self._stamps())]
        if self._apart.size < self.pairs_per_batch:
            raise InputError(
                f"pairs_per_batch is {self.pairs_per_batch}, but of the {len(self._pairs)} pairs "
                f"only {self._apart.size} were found that share no item; choose at most "
                f"{self._apart.size}, or give pairs of more items"
            )
        self.steps_per_epoch = -(-len(self._pairs) // self.pairs_per_batch)
        self._plan: tuple[int, NDArray[np.int64]] | None = None

    def _stamps(self) -> NDArray[np.int64]:
        return np.full(self._positions.size, -1, np.int64)

    @property
    def batch_size(self) -> int:
        """Items in a batch: two a pair."""
        return 2 * self.pairs_per_batch

    def batch(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Batch ``step``: positions [batch_size], the two of a pair side by side, and labels.

        The labels number the pairs of the batch from 0.
        """
        number, row = divmod(whole_number("step", step, 0), self.steps_per_epoch)
        plan = self._plan
        if plan is None or plan[0] != number:
            plan = (number, self._planned(number))
            self._plan = plan
        positions = self._positions[self._pairs[plan[1][row]]].reshape(-1)
        return positions, np.repeat(np.arange(self.pairs_per_batch), 2)

    def _planned(self, number: int) -> NDArray[np.int64]:
        """The pairs of all batches of an epoch, [steps, pairs_per_batch]."""
        generator = np.random.default_rng([self.seed, number])
        count = len(self._pairs)
        plan = np.empty((self.steps_per_epoch, self.pairs_per_batch), np.int64)
        deal_pairs(
            self._pairs, generator.permutation(count), generator.permutation(count),
            generator.permutation(self._apart), np.empty(count, np.int64), self._stamps(), plan,
        )  # fmt: skip
        return plan

    share = staticmethod(share)


@inner_kernel
def _shuffle(cards: NDArray[np.int64], uniform: NDArray[np.float64]) -> None:
    """Fisher-Yates with numbers from [0, 1) that were drawn before."""
    for place in range(cards.size - 1, 0, -1):
        other: Any = min(np.int64(uniform[place] * (place + 1)), place)
        cards[place], cards[other] = cards[other], cards[place]


@inner_kernel
def _keep_apart(
    cards: NDArray[np.int64], head: int, before: NDArray[np.int64], stamps: NDArray[np.int64]
) -> None:
    """Move cards that are in ``before`` out of the first ``head`` places: the hand has them."""
    for card in before:
        stamps[card] = 1
    other = 0
    for place in range(head):
        other = max(other, place)
        while stamps[cards[other]] == 1:
            other += 1
        cards[place], cards[other] = cards[other], cards[place]
    for card in before:
        stamps[card] = 0


@inner_kernel
def deal(
    deck: NDArray[np.int64],
    start: int,
    hand: int,
    uniform: NDArray[np.float64],
    stamps: NDArray[np.int64],
    dealt: NDArray[np.int64],
) -> None:
    """Deal ``dealt.size`` cards, in hands of ``hand`` different cards, evenly.

    All cards come equally often but those of a first, incomplete round: that is the stretch of the
    deck, as a ring, from ``start``. Who goes on at the stretch's end keeps all counts within one.

    Args:
        deck: [size] a permutation of 0 … size - 1, at least ``hand`` of them.
        start: where the stretch of the incomplete round begins.
        hand: how many cards must differ; divides ``dealt.size``.
        uniform: [dealt.size] numbers from [0, 1).
        stamps: [size or more] zeros; left as they were.
        dealt: written.
    """
    size = deck.size
    done = dealt.size % size
    for place in range(done):
        dealt[place] = deck[(start + place) % size]
    _shuffle(dealt[:done], uniform[:done])
    while done < dealt.size:
        cards = dealt[done : done + size]
        for place in range(size):
            cards[place] = deck[place]
        _shuffle(cards, uniform[done : done + size])
        held = done % hand
        if held > 0:
            _keep_apart(cards, hand - held, dealt[done - held : done], stamps)
        done += size


@inner_kernel
def deal_all(
    decks: NDArray[np.int64],
    firsts: NDArray[np.int64],
    starts: NDArray[np.int64],
    edges: NDArray[np.int64],
    hand: int,
    uniform: NDArray[np.float64],
    stamps: NDArray[np.int64],
    dealt: NDArray[np.int64],
) -> None:
    """One :func:`deal` each for many decks that lie one after the other in ``decks``.

    Deck i lies from ``firsts[i]`` to ``firsts[i + 1]``; its cards go to ``dealt``, from
    ``edges[i]`` to ``edges[i + 1]``.
    """
    for number in range(starts.size):
        deck = decks[firsts[number] : firsts[number + 1]]
        low, high = edges[number], edges[number + 1]
        deal(deck, starts[number], hand, uniform[low:high], stamps, dealt[low:high])


@inner_kernel
def _try_pair(pairs: NDArray[np.int64], pair: int, batch: int, stamps: NDArray[np.int64]) -> bool:
    """Mark both items of a pair as used in ``batch``, unless one of them is."""
    first, second = pairs[pair, 0], pairs[pair, 1]
    if stamps[first] == batch or stamps[second] == batch:
        return False
    stamps[first] = batch
    stamps[second] = batch
    return True


@inner_kernel
def _deal_waiting(
    pairs: NDArray[np.int64],
    waiting: NDArray[np.int64],
    queued: int,
    batch: int,
    stamps: NDArray[np.int64],
    row: NDArray[np.int64],
) -> tuple[int, int]:
    """Deal those that wait; the others stay, in order. How many were dealt, how many still wait."""
    done, kept = 0, 0
    for place in range(queued):
        pair = waiting[place]
        if done < row.size and _try_pair(pairs, pair, batch, stamps):
            row[done] = pair
            done += 1
        else:
            waiting[kept] = pair
            kept += 1
    return done, kept


@inner_kernel
def _deal_fresh(
    pairs: NDArray[np.int64],
    order: NDArray[np.int64],
    taken: int,
    done: int,
    waiting: NDArray[np.int64],
    queued: int,
    batch: int,
    stamps: NDArray[np.int64],
    row: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Deal pairs that were not dealt yet; those that clash are queued to wait."""
    while done < row.size and taken < order.size:
        pair = order[taken]
        taken += 1
        if _try_pair(pairs, pair, batch, stamps):
            row[done] = pair
            done += 1
        else:
            waiting[queued] = pair
            queued += 1
    return done, queued, taken


@inner_kernel
def _deal_again(
    pairs: NDArray[np.int64],
    filler: NDArray[np.int64],
    filled: int,
    done: int,
    batch: int,
    stamps: NDArray[np.int64],
    row: NDArray[np.int64],
) -> tuple[int, int]:
    """Fill what is left of a batch, once around the filler at the most."""
    for _ in range(filler.size):
        if done == row.size:
            break
        pair = filler[filled % filler.size]
        filled += 1
        if _try_pair(pairs, pair, batch, stamps):
            row[done] = pair
            done += 1
    return done, filled


@inner_kernel
def deal_pairs(
    pairs: NDArray[np.int64],
    order: NDArray[np.int64],
    filler: NDArray[np.int64],
    apart: NDArray[np.int64],
    waiting: NDArray[np.int64],
    stamps: NDArray[np.int64],
    plan: NDArray[np.int64],
) -> None:
    """Deal pairs to batches in which no item occurs twice.

    A pair that would bring an item again waits for a later batch. Where those that are left do not
    fill a batch, pairs that were dealt before do; where chance leaves too few of them, the batch
    takes pairs that are known to go together, and those it had go back to wait.

    Args:
        pairs: [p, 2] items.
        order: [p] the order in which pairs are dealt.
        filler: [p] the order of those that are dealt again.
        apart: at least as many pairs as a batch has, no two of which share an item.
        waiting: [p] scratch.
        stamps: [items] filled with -1; scratch.
        plan: [batches, pairs in a batch], written.
    """
    queued, taken, filled = 0, 0, 0
    for batch in range(plan.shape[0]):
        row = plan[batch]
        done, queued = _deal_waiting(pairs, waiting, queued, batch, stamps, row)
        done, queued, taken = _deal_fresh(
            pairs, order, taken, done, waiting, queued, batch, stamps, row
        )
        fresh = done
        done, filled = _deal_again(pairs, filler, filled, done, batch, stamps, row)
        if done < row.size:
            for place in range(fresh):
                waiting[queued] = row[place]
                queued += 1
            for place in range(row.size):
                row[place] = apart[place]


@inner_kernel
def pairs_apart(
    pairs: NDArray[np.int64], order: NDArray[np.int64], stamps: NDArray[np.int64]
) -> int:
    """How many pairs that share no item are found greedily in ``order``; they move to its front."""
    found = 0
    for place in range(order.size):
        if _try_pair(pairs, order[place], 0, stamps):
            order[found] = order[place]
            found += 1
    return found
