"""Decks of cards that are dealt evenly: what batches of items are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel


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
