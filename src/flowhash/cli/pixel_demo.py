"""The demo's first part: the solver and the table on the plain pixels of handwritten digits.

A digit is an image of 8 × 8 pixels. Taken as activations, each pixel is a bucket, and the ten
classes compete for pixels: a picture that fits into a terminal.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import (
    Assignment,
    assign_codes,
    class_means,
    item_objective,
    ordered_buckets,
    topk_codes,
    upper_bound_gap,
)
from flowhash.errors import InputError, MissingExtraError, SolverError
from flowhash.extras import require
from flowhash.stopwatch import median_seconds
from flowhash.table import HashTable

if TYPE_CHECKING:
    from rich.console import Console

SIDE = 8
NEAREST = 10
COLOURS = (
    "red", "green", "yellow", "blue", "magenta", "cyan", "white", "orange1", "purple", "sea_green2",
)  # fmt: skip


def show_pixels(active: int, penalty: float) -> None:
    """Solve the digits' codes with and without a penalty, then search by pixels."""
    if not 1 <= active <= SIDE:
        raise InputError(f"active is {active}; choose a number of buckets from 1 to {SIDE}")
    console = require("rich.console", "demo").Console(highlight=False)
    digits = require("sklearn.datasets", "demo").load_digits()
    pixels = (digits.data - digits.data.mean(axis=0)) / (digits.data.std(axis=0) + 1e-3)
    means, _ = class_means(pixels, digits.target)
    found = [(0.0, assign_codes(means, active, 0.0))]
    if penalty != 0.0:
        found.append((penalty, assign_codes(means, active, penalty)))
    console.print(
        f"\n[bold]{len(pixels)} handwritten digits[/], 10 classes, {SIDE} × {SIDE} pixels. "
        f"Each pixel is a bucket;\neach digit activates the {active} in which it is brightest "
        "against the average.\n"
    )
    _print_maps(console, found)
    _print_table(console, means, found)
    _print_bound(console, pixels, digits.target, active, penalty)
    _print_race(console, means, active, penalty)
    _print_search(console, pixels, digits.target, active)


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


def _print_maps(console: Console, found: list[tuple[float, Assignment]]) -> None:
    """Side by side where the terminal is wide enough, else one below the other."""
    width = 4 * SIDE
    maps = []
    for penalty, assignment in found:
        name = f"penalty {penalty:g}: min-cost flow" if penalty else "no penalty: top-k"
        maps.append([f"{name:^{width}}", *_map_lines(assignment)])
    if console.width >= len(maps) * (width + 6):
        for lines in zip(*maps, strict=True):
            console.print("      ".join(lines))
    else:
        for line in (line for lines in maps for line in [*lines, ""]):
            console.print(line)
    console.print("[dim]a number is a digit that holds the pixel; two or more: they share it[/]\n")


def _print_table(
    console: Console, means: NDArray[np.float64], found: list[tuple[float, Assignment]]
) -> None:
    table = require("rich.table", "demo").Table(
        title="Which codes are optimal", title_justify="left"
    )
    for name in ("penalty", "digits that clash", "fullest", "minimum ĝ", "gap", "proven"):
        table.add_column(name, justify="right")
    for penalty, assignment in found:
        owners = _owners(assignment)
        pairs = {pair for digits in owners for pair in combinations(digits, 2)}
        table.add_row(
            f"{penalty:g}",
            f"{len(pairs)} of 45 pairs",
            str(max(map(len, owners))),
            f"{assignment.objective:.4f}",
            f"{assignment.gap:.1e}",
            "yes" if assignment.certified else "no",
        )
    console.print(table)


def _print_bound(
    console: Console, pixels: NDArray[np.float64], labels: NDArray[Any], active: int, penalty: float
) -> None:
    """Check the paper's upper bound (Eq. 4), which is about classes of one size."""
    size = int(np.bincount(labels).min())
    chosen = np.concatenate([np.flatnonzero(labels == label)[:size] for label in range(10)])
    items, names = pixels[chosen], labels[chosen]
    means, _ = class_means(items, names)
    best = assign_codes(means, active, penalty)
    over_items = item_objective(best.codes[names], items, names, penalty / size)
    gap = upper_bound_gap(items, names, active)
    bound = size * best.objective + gap
    console.print(
        f"\nThe paper's upper bound, {size} items of each class: m·ĝ + M = {bound:.0f} ≥ g = "
        f"{over_items:.0f}.\nIt is loose, M = {gap:.0f}, because these pixels were never trained. "
        "Training draws\nthe items of a class together, and M falls."
    )


def _print_race(console: Console, means: NDArray[np.float64], active: int, penalty: float) -> None:
    from flowhash.codes import ortools_codes

    penalties = np.full(means.shape[1], penalty)
    try:
        ortools_codes(means, active, penalties)
    except (MissingExtraError, SolverError) as error:
        console.print(f"\nNo race against OR-Tools: {error}\n", markup=False)
        return
    ours = median_seconds(lambda: assign_codes(means, active, penalty))
    theirs = median_seconds(lambda: ortools_codes(means, active, penalties))
    console.print(
        f"\nSolved in [bold]{ours * 1e6:.0f} µs[/]; OR-Tools' minimum-cost flow, the paper's way, "
        f"took {theirs * 1e6:.0f} µs:\n[bold]{theirs / ours:.0f} times[/] as long for the same "
        "optimum.\n"
    )


def _print_search(
    console: Console, pixels: NDArray[np.float64], labels: NDArray[Any], active: int
) -> None:
    """Put all digits into a hash table by their brightest pixels and look each of them up."""
    table = HashTable.create(buckets=SIDE * SIDE, dim=SIDE * SIDE, active=active)
    table.add(topk_codes(pixels, active), pixels)
    order = ordered_buckets(pixels)
    # One more than wanted: each digit finds itself first.
    hits = table.search(order, pixels, top=NEAREST + 1, at_least=NEAREST + 1)
    every = HashTable.create(buckets=1, dim=SIDE * SIDE)
    every.add(np.zeros((len(pixels), 1), np.int32), pixels)
    exact = every.search(np.zeros((len(pixels), 1), np.int32), pixels, top=NEAREST + 1)
    right = [(labels[found.ids[:, 1:]] == labels[:, None]).mean() for found in (hits, exact)]
    factor = (len(table) - 1) / (hits.scanned.mean() - 1)
    console.print(
        f"The hash table: every digit in the buckets of its own {active} brightest pixels. A\n"
        f"search scans {hits.scanned.mean() - 1:.0f} of {len(table)} digits, "
        f"[bold]{factor:.1f} times[/] fewer, and {right[0]:.1%} of its\n{NEAREST} nearest are the "
        f"same digit; with exhaustive search {right[1]:.1%}. These codes are\npixels, nobody "
        "learned them.\n"
    )
