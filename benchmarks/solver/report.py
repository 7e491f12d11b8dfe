"""The tables, the growth exponents and the figure of benchmarks/solver/run.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# Figure 2 of the paper: seconds by number of classes, for 64, 128, 256 and 512 buckets.
PAPER_SIZES = (64, 128, 256, 512)
PAPER_SECONDS = {
    64: (0.0235, 0.0460, 0.1017, 0.1962),
    128: (0.0473, 0.0941, 0.1903, 0.3846),
    256: (0.0975, 0.1939, 0.3917, 0.7822),
    512: (0.2026, 0.4026, 0.7958, 1.6129),
}


QUOTED = ((64, 64, 1), (64, 64, 4), (64, 256, 1), (64, 256, 4), (512, 512, 1), (512, 512, 4))
KINDS = {"same": "same classes", "other": "other classes", "slow": "no favourites, hardly changed"}
PAGE = """\
# The exact code solver, measured

Written by `python -m benchmarks.solver.run` (part of `make bench`); do not edit by hand.
Machine: {machine}.
One thread, compile time apart, medians of 5 runs, then over 5 random problems a grid point. Both
solvers are timed from class means to codes; FlowHash's time includes the checks of its input and
the certificate. The ratio is OR-Tools' time over FlowHash's in the same run.

{summary}

![Seconds by buckets and classes](solver.png)

## Growth

Exponents of a fit `seconds ~ n_c^a · d^b` over the grid; the paper saw about 1 for both. Ours are
above 1 in the number of classes for k = 1 and 2, because conflicts only begin when units fill the
buckets, and well below 1 in the number of buckets, because more buckets mean fewer conflicts.

| k | FlowHash a | FlowHash b | OR-Tools a | OR-Tools b |
|---:|---:|---:|---:|---:|
{growth}

## Cold, uniform random costs

The paper's seconds are those of its run-time figure (OR-Tools on an Intel Xeon E5-2650; it does not
give k and λ there).

{cold}

## Warm, trained-like costs

Class means are 3 at the class's own buckets plus noise of 0.5; the buckets come from an earlier
assignment. Every batch starts from the prices of the batch before, which had the same classes, or
another random part of 1.6 times as many. On such costs the solver's own start is so good that it
hardly ever looks at earlier prices: warm is then as fast as cold. Prices pay off where costs have
no clear favourites and hardly change from batch to batch (the third kind of row). Below 256 buckets
OR-Tools needs about a millisecond, and a good part of ours is the call itself.

{warm}
"""


class Cell(NamedTuple):
    """One grid point, cold: seconds are medians, the ratio is the median of ratios."""

    classes: int
    size: int
    active: int
    penalty: float
    ours: float
    theirs: float
    ratio: float
    difference: float

    def __str__(self) -> str:
        """One line for the terminal."""
        return (
            f"{self.classes:4d} × {self.size:<4d} k={self.active} λ={self.penalty:<4g} "
            f"flow {1e3 * self.ours:8.3f} ms  OR-Tools {1e3 * self.theirs:8.2f} ms  "
            f"{self.ratio:6.1f}×  objective off by {self.difference:.0e}"
        )


class WarmCell(NamedTuple):
    """One sequence of batches on trained-like costs."""

    classes: int
    size: int
    active: int
    penalty: float
    kind: str
    warm: float
    cold: float
    theirs: float
    ratio: float

    def __str__(self) -> str:
        """One line for the terminal."""
        return (
            f"{self.classes:4d} × {self.size:<4d} k={self.active} λ={self.penalty:<4g} "
            f"{self.kind:5s}: warm {1e3 * self.warm:7.3f} ms  "
            f"cold {1e3 * self.cold:7.3f} ms  OR-Tools {1e3 * self.theirs:8.2f} ms  "
            f"{self.ratio:6.1f}×"
        )


def exponents(cells: list[Cell], solver: str, active: int) -> tuple[float, float]:
    """Fit seconds ~ classes^a · buckets^b by least squares on logarithms: a and b."""
    chosen = [cell for cell in cells if cell.active == active]
    design = np.array([[np.log(cell.classes), np.log(cell.size), 1.0] for cell in chosen])
    target = np.log([getattr(cell, solver) for cell in chosen])
    fit = np.linalg.lstsq(design, target, rcond=None)[0]
    return float(fit[0]), float(fit[1])


def _paper(classes: int, size: int) -> float:
    return PAPER_SECONDS[classes][PAPER_SIZES.index(size)]


def _cold_table(cells: list[Cell]) -> list[str]:
    lines = [
        "| n_c | d | k | λ | paper, s | OR-Tools, ms | FlowHash, ms | ratio |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {cell.classes} | {cell.size} | {cell.active} | {cell.penalty:g} "
        f"| {_paper(cell.classes, cell.size):.4f} | {1e3 * cell.theirs:.2f} "
        f"| {1e3 * cell.ours:.3f} | **{cell.ratio:.1f}×** |"
        for cell in cells
    ]
    return lines


def _warm_table(cells: list[WarmCell]) -> list[str]:
    lines = [
        "| n_c | d | k | λ | next batch | OR-Tools, ms | cold, ms | warm, ms | warm ratio |",
        "|---:|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {cell.classes} | {cell.size} | {cell.active} | {cell.penalty:g} "
        f"| {KINDS[cell.kind]} "
        f"| {1e3 * cell.theirs:.2f} | {1e3 * cell.cold:.3f} | {1e3 * cell.warm:.3f} "
        f"| **{cell.ratio:.1f}×** |"
        for cell in cells
    ]
    return lines


def _summary(cells: list[Cell], warm: list[WarmCell]) -> list[str]:
    worst = min(cells, key=lambda cell: cell.ratio)
    largest = [
        cell.ratio for cell in cells if (cell.classes, cell.size, cell.active) == (512, 512, 4)
    ]
    slowest = min((cell for cell in warm if cell.kind != "slow"), key=lambda cell: cell.ratio)
    learnt = [cell for cell in warm if cell.kind != "slow"]
    reached = sum(cell.ratio >= 50 for cell in learnt)
    big = [cell.ratio for cell in warm if cell.size == 512 and cell.kind == "same"]
    return [
        "| bar | asked | measured |",
        "|---|---|---|",
        f"| objective equal to OR-Tools', largest relative difference | 1e-6 "
        f"| {max(cell.difference for cell in cells):.1e} |",
        f"| cold, every grid point | ≥ 5× | {worst.ratio:.1f}× at the least "
        f"({worst.classes} × {worst.size}, k = {worst.active}, λ = {worst.penalty:g}) |",
        f"| cold, 512 × 512, k = 4 | ≥ 20× | {min(largest):.1f}× and {max(largest):.1f}× |",
        f"| warm, trained-like costs | ≥ 50× | 512 × 512, same classes: {min(big):.0f}× to "
        f"{max(big):.0f}×; {reached} of {len(learnt)} rows reach 50×, the least is "
        f"{slowest.ratio:.1f}× ({slowest.classes} × {slowest.size}, k = {slowest.active}) |",
    ]


def markdown(cells: list[Cell], warm: list[WarmCell], machine: str) -> str:
    """The whole page."""
    growth = []
    for active in sorted({cell.active for cell in cells}):
        ours, theirs = exponents(cells, "ours", active), exponents(cells, "theirs", active)
        growth.append(
            f"| {active} | {ours[0]:.2f} | {ours[1]:.2f} | {theirs[0]:.2f} | {theirs[1]:.2f} |"
        )
    return PAGE.format(
        machine=machine,
        summary="\n".join(_summary(cells, warm)),
        growth="\n".join(growth),
        cold="\n".join(_cold_table(cells)),
        warm="\n".join(_warm_table(warm)),
    )


def gains(cells: list[Cell]) -> str:
    """The README's table."""
    lines = [
        "| classes × buckets, k | paper (2018) | OR-Tools today | FlowHash, cold | gain |",
        "|---|---:|---:|---:|---:|",
    ]
    for classes, size, active in QUOTED:
        (cell,) = (
            cell
            for cell in cells
            if (cell.classes, cell.size, cell.active, cell.penalty) == (classes, size, active, 0.1)
        )
        lines.append(
            f"| {classes} × {size}, k = {active} | {_paper(classes, size):.4f} s "
            f"| {1e3 * cell.theirs:.2f} ms | {1e3 * cell.ours:.3f} ms | **{cell.ratio:.1f}×** |"
        )
    worst = min(cells, key=lambda cell: cell.ratio)
    lines += [
        "",
        f"The smallest gain of the grid is {worst.ratio:.1f}× "
        f"({worst.classes} × {worst.size}, k = {worst.active}, λ = {worst.penalty:g}).",
    ]
    return "\n".join(lines)


def plot(cells: list[Cell], path: str) -> None:
    """Seconds against buckets for each number of classes: the paper, OR-Tools here, FlowHash."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "flowhash"  # the same figure gives the same file
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 4.2), sharey=True, layout="constrained")
    colours = dict(
        zip(PAPER_SIZES, plt.get_cmap("viridis")(np.linspace(0.05, 0.85, 4)), strict=True)
    )
    for axis, active in zip(axes, (1, 2, 4), strict=True):
        _panel(axis, cells, active, colours)
    axes[0].set_ylabel("seconds per mini-batch")
    handles = [
        plt.Line2D([], [], color=colours[n], lw=2, label=f"{n} classes") for n in PAPER_SIZES
    ]
    handles += [
        plt.Line2D([], [], color="0.35", ls=":", label="paper (Xeon E5-2650)"),
        plt.Line2D([], [], color="0.35", ls="--", marker="s", ms=4, label="OR-Tools, here"),
        plt.Line2D([], [], color="0.35", marker="o", ms=4, label="FlowHash, here"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncol=7, frameon=False, fontsize=9)
    metadata = {"Date": None} if path.endswith("svg") else None
    figure.savefig(path, dpi=110, metadata=metadata)
    plt.close(figure)


def _panel(axis: Any, cells: list[Cell], active: int, colours: dict[int, Any]) -> None:
    for classes in PAPER_SIZES:
        row = [
            cell
            for cell in cells
            if (cell.classes, cell.active, cell.penalty) == (classes, active, 0.1)
        ]
        sizes = [cell.size for cell in row]
        colour = colours[classes]
        axis.plot(PAPER_SIZES, PAPER_SECONDS[classes], ":", color=colour)
        axis.plot(sizes, [cell.theirs for cell in row], "s--", color=colour, ms=4)
        axis.plot(sizes, [cell.ours for cell in row], "o-", color=colour, ms=4)
    axis.set(xscale="log", yscale="log", xlabel="buckets d", title=f"k = {active}, λ = 0.1")
    axis.set_xticks(PAPER_SIZES, [str(size) for size in PAPER_SIZES])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
