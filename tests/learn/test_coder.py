"""The discrete half of a step: optimal codes, whatever came before, and what is reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flowhash.codes import assign_codes
from flowhash.learn import Coder
from tests.codes import oracles


@st.composite
def streams(draw: Any) -> tuple[list[tuple[Any, Any]], int, float]:
    """Batches of classes of one size, one after the other; k and λ."""
    classes, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    size = draw(st.integers(1, 4))
    active = draw(st.integers(1, size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batches = []
    for _ in range(draw(st.integers(1, 3))):
        names = rng.permutation(50)[:classes]  # other classes in each batch
        labels = rng.permutation(np.repeat(names, each))
        batches.append((rng.normal(size=(len(labels), size)).astype(np.float32), labels))
    return batches, active, draw(st.sampled_from([0.0, 0.1, 1.0]))


def means_of(rows: Any, labels: Any) -> Any:
    wide = rows.astype(np.float64)
    return np.array([wide[labels == label].mean(axis=0) for label in np.unique(labels)])


@settings(max_examples=60)
@given(streams())
def test_codes_are_optimal_in_every_batch(stream: tuple[Any, int, float]) -> None:
    batches, active, penalty = stream
    coder = Coder(active, penalty)
    for rows, labels in batches:
        codes = coder.codes(rows, labels)
        assert codes.shape == (len(labels), active)
        assert codes.dtype == np.int64
        of_class = {}
        for label, code in zip(labels, codes, strict=True):  # one code a class
            assert of_class.setdefault(label, tuple(sorted(code))) == tuple(sorted(code))
        means = means_of(rows, labels)
        penalties = np.full(rows.shape[1], penalty)
        chosen = [of_class[label] for label in np.unique(labels)]
        least = oracles.least_cost(means, active, penalties)
        assert oracles.class_cost(chosen, means, penalties) == pytest.approx(least, abs=1e-9)
        assert coder.objective == pytest.approx(least, abs=1e-9)


@settings(max_examples=40)
@given(streams())
def test_a_start_from_stored_prices_is_the_same(stream: tuple[Any, int, float]) -> None:
    """A resumed run has the prices from its checkpoint, and nothing else."""
    batches, active, penalty = stream
    going, prices = Coder(active, penalty), None
    for rows, labels in batches:
        resumed = Coder(active, penalty, prices=prices)
        cold = Coder(active, penalty)
        codes = going.codes(rows, labels)
        np.testing.assert_array_equal(resumed.codes(rows, labels), codes)
        cold.codes(rows, labels)
        assert cold.objective == pytest.approx(going.objective, abs=1e-9)
        assert going.prices is not None
        prices = np.array(going.prices.tolist())  # as JSON has them


def test_a_batch_starts_from_the_prices_of_the_last_one(monkeypatch: Any) -> None:
    """It is only faster, so that nothing else would tell."""
    started = []

    def watched(*arguments: Any, prices: Any = None, **others: Any) -> Any:
        started.append(prices)
        return assign_codes(*arguments, prices=prices, **others)

    monkeypatch.setattr("flowhash.learn.training.training_loop.assign_codes", watched)
    coder, rng = Coder(1, 0.5), np.random.default_rng(0)
    rows, labels = rng.normal(size=(4, 3)).astype(np.float32), np.arange(4)
    coder.codes(rows, labels)
    first = coder.prices
    coder.codes(rows, labels)
    assert started[0] is None
    assert started[1] is first
    assert first is not None


@settings(max_examples=60)
@given(streams())
def test_report(stream: tuple[Any, int, float]) -> None:
    batches, active, penalty = stream
    coder = Coder(active, penalty)
    size = batches[0][0].shape[1]
    loads = np.zeros(size)
    for rows, labels in batches:
        codes = coder.codes(rows, labels)
        for label in np.unique(labels):
            for bucket in codes[np.flatnonzero(labels == label)[0]]:
                loads[bucket] += 1
    found = coder.report(codes, rows, labels)
    each = len(labels) / len(np.unique(labels))
    wide = rows.astype(np.float64)
    sets = [tuple(code) for code in codes]
    items = oracles.item_cost(sets, wide, labels, np.full(size, penalty / each))
    gap = oracles.largest_gap(wide, labels, active)
    assert found["item_objective"] == pytest.approx(items, abs=1e-5)
    assert found["bound_gap"] == pytest.approx(gap, abs=1e-5)
    # Eq. 4: m · ĝ + M is above g.
    bound = each * found["class_objective"] + found["bound_gap"]
    assert bound >= found["item_objective"] - 1e-5
    assert found["buckets_used"] == pytest.approx((loads > 0).mean())
    assert found["largest_load"] == pytest.approx(loads.max() / loads.sum())
    assert found["load_variation"] == pytest.approx(np.std(loads) / np.mean(loads))
    shares = [load / loads.sum() for load in loads if load]
    entropy = -sum(share * np.log(share) for share in shares)
    assert found["buckets_effective"] == pytest.approx(np.exp(entropy))


def test_a_report_starts_the_counts_anew() -> None:
    coder = Coder(1, 0.0)
    one, other = np.array([[5.0, 0, 0], [4.0, 0, 0]]), np.array([[0, 0, 5.0], [0, 3.0, 0]])
    labels = np.array([0, 1])
    codes = coder.codes(one.astype(np.float32), labels)
    assert coder.seconds > 0
    assert coder.report(codes, one.astype(np.float32), labels)["largest_load"] == 1.0
    assert coder.seconds == 0
    codes = coder.codes(other.astype(np.float32), labels)
    found = coder.report(codes, other.astype(np.float32), labels)
    assert found["largest_load"] == 0.5
    assert found["buckets_used"] == pytest.approx(2 / 3)
    assert found["buckets_effective"] == pytest.approx(2.0)


@settings(max_examples=60)
@given(
    groups=st.integers(2, 4), size=st.integers(2, 3), seed=st.integers(0, 2**32 - 1),
    penalty=st.sampled_from([0.1, 1.0]), data=st.data(),
)  # fmt: skip
def test_a_batch_is_an_exact_step_of_the_objective_over_all_groups(
    groups: int, size: int, seed: int, penalty: float, data: Any
) -> None:
    """Against brute force over the codes of the batch's groups, beside all others' as they are."""
    rng = np.random.default_rng(seed)
    active = data.draw(st.integers(1, size))
    means, penalties = rng.normal(size=(groups, size)).astype(np.float32), np.full(size, penalty)
    coder = Coder(active, penalty, owners=np.arange(groups))
    coder.codes(means, np.arange(groups))  # a batch of all: the whole optimum
    assert coder.chosen is not None
    whole = oracles.least_cost(means.astype(np.float64), active, penalties)
    assert coder.objective == pytest.approx(whole, abs=1e-6)
    means = rng.normal(size=(groups, size)).astype(np.float32)
    wide = means.astype(np.float64)

    def cost(codes: Any) -> float:
        return oracles.class_cost([tuple(code) for code in codes], wide, penalties)

    for _ in range(3):
        batch = np.sort(rng.permutation(groups)[: data.draw(st.integers(1, groups))])
        before = coder.chosen.copy()
        coder.codes(means[batch], batch)
        least = np.inf
        for tried in oracles.all_codes(len(batch), size, active):
            codes = before.copy()
            codes[batch] = tried
            least = min(least, cost(codes))
        assert cost(coder.chosen) == pytest.approx(least, abs=1e-6)
        others = np.setdiff1d(np.arange(groups), batch)
        np.testing.assert_array_equal(coder.chosen[others], before[others])


def test_loads_of_other_batches_fill_every_bucket() -> None:
    """As many groups as buckets, a quarter of them in a batch; all want the same few buckets."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(64, 64)).astype(np.float32)
    means[:, :8] += 1
    used = {}
    for owners in (None, np.arange(64)):
        coder, codes = Coder(1, 4.0, owners=owners), np.zeros(64, np.int64)
        for batch in np.split(rng.permutation(64), 4):
            codes[batch] = coder.codes(means[batch], batch)[:, 0]
        used[owners is None] = len(set(codes.tolist()))
    assert used == {False: 64, True: pytest.approx(40, abs=9)}
