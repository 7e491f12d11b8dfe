"""Exact distances, and a scan that uses nothing else.

For the few queries whose nearest rows are too close together for float32 to tell apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import filter_kernel, inner_kernel, kernel
from flowhash.table.arrays import (
    COSINE,
    EUCLIDEAN,
    Arrays,
    copy_embedding,
    damaged_code,
    damaged_id,
    damaged_postings,
    damaged_rows,
)
from flowhash.table.candidates import ROW_BITS
from flowhash.table.gather import BROKEN
from flowhash.table.ranking import comes_before


@filter_kernel
def distance(
    metric: int, line: NDArray[np.float32], queries: NDArray[np.float32], query: int
) -> float:
    """The exact distance of an embedding from a query: |q - x|², 1 - q·x/(|q||x|), or -q·x.

    Float64 holds products of float32 numbers exactly; summing them in any order changes the last
    of 53 bits at most. NaN for an embedding that no writer stores.
    """
    dim = queries.shape[1]
    product = length = size = np.float64(0.0)
    if metric == EUCLIDEAN:
        for column in range(dim):
            step = np.float64(queries[query, column]) - np.float64(line[0, column])
            product += step * step
        return product
    for column in range(dim):
        value = np.float64(line[0, column])
        asked = np.float64(queries[query, column])
        product += asked * value
        length += value * value
        size += asked * asked
    if metric == COSINE:
        if length == 0.0:  # no row that ``add`` took
            return np.nan
        return 1.0 - product / np.sqrt(length * size)
    return -product


@kernel
def scan_exactly(
    segment: Arrays,
    number: int,
    allowed: NDArray[np.uint8],
    metric: int,
    queries: NDArray[np.float32],
    query: int,
    opened: NDArray[np.int32],
    best: int,
    size: int,
    distances: NDArray[np.float64],
    keys: NDArray[np.int64],
    places: NDArray[np.int64],
) -> tuple[int, int]:
    """Scan the opened buckets of one query in float64 into a list of the ``best`` nearest.

    For the few queries whose nearest rows are too close together for float32 to tell apart.

    Returns:
        How many rows the list has now, and -1 or what is wrong.
    """
    buckets = segment.offsets.shape[0] - 1
    seen = np.zeros(buckets, np.uint8)
    line = np.empty((1, queries.shape[1]), np.float32)
    listed = segment.postings.shape[0] > 0
    for bucket in opened:
        start, stop = segment.offsets[bucket], segment.offsets[bucket + 1]
        fault = damaged_postings(segment, start, stop)
        for entry in range(start, stop):
            if fault != -1:
                return size, fault
            row = np.int64(segment.postings[entry] if listed else entry)
            if row < 0 or row >= segment.norms.shape[0]:
                return size, BROKEN
            fault = max(damaged_rows(segment, row, row + 1, False), damaged_id(segment, row))
            fault = max(fault, damaged_code(segment, row))
            if fault != -1 or (allowed.shape[0] > 0 and allowed[row] == 0):
                continue
            known = 0
            for column in range(segment.codes.shape[1] if listed else 0):
                other = segment.codes[row, column]
                if other < 0 or other >= buckets:
                    return size, BROKEN
                known |= seen[other]
            if known == 0:
                copy_embedding(segment.highs, segment.lows, row, line, 0)
                away = distance(metric, line, queries, query)
                if np.isnan(away):
                    return size, BROKEN
                place = (np.int64(number) << ROW_BITS) | row
                size = keep(away, segment.ids[row], place, best, size, distances, keys, places)
        if fault != -1:
            return size, fault
        seen[bucket] = 1
    return size, -1


@inner_kernel
def keep(
    away: float, key: int, place: int, best: int, size: int,
    distances: NDArray[np.float64], keys: NDArray[np.int64], places: NDArray[np.int64],
) -> int:  # fmt: skip
    """Put a row into the sorted list of the ``best`` nearest, if it belongs there; its new length.

    One place behind the list is scratch space, so that the newcomer can be compared.
    """
    index = size
    distances[0, index] = away
    keys[0, index] = key
    places[0, index] = place
    while index > 0 and comes_before(distances, keys, 0, index, index - 1):
        distances[0, index] = distances[0, index - 1]
        keys[0, index] = keys[0, index - 1]
        places[0, index] = places[0, index - 1]
        index -= 1
        distances[0, index] = away
        keys[0, index] = key
        places[0, index] = place
    return min(size + 1, best)
