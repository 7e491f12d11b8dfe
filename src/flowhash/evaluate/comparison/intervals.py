"""Intervals of the differences between methods: a paired bootstrap over queries, t over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from flowhash.evaluate.results import Draws, Key, Leads, Place, Row, compared, rival_name
from flowhash.quality import CONFIDENCE_LEVEL, Measured, percentile_interval, resampled_sums


def with_intervals(
    rows: Sequence[Row], found: Sequence[Measured]
) -> tuple[list[Row], dict[Place, Draws]]:
    """The same rows of one table with intervals, and the draws of the queries behind them.

    All methods see the same draws, so that every difference is a paired one.

    Args:
        rows: exhaustive search among them; all answered the same queries.
        found: what the queries of each row found.
    """
    parts = [np.stack([*one.right.values(), one.counts], axis=1) for one in found]
    sums = np.split(resampled_sums(np.concatenate(parts, axis=1)), len(rows), axis=1)
    draws = {
        row.place: _values(row, list(one.right), part)
        for row, one, part in zip(rows, found, sums, strict=True)
    }
    return [_with_intervals(row, rows, draws) for row in rows], draws


def _values(row: Row, tops: Sequence[int], sums: NDArray[np.float64]) -> Draws:
    """Pr@K in per cent and SUF of each draw, from the sums of right ones and of items scanned."""
    found = {
        f"pr{top}": 100 * sums[:, place] / (top * row.queries) for place, top in enumerate(tops)
    }
    # SUF is finite where nobody finds anything: as if one query had found one item.
    others = row.suf * row.scanned if row.scanned else row.suf / row.queries
    return {**found, "suf": others * row.queries / np.maximum(sums[:, -1], 1)}


def _exhaustive(row: Row) -> Place:
    return "exhaustive", row.table, None, row.seed


def _with_intervals(row: Row, rows: Sequence[Row], draws: Mapping[Place, Draws]) -> Row:
    def less(other: Place) -> dict[str, list[float]]:
        ours, theirs = draws[row.place], draws[other]
        return {name: list(percentile_interval(ours[name] - theirs[name])) for name in ours}

    ends: dict[str, Any] = {}
    for name, (low, high) in less(_exhaustive(row)).items():
        if name != "suf":
            ends |= {f"{name}_low": low, f"{name}_high": high}
    leads = {rival_name(other, row): less(other.place) for other in compared(row, rows)}
    return replace(row, leads=leads, **ends)


def over_seeds(rows: Sequence[Row], draws: Mapping[Place, Draws]) -> list[Row]:
    """The same rows, with intervals over seeds where a method was run with several.

    A difference of two methods varies with the queries and with the training. Its mean over the
    seeds has two variances: that over draws of the queries, which all seeds share, from the
    bootstrap; and that of the seeds' differences over their number. Both together make an interval
    with Student's t, whose degrees of freedom are Welch and Satterthwaite's: with three seeds it is
    wide unless the queries are what varies. A rival that was trained once is taken to vary with
    its training as the method does, see ``seeds_interval``; one that was trained more often, but
    not with every seed, is left out.

    Args:
        rows: of all tables, methods, k and seeds.
        draws: of each row, from ``Trial.draws``.
    """
    seeds = len({row.seed for row in rows})
    if seeds < 2:
        return list(rows)
    places: dict[Key, list[Place]] = {}
    for row in sorted(rows, key=lambda row: row.seed):
        if row.place in draws:
            places.setdefault(row.key, []).append(row.place)
    stacked: dict[Key, Draws] = {
        key: {name: np.stack([draws[place][name] for place in same]) for name in draws[same[0]]}
        for key, same in places.items()
        if len(same) in (1, seeds)
    }
    found = {
        row.key: _leads_over_seeds(row, rows, stacked)
        for row in rows
        if row.place == places.get(row.key, [None])[0] and len(places[row.key]) == seeds
    }
    return [replace(row, over_seeds=found.get(row.key, {})) for row in rows]


def _leads_over_seeds(row: Row, rows: Sequence[Row], stacked: Mapping[Key, Draws]) -> Leads:
    """Of the method of ``row``, its first seed's; ``stacked`` has [seeds, draws] of quantities."""
    ours = stacked[row.key]
    others = {"exhaustive": _exhaustive(row)[:3]} | {
        rival_name(other, row): other.key for other in compared(row, rows)
    }
    return {
        called: {name: list(seeds_interval(ours[name], stacked[key][name])) for name in ours}
        for called, key in others.items()
        if key in stacked
    }


def seeds_interval(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> tuple[float, float]:
    """The interval of a difference of means over seeds, of two methods.

    Args:
        ours: a quantity [seeds, draws of the queries].
        theirs: the same of the rival, or [1, draws] where that was trained once: then the variance
            of its training is taken to be ours, and is not divided by the number of seeds.
    """
    seeds = len(ours)
    differences = ours - theirs
    each = differences.mean(axis=1)
    of_queries = float(differences.mean(axis=0).var(ddof=1))
    of_seeds = float(each.var(ddof=1)) * (1 / seeds + (len(theirs) < seeds))
    both = of_queries + of_seeds
    spread = stats.norm  # where seeds do not differ; else with less freedom
    if of_seeds > 0:
        spread = stats.t(both**2 / (of_seeds**2 / (seeds - 1)))
    reach = float(spread.ppf((1 + CONFIDENCE_LEVEL) / 2)) * math.sqrt(both)
    middle = float(each.mean())
    return middle - reach, middle + reach
