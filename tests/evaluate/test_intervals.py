"""Intervals over seeds, against loops that draw by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from flowhash.evaluate.comparison.intervals import over_seeds, seeds_interval
from flowhash.evaluate.results import Row, group_seeds, lead_over, leads_all

FIELDS = ("pr1", "pr4", "pr16", "suf")


def row(method: str, k: int | None, seed: int) -> Row:
    return Row(method, "test", k, seed, 1.0, 1.0, 1.0, 1.0, None, 1.0, 0.0, pr1_low=0.0)


def made(rows: list[Row], draws: int, level: dict[str, float], seed: int) -> dict[Any, Any]:
    rng = np.random.default_rng(seed)
    return {
        each.place: {
            name: level.get(each.method, 0.0) + 3 * each.seed + rng.normal(size=draws)
            for name in FIELDS
        }
        for each in rows
    }


@settings(max_examples=20)
@given(seeds=st.integers(2, 4), draws=st.integers(5, 40), seed=st.integers(0, 1000))
def test_over_seeds_has_both_variances(seeds: int, draws: int, seed: int) -> None:
    rows = [
        row(method, k, each)
        for each in range(seeds)
        for method, k in (("exhaustive", None), ("vq", 1), ("flowhash", 1), ("flowhash-free", 1))
    ]
    known = made(rows, draws, {"flowhash": 1.0}, seed)
    for each in over_seeds(rows, known):
        names = {"exhaustive"}
        if each.method.startswith("flowhash"):
            names |= {"vq"} | ({"flowhash-free"} if each.method == "flowhash" else set())
        assert set(each.over_seeds) == names
        for name in names:
            k = None if name == "exhaustive" else 1
            for field in FIELDS:
                gaps = [
                    [known[each.method, "test", each.k, one][field][draw]
                     - known[name, "test", k, one][field][draw] for draw in range(draws)]
                    for one in range(seeds)
                ]  # fmt: skip
                found = each.over_seeds[name][field]
                means = [sum(some) / draws for some in gaps]
                middle = sum(means) / seeds
                assert sum(found) / 2 == pytest.approx(middle, abs=1e-9)
                if (each.method, each.k) == (name, k):
                    assert found == [0.0, 0.0]
                    continue
                columns = [sum(some) / seeds for some in zip(*gaps, strict=True)]
                queries = sum((one - middle) ** 2 for one in columns) / (draws - 1)
                trained = sum((one - middle) ** 2 for one in means) / (seeds - 1) / seeds
                freedom = (queries + trained) ** 2 / (trained**2 / (seeds - 1))
                reach = stats.t.isf(0.025, freedom) * (queries + trained) ** 0.5
                assert found == pytest.approx([middle - reach, middle + reach], abs=1e-9)


@pytest.mark.parametrize("noise", [0.0, 1.0, 5.0])
def test_an_interval_over_three_seeds_holds_the_truth_as_often_as_it_says(noise: float) -> None:
    """With queries that vary by 1 and trainings that vary by ``noise``."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(600):
        drawn = rng.normal() + rng.normal(size=500)  # of the queries, the same for all seeds
        ends = seeds_interval(noise * rng.normal(size=(3, 1)) + drawn, np.zeros((3, 1)))
        held += ends[0] <= 0 <= ends[1]
    assert 0.92 <= held / 600 <= 0.99


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
def test_a_rival_that_was_trained_once_widens_the_interval(noise: float) -> None:
    """Both trainings vary by ``noise``, the rival's was drawn once: 77 % if it were neglected."""
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(600):
        drawn = rng.normal() + rng.normal(size=500)
        ours = noise * rng.normal(size=(3, 1)) + drawn
        ends = seeds_interval(ours, noise * rng.normal() + np.zeros((1, 500)))
        held += ends[0] <= 0 <= ends[1]
    assert 0.92 <= held / 600 <= 0.99


def test_rows_of_a_rival_that_was_trained_once() -> None:
    rows = [
        row(method, k, each)
        for each in range(3)
        for method, k in (("exhaustive", None), ("flowhash", 1))
    ]
    rows += [row("classifier", 1, 0), row("flowhash-free", 1, 0)]
    known = made(rows, 50, {}, 5)
    found = over_seeds(rows, known)
    assert [each.place for each in found] == [each.place for each in rows]
    for each in found:
        if each.method in ("classifier", "flowhash-free"):
            assert each.over_seeds == {}
        elif each.method == "flowhash":  # every seed's row has the same
            assert set(each.over_seeds) == {"exhaustive", "classifier", "flowhash-free"}
            for name in ("classifier", "flowhash-free"):
                ours = np.stack([known["flowhash", "test", 1, one]["pr1"] for one in range(3)])
                ends = seeds_interval(ours, known[name, "test", 1, 0]["pr1"][None])
                assert each.over_seeds[name]["pr1"] == list(ends)
    ours = [each for each in found if each.method == "flowhash"]
    assert lead_over(ours, "classifier", "pr1") == tuple(ours[0].over_seeds["classifier"]["pr1"])
    assert leads_all("pr1", group_seeds(found), ("flowhash", "test", 1)) is False


def test_one_seed_has_no_interval_over_seeds() -> None:
    rows = [row("exhaustive", None, 0), row("flowhash", 1, 0)]
    assert over_seeds(rows, made(rows, 10, {}, 0)) == rows


def test_bold_is_what_leads_over_queries_and_seeds() -> None:
    rows = [
        row(method, k, each)
        for each in range(3)
        for method, k in (("exhaustive", None), ("vq", 1), ("flowhash", 1), ("flowhash-free", 1))
    ]
    for level, bold in ((20.0, True), (0.0, False)):
        found = over_seeds(rows, made(rows, 200, {"flowhash": level, "flowhash-free": 30.0}, 1))
        # λ = 0 is no rival: it is what FlowHash is made of.
        assert leads_all("pr1", group_seeds(found), ("flowhash", "test", 1)) == bold
        ours = [each for each in found if each.method == "flowhash"]
        lead = lead_over(ours, "flowhash-free", "suf")
        assert lead is not None
        assert lead[1] < 0
    assert lead_over(rows, "vq", "pr1") is None
