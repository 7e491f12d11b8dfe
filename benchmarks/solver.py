"""Claims about the exact code solver, each a ratio to OR-Tools in one run, single thread.

    python benchmarks/solver.py [--quick]

1. Same objective as OR-Tools on the paper's grid, uniform random costs (its Figure 2).
2. Cold: at least 5 times as fast at every grid point, at least 20 times at 512 × 512, k = 4.
3. Warm, on costs as a trained network gives them: at least 50 times as fast.
4. How time grows with the number of classes and of buckets.

It writes docs/results/solver.md and the figure solver.png / solver.svg beside it. ``--quick`` runs
a corner of the grid and writes nothing. Compiling is not part of any figure; OR-Tools gets its arcs
as arrays, and both are timed from class means to codes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product

from measure import RESULTS, machine, median, seconds  # isort: skip  (sets the threads first)

import numpy as np
from numpy.typing import NDArray

from flowhash.codes import assign_codes, objective
from flowhash.codes.ortools import ortools_codes
from solver_report import Cell, WarmCell, markdown, plot

SIZES = (64, 128, 256, 512)
ACTIVE = (1, 2, 4)
PENALTIES = (0.1, 1.0)
INSTANCES = 7  # random problems a grid point
REPEATS = 3  # runs of the fast solver on each
BATCHES = 6  # batches of a warm-started sequence, the first of them cold


def compare_cold(classes: int, size: int, active: int, penalty: float) -> Cell:
    """One grid point: medians over random problems, the solvers turn by turn."""
    ours, theirs, ratios, differences = [], [], [], []
    for instance in range(INSTANCES):
        means = np.random.default_rng([instance, classes, size, active]).random((classes, size))
        codes = ortools_codes(means, active, np.full(size, penalty))
        best = assign_codes(means, active, penalty)
        assert best.certified, (classes, size, active, penalty)
        other = objective(codes, means, penalty)
        differences.append(abs(best.objective - other) / abs(other))
        slow = seconds(lambda m=means: ortools_codes(m, active, np.full(size, penalty)))
        fast = median(
            [seconds(lambda m=means: assign_codes(m, active, penalty)) for _ in range(REPEATS)]
        )
        ours.append(fast)
        theirs.append(slow)
        ratios.append(slow / fast)
    return Cell(
        classes,
        size,
        active,
        penalty,
        median(ours),
        median(theirs),
        median(ratios),
        max(differences),
    )


def learning_batches(
    classes: int, size: int, active: int, penalty: float, same_classes: bool
) -> Iterator[NDArray[np.float64]]:
    """Class means of a network that has learnt codes: 3 at the class's buckets, plus noise.

    The buckets come from an earlier assignment of all classes, as they do in training. A batch has
    all of them, or a random part (as 64 of 100, or 512 of 820); its noise is its own.
    """
    rng = np.random.default_rng([classes, size, active])
    pool = classes if same_classes else classes * 8 // 5
    favourites = assign_codes(rng.random((pool, size)), active, penalty).codes.astype(np.int64)
    for _ in range(BATCHES):
        chosen = favourites[rng.choice(pool, classes, replace=False)]
        means = 0.5 * rng.standard_normal((classes, size))
        np.put_along_axis(means, chosen, np.take_along_axis(means, chosen, 1) + 3.0, 1)
        yield means


def compare_warm(
    classes: int, size: int, active: int, penalty: float, same_classes: bool
) -> WarmCell:
    """A sequence of batches, each started from the prices of the one before."""
    warm, cold, theirs, ratios = [], [], [], []
    prices = None
    for means in learning_batches(classes, size, active, penalty, same_classes):
        started = prices
        found = assign_codes(means, active, penalty, prices=started)
        reference = assign_codes(means, active, penalty)
        assert found.certified
        assert abs(found.objective - reference.objective) <= 1e-9 * abs(reference.objective)
        if started is not None:
            slow = seconds(lambda m=means: ortools_codes(m, active, np.full(size, penalty)))
            warm.append(
                median(
                    [
                        seconds(
                            lambda m=means, p=started: assign_codes(m, active, penalty, prices=p)
                        )
                        for _ in range(5)
                    ]
                )
            )
            cold.append(
                median(
                    [seconds(lambda m=means: assign_codes(m, active, penalty)) for _ in range(5)]
                )
            )
            theirs.append(slow)
            ratios.append(slow / warm[-1])
        prices = found.prices
    return WarmCell(
        classes,
        size,
        active,
        penalty,
        same_classes,
        median(warm),
        median(cold),
        median(theirs),
        median(ratios),
    )


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a corner of the grid, nothing written"
    )
    quick = parser.parse_args().quick
    sizes = (64, 512) if quick else SIZES
    cells = []
    for classes, size, active, penalty in product(sizes, sizes, ACTIVE, PENALTIES):
        cell = compare_cold(classes, size, active, penalty)
        cells.append(cell)
        print(cell, flush=True)
    warm_cells = []
    shapes = ((64, 64), (64, 256), (256, 256), (512, 512))
    for (classes, size), active, penalty in product(shapes, ACTIVE, PENALTIES):
        for same_classes in (True, False):
            warm_cell = compare_warm(classes, size, active, penalty, same_classes)
            warm_cells.append(warm_cell)
            print(warm_cell, flush=True)
    text = markdown(cells, warm_cells, machine())
    print(text)
    if not quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "solver.md").write_text(text)
        for ending in ("png", "svg"):
            plot(cells, str(RESULTS / f"solver.{ending}"))


if __name__ == "__main__":
    main()
