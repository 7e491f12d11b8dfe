"""The project's own exact solver: starting prices, best codes at them, shortest-path repair."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from flowhash.codes.auction import auction
from flowhash.codes.load_prices import (
    LoadCosts,
    agreed_load,
    best_codes,
    load_costs,
    loads_of,
    marginal,
)
from flowhash.codes.residual_network import repair
from flowhash.compile import inner_kernel, kernel, larger, smaller
from flowhash.top_values import sort_rows

QUICK_SHARE = 5  # d / QUICK_SHARE units or fewer are quicker moved than avoided by an auction
QUICK_WARM_SHARE = 2  # the same for earlier prices, off by little: units do not move far
HARDLY_ANY = 32  # at most d / HARDLY_ANY units to move: no better start is looked for
ALIKE = 0.5  # where more than this share of the units has to move, classes may be almost alike
ROUNDS = 6  # how often prices follow the loads at the most
WORTH = 0.75  # such a round must leave at most this share of the units to move
SMALL = 64  # up to so many buckets a search is so cheap that an auction does not pay
# How far from the level a price may start, in ranges of the class means. Where one bucket costs
# more than another by that range, every class prefers the other, so that prices hardly ever need to
# differ by more; and larger ones would swallow the means' last digits.
FURTHEST = 2.0
ROUNDING = 2.0**-48  # a few rounding errors of float64 numbers
KEPT = 1 << 21  # scratch numbers (16 MiB) that a thread keeps from one batch to the next
_kept = threading.local()


@inner_kernel
def level_price(steps: NDArray[np.float64], rows: int, units: int) -> float:
    """The lowest price, the same for all buckets, at which they offer ``units`` places together.

    At price ``u`` bucket ``q`` offers one place for every ``steps[q] * load <= u``.
    """
    least, most = steps[0], steps[0]
    for bucket in range(1, steps.shape[0]):
        least, most = min(least, steps[bucket]), max(most, steps[bucket])
    if least == most:
        return float(most * ((units - 1) // steps.shape[0]))
    low, high = 0.0, most * rows
    while True:
        middle = 0.5 * (low + high)
        if middle <= low or middle >= high:
            break  # neighbouring numbers: penalties may differ by any power of ten
        offered = 0
        for bucket in range(steps.shape[0]):
            step = steps[bucket]
            offered += rows if step * rows <= middle else int(middle / step) + 1
        if offered >= units:
            high = middle
        else:
            low = middle
    # Halving stops just above the price that it looks for, which is a step of some bucket.
    level = 0.0
    for bucket in range(steps.shape[0]):
        step = steps[bucket]
        if step > 0.0 and step * rows > high:
            level = max(level, step * int(high / step))
    return level


@inner_kernel
def surplus_at(costs: LoadCosts, load: NDArray[np.int64], prices: NDArray[np.float64]) -> int:
    """How many units have to move before loads and prices agree."""
    surplus, sink = 0, 0
    for bucket in range(load.shape[0]):
        served = agreed_load(costs, bucket, prices[bucket], load[bucket])
        surplus += max(load[bucket] - served, 0)
        sink += served - load[bucket]
    return surplus + max(sink, 0)


@kernel
def common_prices(
    means: NDArray[np.float64], loads: LoadCosts, level: float, units: int
) -> NDArray[np.float64]:
    """The optimal prices, less the level, if all classes had the same means: their average [d].

    Then load rises in each bucket until the price that it supports takes away what the bucket is
    worth above a common water mark. A network that has just begun to learn gives classes that are
    almost alike, and these prices are almost right.
    """
    rows, size = means.shape
    worth = np.zeros(size)
    for row in range(rows):
        for bucket in range(size):
            worth[bucket] += means[row, bucket]
    worth /= rows
    low, high = worth.min() - level - loads.steps.max(), worth.max()
    for _ in range(40):
        mark = 0.5 * (low + high)
        offered = 0.0
        for bucket in range(size):
            price, step = worth[bucket] - mark, loads.steps[bucket]
            if price >= 0.0:
                offered += rows if step * rows <= price else np.floor(price / step) + 1.0
        if offered >= units:
            low = mark
        else:
            high = mark
    prices = np.zeros(size)
    for bucket in range(size):
        if loads.steps[bucket] > 0.0:
            prices[bucket] = max(worth[bucket] - low, 0.0)
    return prices - level


@inner_kernel
def range_of(means: NDArray[np.float64]) -> tuple[float, float]:
    """The least and the largest class mean."""
    least, most = means[0, 0], means[0, 0]
    for row in range(means.shape[0]):
        for bucket in range(means.shape[1]):
            least = smaller(means[row, bucket], least)
            most = larger(means[row, bucket], most)
    return least, most


@inner_kernel
def follow_loads(
    costs: LoadCosts, load: NDArray[np.int64], prices: NDArray[np.float64], furthest: float
) -> None:
    """Set every price to the nearest one that agrees with the load, in place, within bounds."""
    for bucket in range(load.shape[0]):
        taken = load[bucket]
        lowest = marginal(costs, bucket, taken - 1) if taken > 0 else -np.inf
        highest = marginal(costs, bucket, taken)
        agreed = min(max(prices[bucket], lowest), highest)
        prices[bucket] = min(max(agreed, -furthest), furthest)


@kernel
def codes_at(
    means: NDArray[np.float64], active: int, loads: LoadCosts, prices: NDArray[np.float64]
) -> tuple[NDArray[np.int32], int]:
    """The best codes at ``prices``, and how many units would have to move to make them optimal."""
    codes = best_codes(means, prices, active)
    return codes, surplus_at(loads, loads_of(codes, means.shape[1]), prices)


@kernel
def follow(
    means: NDArray[np.float64],
    loads: LoadCosts,
    codes: NDArray[np.int32],
    need: int,
    prices: NDArray[np.float64],
    furthest: float,
) -> tuple[NDArray[np.int32], int]:
    """Let the prices follow the loads, in place, while that helps; codes and units to move.

    Where classes have clear favourites, one round finds the loads that they insist on. Where any
    bucket will do, all classes would flee from the same ones together, and it stops at once.
    """
    size = means.shape[1]
    trial = prices.copy()
    for _ in range(ROUNDS):
        if need <= size // HARDLY_ANY:
            break
        follow_loads(loads, loads_of(codes, size), trial, furthest)
        trial_codes, trial_need = codes_at(means, codes.shape[1], loads, trial)
        if trial_need > WORTH * need:
            break
        prices[:] = trial
        codes, need = trial_codes, trial_need
    return codes, need


@kernel
def start(
    means: NDArray[np.float64],
    active: int,
    loads: LoadCosts,
    level: float,
    warm: NDArray[np.float64],
    furthest: float,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Codes [n, k] and prices [d + 1] from which few units have to move, the sink's price last.

    Earlier prices come after the start that the means themselves suggest, because that one is often
    so good that a look at others is wasted.
    """
    rows, size = means.shape
    prices = np.zeros(size + 1)
    opening = np.zeros(size)
    codes, need = codes_at(means, active, loads, prices)
    if need > ALIKE * rows * active:
        opening = common_prices(means, loads, level, rows * active)
        prices[:size] = opening
        codes, need = codes_at(means, active, loads, prices)
    codes, need = follow(means, loads, codes, need, prices, furthest)
    few = size // QUICK_SHARE
    if warm.shape[0] == size and need > size // HARDLY_ANY:
        trial = np.zeros(size + 1)
        for bucket in range(size):
            trial[bucket] = min(max(warm[bucket] - level, -furthest), furthest)
        trial_codes, trial_need = codes_at(means, active, loads, trial)
        if trial_need < need:
            codes, prices, need = trial_codes, trial, trial_need
            few = size // QUICK_WARM_SHARE
    if need > few and size > SMALL:
        prices[:size] = auction(means, active, loads, opening)
        codes = best_codes(means, prices, active)
    return codes, prices


@kernel
def solve(
    means: NDArray[np.float64],
    active: int,
    penalty: NDArray[np.float64],
    warm: NDArray[np.float64],
    scratch: NDArray[np.float64],
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Optimal codes [n, k] and prices [d].

    Args:
        means: class means [n, d].
        active: k.
        penalty: λ of each bucket [d].
        warm: prices to start from [d], or an empty array.
        scratch: room for (n + d + 1) * d numbers.
    """
    rows, size = means.shape
    level = level_price(2.0 * penalty, rows, rows * active)
    loads = load_costs(2.0 * penalty, rows, level)
    least, most = range_of(means)
    codes, prices = start(means, active, loads, level, warm, FURTHEST * (most - least))
    free = scratch[: rows * size].reshape(rows, size)
    arcs = scratch[rows * size : (rows + size + 1) * size].reshape(size + 1, size)
    slack = ROUNDING * max(abs(least), abs(most))
    repair(codes, means, loads, prices, free, arcs, slack)
    sort_rows(codes)
    return codes, prices[:size] + level


def _scratch(count: int) -> NDArray[np.float64]:
    """Room for ``count`` numbers. Fresh memory loads a page fault every 512 numbers, so keep it."""
    if count > KEPT:
        return np.empty(count)
    kept: NDArray[np.float64] | None = getattr(_kept, "scratch", None)
    if kept is None or len(kept) < count:
        kept = _kept.scratch = np.empty(count)
    return kept


def flow_codes(
    means: NDArray[np.float64],
    active: int,
    penalty: NDArray[np.float64],
    prices: NDArray[np.float64] | None,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Solve with FlowHash's own solver; see ``flowhash.codes.assignment.Solver``."""
    rows, size = means.shape
    warm = np.empty(0) if prices is None else prices
    return solve(means, active, penalty, warm, _scratch((rows + size + 1) * size))
