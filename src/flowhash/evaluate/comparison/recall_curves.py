"""Recall against items scanned: FlowHash with its calibrated points, IVF and HNSW, on one table.

A neighbour is found exactly where a bucket that holds it is opened. So nothing is searched for
FlowHash and IVF: the place of each bucket in a query's order says what any number of opened ones
finds and scans.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import ordered_buckets
from flowhash.errors import MissingExtraError
from flowhash.evaluate.comparison.comparison import Comparison, Trial
from flowhash.evaluate.comparison.faiss_index import graph_answers, graph_index
from flowhash.evaluate.results import RECALL_TOP, RecallCurves, RecallPoint
from flowhash.table import RecallCalibration, calibrated, open_buckets

RECALLS = (0.8, 0.9, 0.95, 0.99)  # that the calibration is asked for
CALIBRATED = 1_000  # queries that set the thresholds, at most
ASKED = 2_000  # other queries that the figures are of, at most
LEAST = 50  # of either, for a calibration
UNIONS = 1_000_000_000  # codes that are looked at to count what several buckets hold, at most
LEVELS = 11  # every so many of the calibration's thresholds is tried
PROBES = 40  # numbers of opened buckets that are tried: all small ones, then by a factor
EFFORTS = (10, 16, 24, 36, 56, 80, 120, 180, 280, 400, 600)  # efSearch
GRAPH_ITEMS = 100_000  # of HNSW's graph, at most: it takes a minute to build


def recall_curves(comparison: Comparison, trials: Sequence[Trial], seed: int = 0) -> RecallCurves:
    """Recall of the nearest items against the share of the items that is scanned.

    The true nearest items are those that exhaustive search by the base embedding found for
    ``comparison``; its queries are divided by chance: a half, or ``CALIBRATED``, calibrates, of the
    others up to ``ASKED`` are measured.

    Args:
        comparison: the table and its queries, after ``run_all``.
        trials: of ``run_all``; those of its first k are compared.
        seed: of the division.
    """
    kept = {trial.row.method: trial for trial in trials if len(trial.index)}
    ours, ivf, exact = kept["flowhash"], kept.get("ivf"), comparison.exact
    assert exact is not None
    drawn = np.random.default_rng(seed).permutation(len(exact.ids))
    first, rest = np.split(drawn, [min(CALIBRATED, len(drawn) // 2)])
    sample = _Sample(comparison, ours, np.sort(rest[: _most(ours)]))
    points = {"flowhash-probe": sample.reach(ours, sample.order(ours)).probes()}
    asked: list[RecallPoint] = []
    words: list[str] = []
    if len(first) < LEAST:
        words.append(
            f"Nothing is calibrated: there are {len(drawn)} queries, and it takes {2 * LEAST}, "
            "half of them for the figures."
        )
    else:
        known = _calibration(comparison, ours, np.sort(first) * exact.every)
        points["flowhash"], asked = sample.thresholds(ours, known)
        if len(asked) < len(RECALLS):
            words.append(
                f"So few queries promise a recall of up to {known.highest:.3f}; higher ones are "
                "left out."
            )
    if ivf is None:
        words.append("IVF is left out: there are fewer items than buckets.")
    else:
        points["ivf"] = sample.reach(ivf, sample.order(ivf)).probes()
    if len(comparison.database) > GRAPH_ITEMS:
        words.append(f"HNSW is left out: a graph of more than {GRAPH_ITEMS:,} items takes long.")
    elif graph := sample.graph():
        points["hnsw"] = graph
    else:
        words.append("HNSW is left out: FAISS is not installed.")
    return RecallCurves(
        comparison.table, ours.method.active, sample.others, len(sample.chosen),
        len(first) if asked else 0,
        {name: _while_it_finds_more(line) for name, line in points.items()},
        tuple(asked), tuple(words),
    )  # fmt: skip


def _most(ours: Trial) -> int:
    """Queries that are measured, at most; every item is looked at where it may be in several."""
    codes = ours.index.codes
    return ASKED if codes.shape[1] == 1 else max(LEAST, min(ASKED, UNIONS // codes.size))


def _calibration(
    comparison: Comparison, ours: Trial, chosen: NDArray[np.int64]
) -> RecallCalibration:
    """What the table makes of these queries; nothing is noted in it."""
    side = ours.queries.rows(chosen)
    own = chosen if comparison.itself else None
    return calibrated(
        ours.index.table, ours.method.activations(side), ours.method.embeddings(side),
        (RECALL_TOP,), own, None, None,
    )  # fmt: skip


def _while_it_finds_more(line: Sequence[RecallPoint]) -> tuple[RecallPoint, ...]:
    """The points up to the first of those that find the most: what comes then only scans more."""
    return tuple(line[: 1 + int(np.argmax([point.recall for point in line]))])


class _Sample:
    """Queries whose nearest items are known.

    Args:
        comparison: the table and its queries.
        ours: FlowHash, by whose embeddings items are ranked.
        places: which of those that exhaustive search has answered.

    Attributes:
        chosen: their positions among the queries [q].
        own: their positions among the items, which are not looked for; None where they are none.
        truth: positions of the nearest items [q, top].
        others: items that a query can find.
    """

    def __init__(self, comparison: Comparison, ours: Trial, places: NDArray[np.int64]) -> None:
        exact = comparison.exact
        assert exact is not None
        self.chosen = places * exact.every
        self.own = self.chosen if comparison.itself else None
        self.truth = exact.ids[places, :RECALL_TOP]
        self.others = len(comparison.database) - comparison.itself
        self.database, self.side = comparison.database, ours.queries.rows(self.chosen)

    def order(self, trial: Trial) -> NDArray[np.int32]:
        """The buckets of each query, those with the largest outputs first [q, d]."""
        return ordered_buckets(trial.method.activations(self.side))

    def reach(self, trial: Trial, order: NDArray[np.int32]) -> _Reach:
        """What is found and scanned in a method's buckets, opened in this order."""
        return _Reach(trial.index.codes, order, self.truth, self.own, self.others)

    def thresholds(
        self, ours: Trial, known: RecallCalibration
    ) -> tuple[list[RecallPoint], list[RecallPoint]]:
        """The curve of one threshold for all queries, and the points of the recalls asked for."""
        activations, loads = ours.method.activations(self.side), ours.index.loads
        order, _ = open_buckets(activations, loads, known.temperature, 0.0, everything=True)
        reach = self.reach(ours, order)

        def point(threshold: float, asked: float | None = None) -> RecallPoint:
            _, opened = open_buckets(activations, loads, known.temperature, threshold)
            return reach.point(opened, threshold, asked)

        levels = known.thresholds[RECALL_TOP]
        curve = map(point, dict.fromkeys((*levels[::LEVELS], levels[-1])))
        asked = [
            point(known.threshold(cost.recall, RECALL_TOP), cost.recall)
            for cost in known.costs(RECALLS)
        ]
        return list(curve), asked

    def graph(self) -> list[RecallPoint]:
        """HNSW's curve, as long as more effort finds more; empty without FAISS."""
        try:
            index = graph_index(self.database.embeddings)
        except MissingExtraError:
            return []
        found: list[RecallPoint] = []
        for effort in EFFORTS:
            ids, compared = graph_answers(
                index, self.side.embeddings, RECALL_TOP + (self.own is not None), effort
            )
            if self.own is not None:  # to the end of its line, if it is there, and out
                itself = ids == self.own[:, None]
                compared -= float(itself.any(axis=1).mean())
                ids = np.take_along_axis(ids, np.argsort(itself, axis=1, kind="stable"), 1)
            there = (ids[:, :RECALL_TOP, None] == self.truth[:, None]).any(axis=1)
            recall = float(there.mean())
            if found and recall <= found[-1].recall:
                break
            found.append(RecallPoint(recall, compared / self.others, effort))
        return found


class _Reach:
    """What queries find and scan that open buckets in an order, after each of them.

    Args:
        codes: of the items [n, k].
        order: all buckets, for each query [q, d].
        truth: positions of its nearest items [q, top].
        own: its position among the items, which is not counted; None where it is none of them.
        others: items that it can find.
    """

    def __init__(
        self,
        codes: NDArray[np.int32],
        order: NDArray[np.int32],
        truth: NDArray[np.int64],
        own: NDArray[np.int64] | None,
        others: int,
    ) -> None:
        self.rows, buckets = np.arange(len(order)), order.shape[1]
        places = np.empty_like(order)  # of each bucket in the query's order
        np.put_along_axis(places, order, np.arange(buckets, dtype=np.int32)[None], 1)

        def first(items: NDArray[np.int64]) -> NDArray[np.int32]:
            """The place of the first bucket that holds each item [q, m]."""
            return np.asarray(places[self.rows[:, None, None], codes[items]].min(axis=2))

        found = np.zeros(order.shape)
        np.add.at(found, (self.rows[:, None], first(truth)), 1 / truth.shape[1])
        if codes.shape[1] == 1:
            scanned = np.bincount(codes[:, 0], minlength=buckets)[order]
        else:  # an item is scanned once, whichever of its buckets are opened
            scanned = np.stack([
                np.bincount(np.minimum.reduce([line[column] for column in codes.T]),
                            minlength=buckets)
                for line in places
            ])  # fmt: skip
        if own is not None:
            scanned[self.rows, first(own[:, None])[:, 0]] -= 1
        self.found, self.shares = found.cumsum(axis=1), scanned.cumsum(axis=1) / others

    def point(
        self, opened: NDArray[np.int32], setting: float, asked: float | None = None
    ) -> RecallPoint:
        """The means, where each query opens so many buckets [q]."""
        last = self.rows, opened - 1
        recall = round(float(self.found[last].mean()), 12)  # tenths do not add up to one
        return RecallPoint(
            recall, float(self.shares[last].mean()), setting, float(opened.mean()), asked
        )

    def probes(self) -> list[RecallPoint]:
        """The points where all queries open the same number of buckets."""
        queries, buckets = self.found.shape
        numbers = np.unique(np.geomspace(1, buckets, PROBES).round().astype(int)).tolist()
        return [self.point(np.full(queries, number), number) for number in numbers]
