"""Each method's buckets against what its name says, and the line-up on a table."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from scipy import stats
from sklearn.linear_model import LogisticRegression

from flowhash.codes import topk_codes
from flowhash.errors import InputError, MissingExtraError
from flowhash.evaluate import (
    Classifier,
    Comparison,
    Exhaustive,
    InvertedLists,
    Learned,
    LearnedAlone,
    Method,
    Side,
    Start,
    TopDimensions,
    VectorQuantisation,
)
from flowhash.evaluate.comparison import (
    faiss_index,
    methods as methods_room,
    methods as rooms,
    stopwatch,
)
from flowhash.evaluate.comparison.comparison import EncodedSource, run_all, some_buckets
from flowhash.evaluate.comparison.methods import fit_centroids, fit_classifier


def clusters(items: int = 300, classes: int = 6, dim: int = 5, seed: int = 0) -> Side:
    """Points around class middles; a classifier and a hash network that are mostly right."""
    middles = np.random.default_rng(7).normal(size=(classes, dim))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, items)
    embeddings = (middles[labels] + 0.5 * rng.normal(size=(items, dim))).astype(np.float32)
    scores = (-((embeddings[:, None] - middles[None]) ** 2).sum(axis=2)).astype(np.float32)
    activations = np.concatenate([scores, scores[:, :2] - 0.5], axis=1)
    return Side(embeddings, labels, activations, scores)


def test_codes_are_what_the_names_say() -> None:
    side = clusters(40)
    assert side.scores is not None
    assert side.activations is not None
    for k in (1, 2, 3):
        largest = np.sort(np.argsort(-side.embeddings, axis=1, kind="stable")[:, :k], axis=1)
        assert (topk_codes(TopDimensions(k).activations(side), k) == largest).all()
    likeliest = Classifier().activations(side).argmax(axis=1)
    assert (likeliest == side.scores.argmax(axis=1)).all()
    assert (Learned(1).activations(side) == side.activations).all()
    assert (LearnedAlone(1).embeddings(side) == side.activations).all()
    assert (Exhaustive().activations(side) == 0).all()
    assert Exhaustive().k is None
    assert InvertedLists(8, 10.0, itself=False, active=3).k == 3


class Halved(Learned):
    """A method of one's own, which a table shows under another k."""

    name = "halved"

    @property
    def k(self) -> int | None:
        return self.active // 2


def test_a_method_of_ones_own_says_its_k() -> None:
    trial = Comparison("test", clusters(60), None, 6).run(Halved(2))
    assert (trial.row.method, trial.row.k) == ("halved", 1)


@pytest.mark.parametrize("train", [False, True])
def test_vector_quantisation_takes_the_nearest_centroids(train: bool) -> None:
    database, other = clusters(200), clusters(150, seed=1)
    method = VectorQuantisation(2, 8, other if train else None)
    method.fit(database, database)
    assert method.centroids is not None
    assert method.name == ("vq-train" if train else "vq")
    assert ("training set" if train else "searched table") in method.note
    expected = fit_centroids((other if train else database).embeddings, 8, 0)
    np.testing.assert_array_equal(method.centroids, expected)
    codes = topk_codes(method.activations(database), 2)
    gaps = ((database.embeddings[:, None] - method.centroids[None]) ** 2).sum(axis=2)
    nearest = np.sort(np.argsort(gaps, axis=1)[:, :2], axis=1)
    assert (codes == nearest).all()


def test_inverted_lists_answer_as_faiss_does() -> None:
    """The same centroids in FAISS's own index, the same number of lists opened: the same items."""
    database, queries = clusters(500), clusters(60, seed=1)
    method = InvertedLists(16, scanned=100.0, itself=False)
    comparison = Comparison("test", database, queries, 6)
    trial = comparison.run(method)
    assert method.probe is not None
    quantiser = faiss.IndexFlatL2(5)
    quantiser.add(method.centroids)
    index = faiss.IndexIVFFlat(quantiser, 5, 16)
    index.is_trained = True
    index.add(database.embeddings)
    index.nprobe = method.probe
    _, theirs = index.search(queries.embeddings, 4)
    ours = comparison.answers(trial, np.arange(60), 4)
    full = (theirs >= 0).all(axis=1)
    assert full.sum() > 50
    assert (ours[full] == theirs[full]).mean() > 0.99
    # As near as a whole number of lists can come to what was asked for.
    scanned = {}
    for probe in range(1, 17):
        order = np.argsort(-method.activations(queries), axis=1, kind="stable")[:, :probe]
        lists = method.activations(database).argmax(axis=1)
        scanned[probe] = np.mean([np.isin(lists, opened).sum() for opened in order])
    assert min(scanned, key=lambda probe: abs(scanned[probe] - 100.0)) == method.probe
    assert trial.row.scanned == pytest.approx(scanned[method.probe])
    assert trial.row.k == 1


class _Source(EncodedSource):
    def __init__(self, database: Side, queries: Side | None, train: Side | None) -> None:
        self.database, self.queries, self.training = database, queries, train

    def sides(self, active: int | None) -> tuple[Side, Side | None]:
        return self.database, self.queries

    def train(self) -> Side | None:
        return self.training

    def encoder(self, active: int | None) -> Any:
        """Base and hash network that share nothing, of outputs that have length one."""
        base = SimpleNamespace(passes_through=False, backbone=None)
        apart = SimpleNamespace(shared=False, chained=False)
        return SimpleNamespace(base=base, hash=SimpleNamespace(unit=True), networks=apart)


class _Turned(_Source):
    """Each k has a hash network of its own, which names the buckets otherwise."""

    def _turned(self, side: Side, active: int | None) -> Side:
        if active is None or side.activations is None:
            return side
        turned = np.roll(side.activations, 3 * active, axis=1)
        return Side(side.embeddings, side.labels, turned, side.scores)

    def sides(self, active: int | None) -> tuple[Side, Side | None]:
        asked = None if self.queries is None else self._turned(self.queries, active)
        return self._turned(self.database, active), asked


def test_pictures_have_the_answers_of_their_own_network() -> None:
    """The report shows for k = 1 what the table at k = 1 returns, though k = 2 came last."""
    database, queries = clusters(200), clusters(30, seed=1)
    source = _Turned(database, queries, None)
    comparison, trials = run_all("test", source, (1, 2), 8, 6)
    ours = next(trial for trial in trials if (trial.row.method, trial.row.k) == ("flowhash", 1))
    found = comparison.answers(ours, np.arange(30), 1)[:, 0]
    assert 100 * (database.labels[found] == queries.labels).mean() == pytest.approx(ours.row.pr1)
    assert ours.row.pr1 > 80
    buckets = some_buckets(trials)[0]
    assert buckets.name == "FlowHash, k = 1, test table"
    assert buckets.counts.sum() == 200


def test_where_the_hash_network_ranks_th_is_left_out() -> None:
    class Alone(_Source):
        def encoder(self, active: int | None) -> Any:
            made = super().encoder(active)
            made.base, made.hash = None, made.base
            return made

    _, trials = run_all("test", Alone(clusters(60), None, None), (1,), 8, 6)
    assert "th" not in {trial.row.method for trial in trials}
    few, small = run_all("test", _Source(clusters(40), None, None), (1,), 64, 6)
    assert {trial.row.method for trial in small} == {
        "exhaustive", "flowhash", "flowhash-own", "th", "classifier",
    }  # fmt: skip
    assert few.table == "test"


def test_without_faiss_there_is_no_time_of_it(monkeypatch: Any) -> None:
    def require(module: str, extra: str) -> Any:
        raise MissingExtraError(f"no {module}")

    monkeypatch.setattr(faiss_index, "require", require)
    comparison = Comparison("test", clusters(60), None, 6)
    row = comparison.run(InvertedLists(8, 10.0, True)).row
    assert row.flat is None
    assert row.seconds > 0


def test_the_classifier_finds_the_classes() -> None:
    side = clusters(600)
    unit = side.embeddings / np.linalg.norm(side.embeddings, axis=1, keepdims=True)
    classifier = fit_classifier(unit, side.labels, 6)
    found = classifier.scores(unit).argmax(axis=1)
    reference = LogisticRegression(max_iter=1000).fit(unit, side.labels).predict(unit)
    assert (found == side.labels).mean() > (reference == side.labels).mean() - 0.03
    assert (classifier.weights == fit_classifier(unit, side.labels, 6).weights).all()


class Watched:
    """Vectors that count how often each was asked for, and in how many batches."""

    def __init__(self, count: int) -> None:
        self.rows = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
        self.shape, self.seen = self.rows.shape, np.zeros(count, np.int64)
        self.batches: list[int] = []

    def __getitem__(self, chosen: Any) -> Any:
        if isinstance(chosen, np.ndarray):
            np.add.at(self.seen, chosen, 1)
            self.batches.append(len(chosen))
        return self.rows[chosen]


@settings(max_examples=5, deadline=None)
@given(count=st.integers(1, 2_000))
@example(count=513)
@example(count=90_000)  # of whom a limit of 3,000 batches left out a seventh of each epoch
def test_the_classifier_sees_every_item_equally_often(count: int) -> None:
    watched = Watched(count)
    labels = np.arange(count) % 3
    fit_classifier(watched, labels, 3)  # type: ignore[arg-type]
    assert len(set(watched.seen.tolist())) == 1
    assert watched.seen[0] >= 20
    assert max(watched.batches) <= 512
    assert max(watched.batches) - min(watched.batches) <= 1
    assert len(watched.batches) >= 300
    if count > 512 * 15:  # larger sets get the same number of epochs
        assert watched.seen[0] == 20


def test_without_faiss_scikit_learn_finds_centroids(monkeypatch: Any) -> None:
    def require(module: str, extra: str) -> Any:
        if module == "faiss":
            raise MissingExtraError("no faiss")
        return original(module, extra)

    original = rooms.require
    monkeypatch.setattr(rooms, "require", require)
    points = clusters(400, classes=4).embeddings
    found = fit_centroids(points, 4)
    assert found.shape == (4, 5)
    error = ((points[:, None] - found[None]) ** 2).sum(axis=2).min(axis=1).mean()
    assert error < ((points - points.mean(axis=0)) ** 2).sum(axis=1).mean() / 2


def test_errors_say_what_is_missing() -> None:
    bare = Side(np.zeros((3, 2), np.float32), np.zeros(3, np.int64))
    with pytest.raises(InputError, match="no scores of a classifier"):
        Classifier().activations(bare)
    with pytest.raises(InputError, match="no activations of a hash network"):
        Learned(1).activations(bare)
    with pytest.raises(InputError, match="no activations of a hash network's start"):
        Start(1).activations(bare)
    with pytest.raises(InputError, match="call fit first"):
        VectorQuantisation(1, 2).activations(bare)
    with pytest.raises(InputError, match="3 items for 4 centroids"):
        fit_centroids(bare.embeddings, 4)
    with pytest.raises(InputError, match="3 embeddings and 2 labels"):
        Side(np.zeros((3, 2), np.float32), np.zeros(2, np.int64))


def hits(side: Side, method: Method, top: int) -> tuple[list[int], list[int]]:
    """Of each item among the others: right ones of the first K, items scanned; by loops."""
    activations, embeddings = method.activations(side), method.embeddings(side)
    codes = [set(code) for code in topk_codes(activations, method.active).tolist()]
    right, scanned = [], []
    for query in range(len(side)):
        order = np.argsort(-activations[query], kind="stable").tolist()
        others = [item for item in range(len(side)) if item != query]
        opened = method.active
        found = [item for item in others if codes[item] & set(order[:opened])]
        scanned.append(len(found))
        while len(found) < top:
            opened += 1
            found = [item for item in others if codes[item] & set(order[:opened])]
        gaps = ((embeddings[found] - embeddings[query]) ** 2).sum(axis=1)
        nearest = np.array(found)[np.argsort(gaps, kind="stable")[:top]]
        right.append(int((side.labels[nearest] == side.labels[query]).sum()))
    return right, scanned


def brute_force(side: Side, method: Method, top: int) -> tuple[float, float]:
    """Pr@K and SUF of each item among the others, for methods without further lists."""
    right, scanned = hits(side, method, top)
    return 100 * sum(right) / (top * len(side)), (len(side) - 1) * len(side) / sum(scanned)


def test_the_line_up_through_one_table() -> None:
    side = clusters(120)
    comparison, trials = run_all("test", _Source(side, None, clusters(90, seed=2)), (1, 2), 8, 6)
    names = [(trial.row.k, trial.row.method) for trial in trials]
    every = ["th", "vq", "vq-train", "ivf", "classifier", "flowhash", "flowhash-own"]
    assert names == [(None, "exhaustive"), *((k, name) for k in (1, 2) for name in every)]
    for trial in trials:
        row = trial.row
        assert (row.table, row.items, row.queries) == ("test", 120, 120)
        assert row.nmi is None or row.k == 1
        if row.method != "ivf":
            precision, speed_up = brute_force(side, trial.method, 4)
            assert row.pr4 == pytest.approx(precision)
            assert row.suf == pytest.approx(speed_up)
            assert row.scanned == pytest.approx(119 / speed_up)
        assert row.seconds > 0
        assert (row.flat is None) == (row.method == "flowhash-own")  # it has vectors of its own
        assert row.flat is None or row.flat > 0
        assert (row.expected is None) == (row.method == "ivf")
    exhaustive, ours = trials[0].row, trials[6].row
    assert exhaustive.suf == 1.0
    assert (exhaustive.recall1, exhaustive.recall16) == (100, 100)
    assert ours.passes == 2
    assert trials[7].row.passes == 1
    answers = comparison.answers(trials[0], np.array([3, 5]), 4)
    for query, found in zip((3, 5), answers, strict=True):
        gaps = ((side.embeddings - side.embeddings[query]) ** 2).sum(axis=1)
        gaps[query] = np.inf
        assert set(found.tolist()) == set(np.argsort(gaps)[:4].tolist())


def test_the_start_stands_beside_every_k() -> None:
    """Its row is that of a hash network with the start's outputs, and nobody else's changes."""
    side = clusters(120)
    started = Side(side.embeddings, side.labels, side.activations, side.scores, side.scores)
    _, trials = run_all("test", _Source(started, None, None), (1, 2), 8, 6)
    rows = {(trial.row.method, trial.row.k): trial.row for trial in trials}
    for k in (1, 2):
        start, classifier = rows["start", k], rows["classifier", k]
        assert (start.suf, start.pr1, start.pr16) == (
            classifier.suf, classifier.pr1, classifier.pr16,
        )  # fmt: skip
        assert start.passes == rows["flowhash", k].passes == 2
        assert "start" in rows["flowhash", k].leads
    _, plain = run_all("test", _Source(side, None, None), (1, 2), 8, 6)
    assert "start" not in {trial.row.method for trial in plain}


def test_intervals_are_those_of_scipy() -> None:
    """Differences of Pr@4 and of SUF to a rival, from hits by loops through scipy's bootstrap."""
    side = clusters(120)
    _, trials = run_all("test", _Source(side, None, None), (1, 2), 8, 6)
    rows = {(trial.row.method, trial.row.k): trial.row for trial in trials}
    ours = rows["flowhash", 2]
    assert set(ours.leads) == {"exhaustive", "th", "vq", "ivf", "classifier", "classifier, k = 1"}
    assert (rows["exhaustive", None].pr4_low, rows["exhaustive", None].pr4_high) == (0, 0)
    assert rows["vq", 1].leads == {}

    def precision(one: Any, other: Any, axis: int) -> Any:
        return 100 * (one.mean(axis=axis) - other.mean(axis=axis)) / 4

    def speed_up(one: Any, other: Any, axis: int) -> Any:
        return 119 * (1 / one.mean(axis=axis) - 1 / other.mean(axis=axis))

    mine = hits(side, Learned(2), 4)
    for name, method in (("exhaustive", Exhaustive()), ("classifier, k = 1", Classifier(1))):
        theirs = hits(side, method, 4)
        for place, quantity, statistic in ((0, "pr4", precision), (1, "suf", speed_up)):
            expected = stats.bootstrap(
                (mine[place], theirs[place]), statistic, paired=True, method="percentile",
                n_resamples=2_000, random_state=np.random.default_rng(1),
            ).confidence_interval  # fmt: skip
            low, high = ours.leads[name][quantity]
            room = 0.15 * (expected.high - expected.low)
            assert low == pytest.approx(expected.low, abs=room)
            assert high == pytest.approx(expected.high, abs=room)
    assert [ours.pr4_low, ours.pr4_high] == ours.leads["exhaustive"]["pr4"]
    again = run_all("test", _Source(side, None, None), (1, 2), 8, 6)[1]
    assert [trial.row.leads for trial in again] == [trial.row.leads for trial in trials]


class _Other(_Source):
    """With embeddings of another length, λ = 0's activations and a classifier's own network."""

    other_length = "raw"
    scored_apart = True


def test_rows_by_the_other_length_and_without_a_penalty(monkeypatch: Any) -> None:
    rng = np.random.default_rng(5)
    side = clusters(80)
    assert side.activations is not None
    lengths = rng.uniform(0.2, 5, (80, 1)).astype(np.float32)
    side = replace(
        side,
        other=side.embeddings * lengths,
        free=rng.normal(size=side.activations.shape).astype(np.float32),
    )
    fitted: list[int] = []
    original = methods_room.fit_centroids

    def counted(embeddings: Any, count: int, seed: int = 0) -> Any:
        fitted.append(len(embeddings))
        return original(embeddings, count, seed)

    monkeypatch.setattr(methods_room, "fit_centroids", counted)
    _, trials = run_all("test", _Other(side, None, None), (1, 2), 8, 6)
    rows = {(trial.row.method, trial.row.k): trial.row for trial in trials}
    assert len(fitted) == 2  # of the table, of its other length: not once for every k
    # By hand: the nearest other item by each kind of vectors.
    for name, vectors in (("exhaustive", side.embeddings), ("exhaustive-raw", side.other)):
        assert vectors is not None
        gaps = np.square(vectors[:, None].astype(float) - vectors).sum(2)
        np.fill_diagonal(gaps, np.inf)
        right = side.labels[gaps.argmin(axis=1)] == side.labels
        assert rows[name, None].pr1 == pytest.approx(100 * right.mean())
    assert rows["exhaustive", None].pr1 != rows["exhaustive-raw", None].pr1  # the test can tell
    for k in (1, 2):
        for name, outputs in (("flowhash", side.activations), ("flowhash-free", side.free)):
            assert outputs is not None
            codes = [set(row) for row in np.argsort(-outputs, axis=1)[:, :k].tolist()]
            scanned = sum(bool(one & other) for one in codes for other in codes) - len(codes)
            assert rows[name, k].suf == pytest.approx(80 * 79 / scanned)
        trial = next(t for t in trials if (t.row.method, t.row.k) == ("vq-raw", k))
        centroids = trial.method.centroids  # type: ignore[attr-defined]
        gaps = np.square(side.other[:, None].astype(float) - centroids).sum(2)
        codes = [set(row) for row in np.argsort(gaps, axis=1)[:, :k].tolist()]
        scanned = sum(bool(one & other) for one in codes for other in codes) - len(codes)
        assert rows["vq-raw", k].suf == pytest.approx(80 * 79 / scanned)
    assert rows["flowhash", 1].suf != rows["flowhash-free", 1].suf  # the test can tell
    passes = {name: row.passes for (name, k), row in rows.items() if k in (None, 1)}
    assert passes["classifier"] == passes["flowhash"] == passes["flowhash-free"] == 2
    assert passes["vq"] == passes["exhaustive-raw"] == 1


@pytest.mark.parametrize(
    ("seconds", "turns"), [(0.001, stopwatch.SHORT_TURNS), (0.2, stopwatch.TURNS)]
)
def test_what_is_short_is_timed_more_often(
    seconds: float, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, calls = [0.0], []

    def work() -> None:
        calls.append(1)
        clock[0] += seconds * len(calls)  # every turn takes longer

    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: clock[0])
    found = stopwatch.median_seconds(work)
    assert len(calls) == turns + 1  # one before that does not count
    assert found == pytest.approx(seconds * (turns + 3) / 2)
