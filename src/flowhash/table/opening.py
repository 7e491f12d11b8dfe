"""How far queries open buckets, and how the work of it is shared out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowhash.table.plan import add_bucket_sizes, add_fresh
from flowhash.table.state import Part
from flowhash.threads import available_threads

WORK_PER_THREAD = 1 << 20  # numbers multiplied; below this a thread costs more than it brings


def open_until(
    parts: Sequence[Part],
    allowed_rows: Sequence[NDArray[np.uint8]],
    order: NDArray[np.int32],
    opened: NDArray[np.int32],
    at_least: int,
    buckets: int,
    active: int,
) -> None:
    """Let every query open further buckets until it has ``at_least`` items, or none is left."""
    sizes = np.zeros(buckets, np.int64)
    for part, allowed in zip(parts, allowed_rows, strict=True):
        fault = add_bucket_sizes(part.segment.arrays, allowed, sizes)
        if fault != -1:
            part.segment.fail(fault)
    reached = np.zeros(len(order), np.int64)
    asking = np.arange(len(order))
    counted = np.zeros_like(opened)
    if active > 1 and len(order):  # one full bucket is enough, without counting unions
        fullest = sizes[order[:, : opened[0]]].max(axis=1)
        asking = np.flatnonzero(fullest < at_least)
    if active == 1:
        reached += sizes[order[:, : opened[0]] if len(order) else order].sum(axis=1)
    while len(asking):
        if active == 1:  # every round but the first opens one bucket more
            later = asking[counted[asking] > 0]
            reached[later] += sizes[order[later, opened[later] - 1]]
        else:
            for part, allowed in zip(parts, allowed_rows, strict=True):
                fault = add_fresh(
                    part.segment.arrays, allowed, order, asking, counted, opened, reached
                )
                if fault != -1:
                    part.segment.fail(fault)
        counted[asking] = opened[asking]
        more = (reached[asking] < at_least) & (opened[asking] < order.shape[1])
        asking = asking[more]
        opened[asking] += 1


def shards_of(
    parts: Sequence[Part], starts: NDArray[np.int64], dim: int, threads: int | None
) -> list[tuple[int, int]]:
    """Cut the pairs into ranges of about equal work, one for each thread."""
    pairs = int(starts[-1])
    sizes = np.zeros(len(starts) - 1, np.int64)
    for part in parts:
        sizes += np.diff(part.segment.arrays.offsets)
    work = np.repeat(sizes, np.diff(starts)).cumsum() * dim
    total = int(work[-1]) if pairs else 0
    most = available_threads() if threads is None else threads
    count = max(1, min(most, total // WORK_PER_THREAD))
    edges = np.searchsorted(work, [total * shard // count for shard in range(1, count)])
    cuts = [0, *edges.tolist(), pairs]
    return [(first, last) for first, last in pairwise(cuts) if first < last]
