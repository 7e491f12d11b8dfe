"""Intervals of the differences between methods: a paired bootstrap over the queries of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.evaluate.compare import TOPS, Trial
from flowhash.evaluate.results import Row, rival_name, rivals
from flowhash.quality import percentile_interval, resampled_sums

Draws = dict[str, NDArray[np.float64]]  # by quantity: its value in each draw of the queries


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
        (trial.row.method, trial.row.k): _values(trial.row, part)
        for trial, part in zip(trials, sums, strict=True)
    }
    rows = [trial.row for trial in trials]
    return [replace(trial, row=_with_intervals(trial.row, rows, draws)) for trial in trials]


def _values(row: Row, sums: NDArray[np.float64]) -> Draws:
    """Pr@K in per cent and SUF of each draw, from the sums of right ones and of items scanned."""
    found = {
        f"pr{top}": 100 * sums[:, place] / (top * row.queries) for place, top in enumerate(TOPS)
    }
    others = row.suf * row.scanned if row.scanned else row.suf / row.queries  # see _Sums._speed_up
    return {**found, "suf": others * row.queries / np.maximum(sums[:, -1], 1)}


def _with_intervals(
    row: Row, rows: Sequence[Row], draws: dict[tuple[str, int | None], Draws]
) -> Row:
    ours = draws[row.method, row.k]
    exhaustive = draws["exhaustive", None]
    ends: dict[str, Any] = {}
    for top in TOPS:
        name = f"pr{top}"
        ends[f"{name}_low"], ends[f"{name}_high"] = percentile_interval(
            ours[name] - exhaustive[name]
        )
    leads = {
        rival_name(other, row): {
            name: list(percentile_interval(ours[name] - draws[other.method, other.k][name]))
            for name in ours
        }
        for other in rivals(row, rows)
    }
    return replace(row, leads=leads, **ends)
