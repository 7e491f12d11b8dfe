"""Curves of recall against what is scanned, beside loops, the table itself and FAISS."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flowhash import HashTable
from flowhash.codes import ordered_buckets
from flowhash.errors import MissingExtraError
from flowhash.evaluate import Comparison, Side, write_evaluation
from flowhash.evaluate.comparison import faiss_index, recall_curves as room
from flowhash.evaluate.comparison.comparison import EncodedSource, Trial, run_all
from flowhash.evaluate.comparison.recall_curves import recall_curves
from flowhash.evaluate.output.report_page import render_report
from flowhash.evaluate.results import Outcome, RecallCurves, RecallPoint, Report
from tests.evaluate import report_pages as pages

BUCKETS, SEED = 12, 3


def cloud(items: int, seed: int) -> Side:
    """Points whose hash network cuts them by lines through the plane, not by their middles."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(items, 5)).astype(np.float32)
    cuts = np.random.default_rng(0).normal(size=(5, BUCKETS))
    labels = (points[:, 0] > 0).astype(np.int64)
    return Side(points, labels, (points @ cuts).astype(np.float32))


class _Source(EncodedSource):
    def __init__(self, database: Side, queries: Side | None) -> None:
        self.database, self.queries = database, queries

    def sides(self, active: int | None) -> tuple[Side, Side | None]:
        return self.database, self.queries

    def train(self) -> Side | None:
        return None

    def encoder(self, active: int | None) -> Any:
        base = SimpleNamespace(passes_through=True, backbone=None)
        apart = SimpleNamespace(shared=False, chained=False)
        return SimpleNamespace(base=base, hash=SimpleNamespace(unit=False), networks=apart)


Compared = tuple[Comparison, list[Trial]]


def compared(
    items: int, queries: int | None, active: tuple[int, ...] = (1,), buckets: int = BUCKETS
) -> Compared:
    source = _Source(cloud(items, 1), None if queries is None else cloud(queries, 2))
    return run_all("test", source, active, buckets, 2)


@pytest.fixture(scope="module", params=[(1, False), (1, True), (2, False), (2, True)])
def case(request: pytest.FixtureRequest) -> Compared:
    """Items in one bucket or two, asked by others or by themselves."""
    active, itself = request.param
    return compared(420, None if itself else 300, (active, 3 - active))


@dataclasses.dataclass
class Divided:
    """What a person would ask with, from the division that the words promise."""

    known: np.ndarray
    asked: np.ndarray
    own: np.ndarray | None
    truth: np.ndarray
    queries: Side
    items: int


def divided(comparison: Comparison) -> Divided:
    """Half of the queries for the calibration; the ten nearest of the others by all distances."""
    drawn = np.random.default_rng(SEED).permutation(len(comparison.queries))
    half = len(drawn) // 2
    known, asked = np.sort(drawn[:half]), np.sort(drawn[half:])
    vectors = comparison.queries.embeddings.astype(float)[asked]
    gaps = np.square(vectors[:, None] - comparison.database.embeddings.astype(float)).sum(2)
    if comparison.itself:
        gaps[np.arange(len(asked)), asked] = np.inf
    return Divided(
        known, asked, asked if comparison.itself else None,
        np.argsort(gaps, axis=1, kind="stable")[:, :10], comparison.queries.rows(asked),
        len(comparison.database) - comparison.itself,
    )  # fmt: skip


def of(trials: list[Trial], method: str) -> Trial:
    return next(each for each in trials if each.row.method == method and len(each.index))


def share_found(ids: np.ndarray, truth: np.ndarray) -> float:
    lines = zip(ids.tolist(), truth.tolist(), strict=True)
    return sum(len(set(one) & set(other)) for one, other in lines) / truth.size


@settings(max_examples=60, deadline=None)
@given(
    items=st.integers(3, 25), queries=st.integers(1, 6), buckets=st.integers(2, 7),
    active=st.integers(1, 3), itself=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_number_of_opened_buckets_is_counted_by_loops(
    items: int, queries: int, buckets: int, active: int, itself: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    active = min(active, buckets)
    codes, order = (
        np.stack([rng.permutation(buckets) for _ in range(count)]).astype(np.int32)
        for count in (items, queries)
    )
    codes = np.sort(codes[:, :active], axis=1)
    own = rng.integers(0, items, queries) if itself else None
    truth = np.stack([
        rng.permutation([item for item in range(items) if own is None or item != own[query]])[:2]
        for query in range(queries)
    ])  # fmt: skip
    reach = room._Reach(codes, order, truth, own, items - itself)
    found, scanned = np.zeros((queries, buckets)), np.zeros((queries, buckets))
    for query in range(queries):
        for number in range(1, buckets + 1):
            opened = set(order[query, :number].tolist())
            inside = [item for item in range(items) if opened & set(codes[item].tolist())]
            found[query, number - 1] = len(set(truth[query].tolist()) & set(inside)) / 2
            others = [item for item in inside if own is None or item != own[query]]
            scanned[query, number - 1] = len(others) / (items - itself)
    np.testing.assert_allclose(reach.found, found)
    np.testing.assert_allclose(reach.shares, scanned)
    probes = reach.probes()
    assert [point.setting for point in probes] == list(range(1, buckets + 1))
    for place, point in enumerate(probes):
        assert point.recall == pytest.approx(found[:, place].mean())
        assert point.scanned == pytest.approx(scanned[:, place].mean())
        assert point.opened == place + 1
    opened = rng.integers(1, buckets + 1, queries).astype(np.int32)
    point = reach.point(opened, -0.5, 0.9)
    lines = range(queries)
    assert point.recall == pytest.approx(np.mean([found[q, opened[q] - 1] for q in lines]))
    assert point.scanned == pytest.approx(np.mean([scanned[q, opened[q] - 1] for q in lines]))
    assert (point.setting, point.opened, point.asked) == (-0.5, opened.mean(), 0.9)


def test_the_fixed_probe_is_what_the_table_finds(case: Compared) -> None:
    comparison, trials = case
    curves, told = recall_curves(comparison, trials, SEED), divided(comparison)
    ours = of(trials, "flowhash")
    assert (curves.table, curves.k) == ("test", ours.method.active)
    assert (curves.items, curves.queries) == (told.items, len(told.asked))
    order = ordered_buckets(ours.method.activations(told.queries))
    line = curves.points["flowhash-probe"]
    assert [point.setting for point in line] == list(range(1, len(line) + 1))
    assert line[-1].recall == 1
    assert all(point.recall < 1 for point in line[:-1])
    for point in line:
        hits = ours.index.table.search(
            order, told.queries.embeddings, 10 + comparison.itself, probe=int(point.setting)
        )
        hits = hits if told.own is None else hits.without(told.own)
        assert point.recall == pytest.approx(share_found(hits.ids, told.truth))
        assert point.scanned == pytest.approx(hits.scanned.mean() / told.items)


def test_the_calibrated_points_are_what_a_search_with_a_recall_finds(case: Compared) -> None:
    comparison, trials = case
    curves, told = recall_curves(comparison, trials, SEED), divided(comparison)
    ours = of(trials, "flowhash")
    assert ours.index.table.calibration is None  # the comparison notes nothing
    known, table = comparison.queries.rows(told.known), HashTable.create(
        buckets=BUCKETS, dim=5, active=ours.method.active
    )  # fmt: skip
    table.add(ours.index.codes, comparison.database.embeddings, np.arange(len(ours.index)))
    found = table.calibrate(
        known.activations, known.embeddings, tops=(10,),
        own=told.known if comparison.itself else None,
    )  # fmt: skip
    assert curves.calibrated == len(told.known)
    assert [point.asked for point in curves.asked] == [0.8, 0.9, 0.95, 0.99]
    assert len(curves.points["flowhash"]) > 8
    for point in (*curves.asked, *curves.points["flowhash"]):
        by_hand = by_threshold(ours, told, found.temperature, point.setting)
        assert (point.recall, point.scanned, point.opened) == pytest.approx(by_hand)
    for point in curves.asked:
        assert point.setting == found.threshold(point.asked, 10)
        assert point.recall > point.asked - 0.05
        if not comparison.itself:
            hits = table.search(
                told.queries.activations, told.queries.embeddings, 10, recall=point.asked
            )
            assert point.recall == pytest.approx(share_found(hits.ids, told.truth))
            assert point.scanned == pytest.approx(hits.scanned.mean() / told.items)
            assert point.opened == pytest.approx(hits.opened.mean())


def by_threshold(
    ours: Trial, told: Divided, temperature: float, threshold: float
) -> tuple[float, float, float]:
    """Recall, share scanned and buckets opened, by loops over queries and items."""
    loads = np.bincount(ours.index.codes.ravel(), minlength=ours.index.buckets)
    found, scanned, numbers = 0, 0, 0
    for query, outputs in enumerate(ours.method.activations(told.queries)):
        powers = np.exp((outputs - outputs.max()).astype(float) / temperature)
        worth = np.log(powers / powers.sum()) - np.log(loads / loads.sum())
        # A threshold is a neighbour's worth: the rounding must not decide.
        opened = set(np.flatnonzero(worth >= threshold - 1e-9).tolist()) or {int(worth.argmax())}
        inside = {item for item, code in enumerate(ours.index.codes.tolist()) if opened & set(code)}
        if told.own is not None:
            inside -= {int(told.own[query])}
        found += len(inside & set(told.truth[query].tolist()))
        scanned += len(inside)
        numbers += len(opened)
    queries = len(told.asked)
    return found / told.truth.size, scanned / queries / told.items, numbers / queries


def test_inverted_lists_are_those_of_faiss(case: Compared) -> None:
    comparison, trials = case
    curves, told = recall_curves(comparison, trials, SEED), divided(comparison)
    quantiser = faiss.IndexFlatL2(5)
    quantiser.add(of(trials, "ivf").method.centroids)
    index = faiss.IndexIVFFlat(quantiser, 5, BUCKETS)
    index.is_trained = True
    index.add(comparison.database.embeddings)
    for point in curves.points["ivf"]:
        index.nprobe = int(point.setting)
        faiss.cvar.indexIVF_stats.reset()
        ids = index.search(told.queries.embeddings, 10 + comparison.itself)[1]
        scanned = faiss.cvar.indexIVF_stats.ndis / len(told.asked) - comparison.itself
        assert point.scanned == pytest.approx(scanned / told.items)
        assert point.recall == pytest.approx(share_found(ids, told.truth))


def test_the_graph_is_that_of_faiss(case: Compared) -> None:
    comparison, trials = case
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(before + 1)
    curves, told = recall_curves(comparison, trials, SEED), divided(comparison)
    assert faiss.omp_get_max_threads() == before + 1  # torch has the same
    faiss.omp_set_num_threads(1)
    index = faiss.IndexHNSWFlat(5, 16)
    index.hnsw.efConstruction = 100
    index.add(comparison.database.embeddings)
    faiss.omp_set_num_threads(before)
    line = curves.points["hnsw"]
    assert [point.setting for point in line] == list(room.EFFORTS[: len(line)])
    for point in line:
        index.hnsw.efSearch = int(point.setting)
        found, counted = 0, 0
        for query, vector in enumerate(told.queries.embeddings):
            faiss.cvar.hnsw_stats.reset()
            ids = index.search(vector[None], 10 + comparison.itself)[1][0].tolist()
            counted += faiss.cvar.hnsw_stats.ndis
            if told.own is not None and told.own[query] in ids:
                ids.remove(told.own[query])
                counted -= 1
            found += len(set(ids[:10]) & set(told.truth[query].tolist()))
        assert point.recall == pytest.approx(found / told.truth.size)
        assert point.scanned == pytest.approx(counted / len(told.asked) / told.items)


def test_the_same_seed_gives_the_same_curves_and_asks_few() -> None:
    comparison, trials = compared(300, 260)
    assert recall_curves(comparison, trials, 5) == recall_curves(comparison, trials, 5)
    assert recall_curves(comparison, trials, 5) != recall_curves(comparison, trials, 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "CALIBRATED", 60)
        patch.setattr(room, "ASKED", 70)
        curves = recall_curves(comparison, trials, 5)
    assert (curves.calibrated, curves.queries) == (60, 70)


def test_items_in_several_buckets_are_looked_at_for_fewer_queries(monkeypatch: Any) -> None:
    comparison, trials = compared(300, 260, (2,))
    monkeypatch.setattr(room, "UNIONS", 300 * 2 * 80)
    assert recall_curves(comparison, trials).queries == 80
    comparison, trials = compared(300, 260)
    assert recall_curves(comparison, trials).queries == 130


def test_what_is_left_out_is_said(monkeypatch: Any) -> None:
    """FAISS, queries, lists or time that are not there: the rest is, and the page says so."""
    curves = recall_curves(*compared(300, 90))
    assert set(curves.points) == {"flowhash-probe", "ivf", "hnsw"}
    assert (curves.asked, curves.calibrated, curves.queries) == ((), 0, 45)
    assert curves.words == (
        "Nothing is calibrated: there are 90 queries, and it takes 100, half of them for the "
        "figures.",
    )
    page = pages.read(render_report(Report("x", (), recall_curves=[curves])))
    assert curves.words[0] in pages.section(page, "Recall against items scanned").words
    assert page.all("table") == []

    few = compared(300, 160, buckets=301)
    curves = recall_curves(*few)
    assert curves.words == (
        "So few queries promise a recall of up to 0.985; higher ones are left out.",
        "IVF is left out: there are fewer items than buckets.",
    )
    assert [point.asked for point in curves.asked] == [0.8, 0.9, 0.95]

    monkeypatch.setattr(room, "GRAPH_ITEMS", 299)
    assert recall_curves(*few).words[-1] == (
        "HNSW is left out: a graph of more than 299 items takes long."
    )
    monkeypatch.undo()

    def require(module: str, extra: str) -> Any:
        raise MissingExtraError(f"no {module}")

    monkeypatch.setattr(faiss_index, "require", require)
    curves = recall_curves(*few)
    assert "hnsw" not in curves.points
    assert curves.words[-1] == "HNSW is left out: FAISS is not installed."
    text = render_report(Report("x", (), recall_curves=[curves]))
    assert "HNSW is left out: FAISS is not installed." in text


def test_a_curve_is_read_between_its_points() -> None:
    places = ((0.5, 0.1), (0.7, 0.2), (0.65, 0.25), (0.7, 0.3), (0.9, 1))
    points = tuple(RecallPoint(recall, scanned, 1) for recall, scanned in places)
    curves = RecallCurves("test", 1, 10, 10, 0, {"ivf": points})
    assert curves.scanned_at("ivf", 0.6) == pytest.approx(0.15)
    assert curves.scanned_at("ivf", 0.7) == pytest.approx(0.2)
    assert curves.scanned_at("ivf", 0.2) == 0.1  # the least that it can
    assert curves.scanned_at("ivf", 0.8) == pytest.approx(0.6)
    assert curves.scanned_at("ivf", 0.91) is None


@pytest.fixture(scope="module")
def shown() -> pages.Element:
    return pages.section(pages.read(pages.full_page()), "Recall against items scanned")


def test_the_chart_has_its_points_where_the_numbers_are(shown: pages.Element) -> None:
    drawn = next(
        svg for svg in shown.all("svg") if svg.attributes["aria-label"].startswith("Test table: ")
    )
    words = {part.words for part in drawn.all("text")}
    assert {"FlowHash, one threshold", "FlowHash, fixed probe", "IVF, fixed probe", "HNSW"} <= words
    assert {"80", "90", "95", "recall@10 (%)", "items scanned (%)"} <= words
    curves = pages.recall_curves("test")
    marks = [part for part in drawn.all("g") if "-asked-" in part.attributes.get("id", "")]
    assert [mark.all("title")[0].words for mark in marks] == [
        "asked for 80 %, reached 81.2 %, scanned 3.12 % of the items",
        "asked for 90 %, reached 92.3 %, scanned 4.56 % of the items",
        "asked for 95 %, reached 98.8 %, scanned 7.89 % of the items",
    ]
    blue = [
        use for use in drawn.all("use") if "#0072b2" in use.attributes.get("style", "").lower()
    ][:4]  # the rest is legend
    placed = [*(mark.all("use")[0] for mark in marks), *blue]
    points = [*curves.asked, *curves.points["hnsw"]]
    for axis, values in (
        ("x", np.log([point.scanned for point in points])),
        ("y", np.array([point.recall for point in points])),
    ):
        found = np.array([float(use.attributes[axis]) for use in placed])
        slope, start = np.polyfit(values, found, 1)
        assert (slope > 0) == (axis == "x")  # SVG counts from the top
        np.testing.assert_allclose(slope * values + start, found, atol=0.01)


def test_the_table_has_asked_reached_and_what_the_others_scan(shown: pages.Element) -> None:
    curves = pages.recall_curves("train")
    table = shown.all("table")[0]
    assert "a calibration by 567 other queries" in table.all("caption")[0].words
    assert [head.words for head in table.all("thead")[0].all("th")] == [
        "asked", "reached", "buckets", "scanned", "fixed probe", "IVF", "HNSW",
    ]  # fmt: skip
    lines = [
        [cell.words for cell in (*line.all("th"), *line.all("td"))]
        for line in table.all("tbody")[0].all("tr")
    ]
    assert [line[:4] for line in lines] == [
        ["80", "81.2", "2.2", "3.12"], ["90", "92.3", "4.5", "4.56"], ["95", "98.8", "7.7", "7.89"]
    ]  # fmt: skip
    for line, point in zip(lines[:2], curves.asked, strict=False):
        for cell, name in zip(line[4:], ("flowhash-probe", "ivf", "hnsw"), strict=True):
            assert cell == f"{100 * (curves.scanned_at(name, point.recall) or 0):.2f}"
    assert lines[2][4:] == ["–", "–", "–"]
    assert shown.words.count("One recall is left out.") == 2
    assert "1,234 queries among 9,998 items, FlowHash with k = 1" in shown.words


def test_the_points_and_the_table_are_written(tmp_path: Path) -> None:
    curves = pages.recall_curves("test")
    outcome = Outcome(pages.rows(("test",), (1,)), recall_curves=[curves])
    written = write_evaluation(outcome, tmp_path, "A title", "command", "stem")
    assert [path.name for path in written] == [
        "stem.json", "stem.csv", "stem-recall.json", "stem-recall.md", "stem.html",
    ]  # fmt: skip
    lines = json.loads(written[2].read_text())
    assert len(lines) == 4 * 4 + 3
    last = {name: lines[-1][name] for name in ("table", "k", "items", "queries", "calibrated")}
    assert last == {"table": "test", "k": 1, "items": 9998, "queries": 1234, "calibrated": 567}
    for name, points in {**curves.points, "flowhash-asked": curves.asked}.items():
        found = [
            RecallPoint(**{field: line[field] for field in dataclasses.asdict(points[0])})
            for line in lines
            if line["curve"] == name
        ]
        assert tuple(found) == points
    page = written[3].read_text("utf-8")
    assert page.startswith("# A title: recall against items scanned\n")
    assert "\n| 80 | 81.2 | 2.2 | 3.12 | " in page
    assert "\n| 95 | 98.8 | 7.7 | 7.89 | – | – | – |\n" in page
    assert "One recall is left out." in page
    plain = write_evaluation(Outcome(pages.rows(("test",), (1,))), tmp_path, "t", "c", "none")
    assert [path.name for path in plain] == ["none.json", "none.csv", "none.html"]
