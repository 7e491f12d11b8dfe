"""A recall that is asked for: which buckets are opened for it, and whether it is reached."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from flowhash import HashTable
from flowhash.cli.output import in_words
from flowhash.errors import InputError, OldCalibrationWarning
from flowhash.table.recall_calibration import (
    RecallCalibration,
    exponential_sum,
    holds_enough,
    open_buckets,
)
from tests.table.test_search import make_codes

BUCKETS, DIM, ITEMS = 48, 8, 4_000


def worlds(seed: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Vectors around 48 centres that overlap, and their affinities to the centres."""
    centres = np.random.default_rng(99).normal(size=(BUCKETS, DIM))
    generator = np.random.default_rng(seed)
    near = centres[generator.integers(0, BUCKETS, count)]
    vectors = near + 0.8 * generator.normal(size=(count, DIM))
    activations = 3 * (vectors @ centres.T - np.square(centres).sum(axis=1) / 2)
    return vectors.astype(np.float32), activations.astype(np.float32)


def filled(active: int = 1, path: Path | None = None) -> HashTable:
    vectors, activations = worlds(0, ITEMS)
    table = HashTable.create(path, buckets=BUCKETS, dim=DIM, active=active)
    table.add(np.argsort(-activations, axis=1)[:, :active], vectors)
    return table


def realised(table: HashTable, recall: float, top: int, seed: int = 5) -> tuple[float, Any]:
    """The recall of queries that the calibration never saw, by brute force, and their hits."""
    queries, activations = worlds(seed, 600)
    stored = np.concatenate([part.embeddings for part in table.batches()])
    ids = np.concatenate([part.ids for part in table.batches()])
    wide = stored.astype(np.float64)
    squares = np.square(queries[:, None, :].astype(np.float64) - wide[None]).sum(axis=2)
    nearest = ids[np.argsort(squares, axis=1, kind="stable")[:, :top]]
    hits = table.search(activations, queries, top, recall=recall)
    shared = [
        len({*found} & {*true})
        for found, true in zip(hits.ids.tolist(), nearest.tolist(), strict=True)
    ]
    return float(np.mean(shared)) / top, hits


@pytest.mark.parametrize("active", [1, 2])
@pytest.mark.parametrize("top", [1, 10])
def test_the_recall_asked_for_is_reached_with_fewer_items(active: int, top: int) -> None:
    table = filled(active)
    queries, activations = worlds(1, 1_000)
    calibration = table.calibrate(activations, queries, tops=(1, 10))
    before = 0.0
    for recall in (0.8, 0.9, 0.95, 0.99):
        reached, hits = realised(table, recall, top)
        assert abs(reached - recall) < 0.03 or reached > recall == 0.8  # one bucket is opened
        assert hits.recall == recall
        share, opened = calibration.expected(recall, top)
        assert share == pytest.approx(hits.scanned.mean() / ITEMS, rel=0.15)
        assert opened == pytest.approx(hits.opened.mean(), rel=0.15)
        assert before < hits.scanned.mean() < 0.7 * ITEMS
        before = float(hits.scanned.mean())


def test_a_fixed_number_of_buckets_scans_more_at_the_same_recall() -> None:
    table = filled()
    queries, activations = worlds(1, 1_000)
    table.calibrate(activations, queries)
    reached, hits = realised(table, 0.95, 10)
    asked, given_ = worlds(5, 600)
    order = np.argsort(-given_, axis=1).astype(np.int32)
    everything = table.search(order, asked, 10, probe=BUCKETS).ids
    for probe in range(1, BUCKETS):
        fixed = table.search(order, asked, 10, probe=probe)
        shared = [len({*a} & {*b}) for a, b in zip(fixed.ids, everything, strict=True)]
        if np.mean(shared) / 10 >= reached:
            break
    assert hits.scanned.mean() < 0.95 * fixed.scanned.mean()
    assert len(set(hits.opened.tolist())) > 3  # some queries need more than others


def test_one_opens_everything_and_hits_equal_brute_force_over_what_is_opened() -> None:
    table = filled(2)
    table.calibrate(*worlds(1, 200)[::-1])
    reached, hits = realised(table, 1, 10)
    assert reached == 1
    assert (hits.scanned == ITEMS).all()
    queries, activations = worlds(7, 40)
    found = table.search(activations, queries, 5, recall=0.9)
    assert table.calibration is not None
    threshold = table.calibration.threshold(0.9, 5)
    order, opened = open_buckets(
        activations, table.bucket_loads(), table.calibration.temperature, threshold
    )
    assert found.opened.tolist() == opened.tolist()
    for query in range(40):  # one by one, each with a number of buckets of its own
        line = order[query, : opened[query]]
        alone = table.search(line[None], queries[query : query + 1], 5, probe=len(line))
        assert alone.ids.tolist() == found.ids[query : query + 1].tolist()
        assert alone.scanned[0] == found.scanned[query]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_buckets_are_opened_by_probability_over_share(data: Any) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    queries, buckets = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 9))
    activations = generator.normal(0, 3, (queries, buckets)).astype(np.float32)
    loads = generator.integers(0, 6, buckets)
    loads[0] += 1
    temperature = float(generator.uniform(0.2, 5))
    threshold = data.draw(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1e300]))
    everything = data.draw(st.booleans())
    order, opened = open_buckets(activations, loads, temperature, threshold, everything)
    with np.errstate(divide="ignore"):
        shares = np.log(loads / loads.sum())
    worth = log_softmax(activations.astype(np.float64) / temperature, axis=1) - shares
    worth[:, loads == 0] = -np.inf
    for query in range(queries):
        wanted = [each for each in np.argsort(-worth[query]) if worth[query, each] > -np.inf]
        kept = [each for each in wanted if worth[query, each] >= threshold] or wanted[:1]
        assert order[query, : opened[query]].tolist() == kept
        if everything:
            assert sorted(order[query].tolist()) == list(range(buckets))


def test_threads_and_company_change_no_bucket_and_ties_are_opened_by_number() -> None:
    generator = np.random.default_rng(3)
    loads = np.full(40, 7)
    activations = generator.integers(0, 4, (2_500, 40)).astype(np.float32)  # many are equal
    for threshold, everything in ((0.0, False), (-np.inf, False), (1e300, False), (0.5, True)):
        given = (loads, 0.5, threshold, everything)
        order, opened = open_buckets(activations, *given, threads=2)
        alone, one_by_one = open_buckets(activations, *given, threads=1)
        assert np.array_equal(order, alone)
        assert np.array_equal(opened, one_by_one)
        assert order.shape[1] == (40 if everything else opened.max())
        for query in (0, 1_249, 1_250, 2_499):
            lonely, count = open_buckets(activations[query : query + 1], *given)
            assert lonely[0].tolist() == order[query, : lonely.shape[1]].tolist()
            assert count[0] == opened[query]
            falling = np.argsort(-activations[query], kind="stable")
            assert order[query, : opened[query]].tolist() == falling[: opened[query]].tolist()
            assert everything or (order[query, opened[query] :] == -1).all()


def test_conformal_risk_control_counts_one_more_query_that_finds_nothing() -> None:
    misses = (0.5, 0.2, 0.1, 0.05, 0.0)
    known = RecallCalibration(
        1.0, 99, False, 10, misses, {10: (4.0, 3.0, 2.0, 1.0, 0.0)}, (4.0, 0.0), (0.1, 1.0), (1, 8)
    )
    # 100 allowed misses of 1,000 neighbours by 100 queries, of which one misses all 10.
    assert known.threshold(0.9, 10) == pytest.approx(
        np.interp((0.1 * 100 - 1) / 99, misses[::-1], (0.0, 1.0, 2.0, 3.0, 4.0))
    )
    assert known.threshold(0.9, 3) == known.threshold(0.9, 10)
    assert known.threshold(1, 10) == -np.inf
    with pytest.raises(InputError, match=r"promise up to 0.9900"):
        known.threshold(0.995, 10)
    with pytest.raises(InputError, match=r"up to 10 neighbours, not for 11"):
        known.threshold(0.9, 11)
    with pytest.raises(InputError, match=r"above 0, up to 1"):
        known.threshold(95, 10)


def test_stored_items_do_not_find_themselves() -> None:
    table = filled()
    vectors, activations = worlds(0, ITEMS)
    chosen = np.arange(0, ITEMS, 5)
    left_out = table.calibrate(activations[chosen], vectors[chosen], own=chosen)
    assert left_out.stored
    with_itself = table.calibrate(activations[chosen], vectors[chosen])
    # Finding itself is easy: with it, fewer buckets seem to do for the nearest one.
    assert left_out.expected(0.9, 1)[0] > 1.2 * with_itself.expected(0.9, 1)[0]
    reached, _ = realised(table, 0.9, 1)
    assert reached < 0.9
    table.calibrate(activations[chosen], vectors[chosen], own=chosen)
    reached, _ = realised(table, 0.9, 1)
    assert abs(reached - 0.9) < 0.04


def test_it_is_kept_on_disk_and_becomes_old(tmp_path: Path) -> None:
    queries, activations = worlds(1, 300)
    with filled(path=tmp_path / "table") as table:
        made = table.calibrate(activations, queries)
        json.dumps(table.notes(), allow_nan=False)
    with HashTable.open(tmp_path / "table", "r+") as table:
        assert table.calibration == made
        realised(table, 0.9, 10)
        vectors, outputs = worlds(3, 700)
        table.add(outputs.argmax(axis=1)[:, None], vectors)
        table.delete(np.arange(100))
        realised(table, 0.9, 10)  # a fifth may change before it is old
        table.delete(np.arange(100, 201))
        with pytest.warns(OldCalibrationWarning, match=r"901 items .* with 4000"):
            table.search(activations, queries, recall=0.9)
        table.calibrate(activations, queries)
        table.search(activations, queries, recall=0.9)
        table.recode(lambda rows: np.zeros((len(rows), 1), np.int32), None)
        assert table.calibration is None


def test_what_cannot_be_is_said_in_words() -> None:
    table = filled()
    queries, activations = worlds(1, 300)
    with pytest.raises(InputError, match=r"never calibrated.*calibrate it first"):
        table.search(activations, queries, recall=0.9)
    with pytest.raises(InputError, match=r"there are 49 queries; expected 50 or more.*Give more$"):
        table.calibrate(activations[:49], queries[:49])
    with pytest.raises(
        InputError, match=r"there are 9 queries, from the table; .* of its items, or"
    ):
        table.calibrate(activations[:9], queries[:9], own=range(9))
    with pytest.raises(InputError, match="not buckets in order"):
        table.calibrate(make_codes(np.random.default_rng(0), 300, BUCKETS, 5), queries)
    table.calibrate(activations, queries)
    with pytest.raises(InputError, match="together with probe;"):
        table.search(activations, queries, recall=0.9, probe=3)
    with pytest.raises(InputError, match="together with where"):
        table.search(activations, queries, recall=0.9, where=[1])
    activations[3, 2] = np.nan
    with pytest.raises(InputError, match=r"activations\[3\].*not finite"):
        table.search(activations, queries, recall=0.9)
    with pytest.raises(InputError, match="too few to search"):
        HashTable.create(buckets=BUCKETS, dim=DIM).calibrate(*worlds(1, 60)[::-1])


def test_each_query_may_open_a_number_of_buckets_of_its_own() -> None:
    table = filled(2)
    queries, activations = worlds(2, 50)
    order = np.argsort(-activations, axis=1).astype(np.int32)
    probe = np.random.default_rng(0).integers(1, 9, 50)
    for least in (None, 120):
        together = table.search(order, queries, 7, probe=probe, at_least=least)
        for query in range(50):
            alone = table.search(
                order[[query]], queries[[query]], 7, probe=int(probe[query]), at_least=least
            )
            assert alone.ids.tolist() == together.ids[[query]].tolist()
            assert alone.scanned[0] == together.scanned[query]
            assert alone.opened[0] == together.opened[query]
    for wrong in ([1], probe - 10, probe.astype(float), probe[:, None]):
        with pytest.raises(InputError, match="one for each query"):
            table.search(order, queries, 7, probe=wrong)
    with pytest.raises(InputError, match="the table has 48 buckets; expected 48"):
        table.search(order, queries, 7, probe=probe + 48)


def test_a_recall_that_is_no_number_and_other_numbers_of_neighbours_are_said() -> None:
    table = filled()
    queries, activations = worlds(1, 100)
    known = table.calibrate(activations, queries, tops=5)
    assert list(known.thresholds) == [5]
    for wrong in ("0.9", [0.9], np.array([0.9]), True, np.True_, 0, 1.5, float("nan"), 1j):
        with pytest.raises(InputError, match=r"recall is .* expected one number"):
            table.search(activations, queries, 5, recall=wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"recall is .* expected one number"):
            known.expected(wrong, 5)  # type: ignore[arg-type]
    for fine in (np.float32(0.9), np.array(0.9)):
        hits = table.search(activations, queries, 5, recall=fine)  # type: ignore[arg-type]
        assert type(hits.recall) is float
    for top in ("5", None, 2.5, True):
        with pytest.raises(InputError, match=r"top is .* expected a whole number"):
            table.search(activations, queries, top, recall=0.9)  # type: ignore[arg-type]
    for tops in ((), None, "5", [2.5], True, 0):
        with pytest.raises(InputError, match="tops is"):
            table.calibrate(activations, queries, tops=tops)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"or calibrate again with tops=\(6,\)") as said:
        known.threshold(0.9, 6)
    assert in_words(said.value).endswith("or calibrate again with --top 6")


def test_one_is_told_as_everything() -> None:
    table = filled()
    known = table.calibrate(*worlds(1, 200)[::-1])
    assert known.expected(1, 10) == (1.0, np.inf)


@pytest.mark.parametrize("what", ["calibrate", "health"])
def test_ids_of_the_queries_are_checked(what: str) -> None:
    table = filled()
    vectors, activations = (values[:60] for values in worlds(0, ITEMS))
    own = np.arange(60)
    table.calibrate(activations, vectors, own=own)
    call = getattr(table, what)
    call(activations, vectors, own=own)
    call(activations, vectors, own=own.tolist())
    for wrong, words in (
        (own[:-1], "own has 59 ids for 60 queries"),
        (True, "own is True; expected the ids of the 60 queries"),
        (own.astype(str), "own cannot be used: ids contain .*'0'"),
        (own[:, None], "own cannot be used: ids have shape"),
        (own + ITEMS - 59, f"own has {ITEMS}, which is not in the table"),
    ):
        with pytest.raises(InputError, match=words):
            call(activations, vectors, own=wrong)
    for asked in (vectors[:, 1:], vectors[0]):
        with pytest.raises(InputError, match="queries has shape"):
            call(activations, asked)


def test_names_of_the_queries_are_checked() -> None:
    vectors, activations = worlds(0, 80)
    names = [f"n{number}" for number in range(80)]
    table = HashTable.create(buckets=BUCKETS, dim=DIM, ids="string")
    table.add(activations.argmax(axis=1)[:, None], vectors, names)
    made = table.calibrate(activations, vectors, tops=3, own=names)
    again = table.calibrate(activations, vectors, tops=3, own=np.array(names, object))
    assert made == replace(again, start=None)
    with pytest.raises(InputError, match="own has 'm', which is not in the table"):
        table.calibrate(activations, vectors, own=[*names[:-1], "m"])


@pytest.mark.parametrize("what", ["calibrate", "health"])
@pytest.mark.parametrize("turn", [1, 2])
def test_a_table_that_is_emptied_meanwhile_is_named(
    what: str, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled()
    queries, activations = worlds(1, 60)
    table.calibrate(activations, queries)
    loads, turns = table.bucket_loads, iter(range(1, 9))

    def emptied() -> NDArray[np.int64]:
        if next(turns) == turn:
            table.delete(np.arange(ITEMS))
        return loads()

    monkeypatch.setattr(table, "bucket_loads", emptied)
    with pytest.raises(InputError, match="the table is empty"):
        getattr(table, what)(activations, queries)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-6, 1.0, 30.0, 1e4, 1e30]))
def test_sums_of_exponentials_are_those_of_scipy(seed: int, spread: float) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(0, spread, int(generator.integers(1, 70)))
    largest = float(values.max())
    found = largest + np.log(exponential_sum(values, largest))
    assert found == pytest.approx(logsumexp(values), rel=1e-13, abs=1e-12)


@pytest.mark.parametrize("active", [1, 2])
@pytest.mark.parametrize("at_least", [1, 60, 250, 3_000])
def test_at_least_opens_further_buckets_in_the_order_of_their_worth(
    active: int, at_least: int
) -> None:
    table = filled(active)
    found = table.calibrate(*worlds(1, 300)[::-1])
    queries, activations = worlds(3, 30)
    order, opened = open_buckets(
        activations, table.bucket_loads(), found.temperature, found.threshold(0.9, 10), True
    )
    wanted = table.search(order, queries, 10, probe=opened, at_least=at_least)
    hits = table.search(activations, queries, 10, recall=0.9, at_least=at_least)
    assert (hits.scanned >= at_least).all()
    for name in ("ids", "distances", "counts", "scanned", "opened"):
        np.testing.assert_array_equal(getattr(hits, name), getattr(wanted, name))
        for query in range(30):
            some = slice(query, query + 1)
            lone = table.search(activations[some], queries[some], 10, recall=0.9, at_least=at_least)
            np.testing.assert_array_equal(getattr(lone, name), getattr(wanted, name)[some])
    with pytest.raises(InputError, match="at_least is 0; expected a whole number from 1"):
        table.search(activations, queries, 10, recall=0.9, at_least=0)


@pytest.mark.parametrize("items", [1, 30, 400])
def test_one_bucket_reaches_every_recall_without_a_calibration(items: int) -> None:
    table = HashTable.create(buckets=1, dim=DIM)
    queries = worlds(2, 5)[0]
    table.add(np.zeros((items, 1), np.int32), worlds(0, items)[0])
    ones = np.zeros((5, 1), np.float32)
    wanted = table.search(np.zeros((5, 1), np.int32), queries, 7)
    for recall, at_least in ((0.5, None), (0.999, None), (1, None), (0.9, 3), (0.9, 10_000)):
        hits = table.search(ones, queries, 7, recall=recall, at_least=at_least)
        assert hits.recall == recall
        np.testing.assert_array_equal(hits.ids, wanted.ids)
        assert (hits.scanned == items).all()
    with pytest.raises(InputError, match="recall is 2; expected one number"):
        table.search(ones, queries, 7, recall=2)
    with pytest.raises(InputError, match="expected the network's outputs"):
        table.search(np.zeros((5, 3), np.float32), queries, 7, recall=0.9)


def test_between_two_calibrated_numbers_the_next_larger_one_keeps_the_promise() -> None:
    table = filled()
    known = table.calibrate(*worlds(1, 1_000)[::-1])
    assert sorted(known.thresholds) == [1, 5, 10, 20, 50, 100]
    for top, larger in ((2, 5), (11, 20), (12, 20), (21, 50), (51, 100)):
        assert known.threshold(0.95, top) == known.threshold(0.95, larger)
        reached, hits = realised(table, 0.95, top)
        assert reached > 0.95 - 0.015
        assert known.expected(0.95, top)[0] == pytest.approx(hits.scanned.mean() / ITEMS, rel=0.15)
    assert known.expected(0.95, 11)[0] < known.expected(0.95, 100)[0]


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_what_was_found_once_is_found_again(data: Any) -> None:
    """However often and in whatever order thresholds and costs are asked for."""
    known = filled_calibration()
    recall = data.draw(st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
    top = data.draw(st.integers(1, 12))
    fresh = RecallCalibration.from_json(json.loads(json.dumps(known.to_json())))
    assert known.threshold(recall, top) == fresh.threshold(recall, top)
    assert known.expected(recall, top) == fresh.expected(recall, top)


@functools.cache
def filled_calibration() -> RecallCalibration:
    return filled().calibrate(*worlds(1, 300)[::-1], tops=(1, 4, 12))


def test_items_in_two_opened_buckets_are_not_counted_twice() -> None:
    loads = np.array([50, 50, 60, 60])

    def enough(order: list[list[int]], opened: list[int], active: int, at_least: int) -> bool:
        lines = np.array(order, np.int32), np.array(opened, np.int32)
        return holds_enough(loads, *lines, active, at_least)

    assert enough([[0, 1]], [2], 1, 100)
    assert not enough([[0, 1]], [2], 1, 101)
    assert enough([[0, 1]], [2], 2, 50)
    assert not enough([[0, 1]], [2], 2, 51)  # the same fifty may be in both
    assert enough([[0, 1], [2, -1]], [2, 1], 1, 60)
    assert not enough([[0, 1], [2, -1]], [2, 1], 1, 61)  # what is not opened does not count
    assert not enough([[0, 1], [2, -1]], [2, 1], 2, 60)
