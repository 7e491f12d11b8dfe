"""k that falls in stage 2: its steps, codes that change their length, and runs that go on."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flowhash.codes import assign_codes
from flowhash.errors import InputError
from flowhash.learn import Coder, Settings, Stage, train
from flowhash.quality import search_quality
from tests.learn.trainer import KINDS, STEPS, clouds, facts, group_settings, watched


def told(steps: int, active: int, first: int | None) -> Settings:
    stage = Stage("npairs", 64, 4, 2, steps)
    return Settings({"name": "linear"}, None, stage, active=active, first_active=first)


@given(steps=st.integers(1, 500), active=st.integers(1, 16), more=st.integers(0, 48))
def test_k_falls_evenly_and_stays_from_seven_tenths_on(steps: int, active: int, more: int) -> None:
    first = active + more
    found = [told(steps, active, first).active_at(step) for step in range(steps)]
    assert all(type(each) is int for each in found)
    assert found[0] == first
    assert all(now >= after for now, after in itertools.pairwise(found))
    for step, each in enumerate(found):
        if step >= 0.7 * steps - 1e-9:
            assert each == active
        else:
            on_a_line = first - more * step / (0.7 * steps)
            assert on_a_line - 1e-9 <= each < on_a_line + 1
    if 0.7 * steps >= more > 0:  # there is time for each value, about as much
        times = [found.count(value) for value in range(active + 1, first + 1)]
        assert max(times) - min(times) <= 1


def test_by_hand() -> None:
    assert [told(10, 1, 8).active_at(step) for step in range(10)] == [8, 7, 6, 5, 4, 3, 2, 1, 1, 1]
    assert [told(10, 2, None).active_at(step) for step in range(10)] == [2] * 10


@pytest.mark.parametrize(
    ("active", "first", "message"),
    [
        (2, 1, "first_active is 1; expected a whole number from 2, which is active, to 64"),
        (1, 65, "first_active is 65; expected .* to 64, the number of buckets, or None"),
        (1, 2.0, "first_active is 2.0; expected a whole number"),
    ],
)
def test_what_cannot_fall_is_refused(active: int, first: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        told(10, active, first)
    with pytest.raises(InputError, match="softmax, which has no codes; leave first_active out"):
        replace(told(10, 1, 8), hash=Stage("softmax", 64, 4, 2, 10))


def test_settings_of_an_older_flowhash_have_none() -> None:
    values = told(10, 2, None).to_json()
    assert (values.pop("first_active"), values.pop("revive")) == (None, False)
    assert Settings.from_json(values) == told(10, 2, None)
    changed = told(10, 2, 8)
    assert Settings.from_json(json.loads(json.dumps(changed.to_json()))) == changed


@settings(max_examples=60)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_groups_keep_the_code_of_their_last_batch(lengths: list[int], seed: int) -> None:
    """Whatever its length was; and a coder that goes on from JSON does the same."""
    rng = np.random.default_rng(seed)
    groups, size = 6, 8
    coder, last = Coder(1, 0.5, np.arange(groups) // 2), dict[int, set[int]]()
    for active in lengths:
        means = rng.normal(size=(groups, size)).astype(np.float32)
        batch = np.sort(rng.permutation(groups)[: rng.integers(1, groups + 1)])
        resumed = Coder(1, 0.5, coder.owners)
        resumed.restore(json.loads(json.dumps(coder.record())))
        coder.active = resumed.active = active
        held = [bucket for group, code in last.items() if group not in batch for bucket in code]
        codes = coder.codes(means[batch], batch)
        np.testing.assert_array_equal(resumed.codes(means[batch], batch), codes)
        outside = np.bincount(held, minlength=size) if held else np.zeros(size)
        best = assign_codes(means[batch], active, 0.5, outside=outside)
        assert coder.objective == pytest.approx(best.objective, abs=1e-9)
        last |= {int(group): set(code.tolist()) for group, code in zip(batch, codes, strict=True)}
        loads = np.zeros((3, size))
        for group, code in last.items():
            loads[group // 2, list(code)] += 1
        found = coder.shares(np.arange(3), size)
        np.testing.assert_allclose(found, loads / np.maximum(1, loads.sum(axis=0)), rtol=1e-6)
        known = coder.held(size)
        if len(last) < groups:
            assert known is None
        else:
            np.testing.assert_array_equal(known, loads.sum(axis=0))
        report = coder.report(codes, means[batch], batch)
        assert report["buckets_used"] == pytest.approx((loads.sum(axis=0) > 0).mean())


@pytest.mark.parametrize("kind", list(KINDS))  # the losses codes, npairs and triplet
def test_codes_have_the_k_of_their_step_and_validation_the_last(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, settings_of = KINDS[kind]
    asked: dict[str, list[int]] = {"codes": [], "validation": []}

    def solve(means: Any, active: int, *others: Any, **more: Any) -> Any:
        asked["codes"].append(active)
        return assign_codes(means, active, *others, **more)

    def quality(activations: Any, ranking: Any, labels: Any, active: int, *others: Any) -> Any:
        asked["validation"].append(active)
        return search_quality(activations, ranking, labels, active, *others)

    monkeypatch.setattr("flowhash.learn.training.training_loop.assign_codes", solve)
    monkeypatch.setattr("flowhash.learn.training.validation.search_quality", quality)
    chosen = settings_of(first_active=8)
    encoder = train(data(), chosen, tmp_path, quiet=True)
    expected = [chosen.active_at(step) for step in range(STEPS)]
    assert expected[0] == 8
    assert asked["codes"] == expected
    assert set(asked["validation"][-3:]) == {chosen.active}  # those before are of stage 1
    assert encoder.active == chosen.active
    lines = [line for line in facts(tmp_path) if line["stage"] == "hash" and "loss" in line]
    assert [line["active"] for line in lines] == expected


@pytest.mark.parametrize("kind", ["groups", "vectors"])
def test_from_k_itself_is_the_same_as_none(kind: str, tmp_path: Path) -> None:
    data, settings_of = KINDS[kind]
    usual = train(data(), settings_of(), tmp_path / "usual", quiet=True)
    chosen = settings_of(first_active=settings_of().active)
    same = train(data(), chosen, tmp_path / "same", quiet=True)
    assert same.fingerprint == usual.fingerprint
    lines = facts(tmp_path / "same")
    assert all(line.pop("active", chosen.active) == chosen.active for line in lines)
    assert lines == facts(tmp_path / "usual")
    other = train(data(), settings_of(first_active=8), None, quiet=True)
    assert other.fingerprint != usual.fingerprint


@pytest.mark.parametrize("kind", ["groups", "vectors"])
@pytest.mark.parametrize("at", [5, 11])  # while k falls, and when it has fallen
def test_a_run_that_goes_on_equals_an_uninterrupted_one(kind: str, at: int, tmp_path: Path) -> None:
    data, settings_of = KINDS[kind]
    chosen = settings_of(first_active=8)

    def stop() -> None:
        raise KeyboardInterrupt

    whole = train(data(), chosen, tmp_path / "whole", quiet=True)
    with pytest.raises(KeyboardInterrupt):
        train(watched(data(), chosen, STEPS + at, stop), chosen, tmp_path / "cut", quiet=True)
    assert 0 < json.loads((tmp_path / "cut/hash/last.json").read_text())["step"] < STEPS
    resumed = train(data(), chosen, tmp_path / "cut", quiet=True)
    assert facts(tmp_path / "cut") == facts(tmp_path / "whole")
    assert resumed.fingerprint == whole.fingerprint


def test_an_unfinished_run_keeps_its_first_k_and_may_have_more_steps(tmp_path: Path) -> None:
    chosen = group_settings(first_active=8)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(watched(clouds(), chosen, STEPS + 11, stop), chosen, tmp_path, quiet=True)
    with pytest.raises(InputError, match=r"other settings \(first_active\)"):
        train(clouds(), group_settings(), tmp_path, quiet=True)
    longer = replace(chosen, hash=replace(chosen.hash, steps=4 * STEPS))
    train(clouds(), longer, tmp_path, quiet=True)  # k rises to what it is there
    assert facts(tmp_path)[-2]["active"] == chosen.active
