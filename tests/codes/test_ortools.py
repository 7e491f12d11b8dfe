"""FlowHash's solver against OR-Tools, the paper's way, on sizes that brute force cannot try."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flowhash.codes import assign_codes
from tests.codes import oracles

pytest.importorskip("ortools", reason="the oracle needs flowhash[ortools]")


def uniform(rng: Any, rows: int, size: int, active: int) -> Any:
    return rng.random((rows, size))


def clustered(rng: Any, rows: int, size: int, active: int) -> Any:
    """Classes come in families that want the same buckets."""
    families = rng.normal(size=(max(1, rows // 8), size))
    return families[rng.integers(len(families), size=rows)] + 0.05 * rng.normal(size=(rows, size))


def favourites(rng: Any, rows: int, size: int, active: int) -> Any:
    """A trained network's class means: a few high buckets each, some of them shared."""
    means = 0.5 * rng.normal(size=(rows, size))
    for row in range(rows):
        means[row, rng.choice(size, active, replace=False)] += 3.0
    return means


def skewed(rng: Any, rows: int, size: int, active: int) -> Any:
    """Everybody wants the first buckets."""
    return rng.random((rows, size)) + 5.0 * np.exp(-np.arange(size) / 4.0)


KINDS = {kind.__name__: kind for kind in (uniform, clustered, favourites, skewed)}
SMALL = [
    (1, 1, 1),
    (90, 70, 69),
    (30, 66, 66),
    (40, 80, 77),
    (3, 70, 5),
    (70, 3, 2),
    (64, 64, 1),
    (65, 129, 4),
    (100, 100, 7),
]
LARGE = [(512, 512, 1), (512, 512, 4), (256, 512, 2), (512, 128, 3)]


def assert_same_optimum(means: Any, active: int, penalty: Any) -> None:
    ours = assign_codes(means, active, penalty)
    theirs = assign_codes(means, active, penalty, solver="ortools")
    assert ours.certified
    # OR-Tools solves costs rounded to millionths of the largest: its optimum may cost more, a
    # rounding error for each unit, and never less.
    slack = 1e-6 * np.abs(means).max() * means.shape[0] * active
    assert ours.objective <= theirs.objective + 1e-9 * abs(theirs.objective)
    assert ours.objective == pytest.approx(theirs.objective, abs=slack)
    penalties = np.broadcast_to(penalty, means.shape[1])
    bound = oracles.dual_bound(means, active, penalties, ours.prices)
    assert ours.objective - bound == pytest.approx(0.0, abs=1e-9 * (1.0 + abs(ours.objective)))


@pytest.mark.parametrize("penalty", [0.0, 0.01, 0.15, 1.0, 50.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "size", "active"), SMALL)
def test_small(rows: int, size: int, active: int, kind: str, penalty: float) -> None:
    rng = np.random.default_rng([rows, size, active])
    assert_same_optimum(KINDS[kind](rng, rows, size, active), active, penalty)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "size", "active"), LARGE)
def test_large(rows: int, size: int, active: int, kind: str) -> None:
    rng = np.random.default_rng([rows, size, active])
    assert_same_optimum(KINDS[kind](rng, rows, size, active), active, 0.1)


@settings(max_examples=60)
@given(
    rows=st.integers(1, 90),
    size=st.integers(1, 150),
    share=st.floats(0, 1),
    kind=st.sampled_from(sorted(KINDS)),
    penalty=st.sampled_from([0.02, 0.3, 2.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(
    rows: int, size: int, share: float, kind: str, penalty: float, seed: int
) -> None:
    active = max(1, round(share * min(size, 30)))
    rng = np.random.default_rng(seed)
    means = KINDS[kind](rng, rows, size, active)
    penalties = penalty * rng.choice([0.0, 0.5, 1.0, 1.5], size=size)
    assert_same_optimum(means, active, penalties)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [0.1, 1.0])
@pytest.mark.parametrize("active", [1, 2, 4])
@pytest.mark.parametrize("size", [64, 128, 256, 512])
@pytest.mark.parametrize("rows", [64, 128, 256, 512])
def test_the_papers_grid(rows: int, size: int, active: int, penalty: float) -> None:
    rng = np.random.default_rng([rows, size, active])
    for kind in KINDS.values():
        assert_same_optimum(kind(rng, rows, size, active), active, penalty)


@pytest.mark.parametrize("size", [0.0, 1e-90, 1e90])
def test_means_of_any_size(size: float) -> None:
    means = size * np.random.default_rng(10).random((20, 12))
    theirs = assign_codes(means, 2, 0.1 * size, solver="ortools")
    ours = assign_codes(means, 2, 0.1 * size)
    assert ours.objective == pytest.approx(theirs.objective, rel=1e-5, abs=0.0)


def test_its_prices_certify_its_codes() -> None:
    """With costs that are whole millionths nothing is rounded, so the gap closes here too."""
    rng = np.random.default_rng(9)
    means = np.rint(1e6 * rng.random((40, 60))) / 1e6
    means[0, 0] = 1.0
    found = assign_codes(means, 3, 0.25, solver="ortools")
    assert abs(found.gap) < 1e-9


def test_a_penalty_beyond_whole_numbers_is_said() -> None:
    for means, penalty in ((np.eye(4), 1e14), (1e-90 * np.eye(4), 0.1), (1e-310 * np.eye(4), 0.0)):
        with pytest.raises(RuntimeError, match="solver='flow'"):
            assign_codes(means, 1, penalty, solver="ortools")
