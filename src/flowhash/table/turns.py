"""Each item once: which buckets a query opened before this one.

An item with k > 1 buckets may lie in several buckets that a query opens. It counts where it is met
first in the query's order, and only there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel


@inner_kernel
def longest_run(
    order: NDArray[np.int32],
    pair_queries: NDArray[np.int32],
    pair_turns: NDArray[np.int32],
    first: int,
    last: int,
) -> int:
    """The most queries that open the same bucket."""
    longest = run = 0
    before = -1
    for pair in range(first, last):
        bucket = order[pair_queries[pair], pair_turns[pair]]
        run = run + 1 if bucket == before else 1
        before = bucket
        longest = max(longest, run)
    return longest


@inner_kernel
def mark(
    earlier: NDArray[np.uint8],
    flagged: NDArray[np.uint8],
    order: NDArray[np.int32],
    pair_queries: NDArray[np.int32],
    pair_turns: NDArray[np.int32],
    start: int,
    count: int,
    value: int,
) -> None:
    """Write ``value`` wherever one of ``count`` queries opened a bucket before this one (k > 1)."""
    for index in range(count if flagged.shape[0] > 0 else 0):
        query = pair_queries[start + index]
        for turn in range(pair_turns[start + index]):
            earlier[order[query, turn], index] = value
            flagged[order[query, turn]] = value


@inner_kernel
def count_fresh(
    codes: NDArray[np.int32],
    rows: NDArray[np.int32],
    size: int,
    earlier: NDArray[np.uint8],
    flagged: NDArray[np.uint8],
    lanes: NDArray[np.int32],
    pair_queries: NDArray[np.int32],
    start: int,
    count: int,
    scanned: NDArray[np.int64],
) -> None:
    """Add the rows that no earlier bucket of a query had to what it scanned; all queries at once.

    Args:
        codes: the code of each row [n, k].
        rows: the rows of this chunk.
        size: how many.
        earlier: 1 where a query opened a bucket before this one [d, together].
        flagged: 1 for buckets that any of the queries opened before [d]; empty with k = 1.
        lanes: zeros, scratch space [2, together].
        pair_queries: the query of each pair.
        start: the first pair of these queries.
        count: how many queries.
        scanned: what each query has scanned so far.
    """
    width = lanes.shape[1]
    for place in range(size if flagged.shape[0] > 0 else 0):
        row = rows[place]
        known = 0
        for column in range(codes.shape[1]):
            known |= flagged[codes[row, column]]
        if known == 0:
            continue
        for column in range(codes.shape[1]):
            bucket = codes[row, column]
            for lane in range(width):
                lanes[1, lane] |= earlier[bucket, lane]
        for lane in range(width):
            lanes[0, lane] += lanes[1, lane]
            lanes[1, lane] = 0
    for index in range(count):
        scanned[pair_queries[start + index]] += size - lanes[0, index]
        lanes[0, index] = 0
