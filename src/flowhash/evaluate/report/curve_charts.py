"""Charts of trainings: loss, and Pr@1 and SUF on the validation split, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.evaluate.report.canvas import (
    COLOURS,
    MARKERS,
    Chart,
    draw,
    legend_below,
    plain_numbers,
)
from flowhash.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = Sequence[Mapping[str, Any]]
Curves = Mapping[str, Lines]

# What Algorithm 1 is about; only stage 2 has them.
OBJECTIVES = {
    "bound_gap": ("M(θ)", "The gap of the bound of Eq. 4, m·ĝ + M ≥ g; it should fall."),
    "class_objective": ("ĝ", "The objective of the class means, which the flow minimises exactly."),
    "item_objective": ("g", "The objective of the items of a batch, with the same codes."),
}
SMOOTH = 40  # lines of a journal from which single batches are noise
POINTS = 500  # of a curve, at most: more are not seen, and make the file large


def stages(curves: Curves) -> list[str]:
    """The names of all stages, in the order they came."""
    return list(dict.fromkeys(str(line["stage"]) for lines in curves.values() for line in lines))


def curve_charts(curves: Curves, stage: str, number: int) -> list[Chart]:
    """The charts of one stage, one line a training."""
    own = {
        name: [line for line in lines if line["stage"] == stage] for name, lines in curves.items()
    }
    own = {name: lines for name, lines in own.items() if lines}
    found = [
        _chart(own, "loss", f"loss-{number}", f"{stage}: loss against step",
               "Loss of single batches, averaged over neighbours where there are many.", "loss"),
        _chart(own, "pr1", f"precision-{number}", f"{stage}: validation Pr@1 against step",
               "Pr@1 on the validation split.", "Pr@1 (%)", scale=100),
    ]  # fmt: skip
    # Stage 1 searches everything: a SUF of 1 all the way is no picture.
    if any(line.get("suf", 1) != 1 for lines in own.values() for line in lines):
        found.append(
            _chart(own, "suf", f"speedup-{number}", f"{stage}: validation SUF against step",
                   "Speed-up factor on the validation split, logarithmic.", "SUF", log=True)
        )  # fmt: skip
    found += [
        _chart(own, key, f"{key}-{number}", f"{stage}: {head} against step", words, head)
        for key, (head, words) in OBJECTIVES.items()
    ]
    return [chart for chart in found if chart is not None]


def _chart(
    curves: Curves,
    key: str,
    name: str,
    label: str,
    caption: str,
    axis: str,
    scale: float = 1,
    log: bool = False,
) -> Chart | None:
    every = {training: series(lines, key) for training, lines in curves.items()}
    drawn = {training: found for training, found in every.items() if found[0].size}
    if not drawn:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, (training, (steps, values)) in enumerate(drawn.items()):
            _curve(axes, place, training, steps, scale * values)
        if log:
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        axes.xaxis.set_major_locator(_few_steps())
        plain_numbers(axes.xaxis)
        axes.set_xlabel("step")
        axes.set_ylabel(axis)
        legend_below(figure, axes, 1 if max(map(len, drawn)) > 20 else 2)

    # Every line of the legend takes from the height.
    return draw(name, label, caption, paint, 3.2 + 0.1 * len(drawn))


def series(lines: Lines, key: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps and values of one quantity, of the lines that have it."""
    found = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
    pairs = np.asarray(found, np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _curve(
    axes: Axes, place: int, name: str, steps: NDArray[np.float64], values: NDArray[np.float64]
) -> None:
    values = smoothed(values)
    thin = -(-steps.size // POINTS)
    axes.plot(
        steps[::thin],
        values[::thin],
        color=COLOURS[place % len(COLOURS)],
        # More trainings than colours: the pattern of the line tells them apart.
        linestyle=("-", "--", ":", "-.")[place // len(COLOURS) % 4],
        marker=MARKERS[place % len(MARKERS)] if steps.size <= SMOOTH else None,
        markersize=4,
        label=name.lstrip("_") or "training",  # matplotlib hides labels that begin with _
    )


def smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means over a window that slides, cut short at both ends; few values are left as they are."""
    if values.size <= SMOOTH:
        return values
    reach = values.size // SMOOTH
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first = np.maximum(np.arange(values.size) - reach, 0)
    last = np.minimum(np.arange(values.size) + reach + 1, values.size)
    return np.asarray((sums[last] - sums[first]) / (last - first))


def _few_steps() -> Any:
    return require("matplotlib.ticker", "evaluate").MaxNLocator(4, integer=True)
