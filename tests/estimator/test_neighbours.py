"""Neighbours: scikit-learn's brute force, among the items of the opened buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import KNeighborsTransformer, NearestNeighbors

from flowhash.estimator import FlowHasher
from tests.estimator.clouds import clouds, quick


def order_of(hasher: FlowHasher, rows: NDArray[Any]) -> NDArray[np.int64]:
    """The buckets of each row, largest activation first, in plain numpy."""
    if hasher.effective_metric_ == "cosine":
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    activations = hasher.encoder_.encode(rows).activations
    return np.argsort(-activations, axis=1, kind="stable")


def opened(hasher: FlowHasher, stored: NDArray[Any], query: NDArray[Any], wanted: int) -> list[int]:
    """Positions in the k buckets of one query, and in further ones until there are ``wanted``."""
    codes = order_of(hasher, stored)[:, : hasher.active]
    order = order_of(hasher, query[None])[0]
    found: set[int] = set()
    for place, bucket in enumerate(order):
        if place >= hasher.active and len(found) >= wanted:
            break
        found |= set(np.flatnonzero((codes == bucket).any(axis=1)).tolist())
    return sorted(found)


def brute_force(query: NDArray[Any], rows: NDArray[Any], metric: str) -> NDArray[Any]:
    if metric in ("inner", "ip", "dot"):
        return -rows @ query
    found: NDArray[Any] = pairwise_distances(query[None], rows, metric)[0]
    return found


@settings(max_examples=25, deadline=None)
@given(
    items=st.integers(4, 60),
    features=st.integers(1, 20),
    classes=st.integers(2, 6),
    active=st.integers(1, 4),
    wanted=st.integers(1, 12),
    metric=st.sampled_from(["euclidean", "l2", "cosine", "inner", "ip", "dot"]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64, np.int64]),
    seed=st.integers(0, 1000),
)
def test_finds_what_brute_force_finds_in_the_opened_buckets(
    items: int, features: int, classes: int, active: int, wanted: int, metric: str, dtype: Any,
    seed: int,
) -> None:  # fmt: skip
    wanted = min(wanted, items)
    rows, labels = clouds(items + 5, features, min(classes, items), seed)
    rows = (10 * rows).astype(dtype)
    rows[(rows == 0).all(axis=1)] = 1  # which has no direction
    stored, queries = rows[:items], rows[items:]
    labels[:2] = 0, 1
    hasher = quick(active=active, metric=metric, steps=2).fit(stored, labels[:items])
    distances, ids = hasher.kneighbors(queries, wanted)
    assert distances.shape == ids.shape == (5, wanted)
    assert (distances.dtype, ids.dtype) == (np.float64, np.int64)
    scanned = hasher.search(queries, wanted, at_least=wanted).scanned
    exact = np.asarray(rows, np.float64)
    size = 1.0 if metric == "cosine" else np.abs(exact).max()
    if metric in ("inner", "ip", "dot"):
        size = np.square(exact).sum(axis=1).max()
    for number, query in enumerate(exact[items:]):
        some = opened(hasher, exact[:items], query, wanted)
        assert scanned[number] == len(some)
        truth = np.sort(brute_force(query, exact[some], metric))[:wanted]
        np.testing.assert_allclose(distances[number], truth, rtol=1e-4, atol=3e-4 * size)
        assert set(ids[number]) <= set(some)
        assert len(set(ids[number])) == wanted
        own = brute_force(query, exact[ids[number]], metric)
        np.testing.assert_allclose(distances[number], own, rtol=1e-4, atol=3e-4 * size)


def test_with_every_bucket_open_it_is_nearest_neighbours() -> None:
    rows, labels = clouds(200)
    hasher = quick().fit(rows[:150], labels[:150])
    found = hasher.search(rows[150:], 7, probe=8)
    truth = (
        NearestNeighbors(n_neighbors=7, algorithm="brute").fit(rows[:150]).kneighbors(rows[150:])
    )
    np.testing.assert_array_equal(found.ids, truth[1])
    np.testing.assert_allclose(found.distances, truth[0], rtol=1e-5)
    assert (found.scanned == 150).all()


@pytest.mark.parametrize("hidden", [(), (4,)])
def test_inner_products_are_those_of_uncentred_rows(hidden: tuple[int, ...]) -> None:
    rows, labels = clouds(200)
    rows += 5 * np.arange(1, 7)  # far from zero, where centred products would rank otherwise
    hasher = quick(metric="inner", hidden=hidden).fit(rows[:150], labels[:150])
    found = hasher.search(rows[150:], 7, probe=8)
    truth = -rows[150:] @ rows[:150].T
    np.testing.assert_array_equal(found.ids, np.argsort(truth, axis=1, kind="stable")[:, :7])
    np.testing.assert_allclose(found.distances, np.sort(truth, axis=1)[:, :7], rtol=1e-5)
    # The buckets are those that Euclidean distance learns.
    plain = quick(hidden=hidden).fit(rows[:150], labels[:150])
    assert (hasher.transform(rows) != plain.transform(rows)).nnz == 0
    # An item need not be the nearest to itself.
    among = hasher.search(n_neighbors=3, probe=8).ids
    own = -rows[:150] @ rows[:150].T
    np.fill_diagonal(own, np.inf)
    np.testing.assert_array_equal(among, np.argsort(own, axis=1, kind="stable")[:, :3])


@pytest.mark.parametrize("rank", ["input", "codes"])
@pytest.mark.parametrize("active", [1, 3])
def test_without_queries_items_are_searched_without_themselves(active: int, rank: str) -> None:
    rows, labels = clouds(80)
    hasher = quick(active=active, rank=rank).fit(rows, labels)
    distances, ids = hasher.kneighbors(n_neighbors=6)
    assert not (ids == np.arange(80)[:, None]).any()
    _, with_own = hasher.kneighbors(rows, 7)
    assert (with_own[:, 0] == np.arange(80)).all()
    np.testing.assert_array_equal(ids, with_own[:, 1:])
    assert (np.diff(distances, axis=1) >= 0).all()
    for wanted in range(1, 80, 6):  # buckets of any size leave nobody without
        assert (hasher.kneighbors(n_neighbors=wanted, return_distance=False) >= 0).all()
    plain, asked = hasher.search(n_neighbors=1), hasher.search(rows, 1)
    np.testing.assert_array_equal(plain.scanned, asked.scanned - 1)


def test_many_equal_items_leave_one_out_each() -> None:
    rows = np.zeros((30, 3))
    rows[15:] = 1
    hasher = quick().fit(rows, np.arange(30) // 15)
    distances, ids = hasher.kneighbors(n_neighbors=5)
    assert ids.shape == (30, 5)
    assert (distances == 0).all()
    assert ((ids < 15) == (np.arange(30) < 15)[:, None]).all()
    assert ids[14].tolist() == [0, 1, 2, 3, 4]  # it is not among the nearest six itself


def test_ranks_by_codes() -> None:
    rows, labels = clouds(90)
    hasher = quick(rank="codes").fit(rows[:70], labels[:70])
    made = hasher.encoder_.encode(rows)
    distances, ids = hasher.kneighbors(rows[70:], 1)
    own = np.linalg.norm(made.activations[70:] - made.activations[ids[:, 0]], axis=1)
    np.testing.assert_allclose(distances[:, 0], own, atol=1e-5)
    assert hasher.table_.dim == 8


@pytest.mark.parametrize("mode", ["distance", "connectivity"])
def test_the_graph_is_the_one_of_scikit_learn_where_every_bucket_is_open(mode: str) -> None:
    rows, labels = clouds(60)
    hasher = quick(active=8, output=mode, n_neighbors=4).fit(rows, labels)
    theirs = KNeighborsTransformer(mode=mode, n_neighbors=4).fit(rows)
    ours = hasher.transform(rows)
    assert ours.format == "csr"
    # Of an item to itself theirs is 1e-7 or so, which ours is not.
    np.testing.assert_allclose(ours.toarray(), theirs.transform(rows).toarray(), atol=1e-5)
    among = hasher.kneighbors_graph(mode=mode)
    np.testing.assert_allclose(
        among.toarray(), theirs.kneighbors_graph(mode=mode).toarray(), atol=1e-5
    )
    assert len(hasher.get_feature_names_out()) == 60


def test_refuses_what_cannot_be_found() -> None:
    rows, labels = clouds(20)
    hasher = quick().fit(rows, labels)
    with pytest.raises(ValueError, match="n_neighbors = 21, n_samples_fit = 20"):
        hasher.kneighbors(rows, 21)
    with pytest.raises(ValueError, match="n_neighbors = 20, n_samples_fit = 20"):
        hasher.kneighbors(n_neighbors=20)
    with pytest.raises(ValueError, match="n_neighbors = 0"):
        hasher.kneighbors(rows, 0)
    with pytest.raises(TypeError, match="whole number"):
        hasher.kneighbors(rows, 2.5)
    with pytest.raises(ValueError, match='expected "connectivity" or "distance"'):
        hasher.kneighbors_graph(rows, mode="weights")
    assert hasher.kneighbors(rows, 20)[1].shape == (20, 20)


def test_later_items_are_found() -> None:
    rows, labels = clouds(100)
    hasher = quick().fit(rows[:60], labels[:60])
    assert hasher.add(rows[60:90], labels[60:90]).tolist() == list(range(60, 90))
    assert hasher.add(rows[90:]).tolist() == list(range(90, 100))
    assert hasher.n_samples_fit_ == len(hasher.table_) == 100
    assert (hasher.kneighbors(rows, 1)[1][:, 0] == np.arange(100)).all()
    whole = hasher.kneighbors(n_neighbors=3)[1]
    assert whole.shape == (100, 3)
    with pytest.raises(ValueError, match="item 1 has a label that fit did not see"):
        hasher.add(rows[:2], [0, 17])
    assert len(hasher.table_) == 100
