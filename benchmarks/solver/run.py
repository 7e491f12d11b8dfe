"""Claims about the exact code solver, each a ratio to OR-Tools in one run, single thread.

    python -m benchmarks.solver.run [--quick]

1. Same objective as OR-Tools on the paper's grid, uniform random costs (its Figure 2).
2. Cold: at least 5 times as fast at every grid point, at least 20 times at 512 × 512, k = 4.
3. Warm, on costs as a trained network gives them: at least 50 times as fast.
4. How time grows with the number of classes and of buckets.

It writes docs/results/solver.md, the figure solver.png / solver.svg beside it, and the table in the
README. ``--quick`` runs a corner of the grid and writes nothing. Compiling is not part of any
figure; OR-Tools gets its arcs as arrays, and both are timed from class means to codes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurement import README, RESULTS, machine, put, seconds
from benchmarks.solver.report import Cell, WarmCell, gains, markdown, plot
from flowhash.codes import assign_codes, objective, ortools_codes

SIZES = (64, 128, 256, 512)
ACTIVE = (1, 2, 4)
PENALTIES = (0.1, 1.0)
INSTANCES = 5  # random problems a grid point
REPEATS = 5  # runs of each solver on each
BATCHES = 6  # batches of a warm-started sequence, the first of them cold


def median_seconds(work: Callable[[], object]) -> float:
    """The median of a few runs of what has run before."""
    return median(seconds(work) for _ in range(REPEATS))


def compare_cold(classes: int, size: int, active: int, penalty: float) -> Cell:
    """One grid point: medians over random problems, the solvers turn by turn."""
    ours, theirs, ratios, differences = [], [], [], []
    penalties = np.full(size, penalty)
    for instance in range(INSTANCES):
        means = np.random.default_rng([instance, classes, size, active]).random((classes, size))
        codes = ortools_codes(means, active, penalties)
        best = assign_codes(means, active, penalty)
        assert best.certified, (classes, size, active, penalty)
        other = objective(codes, means, penalty)
        differences.append(abs(best.objective - other) / abs(other))
        theirs.append(median_seconds(lambda m=means: ortools_codes(m, active, penalties)))
        ours.append(median_seconds(lambda m=means: assign_codes(m, active, penalty)))
        ratios.append(theirs[-1] / ours[-1])
    times = median(ours), median(theirs), median(ratios)
    return Cell(classes, size, active, penalty, *times, max(differences))


def learning_batches(
    classes: int, size: int, active: int, penalty: float, kind: str
) -> Iterator[NDArray[np.float64]]:
    """Class means as training gives them, batch after batch.

    A network that has learnt codes: 3 at the class's buckets, which come from an earlier assignment
    of all classes, plus noise of the batch. The batch has the ``same`` classes each time, or
    ``other`` ones: a random part of 1.6 times as many. ``slow``: costs without favourites that
    hardly change.
    """
    rng = np.random.default_rng([classes, size, active])
    if kind == "slow":
        means = rng.random((classes, size))
        for _ in range(BATCHES):
            means = means + 0.02 / size * rng.standard_normal((classes, size))
            yield means
        return
    pool = classes if kind == "same" else classes * 8 // 5
    favourites = assign_codes(rng.random((pool, size)), active, penalty).codes.astype(np.int64)
    for _ in range(BATCHES):
        chosen = favourites[rng.choice(pool, classes, replace=False)]
        means = 0.5 * rng.standard_normal((classes, size))
        np.put_along_axis(means, chosen, np.take_along_axis(means, chosen, 1) + 3.0, 1)
        yield means


def compare_warm(classes: int, size: int, active: int, penalty: float, kind: str) -> WarmCell:
    """A sequence of batches, each started from the prices of the one before."""
    warm, cold, theirs, ratios = [], [], [], []
    penalties = np.full(size, penalty)
    prices = None
    for means in learning_batches(classes, size, active, penalty, kind):
        found = assign_codes(means, active, penalty, prices=prices)
        reference = assign_codes(means, active, penalty)
        assert found.certified
        assert abs(found.objective - reference.objective) <= 1e-9 * abs(reference.objective)
        if prices is not None:
            theirs.append(median_seconds(lambda m=means: ortools_codes(m, active, penalties)))
            warm.append(
                median_seconds(lambda m=means, p=prices: assign_codes(m, active, penalty, prices=p))
            )
            cold.append(median_seconds(lambda m=means: assign_codes(m, active, penalty)))
            ratios.append(theirs[-1] / warm[-1])
        prices = found.prices
    times = median(warm), median(cold), median(theirs), median(ratios)
    return WarmCell(classes, size, active, penalty, kind, *times)


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
        for kind in ("same", "other", "slow"):
            warm_cell = compare_warm(classes, size, active, penalty, kind)
            warm_cells.append(warm_cell)
            print(warm_cell, flush=True)
    text = markdown(cells, warm_cells, machine())
    print(text)
    if not quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "solver.md").write_text(text)
        put(README, "gains", gains(cells))
        for ending in ("png", "svg"):
            plot(cells, str(RESULTS / f"solver.{ending}"))


if __name__ == "__main__":
    main()
