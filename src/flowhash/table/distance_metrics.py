"""The metrics of a table: all that depends on how two embeddings are compared.

What is kept of a row's length, the affinities that a scan ranks by, the distance that an affinity
stands for and how wrong it may be, and the exact distance. A scan multiplies only; the larger an
affinity, the nearer the row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import filter_kernel, inner_kernel

EUCLIDEAN, COSINE, INNER = 0, 1, 2
METRICS = {"euclidean": EUCLIDEAN, "cosine": COSINE, "inner": INNER}
SMALLEST_SQUARE = 1e-30  # of an embedding whose direction is compared
LARGEST_SQUARE = 1e37  # of an embedding's length: distances of two such still fit into float32
UNIT = 2.0**-24  # relative error of one float32 operation
COARSE_UNIT = 2.0**-8  # relative error of an upper half


@filter_kernel
def square(vectors: NDArray[np.float32], row: int) -> float:
    """|x|² of a row of float32; NaN or infinite where a number is."""
    total = np.float32(0.0)
    for column in range(vectors.shape[1]):
        total += vectors[row, column] * vectors[row, column]
    return total


@inner_kernel
def compares_directions(metric: int) -> bool:
    """Whether lengths do not count: each embedding needs a direction, and 1/|x| is kept of it."""
    return metric == COSINE


@inner_kernel
def is_usable(metric: int, squared: float) -> bool:
    """Whether an embedding with this |x|² can be compared; not if it is NaN."""
    return squared <= LARGEST_SQUARE and (
        not compares_directions(metric) or squared >= SMALLEST_SQUARE
    )


@inner_kernel
def has_norm(metric: int, squared: float) -> bool:
    """Whether ``kept_norm`` is a number for this |x|²; for all that ``add`` took it is."""
    return not compares_directions(metric) or squared > 0.0


@inner_kernel
def kept_norm(metric: int, squared: float) -> float:
    """What is kept beside a row with this |x|²: 1/|x| where directions count, or |x|² itself."""
    return 1.0 / np.sqrt(squared) if compares_directions(metric) else squared


@inner_kernel
def scale_queries(metric: int, queries: NDArray[np.float32], scaled: NDArray[np.float32]) -> int:
    """Copy queries for a scan, of length 1 for COSINE; the first that cannot be used, or -1."""
    for query in range(queries.shape[0]):
        length = np.float64(square(queries, query))
        if not is_usable(metric, length):
            return query
        factor = np.float32(1.0 / np.sqrt(length) if compares_directions(metric) else 1.0)
        for column in range(queries.shape[1]):
            scaled[query, column] = queries[query, column] * factor
    return -1


@inner_kernel
def to_affinities(
    metric: int,
    affinities: NDArray[np.float32],
    index: int,
    norms: NDArray[np.float32],
    size: int,
) -> None:
    """Turn the inner products of a line into affinities."""
    if metric == EUCLIDEAN:
        for column in range(size):
            value = affinities[index, column]
            affinities[index, column] = value + value - norms[column]
    elif metric == COSINE:
        for column in range(size):
            affinities[index, column] *= norms[column]


@inner_kernel
def affinity_distance(metric: int, affinity: float, query_norm: float) -> float:
    """The distance that an affinity stands for, with a query of length ``query_norm``."""
    if metric == EUCLIDEAN:
        return query_norm * query_norm - affinity
    if metric == COSINE:
        return 1.0 - affinity
    return -affinity


@inner_kernel
def error_bound(metric: int, dim: int, query_norm: float, largest: float, residual: float) -> float:
    """How far an affinity of a scan may be from the exact one.

    A sum of ``dim`` products in any order is wrong by at most dim · 2^-24 of the sum of their
    magnitudes, at most |q||x|; the few operations around it are counted as eight more. A coarse
    scan moreover leaves out the product of q with the rest of x, at most |q| times its length.

    ``largest`` is the largest |x| of the table, ``residual`` the largest length of what upper
    halves leave out of a row, or 0 if the scan read whole numbers.
    """
    share = 1.05 * UNIT * (dim + 8)
    if metric == EUCLIDEAN:
        return share * (query_norm + largest) ** 2 + 2.0 * query_norm * residual + 1e-36
    if metric == COSINE:
        # Relative to |x|, whose own sum is rounded too; rounding to nearest leaves out at most 2^-8
        # of each number.
        return 1.05 * (2.0 * share + (COARSE_UNIT if residual > 0.0 else 0.0))
    return share * query_norm * largest + query_norm * residual + 1e-36


@filter_kernel
def exact_distance(
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
