"""Intervals over seeds, against loops that draw by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowhash.evaluate.grid import group_seeds, leads_all
from flowhash.evaluate.intervals import over_seeds, place_of
from flowhash.evaluate.results import Row, lead_over

FIELDS = ("pr1", "pr4", "pr16", "suf")


def row(method: str, k: int | None, seed: int) -> Row:
    return Row(method, "test", k, seed, 1.0, 1.0, 1.0, 1.0, None, 1.0, 0.0, pr1_low=0.0)


def made(rows: list[Row], draws: int, level: dict[str, float], seed: int) -> dict[Any, Any]:
    rng = np.random.default_rng(seed)
    return {
        place_of(each): {
            name: level.get(each.method, 0.0) + 3 * each.seed + rng.normal(size=draws)
            for name in FIELDS
        }
        for each in rows
    }


@settings(max_examples=20)
@given(seeds=st.integers(2, 4), draws=st.integers(5, 40), seed=st.integers(0, 1000))
def test_over_seeds_is_the_mean_over_drawn_seeds(seeds: int, draws: int, seed: int) -> None:
    rows = [
        row(method, k, each)
        for each in range(seeds)
        for method, k in (("exhaustive", None), ("vq", 1), ("flowhash", 1), ("flowhash-free", 1))
    ]
    known = made(rows, draws, {"flowhash": 1.0}, seed)
    found = over_seeds(rows, known, seed=7)
    picks = np.random.default_rng(7).integers(0, seeds, (seeds, draws))
    for each in found:
        names = {"exhaustive"}
        if each.method == "flowhash":
            names |= {"vq", "flowhash-free"}
        assert set(each.over_seeds) == names | ({"vq"} if each.method == "flowhash-free" else set())
        for name in names:
            k = None if name == "exhaustive" else 1
            for field in FIELDS:
                gaps = [
                    np.mean([known[each.method, "test", each.k, pick][field][draw]
                             - known[name, "test", k, pick][field][draw]
                             for pick in picks[:, draw]])
                    for draw in range(draws)
                ]  # fmt: skip
                expected = np.quantile(gaps, [0.025, 0.975])
                assert each.over_seeds[name][field] == pytest.approx(list(expected), abs=1e-9)


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
