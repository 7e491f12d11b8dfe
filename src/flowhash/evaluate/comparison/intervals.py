"""Intervals of the differences between methods: a paired bootstrap over queries, t over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from flowhash.evaluate.comparison.comparison import TOPS, Trial
from flowhash.evaluate.results import Draws, Leads, Row, compared, rival_name
from flowhash.quality import CONFIDENCE_LEVEL, percentile_interval, resampled_sums

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
    others = row.suf * row.scanned if row.scanned else row.suf / row.queries  # see measure's SUF
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


def over_seeds(rows: Sequence[Row], draws: Mapping[Place, Draws]) -> list[Row]:
    """The same rows, with intervals over seeds where a method was run with several.

    A difference of two methods varies with the queries and with the training. Its mean over the
    seeds has two variances: that over draws of the queries, which all seeds share, from the
    bootstrap; and that of the seeds' differences over their number. Both together make an interval
    with Student's t, whose degrees of freedom are Welch and Satterthwaite's: with three seeds it is
    wide unless the queries are what varies.

    Args:
        rows: of all tables, methods, k and seeds.
        draws: of each row, from ``Trial.draws``.
    """
    seeds = sorted({row.seed for row in rows})
    if len(seeds) < 2:
        return list(rows)
    stacked: dict[Place, Draws] = {}
    for method, table, k in {(row.method, row.table, row.k) for row in rows}:
        places = [(method, table, k, each) for each in seeds]
        if all(place in draws for place in places):
            every = {
                name: np.stack([draws[place][name] for place in places])
                for name in draws[places[0]]
            }
            stacked |= dict.fromkeys(places, every)
    return [_over_seeds(row, rows, stacked) for row in rows]


def _over_seeds(row: Row, rows: Sequence[Row], stacked: Mapping[Place, Draws]) -> Row:
    """``stacked`` has [seeds, draws] of each quantity."""
    if place_of(row) not in stacked or _exhaustive(row) not in stacked:
        return row
    ours = stacked[place_of(row)]
    others = {"exhaustive": _exhaustive(row)}
    others |= {
        rival_name(other, row): place_of(other)
        for other in compared(row, rows)
        if place_of(other) in stacked
    }
    return replace(row, over_seeds={
        called: {name: list(seeds_interval(ours[name] - stacked[place][name])) for name in ours}
        for called, place in others.items()
    })  # fmt: skip


def seeds_interval(
    differences: NDArray[np.float64], level: float = CONFIDENCE_LEVEL
) -> tuple[float, float]:
    """The interval of the mean over seeds of a difference [seeds, draws of the queries]."""
    seeds = len(differences)
    each = differences.mean(axis=1)
    of_queries = float(differences.mean(axis=0).var(ddof=1))
    of_seeds = float(each.var(ddof=1)) / seeds
    both = of_queries + of_seeds
    if both == 0 or of_seeds == 0:
        reach = float(stats.norm.ppf((1 + level) / 2)) * math.sqrt(both)
    else:
        freedom = both**2 / (of_seeds**2 / (seeds - 1))
        reach = float(stats.t.ppf((1 + level) / 2, freedom)) * math.sqrt(both)
    middle = float(each.mean())
    return middle - reach, middle + reach
