"""``HealthReport``: how even a table is, what a recall takes now and took then, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.errors import InputError
from flowhash.table.recall_calibration import (
    FEWEST,
    OLD,
    CalibratedTable,
    RecallCalibration,
    RecallCost,
    changes_since,
    load_concentration,
    noted_calibration,
    open_buckets,
    read_own,
    read_trial,
    true_neighbours,
)
from flowhash.table.statistics import Stats

FEWEST_MEASURED = 30  # queries: of fewer, a mean and its error say too little
SPLIT = 4  # times the mean load of those that hold items: a bucket with more is one to split
FEW = 32  # items: no bucket with fewer is worth splitting
UNEVEN = 1.0  # loads vary by their mean: a query scans twice what it would in even buckets
SHORT = 0.01  # of a recall, beside twice its standard error: so much less is told
WIDER = 1.25  # times what was scanned at the calibration: so much more is told
DROPPED = 0.2  # of the rows deleted: from then on the table is worth compacting
SEGMENTS = 16  # likewise
USUAL_RECALL = (
    0.95  # up to which the scan of two calibrations is compared: beyond, few queries decide
)
USUAL_TOP = 10  # neighbours whose recall is looked at, or the nearest number that was calibrated


@dataclass(frozen=True)
class RecallDrift:
    """What a recall took at the calibration, and takes now.

    Attributes:
        before: at the calibration.
        scanned: the mean share of the table that is scanned now; where nothing was measured, told
            from the loads of the buckets alone.
        opened: the mean number of buckets that are opened now; None where nothing was measured.
        reached: the recall that was measured; None where nothing was.
        error: its standard error.
    """

    before: RecallCost
    scanned: float
    opened: float | None = None
    reached: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class HealthFinding:
    """Something that is to be done.

    Attributes:
        action: "calibrate", "adapt" or "compact".
        words: why.
    """

    action: str
    words: str


@dataclass(frozen=True)
class HealthReport:
    """How a table is; see :meth:`flowhash.HashTable.health`.

    Attributes:
        items: how many there are.
        deleted: rows that are deleted and still take space.
        segments: how many the items lie in.
        buckets: d.
        load_mean: items of a bucket on average, over those that hold any.
        load_variation: the loads' standard deviation by their mean, over all buckets.
        empty: buckets without items.
        uneven: whether the loads of buckets that hold items vary by more than their mean.
        to_split: buckets with more than four times ``load_mean``, the fullest first.
        calibrated: how many items the table had when recall was calibrated; None if it never was.
        changed: items added or deleted since, at the least.
        old: whether these are too many to rely on the calibration.
        measured: by how many queries recall was measured now; 0 where only loads were compared.
        drift: recalls then and now, the lowest first.
        findings: what to do, and why; nothing where all is well.
    """

    items: int
    deleted: int
    segments: int
    buckets: int
    load_mean: float
    load_variation: float
    empty: int
    uneven: bool
    to_split: tuple[int, ...]
    calibrated: int | None
    changed: int
    old: bool
    measured: int
    drift: tuple[RecallDrift, ...]
    findings: tuple[HealthFinding, ...]


class ExaminedTable(CalibratedTable, Protocol):
    """What a report asks of a table, of whatever engine."""

    def stats(self) -> Stats:
        """Figures of the table."""
        ...


def examine(
    table: ExaminedTable,
    activations: ArrayLike | None,
    queries: ArrayLike | None,
    own: Any,
    threads: int | None,
    encoder: str | None,
) -> HealthReport:
    """See :meth:`flowhash.HashTable.health`."""
    if (activations is None) != (queries is None) or (queries is None and own is not None):
        raise InputError(
            "activations, queries and own do not fit; expected activations and queries, with the "
            "ids in own where these are items of the table, or none of them"
        )
    trial = None
    if activations is not None and queries is not None:
        trial = read_trial(
            table, activations, queries, own is not None, FEWEST_MEASURED,
            "what they reach says something; without queries the loads alone are looked at",
        )  # fmt: skip
        own = read_own(table, own, len(trial[0]))
    # Others may change the table meanwhile: each is of a moment of its own.
    stats, loads, notes = table.stats(), table.bucket_loads(), table.notes()
    known, held = noted_calibration(notes), loads[loads > 0]
    mean = float(held.mean()) if len(held) else 0.0
    full = np.flatnonzero(loads > max(SPLIT * mean, FEW))
    drift: tuple[RecallDrift, ...] = ()
    changed = measured = 0
    if known is not None:
        changed = changes_since(known, notes, stats.items)
        if trial is not None and stats.items > (own is not None):
            drift = _measured(table, known, loads, stats.items, trial, own, threads, encoder)
            measured = len(trial[0])
        else:
            drift = _by_loads(known, loads, stats.items)
    report = HealthReport(
        items=stats.items,
        deleted=stats.deleted,
        segments=stats.segments,
        buckets=stats.buckets,
        load_mean=mean,
        load_variation=float(loads.std() / loads.mean()) if len(held) else 0.0,
        empty=stats.empty,
        uneven=bool(len(held)) and float(held.std()) > UNEVEN * mean,
        to_split=tuple(full[np.argsort(-loads[full], kind="stable")].tolist()),
        calibrated=None if known is None else known.items,
        changed=changed,
        old=known is not None and known.is_old(changed),
        measured=measured,
        drift=drift,
        findings=(),
    )
    found = tuple(_findings(report, known, int(loads.max(initial=0))))
    return HealthReport(**{**vars(report), "findings": found})


def _costs(known: RecallCalibration) -> list[RecallCost]:
    """What recalls took, for one number of neighbours."""
    smaller = [top for top in known.thresholds if top <= USUAL_TOP]
    top = max(smaller) if smaller else min(known.thresholds)
    return [cost for cost in known.costs() if cost.top == top]


def _by_loads(
    known: RecallCalibration, loads: NDArray[np.int64], items: int
) -> tuple[RecallDrift, ...]:
    """What is scanned grows as the buckets that items lie in do, about."""
    if not known.concentration or not items:
        return ()
    wider = load_concentration(loads, items) / known.concentration
    return tuple(RecallDrift(cost, min(1.0, wider * cost.scanned)) for cost in _costs(known))


def _measured(
    table: ExaminedTable,
    known: RecallCalibration,
    loads: NDArray[np.int64],
    items: int,
    trial: tuple[NDArray[np.float32], NDArray[Any]],
    own: Any,
    threads: int | None,
    encoder: str | None,
) -> tuple[RecallDrift, ...]:
    """Recall and scan of queries, with the thresholds of the calibration and the loads of now."""
    (activations, queries), costs, itself = trial, _costs(known), own is not None
    if not costs:
        return ()
    top = min(costs[0].top, items - itself)
    true = true_neighbours(table, queries, top, own, threads, encoder)
    there = np.arange(top) < true.counts[:, None]
    found = []
    for cost in costs:
        order, opened = open_buckets(
            activations, loads, known.temperature, known.threshold(cost.recall, cost.top)
        )
        hits = table.search(
            order, queries, top + itself, probe=opened, threads=threads, encoder=encoder
        )
        # An item itself, which is not among its true neighbours, has the place more.
        same = (true.ids[:, :, None] == hits.ids[:, None, :]).any(axis=2) & there
        reached = same.sum(axis=1) / np.maximum(true.counts, 1)
        found.append(
            RecallDrift(
                cost,
                float(hits.scanned.mean() / items),
                float(opened.mean()),
                float(reached.mean()),
                float(reached.std(ddof=1) / np.sqrt(len(reached))),
            )
        )
    return tuple(found)


def _findings(
    report: HealthReport, known: RecallCalibration | None, fullest: int
) -> Iterator[HealthFinding]:
    if report.items and report.buckets > 1:  # a single bucket holds whatever is asked for
        yield from _recall_findings(report, known)
        yield from _bucket_findings(report, known, fullest)
    rows = report.items + report.deleted
    if report.deleted > DROPPED * rows or report.segments > SEGMENTS:
        yield HealthFinding(
            "compact",
            f"{report.deleted:,} of {rows:,} rows are deleted and still take space, in "
            f"{report.segments:,} segments",
        )


def _recall_findings(
    report: HealthReport, known: RecallCalibration | None
) -> Iterator[HealthFinding]:
    """Why to calibrate."""
    few = ""
    if report.items < FEWEST:
        items = "1 item is" if report.items == 1 else f"{report.items:,} items are"
        few = f"; {items} too few to ask with, it takes {FEWEST} queries from elsewhere"
    if known is None:
        yield HealthFinding(
            "calibrate",
            "recall was never calibrated: no recall can be asked for, and nobody knows what a "
            f"search misses{few}",
        )
    elif report.old:
        yield HealthFinding(
            "calibrate",
            f"{report.changed:,} items were added or deleted since recall was calibrated, with "
            f"{known.items:,}: more than {OLD:.0%}{few}",
        )
    short = [
        one
        for one in report.drift
        if one.reached is not None
        and one.before.recall - one.reached > SHORT + 2 * (one.error or 0)
    ]
    if short and known is not None:
        worst = max(short, key=lambda one: one.before.recall - (one.reached or 0))
        kind = "" if known.stored else ", although these are no queries like those it was set by"
        yield HealthFinding(
            "calibrate",
            f"a recall of {worst.before.recall:g} finds {worst.reached:.3f} of the "
            f"{worst.before.top} nearest now, measured by {report.measured:,} queries{kind}{few}",
        )


def _bucket_findings(
    report: HealthReport, known: RecallCalibration | None, fullest: int
) -> Iterator[HealthFinding]:
    """Why to adapt."""
    wider = [one for one in report.drift if one.scanned > WIDER * one.before.scanned]
    if wider:
        worst = max(wider, key=lambda one: one.scanned / one.before.scanned)
        told = "" if report.measured else ", as far as the loads of the buckets tell"
        yield HealthFinding(
            "adapt",
            f"a recall of {worst.before.recall:g} scans {worst.scanned:.2%} of the items, at the "
            f"calibration {worst.before.scanned:.2%}{told}",
        )
    elif known is not None and (grown := _grown(report, known)):
        yield HealthFinding("adapt", grown)
    if report.to_split:
        count = len(report.to_split)
        who = "1 bucket holds" if count == 1 else f"{count:,} buckets hold"
        yield HealthFinding(
            "adapt",
            f"{who} more than {SPLIT} times the mean of {report.load_mean:,.1f} items; the "
            f"fullest, {report.to_split[0]}, has {fullest:,}",
        )
    elif report.uneven and fullest > FEW:
        yield HealthFinding(
            "adapt",
            f"the loads of buckets that hold items vary by more than their mean of "
            f"{report.load_mean:,.1f}; the fullest has {fullest:,}",
        )


def _grown(report: HealthReport, known: RecallCalibration) -> str:
    """How much more recalls scan than when these buckets were first calibrated; "" if not much."""
    pairs = [
        (one, known.at_start(one.before))
        for one in report.drift
        if one.before.recall <= USUAL_RECALL
    ]
    if not pairs or known.start is None:
        return ""
    if np.mean([one.scanned / first for one, first in pairs]) <= WIDER:
        return ""
    worst, first = max(pairs, key=lambda pair: pair[0].scanned / pair[1])
    return (
        f"a recall of {worst.before.recall:g} scans {worst.scanned:.2%} of the items, when these "
        f"buckets were first calibrated {first:.2%}"
    )
