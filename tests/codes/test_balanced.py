"""Clusters with a cap: exact against scipy's assignment, whatever the data are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import flowhash
from flowhash import BalancedClusters, InputError, balanced_kmeans
from flowhash.codes import balanced_means
from flowhash.codes.balanced_means import cap_of
from flowhash.codes.capped_flow import level, repair

Array = NDArray[np.float64]


def least_cost(costs: Array, room: NDArray[np.int64]) -> float:
    """The optimum by scipy: a column for each place."""
    columns = np.repeat(np.arange(len(room)), np.minimum(room, len(costs)))
    rows, chosen = linear_sum_assignment(costs[:, columns])
    return float(costs[rows, columns[chosen]].sum())


def distances(points: Array, centres: Array) -> Array:
    return np.square(points[:, None].astype(np.float64) - centres).sum(axis=2)


@st.composite
def problems(
    draw: st.DrawFn,
) -> tuple[NDArray[np.int32], Array, NDArray[np.int64], Array]:
    """Candidates, costs, room for all, and prices to start from."""
    items, size = draw(st.integers(1, 24)), draw(st.integers(1, 9))
    width = draw(st.integers(1, size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    buckets = np.argsort(rng.random((items, size)), axis=1)[:, :width].astype(np.int32)
    if draw(st.booleans()):
        costs = rng.integers(0, 4, (items, width)).astype(np.float64)  # ties
    else:
        costs = rng.standard_normal((items, width))
    room = rng.integers(0, 2 * items // size + 2, size)
    while room.sum() < items:
        room[rng.integers(size)] += 1
    prices = rng.random(size) * draw(st.sampled_from([0.0, 1.0, 100.0]))
    return buckets, costs, room, prices


@settings(max_examples=300, deadline=None)
@given(problems(), st.booleans())
def test_the_flow_is_optimal_and_its_prices_prove_it(
    problem: tuple[NDArray[np.int32], Array, NDArray[np.int64], Array], levelled: bool
) -> None:
    buckets, costs, room, prices = problem
    items, size = len(costs), len(room)
    dear = 1e6  # of a bucket that is no candidate
    every = np.full((items, size), dear)
    np.put_along_axis(every, buckets.astype(np.int64), costs, 1)
    best = least_cost(every, room)
    if levelled:
        level(buckets, costs, room, prices)
    held, homeless = repair(buckets, costs, room, prices)
    here = np.arange(items)
    labels = buckets[here, held]
    load = np.bincount(labels, minlength=size)
    assert np.maximum(load - room, 0).sum() == homeless
    # As many items as need a bucket that is no candidate have no room; never more.
    assert homeless == round(best / dear)
    if homeless:
        return
    assert costs[here, held].sum() == pytest.approx(best, abs=1e-9)
    priced = costs + prices[buckets]
    assert (prices >= 0).all()
    np.testing.assert_allclose(priced[here, held], priced.min(axis=1), atol=1e-9)
    np.testing.assert_allclose(prices[load < room], 0.0, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 80),
    st.integers(1, 30),
    st.sampled_from([1.0, 1.05, 1.5, 3.0]),
    st.integers(0, 1000),
    st.booleans(),
)
def test_no_assignment_to_its_centres_is_better(
    items: int, buckets: int, largest: float, seed: int, coarse: bool
) -> None:
    buckets = min(buckets, items)
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 3, (items, 2)) if coarse else rng.standard_normal((items, 3))
    found = balanced_kmeans(points, buckets, largest, seed=seed, starts=2)
    cap = cap_of(items, buckets, largest)
    assert found.labels.shape == (items,)
    assert found.labels.dtype == np.int32
    assert found.sizes.tolist() == np.bincount(found.labels, minlength=buckets).tolist()
    assert found.sizes.max() <= cap
    costs = distances(np.asarray(points, np.float32), found.centres)
    best = least_cost(costs, np.full(buckets, cap))
    size = 1e-5 * (np.square(points).sum() + 1)  # centres are rounded to float32
    assert found.inertia == pytest.approx(costs[np.arange(items), found.labels].sum(), abs=size)
    assert found.inertia == pytest.approx(best, abs=size)
    assert abs(found.gap) <= size


def test_buckets_outside_the_candidates_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balanced_means, "CANDIDATES", 2)
    monkeypatch.setattr(balanced_means, "PART", 100)
    points = np.random.default_rng(3).standard_normal((400, 4)).astype(np.float32)
    found = balanced_kmeans(points, 20, 1.0)
    best = least_cost(distances(points, found.centres), np.full(20, 20))
    assert found.sizes.tolist() == [20] * 20
    assert 0 <= found.gap <= 1e-9 * best
    assert found.inertia == pytest.approx(best, rel=1e-9)


def grouped(items: int, groups: int, dim: int, noise: float, seed: int) -> NDArray[np.float32]:
    """Groups of unequal size, of vectors of length 1."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(groups, dim))[rng.integers(0, groups, items)]
    points += noise * rng.normal(size=points.shape)
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def least_of(points: NDArray[np.float32], found: BalancedClusters, largest: float) -> float:
    costs = distances(points, found.centres.astype(np.float64))
    cap = cap_of(len(points), len(found.sizes), largest)
    assert found.sizes.max() <= cap
    held = costs[np.arange(len(points)), found.labels].sum()
    assert found.inertia == pytest.approx(held, rel=1e-9)
    return least_cost(costs, np.full(len(found.sizes), cap))


@pytest.mark.parametrize(
    ("items", "buckets", "groups", "noise", "seed", "largest"),
    [
        (1500, 300, 10, 0.02, 7, 1.0),
        (1500, 300, 10, 0.02, 8, 1.0),
        (1200, 120, 5, 0.1, 7, 1.0),
        (2000, 200, 20, 0.3, 16, 1.0),
        (4000, 400, 20, 0.02, 1, 1.05),
        (900, 100, 2, 0.02, 4, 1.05),
        (600, 40, 50, 0.1, 5, 1.05),  # more groups than buckets
    ],
)
def test_groups_of_many_buckets_end_at_the_optimum(
    items: int, buckets: int, groups: int, noise: float, seed: int, largest: float
) -> None:
    points = grouped(items, groups, 16, noise, seed)
    found = balanced_kmeans(points, buckets, largest, starts=1)
    assert found.inertia == pytest.approx(least_of(points, found, largest), rel=1e-9)
    assert 0 <= found.gap <= 1e-9 * found.inertia


@pytest.mark.parametrize("checks", [0, 1, 2, 24])
def test_the_gap_is_true_wherever_it_stops(monkeypatch: pytest.MonkeyPatch, checks: int) -> None:
    monkeypatch.setattr(balanced_means, "CANDIDATES", 3)
    monkeypatch.setattr(balanced_means, "BLOCK", 700 * 8)  # too few for all buckets
    monkeypatch.setattr(balanced_means, "CHECKS", checks)
    points = grouped(700, 4, 8, 0.05, 6)
    found = balanced_kmeans(points, 50, 1.0)
    assert len(found.gaps) == 1
    best = least_of(points, found, 1.0)
    assert best * (1 - 1e-9) <= found.inertia <= best * (1 + 1e-9) + found.gap
    if checks == 0:
        assert found.inertia > best * (1 + 1e-3)
    if checks == 24:
        assert found.inertia == pytest.approx(best, rel=1e-9)


def test_all_buckets_are_candidates_at_the_last_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balanced_means, "CANDIDATES", 2)
    monkeypatch.setattr(balanced_means, "CHECKS", 1)
    points = grouped(900, 2, 16, 0.02, 4)
    found = balanced_kmeans(points, 100, 1.0)
    assert found.inertia == pytest.approx(least_of(points, found, 1.0), rel=1e-9)


@pytest.mark.parametrize("apart", [3.0, 30.0, 3000.0])
def test_tight_groups_far_apart_are_told_truly(apart: float) -> None:
    rng = np.random.default_rng(0)
    points = 1e-3 * rng.standard_normal((1200, 8))
    points[600:] += apart
    rounded = points.astype(np.float32)
    found = balanced_kmeans(rounded, 40, 1.05)
    best = least_of(rounded, found, 1.05)
    assert found.inertia <= best * (1 + 1e-9) + found.gap
    assert found.inertia == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("candidates", [2, 16])
def test_blocks_keep_the_cap_and_are_optimal_in_their_room(
    monkeypatch: pytest.MonkeyPatch, candidates: int
) -> None:
    points = np.random.default_rng(4).standard_normal((900, 3)).astype(np.float32)
    whole = balanced_kmeans(points, 12, 1.02)
    monkeypatch.setattr(balanced_means, "CANDIDATES", candidates)
    monkeypatch.setattr(balanced_means, "BLOCK", 200 * candidates)
    found = balanced_kmeans(points, 12, 1.02)
    assert len(whole.gaps) == 1
    blocks = len(found.gaps)
    assert blocks == (5 if candidates == 2 else 4)
    assert found.sizes.max() <= 77
    assert found.inertia <= 1.05 * whole.inertia
    if candidates == 16:
        assert abs(found.gaps).max() <= 1e-6 * found.inertia
    # The last block was assigned last: nothing is better for it in the room that is left.
    block = slice(blocks - 1, None, blocks)
    costs = distances(points, found.centres)
    own = found.labels[block]
    room = 77 - found.sizes + np.bincount(own, minlength=12)
    best = least_cost(costs[block], room)
    held = costs[np.arange(900), found.labels][block].sum()
    assert held <= best + found.gaps[-1] + 1e-4


@pytest.mark.parametrize("buckets", [1, 7, 40, 100])
def test_equal_items_fill_every_bucket_that_they_need(buckets: int) -> None:
    found = balanced_kmeans(np.ones((100, 3)), buckets, 1.0)
    assert found.sizes.max() == -(-100 // buckets)
    assert found.inertia == 0
    np.testing.assert_array_equal(found.centres, 1)


def test_many_copies_of_few_items() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([np.zeros((3000, 8)), rng.standard_normal((3000, 8))])
    found = balanced_kmeans(points, 60, 1.05)
    assert found.sizes.max() <= 105
    assert found.inertia < np.square(points - points.mean(axis=0)).sum() / 2


def test_as_many_buckets_as_items_puts_each_apart() -> None:
    points = np.random.default_rng(1).standard_normal((30, 2)) * 100
    found = balanced_kmeans(points, 30, 1.0)
    assert found.sizes.tolist() == [1] * 30
    assert found.inertia == pytest.approx(0, abs=1e-3)


def test_the_seed_decides() -> None:
    points = np.random.default_rng(2).standard_normal((6000, 5))
    first, again = (balanced_kmeans(points, 20, seed=5) for _ in range(2))
    other = balanced_kmeans(points, 20, seed=6)
    np.testing.assert_array_equal(first.labels, again.labels)
    np.testing.assert_array_equal(first.centres, again.centres)
    assert first.inertia == again.inertia
    assert not np.array_equal(first.labels, other.labels)


def test_rows_that_were_gathered_get_their_own_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(2).standard_normal((900, 3)).astype(np.float32)
    monkeypatch.setattr(balanced_means, "SCATTERED", 100)
    found = balanced_kmeans(points, 20)
    held = distances(points, found.centres)[np.arange(900), found.labels].sum()
    assert held == pytest.approx(found.inertia, rel=1e-5)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_any_scale_and_place(size: float) -> None:
    points = np.random.default_rng(2).standard_normal((500, 4)).astype(np.float32)
    here, there = balanced_kmeans(points, 8), balanced_kmeans(points * np.float32(size), 8)
    assert there.inertia == pytest.approx(here.inertia * size**2, rel=1e-3)
    far = balanced_kmeans(points + 1000, 8)
    assert far.inertia == pytest.approx(here.inertia, rel=0.02)
    assert far.sizes.max() <= 66


def test_it_finds_clusters_that_are_there() -> None:
    rng = np.random.default_rng(7)
    truth = np.repeat(np.arange(25), 400)
    points = rng.standard_normal((25, 6))[truth] * 10 + rng.standard_normal((10_000, 6)) * 0.1
    found = balanced_kmeans(points[rng.permutation(10_000)], 25, 1.0)
    assert found.inertia == pytest.approx(10_000 * 6 * 0.01, rel=0.05)
    assert "10000 items in 25 clusters of 400 to 400" in repr(found)


def test_a_cap_is_no_hair_more() -> None:
    assert cap_of(10, 1, 1.1) == 10
    assert cap_of(100, 10, 1.1) == 11
    assert cap_of(100, 10, 1.05) == 11
    assert cap_of(23_000, 10, 1.05) == 2415
    assert cap_of(7, 2, 1.0) == 4
    assert cap_of(7, 2, 1e308) == cap_of(7, 2, 10**400) == 7


def test_a_cap_beyond_all_items_is_none() -> None:
    points = np.random.default_rng(0).standard_normal((50, 2))
    found, none = balanced_kmeans(points, 4, 1e308), balanced_kmeans(points, 4, 4)
    np.testing.assert_array_equal(found.labels, none.labels)


@pytest.mark.filterwarnings("error")
def test_what_float32_cannot_hold_is_refused_without_a_warning() -> None:
    with pytest.raises(InputError, match=r"X\[1, 0\] is 1e\+300; .* Divide X"):
        balanced_kmeans(np.array([[1.0], [1e300]]), 1)
    with pytest.raises(InputError, match=r"X\[1, 0\] is nan"):
        balanced_kmeans(np.array([[1e300], [np.nan]]), 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"X": np.zeros((3, 2)), "buckets": 4}, "at least one item a bucket"),
        ({"X": np.zeros(3)}, "two dimensions"),
        ({"X": np.array([[np.nan], [1.0]])}, r"X\[0, 0\] is nan"),
        ({"buckets": 0}, "buckets is 0"),
        ({"buckets": 2.5}, "buckets is 2.5"),
        ({"largest": 0.9}, "largest is 0.9; expected a number from 1"),
        ({"largest": None}, "largest is None; expected .*Leave it out for 1.05; .*clusters, 2$"),
        ({"largest": np.nan}, "largest is nan"),
        ({"largest": "2"}, "largest is '2'"),
        ({"largest": np.inf}, "largest is inf"),
        ({"largest": np.complex128(2)}, "largest is .*2"),
        ({"starts": 0}, "starts is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"tolerance": 1.0}, "tolerance is 1.0"),
        ({"tolerance": np.nan}, "tolerance is nan"),
        ({"tolerance": "a"}, "tolerance is 'a'; expected a number from 0, below 1"),
        ({"tolerance": None}, "tolerance is None"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, object], words: str) -> None:
    given = {"X": np.zeros((9, 2)), "buckets": 2, **arguments}
    with pytest.raises(InputError, match=words):
        flowhash.balanced_kmeans(**given)
