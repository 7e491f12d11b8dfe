"""``HashTable.health``: what it tells against what was done to the table, and brute force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from flowhash import HashTable
from flowhash.errors import InputError
from flowhash.table import HealthReport, open_buckets
from tests.table.test_recall import BUCKETS, DIM, ITEMS, filled, worlds


def actions(report: HealthReport) -> list[str]:
    return [one.action for one in report.findings]


@given(loads=st.lists(st.integers(0, 300), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_loads_are_told_as_numpy_tells_them(loads: list[int]) -> None:
    table = HashTable.create(buckets=len(loads), dim=2)
    codes = np.repeat(np.arange(len(loads)), loads)[:, None]
    table.add(codes, np.zeros((len(codes), 2), np.float32))
    report = table.health()
    counted = np.array(loads)
    held = counted[counted > 0]
    assert report.items == counted.sum()
    assert report.empty == (counted == 0).sum()
    assert report.load_mean == pytest.approx(held.mean() if len(held) else 0)
    wanted = counted.std() / counted.mean() if counted.sum() else 0
    assert report.load_variation == pytest.approx(wanted)
    full = [place for place in range(len(loads)) if counted[place] > max(32, 4 * report.load_mean)]
    assert sorted(report.to_split) == full
    assert counted[list(report.to_split)].tolist() == sorted(counted[full], reverse=True)
    assert report.uneven == (len(held) > 0 and bool(held.std() > held.mean()))
    uneven = report.uneven and counted.max() > 32
    assert ("adapt" in actions(report)) == (bool(full) or uneven)
    assert ("calibrate" in actions(report)) == bool(counted.sum() and len(loads) > 1)
    assert (report.calibrated, report.drift, report.measured) == (None, (), 0)


@pytest.mark.parametrize("active", [1, 2])
def test_a_table_as_it_was_calibrated_is_well(active: int) -> None:
    table = filled(active)
    queries, activations = worlds(1, 1_000)
    known = table.calibrate(activations, queries, tops=(1, 5))
    plain = table.health()
    assert plain.findings == ()
    assert plain.calibrated == ITEMS
    assert [one.before for one in plain.drift] == [cost for cost in known.costs() if cost.top == 5]
    for one in plain.drift:  # the loads are the same
        assert one.scanned == pytest.approx(one.before.scanned)
        assert (one.reached, one.opened, one.error) == (None, None, None)
    fresh, outputs = worlds(2, 400)
    measured = table.health(outputs, fresh)
    assert measured.findings == ()
    assert measured.measured == 400
    for one in measured.drift:
        hits = table.search(outputs, fresh, 5, recall=one.before.recall)
        true = table.search(outputs, fresh, 5, recall=1)
        shared = [
            len({*found} & {*wanted}) / 5
            for found, wanted in zip(hits.ids.tolist(), true.ids.tolist(), strict=True)
        ]
        assert one.reached == pytest.approx(np.mean(shared))
        assert one.error == pytest.approx(np.std(shared, ddof=1) / 20)
        assert one.scanned == pytest.approx(hits.scanned.mean() / ITEMS)
        assert one.opened == pytest.approx(hits.opened.mean())


def test_stored_items_do_not_find_themselves() -> None:
    table = filled()
    known = table.calibrate(*worlds(1, 500)[::-1])
    vectors, activations = worlds(0, ITEMS)
    some = np.arange(0, ITEMS, 40)
    report = table.health(activations[some], vectors[some], own=some)
    order = np.tile(np.arange(BUCKETS, dtype=np.int32), (len(some), 1))
    true = table.search(order, vectors[some], 11, probe=BUCKETS).ids
    for one in report.drift:
        order, opened = open_buckets(
            activations[some], table.bucket_loads(), known.temperature,
            known.threshold(one.before.recall, 10),
        )  # fmt: skip
        hits = table.search(order, vectors[some], 11, probe=opened).ids
        shared = [
            len(({*line} & {*wanted}) - {own}) / 10
            for line, wanted, own in zip(hits.tolist(), true.tolist(), some.tolist(), strict=True)
        ]
        assert one.reached == pytest.approx(np.mean(shared))


def test_items_from_elsewhere_are_noticed(tmp_path: Path) -> None:
    with filled(path=tmp_path / "table") as table:
        queries, activations = worlds(1, 500)
        table.calibrate(activations, queries)
        # All in one bucket, and far from where the network would look for them.
        random = np.random.default_rng(7)
        strange = (worlds(3, 900)[0] + 0.2 * random.normal(size=(900, DIM))).astype(np.float32)
        table.add(np.zeros((900, 1), np.int32), strange)
        report = table.health()
        assert (report.changed, report.old, report.calibrated) == (900, True, ITEMS)
        assert report.to_split == (0,)
        ratio = np.square(table.bucket_loads() / len(table)).sum() / table.calibration.concentration  # type: ignore[union-attr]
        assert ratio > 1.25
        for one in report.drift:
            assert one.scanned == pytest.approx(min(1, ratio * one.before.scanned))
        assert actions(report) == ["calibrate", "adapt", "adapt"]
        assert "900 items were added or deleted" in report.findings[0].words
        assert "as far as the loads of the buckets tell" in report.findings[1].words
        found = table.health(*worlds(2, 400)[::-1])
        short = [one for one in found.findings if "nearest now" in one.words]
        assert [one.action for one in short] == ["calibrate"]
        assert all(one.reached < one.before.recall - 0.05 for one in found.drift if one.reached)
        table.calibrate(activations, queries)
        again = table.health(*worlds(2, 400)[::-1])
        assert (again.changed, again.old) == (0, False)
        assert actions(again) == ["adapt", "adapt"]  # the full bucket is still there
        assert "first calibrated" in again.findings[0].words
        table.delete(np.arange(2_000))
        assert actions(table.health())[-1] == "compact" or table.stats().deleted < 1_000
        table.compact()
        assert "compact" not in actions(table.health())


def test_what_a_later_calibration_takes_for_usual_is_compared_with_the_first(
    tmp_path: Path,
) -> None:
    """Items came that lie between the buckets: recall is right again, the scan is not."""
    centres = np.random.default_rng(99).normal(size=(BUCKETS, DIM))
    random = np.random.default_rng(8)

    def few(count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        rows = centres[random.integers(0, 12, count)] + 1.5 * random.normal(size=(count, DIM))
        outputs = 3 * (rows @ centres.T - np.square(centres).sum(axis=1) / 2)
        return outputs.astype(np.float32), rows.astype(np.float32)

    def calibrate(table: HashTable) -> None:
        (old, rows), (new, more) = worlds(1, 333)[::-1], few(667)
        table.calibrate(np.concatenate([old, new]), np.concatenate([rows, more]))

    with filled(path=tmp_path / "table") as table:
        first = table.calibrate(*worlds(1, 1_000)[::-1])
        assert first.start is None
        table.calibrate(*worlds(2, 1_000)[::-1])  # by other queries, of the same items
        assert actions(table.health()) == []
        outputs, rows = few(2 * ITEMS)
        table.add(np.argsort(-outputs, axis=1)[:, :1], rows)
        assert actions(table.health()) == ["calibrate"]  # so far the loads alone are known
        calibrate(table)
    with HashTable.open(tmp_path / "table", "r+") as table:
        known = table.calibration
        assert known is not None
        assert known.start is not None
        assert known.start.costs == tuple(first.costs())
        report = table.health()
        assert (report.old, report.to_split, report.uneven) == (False, (), False)
        [finding] = report.findings
        assert finding.action == "adapt"
        ratios = {
            one.before.recall: one.scanned / known.at_start(one.before) for one in report.drift
        }
        assert np.mean([ratios[recall] for recall in (0.8, 0.9, 0.95)]) > 1.25
        worst = max((0.8, 0.9, 0.95), key=ratios.__getitem__)
        assert finding.words.startswith(f"a recall of {worst:g} scans ")
        assert "when these buckets were first calibrated" in finding.words
        # By items of the table, of which the first queries say nothing, the loads tell.
        own = table.sample(1_000, 0)[1]
        vectors = np.stack([item.embedding for item in own])
        outputs = (3 * (vectors @ centres.T - np.square(centres).sum(axis=1) / 2)).astype(
            np.float32
        )
        known = table.calibrate(outputs, vectors, own=[item.id for item in own])
        assert known.start is not None
        wider = known.concentration / first.concentration
        for cost in known.costs():
            assert known.at_start(cost) == pytest.approx(cost.scanned / wider)
        assert (actions(table.health()) == ["adapt"]) == (wider > 1.25)
        # New codes begin anew.
        table.recode(lambda rows: np.argsort(-few(len(rows))[0], axis=1)[:, :1], None)
        calibrate(table)
        assert table.calibration is not None
        assert table.calibration.start is None


def test_a_calibration_that_cannot_be_read_is_replaced() -> None:
    table = filled()
    known = table.calibrate(*worlds(1, 100)[::-1])
    for damaged in ({"version": 1}, {**known.to_json(), "start": {"costs": 3}}):
        table.note("recall", damaged)
        with pytest.raises(InputError, match=r"cannot be read .*calibrate it again"):
            table.health()
        assert table.calibrate(*worlds(1, 100)[::-1]) == known


def test_uneven_loads_are_adapted_although_no_bucket_is_far_above_the_mean() -> None:
    table = HashTable.create(buckets=6, dim=1)
    codes = np.repeat([0, 1, 2, 3], [400, 10, 10, 10])[:, None]
    table.add(codes, np.zeros((430, 1), np.float32))
    report = table.health()
    assert (report.to_split, report.uneven) == ((), True)
    assert actions(report) == ["calibrate", "adapt"]
    assert "more than their mean of 107.5; the fullest has 400" in report.findings[1].words


def test_only_what_can_be_done_is_told() -> None:
    single = HashTable.create(buckets=1, dim=1)
    single.add(np.zeros((300, 1), np.int32), np.zeros((300, 1), np.float32))
    assert single.health().findings == ()  # its bucket holds whatever is asked for
    table = HashTable.create(buckets=8, dim=DIM)
    for items, words in ((1, "1 item is too few"), (49, "49 items are too few"), (50, "")):
        table.add(np.arange(items)[:, None] % 8, worlds(0, items)[0], range(items))
        [finding] = table.health().findings
        assert finding.action == "calibrate"
        assert ("50 queries from elsewhere" in finding.words) == bool(words)
        assert words in finding.words
    table.delete(range(50))
    assert table.health().findings == ()


def test_an_earlier_calibration_tells_no_scan() -> None:
    table = filled()
    made = table.calibrate(*worlds(1, 500)[::-1])
    noted = made.to_json()
    del noted["concentration"]
    table.note("recall", noted)
    assert table.calibration is not None
    assert table.calibration.concentration == 0
    assert table.health().drift == ()
    assert table.health().findings == ()


def test_arguments_that_do_not_fit() -> None:
    table = filled()
    queries, activations = worlds(1, 60)
    for given_ in ((activations, None), (None, queries)):
        with pytest.raises(InputError, match="do not fit"):
            table.health(*given_)
    with pytest.raises(InputError, match="do not fit"):
        table.health(own=[1])
    empty = HashTable.create(buckets=4, dim=2).health()
    assert (empty.items, empty.empty, empty.findings) == (0, 4, ())


def test_too_few_queries_and_wrong_shapes_are_said_of_every_table() -> None:
    table = filled()
    queries, activations = worlds(1, 60)
    for calibrated in (False, True):
        if calibrated:
            table.calibrate(activations, queries)
        for count in (0, 1, 29):
            came = "there is 1 query" if count == 1 else f"there are {count} queries"
            with pytest.raises(InputError, match=f"{came}; expected 30 or more.*Give more$"):
                table.health(activations[:count], queries[:count])
        with pytest.raises(InputError, match=f"there are {count + 30} queries and activations of"):
            table.health(activations, queries[: count + 30])
        with pytest.raises(InputError, match="activations has shape"):
            table.health(activations[:, 1:], queries)
        with pytest.raises(InputError, match="queries has shape"):
            table.health(activations, queries[:, 1:])
        assert table.health(activations, queries).measured == (60 if calibrated else 0)
