"""The paper's Figure 2 (seconds of the solver) and Figure 4 (SUF against k), measured anew.

Both are written as SVG and PNG; the same numbers give the same files.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from flowhash.codes import assign_codes, ortools_codes
from flowhash.errors import InputError, MissingExtraError
from flowhash.evaluate.comparison.stopwatch import seconds_of
from flowhash.evaluate.output.report_charts import (
    BLUE,
    FILE_STYLE,
    GREY,
    OBJECTIVES,
    VERMILION,
    Curves,
    paint_curve,
    paint_speed_ups,
    series,
)
from flowhash.evaluate.paper_numbers import PAPER_SOLVER_SECONDS
from flowhash.evaluate.results import Row, active_counts, merge_seeds
from flowhash.extras import require

EXTRA = "evaluate"
SIZES = (64, 128, 256, 512)  # of the paper's Figure 2, for classes and buckets alike
SOLVERS = {"ortools": ("OR-Tools today", VERMILION, "s"), "flowhash": ("FlowHash", BLUE, "o")}
# Methods of Figure 4, without those whose SUF is another's.
SUF_METHODS = (
    "flowhash", "flowhash-free", "start", "vq", "vq-raw", "vq-unit", "th", "classifier",
)  # fmt: skip

Seconds = dict[tuple[int, int], dict[str, float | None]]


@contextlib.contextmanager
def _canvas(height: float) -> Iterator[Any]:
    """A figure in the house style on a light ground, whatever the user's settings are."""
    with require("matplotlib.style", EXTRA).context(["default", FILE_STYLE]):
        figures = require("matplotlib.figure", EXTRA)
        yield figures.Figure(figsize=(6.0, height), layout="constrained")  # inches


def _save(figure: Any, path_stem: str | Path) -> list[Path]:
    """Write both formats; the ending is added to the stem, which may have dots in it."""
    paths = [Path(f"{path_stem}.{ending}") for ending in ("svg", "png")]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=150)
    return paths


def measure_solver(
    sizes: Sequence[int] = SIZES, repeats: int = 20, active: int = 1, penalty: float = 0.1
) -> Seconds:
    """Seconds of a mini-batch's codes, from class means to codes, as in the paper's Figure 2.

    Costs are uniform random, as in ``benchmarks/solver/run.py``; one thread, compile time apart.

    Args:
        sizes: numbers of classes, and also of buckets: every pair is measured.
        repeats: random problems a pair; the paper took 20.
        active: k.
        penalty: λ.

    Returns:
        For each (classes, buckets) the median seconds of "flowhash" and of "ortools"; None for
        the latter where OR-Tools is not installed.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; expected at least 1")
    measured: Seconds = {}
    for classes, buckets in product(sizes, sizes):
        ours, theirs = list[float](), list[float]()
        penalties = np.full(buckets, penalty)
        for problem in range(repeats):  # the solvers turn by turn, each first run once untimed
            rng = np.random.default_rng([problem, classes, buckets, active])
            means = rng.random((classes, buckets))
            flow = partial(assign_codes, means, active, penalty)
            ortools = partial(ortools_codes, means, active, penalties)
            with contextlib.suppress(MissingExtraError):
                ortools()
                theirs.append(seconds_of(ortools))
            flow()
            ours.append(seconds_of(flow))
        measured[classes, buckets] = {
            "flowhash": statistics.median(ours),
            "ortools": statistics.median(theirs) if theirs else None,
        }
    return measured


def _solver_panel(
    axis: Any, classes: int, measured: Mapping[tuple[int, int], Mapping[str, float | None]]
) -> None:
    paper = {d: seconds for (n, d), seconds in PAPER_SOLVER_SECONDS.items() if n == classes}
    axis.plot(list(paper), list(paper.values()), "--", color=GREY, label="the paper, 2018")
    for solver, (name, colour, marker) in SOLVERS.items():
        points = {
            d: value
            for (n, d), seconds in sorted(measured.items())
            if n == classes and (value := seconds.get(solver)) is not None
        }
        if points:
            axis.plot(list(points), list(points.values()), color=colour, marker=marker, label=name)
    buckets = sorted({*paper, *(d for n, d in measured if n == classes)})
    axis.set(xscale="log", yscale="log")
    axis.set_title(f"{classes} classes", fontsize=11)
    axis.set_xticks(buckets, [str(d) for d in buckets])
    axis.minorticks_off()


def solver_figure(
    measured: Mapping[tuple[int, int], Mapping[str, float | None]], path_stem: str | Path
) -> list[Path]:
    """Figure 2: seconds against the number of buckets, a panel for each number of classes.

    Args:
        measured: what ``measure_solver`` gave.
        path_stem: of the files, without ending.

    Returns:
        The SVG and the PNG.
    """
    if not measured:
        raise InputError("there is nothing to draw; expected what measure_solver gives")
    counts = sorted({classes for classes, _ in measured})
    columns = min(2, len(counts))
    height = -(-len(counts) // columns)
    with _canvas(0.8 + 2.2 * height) as figure:
        axes = figure.subplots(height, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axis, classes in zip(axes, counts, strict=False):
            _solver_panel(axis, classes, measured)
        for axis in axes[len(counts) - columns : len(counts)]:
            axis.tick_params(labelbottom=True)
        for axis in axes[len(counts) :]:
            axis.set_visible(False)
        figure.supxlabel("buckets d", fontsize=11)
        figure.supylabel("seconds per mini-batch", fontsize=11)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
        return _save(figure, path_stem)


def suf_figure(
    rows: Sequence[Row], paper: Sequence[Row], path_stem: str | Path, table: str = "test"
) -> list[Path]:
    """Figure 4: SUF against k, with what Eq. 9 expects of independent, even codes.

    Args:
        rows: measured, of one experiment; over several seeds means with standard deviations.
        paper: what ``paper_rows`` gives for it, or none.
        path_stem: of the files, without ending.
        table: which is searched.

    Returns:
        The SVG and the PNG.

    Raises:
        InputError: no row is of FlowHash on this table, or they have different d.
    """
    ours = [row for row in rows if (row.method, row.table) == ("flowhash", table) and row.k]
    sizes = {row.buckets for row in ours}
    if len(sizes) != 1:
        raise InputError(
            f"FlowHash's rows on {table!r} have d of {sorted(sizes) or 'nothing'}; expected one d"
        )
    merged, theirs = (
        [each for each in merge_seeds(some) if each.table == table and each.k is not None]
        for some in (rows, paper)
    )
    with _canvas(4.4) as figure:
        axis = figure.subplots()
        paint_speed_ups(axis, merged, theirs, SUF_METHODS)
        if theirs:
            axis.plot([], [], "--", color=GREY, marker="o", ms=10, mfc="none", label="the paper's")
        axis.set(xlabel="k", ylabel=f"SUF, searching {table}, d = {sizes.pop()}")
        axis.set_xticks(active_counts([*merged, *theirs]))
        figure.legend(loc="outside upper center", ncols=3, fontsize=8.5)
        return _save(figure, path_stem)


def has_objectives(curves: Curves) -> bool:
    """Whether a training of stage 2 left M(θ), ĝ and g behind."""
    return any("bound_gap" in line for lines in curves.values() for line in lines)


def objective_figure(curves: Curves, path_stem: str | Path) -> list[Path]:
    """M(θ), ĝ and g of the batches of stage 2 against the step, one line a training.

    Args:
        curves: the lines of each training's ``metrics.jsonl``, by its name.
        path_stem: of the files, without ending.

    Returns:
        The SVG, the PNG, and the same numbers as CSV.
    """
    with _canvas(7.2) as figure:
        axes = figure.subplots(len(OBJECTIVES), sharex=True)
        for axis, (key, (label, _)) in zip(axes, OBJECTIVES.items(), strict=True):
            for place, (name, lines) in enumerate(curves.items()):
                steps, values = series(lines, key)
                if steps.size:
                    paint_curve(axis, place, name, steps, values)
            axis.set_ylabel(label)
        axes[-1].set_xlabel("step of stage 2")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
        written = _save(figure, path_stem)
    path = Path(f"{path_stem}.csv")
    written_out = [",".join(["training", "step", *OBJECTIVES])]
    written_out += [
        ",".join([f'"{name}"', str(line["step"]), *(repr(line[key]) for key in OBJECTIVES)])
        for name, each in curves.items()
        for line in each
        if all(key in line for key in OBJECTIVES)
    ]
    path.write_text("\n".join(written_out) + "\n", "utf-8")
    return [*written, path]
