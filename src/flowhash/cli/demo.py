"""``flowhash demo``: the code solver on handwritten digits.

A digit is an image of 8 × 8 pixels. Taken as activations, each pixel is a bucket, and the ten
classes compete for pixels: a picture that fits into a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import (
    Assignment,
    assign_codes,
    class_means,
    item_objective,
    objective,
    upper_bound_gap,
)
from flowhash.extras import require

if TYPE_CHECKING:
    from rich.console import Console

SIDE = 8
COLOURS = (
    "red", "green", "yellow", "blue", "magenta", "cyan", "white", "orange1", "purple", "sea_green2",
)  # fmt: skip


def show(active: int, penalty: float) -> None:
    """Solve the digits' codes with and without a penalty and print what it changes."""
    console = require("rich.console", "cli").Console()
    digits = require("sklearn.datasets", "demo").load_digits()
    pixels = (digits.data - digits.data.mean(axis=0)) / (digits.data.std(axis=0) + 1e-3)
    means, _ = class_means(pixels, digits.target)
    console.print(
        f"\n[bold]{len(pixels)} handwritten digits[/], 10 classes, {SIDE} × {SIDE} pixels. "
        f"Each pixel is a bucket;\neach digit activates the {active} in which it is brightest "
        "against the average.\n"
    )
    free = assign_codes(means, active, 0.0)
    shared = assign_codes(means, active, penalty)
    _print_maps(console, free, shared, penalty)
    _print_table(console, means, [(0.0, free), (penalty, shared)])
    _print_bound(console, pixels, digits.target, shared, penalty)
    _print_race(console, means, active, penalty)


def _owners(assignment: Assignment) -> list[list[int]]:
    """The digits that hold each pixel."""
    owners: list[list[int]] = [[] for _ in range(SIDE * SIDE)]
    for digit, code in enumerate(assignment.codes.tolist()):
        for bucket in code:
            owners[bucket].append(digit)
    return owners


def _map_lines(assignment: Assignment) -> list[str]:
    """The image plane, one text line a row of pixels, each pixel with the digits that hold it."""
    cells = []
    for digits in _owners(assignment):
        text = "".join(map(str, digits)) or "·"
        style = "dim" if not digits else COLOURS[digits[0]] if len(digits) == 1 else "bold reverse"
        cells.append(" " * (4 - len(text)) + f"[{style}]{text}[/]")
    return ["".join(cells[row * SIDE : (row + 1) * SIDE]) for row in range(SIDE)]


def _print_maps(console: Console, free: Assignment, shared: Assignment, penalty: float) -> None:
    width = 4 * SIDE
    console.print(
        f"{'no penalty: top-k':^{width}}      {f'penalty {penalty:g}: min-cost flow':^{width}}"
    )
    for left, right in zip(_map_lines(free), _map_lines(shared), strict=True):
        console.print(f"{left}      {right}")
    console.print("[dim]a number is a digit that holds the pixel; reversed: several hold it[/]\n")


def _print_table(
    console: Console, means: NDArray[np.float64], assignments: list[tuple[float, Assignment]]
) -> None:
    table = require("rich.table", "cli").Table(
        title="Which codes are optimal", title_justify="left"
    )
    for name in (
        "penalty",
        "pairs that share",
        "largest load",
        "minimum ĝ",
        "duality gap",
        "proven",
    ):
        table.add_column(name, justify="right")
    for penalty, found in assignments:
        load = np.bincount(found.codes.ravel(), minlength=means.shape[1])
        table.add_row(
            f"{penalty:g}",
            str(int((load * (load - 1) // 2).sum())),
            str(load.max()),
            f"{found.objective:.4f}",
            f"{abs(found.gap):.1e}",
            "yes" if found.certified else "no",
        )
    console.print(table)


def _print_bound(
    console: Console,
    pixels: NDArray[np.float64],
    labels: NDArray[Any],
    found: Assignment,
    penalty: float,
) -> None:
    """Check the paper's upper bound (Eq. 4) on as many items of each class as all have."""
    size = int(np.bincount(labels).min())
    chosen = np.concatenate([np.flatnonzero(labels == label)[:size] for label in range(10)])
    items, names = pixels[chosen], labels[chosen]
    means, _ = class_means(items, names)
    active = found.codes.shape[1]
    best = assign_codes(means, active, penalty)
    over_classes = size * objective(best.codes, means, penalty)
    over_items = item_objective(best.codes[names], items, names, penalty / size)
    gap = upper_bound_gap(items, names, active)
    console.print(
        f"\nUpper bound over {len(items)} items: m·ĝ + M = {over_classes + gap:.1f} ≥ g = "
        f"{over_items:.1f}, with M = {gap:.1f}\n(training draws the items of a class together, "
        "and M falls)."
    )


def _print_race(console: Console, means: NDArray[np.float64], active: int, penalty: float) -> None:
    from flowhash.codes.ortools import ortools_codes

    penalties = np.full(means.shape[1], penalty)
    ours = _median_seconds(lambda: assign_codes(means, active, penalty))
    theirs = _median_seconds(lambda: ortools_codes(means, active, penalties))
    console.print(
        f"\nSolved in [bold]{ours * 1e6:.0f} µs[/]; OR-Tools' minimum-cost flow, the paper's way, "
        f"took {theirs * 1e6:.0f} µs:\n[bold]{theirs / ours:.0f} times[/] as long for the same "
        "optimum.\n"
    )


def _median_seconds(work: Callable[[], object], repeats: int = 9) -> float:
    work()  # compile and warm the caches
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))
