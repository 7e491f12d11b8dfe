"""What an answer can be asked again: without the query, parts together, buckets of the hits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flowhash.table import HashTable, Hits

BUCKETS, DIM = 5, 2


def filled(rng: np.random.Generator, items: int, active: int, ids: str) -> tuple[Any, ...]:
    """A table of few different points, so that many are equally near, and what is in it."""
    codes = np.sort(
        np.array([rng.choice(BUCKETS, active, replace=False) for _ in range(items)]), axis=1
    )
    vectors = rng.integers(0, 3, (items, DIM)).astype(np.float32)
    names: Any = np.arange(items) if ids == "int64" else [f"item {row}" for row in range(items)]
    table = HashTable.create(buckets=BUCKETS, dim=DIM, active=active, ids=ids)
    table.add(codes, vectors, ids=names, payloads=[{"row": row} for row in range(items)])
    return table, codes, vectors, np.array(names, object if ids == "string" else np.int64)


@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(1, 3), st.integers(1, 8))
@pytest.mark.parametrize("ids", ["int64", "string"])
def test_without_the_query_itself(ids: str, seed: int, items: int, active: int, top: int) -> None:
    table, codes, vectors, names = filled(np.random.default_rng(seed), items, active, ids)
    found = table.search(codes, vectors, top + 1, payloads=True, buckets=True)
    others = found.without(names)
    assert others.ids.shape == others.distances.shape == (items, top)
    assert (others.scanned == found.scanned - 1).all()
    assert (others.opened == found.opened).all()
    for row in range(items):
        near = [
            (float(((vectors[other] - vectors[row]) ** 2).sum()), other)
            for other in range(items)
            if other != row and set(codes[other]) & set(codes[row])
        ]
        expected = sorted(distance for distance, _ in near)[:top]
        count = int(others.counts[row])
        assert others.distances[row, :count].tolist() == expected
        there = [list(names).index(one) for one in others.ids[row, :count]]
        assert row not in there
        assert len(set(there)) == count
        payloads = others.payloads[row]
        assert [payload["row"] for payload in payloads[:count]] == there
        assert others.buckets[row, :count].tolist() == codes[there].tolist()
        assert (others.buckets[row, count:] == -1).all()
        padding = others.ids[row, count:].tolist()
        assert all(one in (-1, None) for one in padding)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 9), min_size=1, max_size=3))
@pytest.mark.parametrize("more", [False, True])
def test_parts_together_are_the_whole(more: bool, seed: int, cuts: list[int]) -> None:
    table, codes, vectors, _ = filled(np.random.default_rng(seed), 9, 2, "int64")
    options: dict[str, Any] = {"payloads": more, "buckets": more}
    whole = table.search(codes, vectors, 4, **options)
    ends = [0, *sorted(min(cut, 9) for cut in cuts), 9]
    parts = [
        table.search(codes[start:stop], vectors[start:stop], 4, **options)
        for start, stop in itertools.pairwise(ends)
    ]
    together = Hits.concatenate(parts)
    for name in ("ids", "distances", "counts", "scanned", "opened", "buckets"):
        np.testing.assert_array_equal(getattr(together, name), getattr(whole, name))
    assert together.payloads == whole.payloads


def test_a_hit_of_many_segments_has_its_own_buckets() -> None:
    table = HashTable.create(buckets=4, dim=1, active=2)
    for code in ([0, 1], [1, 2], [1, 3]):
        table.add([code], [[float(code[1])]])
    found = table.search([[1]], [[1.9]], 4, probe=1, buckets=True)
    assert found.ids.tolist() == [[1, 0, 2, -1]]
    assert found.buckets is not None
    assert found.buckets.tolist() == [[[1, 2], [0, 1], [1, 3], [-1, -1]]]
    assert table.search([[1]], [[1.9]], 4, probe=1).buckets is None
