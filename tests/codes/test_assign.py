"""The exact solver against brute force: every small shape, every kind of cost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from flowhash.codes import assign_codes, objective, topk_codes
from flowhash.codes.assignment import certify
from tests.codes import oracles

# How many codes brute force may try: C(size, active) ** rows.
MOST_CODES = 4000

COSTS = {
    "real": st.floats(-3, 3, width=32),
    "tied": st.integers(-2, 2).map(float),
    "tiny": st.floats(-1e-9, 1e-9),
    "huge": st.floats(-1e9, 1e9, width=32),
}


def _code_count(rows: int, size: int, active: int) -> float:
    return float(comb(size, active)) ** rows


SHAPES = [
    (rows, size, active)
    for rows in range(1, 7)
    for size in range(1, 7)
    for active in range(1, size + 1)
    if _code_count(rows, size, active) <= MOST_CODES
]


@st.composite
def problems(draw: Any) -> tuple[Any, int, Any]:
    rows, size, active = draw(st.sampled_from(SHAPES))
    values = COSTS[draw(st.sampled_from(sorted(COSTS)))]
    means = draw(arrays(np.float64, (rows, size), elements=values))
    scale = draw(st.sampled_from([0.0, 1e-3, 0.1, 1.0, 10.0, 1e6]))
    if draw(st.booleans()):
        return means, active, scale
    weights = draw(arrays(np.float64, size, elements=st.sampled_from([0.0, 0.5, 1.0, 3.0])))
    return means, active, scale * weights


def assert_optimal(means: Any, active: int, penalty: Any, found: Any) -> None:
    rows, size = means.shape
    penalties = np.broadcast_to(np.asarray(penalty, float), size)
    assert found.codes.shape == (rows, active)
    assert found.codes.dtype == np.int32
    assert (np.diff(found.codes, axis=1) > 0).all()
    cost = oracles.class_cost([tuple(code) for code in found.codes], means, penalties)
    tolerance = 1e-9 * (np.abs(means).sum() + penalties.sum() * rows * rows) + 1e-12
    assert found.objective == pytest.approx(cost, abs=tolerance)
    assert cost == pytest.approx(oracles.least_cost(means, active, penalties), abs=tolerance)
    bound = oracles.dual_bound(means, active, penalties, found.prices)
    assert found.gap == pytest.approx(cost - bound, abs=tolerance)
    assert abs(found.gap) <= tolerance
    assert found.certified


@settings(max_examples=200)
@given(problems())
@example((np.zeros((4, 3)), 2, 1.0))
@example((np.full((3, 3), -5.0), 3, 0.1))
@example((np.array([[1.0, 2.0]]), 1, 1e6))
def test_equals_brute_force(problem: tuple[Any, int, Any]) -> None:
    means, active, penalty = problem
    assert_optimal(means, active, penalty, assign_codes(means, active, penalty))


@pytest.mark.slow
@settings(max_examples=2000)
@given(problems())
def test_equals_brute_force_2000_times(problem: tuple[Any, int, Any]) -> None:
    means, active, penalty = problem
    assert_optimal(means, active, penalty, assign_codes(means, active, penalty))


@pytest.mark.parametrize(("rows", "size", "active"), SHAPES)
def test_every_small_shape(rows: int, size: int, active: int) -> None:
    rng = np.random.default_rng([rows, size, active])
    for penalty in (0.0, 0.1, 1.0, rng.random(size)):
        means = rng.normal(size=(rows, size))
        assert_optimal(means, active, penalty, assign_codes(means, active, penalty))


@settings(max_examples=200)
@given(problems(), st.data())
def test_start_prices_never_change_the_optimum(problem: Any, data: Any) -> None:
    means, active, penalty = problem
    size = means.shape[1]
    prices = data.draw(
        arrays(np.float64, size, elements=st.one_of(st.floats(-10, 10), st.floats(-1e12, 1e12)))
    )
    warm = assign_codes(means, active, penalty, prices=prices)
    assert_optimal(means, active, penalty, warm)


def test_warm_start_equals_cold_start_on_a_learning_network() -> None:
    rng = np.random.default_rng(5)
    means = rng.normal(size=(96, 128))
    prices = None
    for _ in range(5):
        means = means + 0.05 * rng.normal(size=means.shape)
        cold = assign_codes(means, 3, 0.2)
        warm = assign_codes(means, 3, 0.2, prices=prices)
        assert warm.objective == pytest.approx(cold.objective, rel=1e-12)
        # Real-valued costs have one optimum only, so the codes agree as well.
        np.testing.assert_array_equal(warm.codes, cold.codes)
        assert warm.certified
        prices = warm.prices


def test_no_penalty_is_topk() -> None:
    rng = np.random.default_rng(0)
    for rows, size, active in ((5, 9, 4), (70, 130, 3), (1, 1, 1)):
        means = rng.integers(0, 4, size=(rows, size)).astype(float)  # ties
        found = assign_codes(means, active, 0.0)
        np.testing.assert_array_equal(found.codes, topk_codes(means, active))
        assert not found.prices.any()


@pytest.mark.parametrize(("rows", "size", "active"), [(10, 4, 3), (64, 64, 4), (100, 80, 2)])
def test_a_huge_penalty_makes_loads_even_and_still_picks_the_best(
    rows: int, size: int, active: int
) -> None:
    """Beside a penalty of 1e9 the means are dust, yet they decide between even loads."""
    means = np.random.default_rng(1).normal(size=(rows, size))
    huge = assign_codes(means, active, 1e9)
    load = np.bincount(huge.codes.ravel(), minlength=size)
    assert load.max() - load.min() <= 1
    large = assign_codes(means, active, 1e3)  # far beyond the means, well within the precision
    np.testing.assert_array_equal(huge.codes, large.codes)


def test_penalties_of_any_size_side_by_side() -> None:
    """A bucket that is out of the question must not spoil the numbers of the others."""
    means = [[5.0, 0, 0, 0], [0, 5, 0, 0], [0, 0, 5, 4], [0, 0, 5, 4.5]]
    found = assign_codes(means, 1, [1e36, 2e18, 1.0, 1.0])
    assert found.codes.ravel().tolist() == [0, 1, 2, 3]
    rng = np.random.default_rng(12)
    for _ in range(60):
        rows, size = rng.integers(2, 5, size=2)
        means = rng.normal(size=(rows, size))
        penalty = 10.0 ** rng.uniform(-300, 90, size=size)
        found = assign_codes(means, 1, penalty)
        least = oracles.least_cost(means, 1, penalty)
        assert found.objective == pytest.approx(least, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("rows", "size", "active"), [(90, 100, 4), (60, 80, 40), (100, 70, 69), (40, 200, 3)]
)
@pytest.mark.parametrize("difference", [0.0, 1e-9, 1e-3])
def test_classes_that_are_alike(rows: int, size: int, active: int, difference: float) -> None:
    """A network that has learnt nothing yet: the loads alone decide, along a water mark."""
    rng = np.random.default_rng(13)
    common = rng.normal(size=size)
    means = common + difference * rng.normal(size=(rows, size))
    for penalty in (0.01, 1.0):
        found = assign_codes(means, active, penalty)
        assert found.certified
        if difference == 0.0:
            # One row after the other into the bucket where one more is cheapest, none twice.
            steps = 2 * penalty * np.arange(rows) - common[:, None]
            loads = np.bincount(
                np.argsort(steps, axis=None, kind="stable")[: rows * active] // rows, minlength=size
            )
            cost = (penalty * loads * (loads - 1) - common * loads).sum()
            assert found.objective == pytest.approx(cost, rel=1e-12)


def test_threads_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(14)
    problems = [rng.normal(size=(rows, 130)) for rows in (20, 64, 90, 131) for _ in range(4)]
    alone = [assign_codes(means, 3, 0.2) for means in problems]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda means: assign_codes(means, 3, 0.2), problems * 3))
    for found, expected in zip(together, alone * 3, strict=True):
        np.testing.assert_array_equal(found.codes, expected.codes)
        np.testing.assert_array_equal(found.prices, expected.prices)


def test_certificate_fails_for_codes_that_are_not_optimal() -> None:
    """At a penalty of a million the proof still tells a thousandth of the means' size apart."""
    rng = np.random.default_rng(11)
    for penalty in (0.0, 0.1, 1.0, 1e6):
        means = rng.normal(size=(40, 50))
        found = assign_codes(means, 2, penalty)
        penalties = np.full(50, penalty)
        wrong = found.codes.copy()
        wrong[[0, 1]] = wrong[[1, 0]]
        _, gap, rounding = certify(wrong, means, penalties, found.prices)
        assert gap > 1e-3 > rounding
        assert gap == pytest.approx(objective(wrong, means, penalty) - found.objective, abs=1e-6)


@settings(max_examples=150)
@given(problems(), st.integers(0, 2**32 - 1))
def test_the_gap_of_any_codes_and_prices(problem: tuple[Any, int, Any], seed: int) -> None:
    """The certificate judges codes and prices that fit neither the costs nor each other."""
    means, active, penalty = problem
    rows, size = means.shape
    rng = np.random.default_rng(seed)
    penalties = np.broadcast_to(np.asarray(penalty, float), size).copy()
    prices = rng.normal(size=size) * rng.choice([0.1, 1.0, 10.0])
    codes = np.sort(rng.random((rows, size)).argsort(axis=1)[:, :active], axis=1).astype(np.int32)
    found_cost, found_gap, _ = certify(codes, means, penalties, prices)
    cost = oracles.class_cost([tuple(code) for code in codes], means, penalties)
    gap = cost - oracles.dual_bound(means, active, penalties, prices)
    scale = np.abs(means).sum() + penalties.sum() * rows * rows + np.abs(prices).sum() * rows
    assert found_gap == pytest.approx(gap, abs=1e-12 * scale + 1e-12)
    assert found_cost == pytest.approx(cost, abs=1e-12 * scale + 1e-12)


def test_says_what_it_is() -> None:
    assert repr(assign_codes(np.eye(3), 1, 1.0)) == (
        "Assignment(3 classes, 1 of 3 buckets each, objective -3, gap 0.0e+00, certified)"
    )


def test_one_class_takes_its_best_whatever_sharing_costs() -> None:
    means = np.random.default_rng(2).normal(size=(1, 40))
    np.testing.assert_array_equal(assign_codes(means, 5, 7.0).codes, topk_codes(means, 5))


def test_all_buckets_active_leaves_no_choice() -> None:
    found = assign_codes(np.random.default_rng(3).normal(size=(6, 5)), 5, 0.3)
    np.testing.assert_array_equal(found.codes, np.tile(np.arange(5), (6, 1)))
    assert found.certified


def test_is_deterministic_and_leaves_its_input_alone() -> None:
    means = np.random.default_rng(4).integers(0, 3, size=(150, 90)).astype(float)
    prices = np.linspace(0, 1, 90)
    before = means.copy(), prices.copy()
    first = assign_codes(means, 4, 0.5, prices=prices)
    again = assign_codes(means, 4, 0.5, prices=prices)
    np.testing.assert_array_equal(first.codes, again.codes)
    np.testing.assert_array_equal(first.prices, again.prices)
    np.testing.assert_array_equal(means, before[0])
    np.testing.assert_array_equal(prices, before[1])


def test_reads_other_types_and_layouts() -> None:
    means = np.random.default_rng(6).integers(-9, 9, size=(7, 6))
    expected = assign_codes(means.astype(float), 2, 0.25)
    frozen = means.astype(float)
    frozen.flags.writeable = False
    others = (means, means.tolist(), np.asfortranarray(means), means.astype(np.float32), frozen)
    for other in others:
        np.testing.assert_array_equal(assign_codes(other, 2, 0.25).codes, expected.codes)


def test_the_objective_is_what_objective_says() -> None:
    rng = np.random.default_rng(7)
    means, penalty = rng.normal(size=(20, 12)), rng.random(12)
    found = assign_codes(means, 3, penalty)
    assert found.objective == pytest.approx(objective(found.codes, means, penalty), rel=1e-12)


def test_prices_agree_with_the_loads() -> None:
    rng = np.random.default_rng(8)
    means, penalty = rng.normal(size=(60, 80)), 0.1 + rng.random(80)
    found = assign_codes(means, 4, penalty)
    load = np.bincount(found.codes.ravel(), minlength=80)
    assert (found.prices <= 2 * penalty * load + 1e-9).all()
    assert (found.prices[load > 0] >= (2 * penalty * (load - 1))[load > 0] - 1e-9).all()


class TensorWithGradient:
    """Refuses to become an array the way a torch tensor does."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach()")


BAD = [
    ("tensor with gradient", TensorWithGradient(), 1, 0.1, {}, "detach"),
    ("no class", np.empty((0, 4)), 1, 0.1, {}, "no class"),
    ("no bucket", np.empty((4, 0)), 1, 0.1, {}, "no buckets"),
    ("one dimension", np.zeros(4), 1, 0.1, {}, "two dimensions"),
    ("text", [["a", "b"]], 1, 0.1, {}, "real numbers"),
    ("complex", np.zeros((2, 2), complex), 1, 0.1, {}, "real numbers"),
    ("NaN", [[0.0, np.nan]], 1, 0.1, {}, r"class_means\[0, 1\] is nan"),
    ("infinity", [[0.0, 1.0], [np.inf, 0.0]], 1, 0.1, {}, r"class_means\[1, 0\] is inf"),
    ("ragged", [[1.0], [1.0, 2.0]], 1, 0.1, {}, "cannot be read"),
    ("masked", np.ma.masked_array([[1.0]], [[True]]), 1, 0.1, {}, "masks are not used"),
    ("overflow", [[1e200, 0.0]], 1, 0.1, {}, "overflow"),
    ("k = 0", np.zeros((2, 3)), 0, 0.1, {}, "1 <= active <= 3"),
    ("k > d", np.zeros((2, 3)), 4, 0.1, {}, "1 <= active <= 3"),
    ("k = 1.5", np.zeros((2, 3)), 1.5, 0.1, {}, "whole number"),
    ("k = True", np.zeros((2, 3)), True, 0.1, {}, "whole number"),
    ("negative λ", np.zeros((2, 3)), 1, -0.1, {}, "at least 0"),
    ("NaN λ", np.zeros((2, 3)), 1, np.nan, {}, "at least 0"),
    ("infinite λ", np.zeros((2, 3)), 1, np.inf, {}, "finite"),
    ("λ of wrong length", np.zeros((2, 3)), 1, [0.1, 0.2], {}, r"one per bucket: \(3,\)"),
    ("λ is text", np.zeros((2, 3)), 1, "x", {}, "penalty has dtype"),
    ("λ is None", np.zeros((2, 3)), 1, None, {}, "penalty has dtype object"),
    ("λ too large", np.zeros((2, 3)), 1, 1e300, {}, "up to 1e"),
    ("loads of wrong length", np.zeros((2, 3)), 1, 1.0, {"outside": [0.0]}, r"expected \(3,\)"),
    ("negative loads", np.zeros((2, 3)), 1, 1.0, {"outside": [0, -1, 0]}, "contains -1"),
    ("NaN loads", np.zeros((2, 3)), 1, 1.0, {"outside": [0, np.nan, 0]}, "contains nan"),
    ("huge loads", np.zeros((2, 3)), 1, 1e99, {"outside": [0, 1e9, 0]}, "overflow"),
    ("prices of wrong length", np.zeros((2, 3)), 1, 1.0, {"prices": [0.0]}, r"expected \(3,\)"),
    ("NaN prices", np.zeros((2, 3)), 1, 1.0, {"prices": [0, 0, np.nan]}, "start cold"),
    ("unknown solver", np.zeros((2, 3)), 1, 1.0, {"solver": "simplex"}, "'flow', 'ortools'"),
    ("solver is a list", np.zeros((2, 3)), 1, 1.0, {"solver": ["flow"]}, "'flow', 'ortools'"),
]


@pytest.mark.parametrize(
    ("means", "active", "penalty", "options", "words"),
    [case[1:] for case in BAD],
    ids=[case[0] for case in BAD],
)
def test_bad_input_says_what_to_do(
    means: Any, active: Any, penalty: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        assign_codes(means, active, penalty, **options)


@settings(max_examples=100)
@given(problems(), st.integers(0, 2**32 - 1))
def test_loads_outside_are_classes_that_keep_their_codes(problem: Any, seed: int) -> None:
    """Beside classes whose codes are fixed, no other codes of the batch cost less in all."""
    means, active, penalty = problem
    rows, size = means.shape
    penalties = np.broadcast_to(np.asarray(penalty, float), size)
    rng = np.random.default_rng(seed)
    others = [tuple(rng.permutation(size)[:active]) for _ in range(3)]
    every = np.vstack((means, np.zeros((3, size))))
    loads = np.bincount(np.ravel(others), minlength=size)
    found = assign_codes(means, active, penalty, outside=loads)
    assert found.certified

    def cost(codes: Any) -> float:
        return oracles.class_cost([*map(tuple, codes), *others], every, penalties)

    least = min(cost(codes) for codes in oracles.all_codes(rows, size, active))
    scale = max(1.0, float(np.abs(means).max()), float(penalties.max()))
    assert cost(found.codes) == pytest.approx(least, abs=1e-9 * scale)
    fixed = cost(found.codes) - found.objective  # what the others cost among themselves
    assert fixed == pytest.approx(
        oracles.class_cost(others, every[rows:], penalties), abs=1e-9 * scale
    )
