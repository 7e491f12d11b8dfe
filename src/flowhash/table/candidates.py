"""The best rows that a scan has seen so far, for each query: a heap with the worst kept row on top.

Scans rank by an affinity in float32, larger is nearer, whose rounding error is bounded. They keep a
few rows more than were asked for; ``refine`` then ranks those exactly and proves that no other row
could belong among them. For the proof a scan also keeps, per query, the largest affinity that it
dropped without comparing it with the heap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel

ROW_BITS = 32  # a place is the number of a segment, then 32 bits for the row in it
ROW_MASK = (1 << ROW_BITS) - 1


class Candidates(NamedTuple):
    """What one scan keeps; c is the room for each query.

    Attributes:
        affinities: a heap in each line, the smallest first [n, c] float32.
        places: segment and row of each [n, c] int64.
        filled: how many a query has [n] int32.
        dropped: nothing with a larger affinity was left out before it met the heap [n] float32.
        scanned: items seen, each once [n] int64.
        coarse: 1 where an affinity was computed from upper halves [n] uint8.
    """

    affinities: NDArray[np.float32]
    places: NDArray[np.int64]
    filled: NDArray[np.int32]
    dropped: NDArray[np.float32]
    scanned: NDArray[np.int64]
    coarse: NDArray[np.uint8]


def empty_candidates(queries: int, room: int) -> Candidates:
    """Room for ``room`` candidates of every query, none seen yet."""
    return Candidates(
        np.empty((queries, room), np.float32),
        np.empty((queries, room), np.int64),
        np.zeros(queries, np.int32),
        np.full(queries, -np.inf, np.float32),
        np.zeros(queries, np.int64),
        np.zeros(queries, np.uint8),
    )


@inner_kernel
def push(
    affinities: NDArray[np.float32],
    places: NDArray[np.int64],
    filled: NDArray[np.int32],
    query: int,
    affinity: float,
    place: int,
) -> None:
    """Add a candidate; when there is no room, only in the stead of a worse one."""
    room = affinities.shape[1]
    count = filled[query]
    if count < room:  # let it rise from the bottom
        index = count
        filled[query] = count + 1
        while index > 0:
            parent = (index - 1) >> 1
            if affinities[query, parent] <= affinity:
                break
            affinities[query, index] = affinities[query, parent]
            places[query, index] = places[query, parent]
            index = parent
    else:  # let it sink from the top
        if affinity <= affinities[query, 0]:
            return
        index = 0
        while True:
            child = 2 * index + 1
            if child >= room:
                break
            other = min(child + 1, room - 1)
            child += affinities[query, other] < affinities[query, child]  # without a branch
            if affinities[query, child] >= affinity:
                break
            affinities[query, index] = affinities[query, child]
            places[query, index] = places[query, child]
            index = child
    affinities[query, index] = affinity
    places[query, index] = place


@inner_kernel
def merge(found: Candidates, other: Candidates) -> None:
    """Add what another thread found for the same queries."""
    room = found.affinities.shape[1]
    for query in range(found.filled.shape[0]):
        found.scanned[query] += other.scanned[query]
        limit = other.dropped[query]
        if other.filled[query] == room:
            limit = max(limit, other.affinities[query, 0])
        found.dropped[query] = max(found.dropped[query], limit)
        found.coarse[query] |= other.coarse[query]
        for index in range(other.filled[query]):
            push(
                found.affinities, found.places, found.filled,
                query, other.affinities[query, index], other.places[query, index],
            )  # fmt: skip


def split_place(place: int) -> tuple[int, int]:
    """The part and the row of a place."""
    return place >> ROW_BITS, place & ROW_MASK
