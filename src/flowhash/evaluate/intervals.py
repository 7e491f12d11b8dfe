"""Intervals of the differences between methods: a paired bootstrap over queries, and over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.evaluate.compare import TOPS, Draws, Trial
from flowhash.evaluate.results import Leads, Row, compared, rival_name
from flowhash.quality import percentile_interval, resampled_sums

Place = tuple[str, str, int | None, int]  # method, table, k, seed


def with_intervals(trials: Sequence[Trial]) -> list[Trial]:
    """The same trials of one table, whose rows have intervals.

    All methods see the same draws of the queries, so that every difference is a paired one.

    Args:
        trials: exhaustive search among them; all answered the same queries.
    """
    parts = [np.stack([*trial.found.right.values(), trial.found.counts], axis=1)
             for trial in trials]  # fmt: skip
    sums = np.split(resampled_sums(np.concatenate(parts, axis=1)), len(trials), axis=1)
    draws = {
        place_of(trial.row): _values(trial.row, part)
        for trial, part in zip(trials, sums, strict=True)
    }
    rows = [trial.row for trial in trials]
    return [
        replace(
            trial, row=_with_intervals(trial.row, rows, draws), draws=draws[place_of(trial.row)]
        )
        for trial in trials
    ]


def place_of(row: Row) -> Place:
    """What tells a row from all others of an experiment."""
    return row.method, row.table, row.k, row.seed


def _values(row: Row, sums: NDArray[np.float64]) -> Draws:
    """Pr@K in per cent and SUF of each draw, from the sums of right ones and of items scanned."""
    found = {
        f"pr{top}": 100 * sums[:, place] / (top * row.queries) for place, top in enumerate(TOPS)
    }
    others = row.suf * row.scanned if row.scanned else row.suf / row.queries  # see _Sums._speed_up
    return {**found, "suf": others * row.queries / np.maximum(sums[:, -1], 1)}


def _exhaustive(row: Row) -> Place:
    return "exhaustive", row.table, None, row.seed


def _with_intervals(row: Row, rows: Sequence[Row], draws: Mapping[Place, Draws]) -> Row:
    less = _differences(draws[place_of(row)], draws[_exhaustive(row)])
    ends: dict[str, Any] = {}
    for top in TOPS:
        ends[f"pr{top}_low"], ends[f"pr{top}_high"] = less[f"pr{top}"]
    return replace(row, leads=_leads(row, rows, draws), **ends)


def _differences(ours: Draws, theirs: Draws) -> dict[str, list[float]]:
    return {name: list(percentile_interval(ours[name] - theirs[name])) for name in ours}


def _leads(row: Row, rows: Sequence[Row], draws: Mapping[Place, Draws]) -> Leads:
    return {
        rival_name(other, row): _differences(draws[place_of(row)], draws[place_of(other)])
        for other in compared(row, rows)
    }


def over_seeds(rows: Sequence[Row], draws: Mapping[Place, Draws], seed: int = 0) -> list[Row]:
    """The same rows, with intervals over seeds where a method was run with several.

    Every draw of the queries, the same for all seeds, is put together with a draw of as many seeds
    with replacement, the same for all methods: the mean over these seeds of one method, minus that
    of another. Three seeds are few: such an interval knows little of what a fourth would change.

    Args:
        rows: of all tables, methods, k and seeds.
        draws: of each row, from ``Trial.draws``.
        seed: of the draws of seeds.
    """
    seeds = sorted({row.seed for row in rows})
    if len(seeds) < 2:
        return list(rows)
    some = next(iter(next(iter(draws.values())).values()))
    picks = np.random.default_rng(seed).integers(0, len(seeds), (len(seeds), len(some)))
    pooled: dict[Place, Draws] = {}
    for method, table, k in {(row.method, row.table, row.k) for row in rows}:
        places = [(method, table, k, each) for each in seeds]
        if not all(place in draws for place in places):
            continue
        for name in draws[places[0]]:
            stacked = np.stack([draws[place][name] for place in places])
            mean = np.take_along_axis(stacked, picks, axis=0).mean(axis=0)
            for place in places:
                pooled.setdefault(place, {})[name] = mean
    return [_over_seeds(row, rows, pooled) for row in rows]


def _over_seeds(row: Row, rows: Sequence[Row], pooled: Mapping[Place, Draws]) -> Row:
    known = [other for other in rows if place_of(other) in pooled]
    if place_of(row) not in pooled or _exhaustive(row) not in pooled:
        return row
    less = _differences(pooled[place_of(row)], pooled[_exhaustive(row)])
    return replace(row, over_seeds={"exhaustive": less, **_leads(row, known, pooled)})
