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
from flowhash.compile import inner_kernel, kernel
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
        self._labels = labels
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
        # The order in which incomplete rounds go around; shuffled once, for the whole run.
        generator = np.random.default_rng([self.seed, 0])
        self._class_deck = generator.permutation(names.size)
        by_class = np.argsort(classes, kind="stable")
        shuffled = np.lexsort((generator.random(labels.size), classes[by_class]))
        self._item_decks = by_class[shuffled]
        self._plan = (-1, np.empty((0, 0), np.int64))

    @property
    def batch_size(self) -> int:
        """Items in a batch."""
        return self.classes_per_batch * self.items_per_class

    def batch(self, step: int) -> NDArray[np.int64]:
        """Positions [batch_size] of the items of batch ``step``, those of a class side by side."""
        number, row = divmod(whole_number("step", step, 0), self._plan_steps)
        plan = self._plan
        if plan[0] != number:
            plan = self._plan = (number, self._planned(number))
        positions: NDArray[np.int64] = plan[1][row].copy()
        return positions

    def labelled_batch(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Batch ``step``: positions and labels [batch_size]."""
        positions = self.batch(step)
        return positions, self._labels[positions]

    def _planned(self, number: int) -> NDArray[np.int64]:
        """All batches of one plan, [steps, batch_size]."""
        generator = np.random.default_rng([self.seed, 1 + number])
        count, slots = self._sizes.size, self._plan_steps * self.classes_per_batch
        rounds, rest = divmod(number * slots, count)  # of the classes, before this plan
        classes = _dealt(
            self._class_deck, np.array([count]), np.array([rest]), np.array([self._plan_steps]),
            self.classes_per_batch, generator.random(slots),
        )  # fmt: skip
        seen = (rounds + (np.argsort(self._class_deck) < rest)) * self.items_per_class
        starts, times = seen % self._sizes, np.bincount(classes, minlength=count)
        items = _dealt(
            self._item_decks, self._sizes, starts, times, self.items_per_class,
            generator.random(slots * self.items_per_class),
        )  # fmt: skip
        plan = np.empty((slots, self.items_per_class), np.int64)
        plan[np.argsort(classes, kind="stable")] = items.reshape(plan.shape)
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


def enough_of_each(labels: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """All positions, and those of classes with fewer than ``least`` items again until they have.

    A batch wants several items of each of its classes; a class with a single item is its own pair.

    Args:
        labels: from 0 to classes - 1, each of which occurs [n].
        least: items of each class.
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    firsts = np.cumsum(sizes) - sizes
    missing = np.maximum(least - sizes, 0)
    owners = np.repeat(np.arange(len(sizes)), missing)
    turns = np.arange(len(owners)) - np.repeat(np.cumsum(missing) - missing, missing)
    again = order[firsts[owners] + turns % sizes[owners]]
    return np.concatenate([np.arange(len(labels)), again])


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
        apart, passed = np.empty_like(order), np.empty_like(order)
        stamps = np.full(self._positions.size, -1, np.int64)
        found, _, _ = _take_apart(self._pairs, order, 0, stamps, apart, 0, passed)
        self._apart = apart[:found]
        if self._apart.size < self.pairs_per_batch:
            raise InputError(
                f"pairs_per_batch is {self.pairs_per_batch}, but of the {len(self._pairs)} pairs "
                f"only {self._apart.size} were found that share no item; choose at most "
                f"{self._apart.size}, or give pairs of more items"
            )
        self.steps_per_epoch = -(-len(self._pairs) // self.pairs_per_batch)
        self._plan = (-1, np.empty((0, 0), np.int64))

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
        if plan[0] != number:
            plan = self._plan = (number, self._planned(number))
        positions = self._positions[self._pairs[plan[1][row]]].reshape(-1)
        return positions, np.repeat(np.arange(self.pairs_per_batch), 2)

    def _planned(self, number: int) -> NDArray[np.int64]:
        """The pairs of all batches of an epoch, [steps, pairs_per_batch]."""
        generator = np.random.default_rng([self.seed, number])
        count = len(self._pairs)
        plan = np.empty((self.steps_per_epoch, self.pairs_per_batch), np.int64)
        waiting, filler = generator.permutation(count), np.tile(generator.permutation(count), 2)
        apart = generator.permutation(self._apart)
        _deal_pairs(self._pairs, self._positions.size, waiting, filler, apart, plan)
        return plan

    share = staticmethod(share)


@kernel
def _dealt(
    decks: NDArray[np.int64],
    sizes: NDArray[np.int64],
    starts: NDArray[np.int64],
    hands: NDArray[np.int64],
    hand: int,
    uniform: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Cards of many decks, deck by deck, in hands of ``hand`` different cards, evenly.

    All cards of a deck come equally often but those of a first, incomplete round: that is the
    stretch of the deck, as a ring, from its start. Who goes on at the stretch's end keeps all
    counts within one.

    Args:
        decks: one after the other; all numbers from 0 on, each once.
        sizes: of each deck, at least ``hand``.
        starts: where the stretch of each deck's incomplete round begins.
        hands: how many are dealt of each deck.
        hand: how many cards must differ.
        uniform: a number from [0, 1) for each card.
    """
    dealt = np.empty(uniform.size, np.int64)
    stamps = np.zeros(decks.size, np.int64)
    first, low = 0, 0  # of this deck, and of its cards in ``dealt``
    for number in range(sizes.size):
        size, high = sizes[number], low + hands[number] * hand
        deck = decks[first : first + size]
        done = low + (high - low) % size
        for place in range(low, done):
            dealt[place] = deck[(starts[number] + place - low) % size]
        _shuffle(dealt[low:done], uniform[low:done])
        while done < high:
            cards = dealt[done : done + size]
            cards[:] = deck
            _shuffle(cards, uniform[done : done + size])
            held = (done - low) % hand
            if held > 0:
                _keep_apart(cards, hand - held, dealt[done - held : done], stamps)
            done += size
        first, low = first + size, high
    return dealt


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


@kernel
def _deal_pairs(
    pairs: NDArray[np.int64],
    items: int,
    waiting: NDArray[np.int64],
    filler: NDArray[np.int64],
    apart: NDArray[np.int64],
    plan: NDArray[np.int64],
) -> None:
    """Deal pairs to batches in which no item occurs twice.

    A pair that would bring an item again waits for a later batch. Where those that are left do not
    fill a batch, pairs that were dealt before do; where chance leaves too few of them, the batch
    takes pairs that are known to go together, and those it had go back to wait.

    Args:
        pairs: [p, 2] items.
        items: how many there are.
        waiting: [p] the order in which pairs are dealt; changed.
        filler: [2 p] the order of those that are dealt again, twice: a ring.
        apart: at least as many pairs as a batch has, no two of which share an item.
        plan: [batches, pairs in a batch], written.
    """
    stamps = np.full(items, -1, np.int64)
    passed = np.empty(2 * waiting.size, np.int64)
    head, filled = 0, 0
    for batch in range(plan.shape[0]):
        row = plan[batch]
        fresh, seen, clashes = _take_apart(pairs, waiting[head:], batch, stamps, row, 0, passed)
        ring = filler[filled : filled + waiting.size]
        done, around, _ = _take_apart(pairs, ring, batch, stamps, row, fresh, passed[clashes:])
        filled = (filled + around) % waiting.size
        if done < row.size:
            passed[clashes : clashes + fresh] = row[:fresh]
            clashes += fresh
            row[:] = apart[: row.size]
        head += seen - clashes
        waiting[head : head + clashes] = passed[:clashes]


@inner_kernel
def _take_apart(
    pairs: NDArray[np.int64],
    line: NDArray[np.int64],
    batch: int,
    stamps: NDArray[np.int64],
    row: NDArray[np.int64],
    done: int,
    passed: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Fill ``row``, of which ``done`` are there, with pairs of ``line`` that share no item.

    Items of the batch have its number in ``stamps``. How many are in the row then, how many of the
    line were looked at, and how many of these clashed: they are in ``passed``.
    """
    seen, clashes = 0, 0
    while done < row.size and seen < line.size:
        pair = line[seen]
        seen += 1
        first, second = pairs[pair, 0], pairs[pair, 1]
        if stamps[first] == batch or stamps[second] == batch:
            passed[clashes] = pair
            clashes += 1
        else:
            stamps[first] = batch
            stamps[second] = batch
            row[done] = pair
            done += 1
    return done, seen, clashes
