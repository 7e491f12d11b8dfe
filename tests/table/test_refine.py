"""The proof behind every answer: no affinity is further from the exact one than its bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from numpy.typing import NDArray

from flowhash import HashTable
from flowhash.table.distance_metrics import (
    COSINE,
    EUCLIDEAN,
    METRICS,
    error_bound,
    scale_queries,
    to_affinities,
)
from flowhash.table.search.rerank import rank
from flowhash.table.search.scan import multiply_halves, multiply_highs, multiply_rows
from flowhash.table.segments.segment_draft import residual_square, split_row, upper_roots


def affinities(
    metric: int, query: NDArray[np.float32], rows: NDArray[np.float32], way: str
) -> tuple[NDArray[np.float32], float]:
    """What a scan computes for one query, and the longest remainder of a row (0 if not coarse)."""
    coarse = way == "upper halves"
    count, dim = rows.shape
    highs, lows = np.empty((count, dim), np.uint16), np.empty((count, dim), np.uint16)
    for row in range(count):
        split_row(rows.view(np.uint32), row, highs, lows, row)
    scaled = np.empty_like(query)
    assert scale_queries(metric, query, scaled) == -1
    lines = np.empty((1, count), np.float32)
    if coarse:
        multiply_highs(highs, 0, np.empty(0, np.int32), count, scaled, 0, lines)
    elif way == "float16":
        halves = rows.astype(np.float16).view(np.uint16)
        multiply_halves(halves, 0, np.empty(0, np.int32), count, scaled, 1, lines)
    else:
        multiply_rows(rows, count, scaled, 1, lines)
    squares = (rows * rows).sum(axis=1, dtype=np.float32)
    norms = 1 / np.sqrt(squares) if metric == COSINE else squares
    to_affinities(metric, lines, 0, norms.astype(np.float32), count)
    rest = max(residual_square(highs, lows, row) for row in range(count))
    return lines[0], upper_roots(np.array([0.0, rest]), dim)[1] if coarse else 0.0


@given(
    seed=st.integers(0, 10**6),
    dim=st.sampled_from([1, 2, 3, 7, 8, 64, 300]),
    offset=st.sampled_from([0.0, 1.0, 1e4]),
    scale=st.sampled_from([1e-22, 1e-6, 1.0, 1e6]),
    metric=st.sampled_from(sorted(METRICS.values())),
    way=st.sampled_from(["gathered", "upper halves", "float16"]),
)
def test_no_affinity_is_beyond_its_bound(
    seed: int, dim: int, offset: float, scale: float, metric: int, way: str
) -> None:
    assume(metric != COSINE or scale > 1e-20)  # such rows are refused
    generator = np.random.default_rng(seed)
    rows = ((generator.normal(size=(20, dim)) + offset) * scale).astype(np.float32)
    if way == "float16":  # what is stored so
        rows = np.clip(rows, -60_000, 60_000).astype(np.float16).astype(np.float32)
        assume(metric != COSINE or rows.any(axis=1).all())
    query = ((generator.normal(size=(1, dim)) + offset) * scale).astype(np.float32)
    found, residual = affinities(metric, query, rows, way)
    exact_rows, exact_query = rows.astype(np.float64), query[0].astype(np.float64)
    lengths = np.linalg.norm(exact_rows, axis=1)
    length = float(np.linalg.norm(exact_query))
    exact = exact_rows @ exact_query
    if metric == EUCLIDEAN:
        exact = 2 * exact - lengths**2
    elif metric == COSINE:
        exact = exact / lengths / length
    bound = error_bound(metric, dim, length, float(lengths.max()), residual)
    assert np.abs(found - exact).max() <= bound


def test_the_bound_is_not_far_too_wide() -> None:
    """A bound that is always true would prove nothing; scans of 64 numbers must stay useful."""
    assert error_bound(EUCLIDEAN, 64, 1.0, 1.0, 0.0) < 1e-4
    assert error_bound(COSINE, 64, 1.0, 1.0, 1.0) < 0.01


def test_rows_whose_squares_vanish_are_told_apart() -> None:
    rows = (1e-21 * (1 + np.arange(1800) * 1e-6))[:, None] * np.ones(8)
    table = HashTable.create(buckets=1, dim=8, metric="inner")
    table.add(np.zeros((1800, 1), np.int32), rows)
    for count in (1, 50):
        hits = table.search(np.zeros((count, 1), np.int32), np.ones((count, 8)), top=4)
        assert (hits.ids == [1799, 1798, 1797, 1796]).all()


@pytest.mark.parametrize("size", [0, 1, 2, 63, 64, 65, 300])
def test_ranks_by_distance_then_id(size: int) -> None:
    generator = np.random.default_rng(size)
    distances = generator.integers(0, 20, size=(1, size)).astype(np.float64)
    keys = generator.permutation(size)[None, :]
    ranks = np.empty((1, size), np.int32)
    rank(distances, keys, 0, size, ranks)
    assert np.array_equal(ranks[0], np.lexsort((keys[0], distances[0])))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 40])
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("queries", [1, 2, 3, 6, 7])
def test_products_of_any_number_of_rows(count: int, listed: bool, queries: int) -> None:
    """Four rows and two queries are taken at once; whole numbers make every sum exact."""
    generator = np.random.default_rng(count)
    stored = generator.integers(-9, 10, size=(100, 5)).astype(np.float32)
    block = generator.integers(-9, 10, size=(queries, 5)).astype(np.float32)
    rows = generator.permutation(100)[:count].astype(np.int32)
    base = -1 if listed else 31
    taken = stored[rows] if listed else stored[31 : 31 + count]
    lines = np.full((queries, count + 1), np.nan, np.float32)
    multiply_halves(
        stored.astype(np.float16).view(np.uint16), base, rows, count, block, queries, lines
    )
    assert np.array_equal(lines[:, :count], block @ taken.T)
    assert np.isnan(lines[:, count]).all()  # and not a row more
    lines[:] = np.nan
    multiply_rows(taken, count, block, queries, lines)
    assert np.array_equal(lines[:, :count], block @ taken.T)
    assert np.isnan(lines[:, count]).all()
