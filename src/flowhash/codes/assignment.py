"""The optimal codes of a mini-batch's classes, with a proof that they are optimal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import matrix
from flowhash.codes.code_arguments import (
    active_count,
    outside_loads,
    penalties,
    start_prices,
    summable,
)
from flowhash.codes.flow_solver import flow_codes
from flowhash.codes.load_prices import (
    LoadCosts,
    agreed_load,
    best_codes,
    load_costs,
    loads_of,
    marginal,
)
from flowhash.codes.ortools_solver import ortools_solver
from flowhash.compile import inner_kernel, kernel
from flowhash.errors import InputError

UNIT = 2.0**-52  # relative distance between neighbouring float64 numbers
ROUNDINGS = 64  # of that size that each price and mean may have gone through

# What solves Theorem 1's problem. It takes checked class means [n, d] float64, k, one penalty per
# bucket [d], and prices [d] to start from or None; it returns optimal codes [n, k] int32, ascending
# in each row, and the buckets' dual prices [d]. What it returns is certified by others, not by
# itself.
Solver = Callable[
    [NDArray[np.float64], int, NDArray[np.float64], NDArray[np.float64] | None],
    tuple[NDArray[np.int32], NDArray[np.float64]],
]
SOLVERS: dict[str, Solver] = {"flow": flow_codes, "ortools": ortools_solver}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Assignment:
    """The codes of a mini-batch's classes and the proof of their optimality.

    Attributes:
        codes: the active buckets of each class [n, k] int32, ascending in each row.
        objective: the minimum of the paper's ĝ, which these codes reach.
        prices: the buckets' dual prices [d] float64; hand them to the next batch to start it warm.
            Bucket ``q`` with load ``y`` has a price between ``2 λ_q (y - 1)`` and ``2 λ_q y``; no
            lower limit where it is empty, no upper one where all classes are in it.
        gap: objective less the lower bound that ``prices`` prove. Zero, up to ``rounding``.
        rounding: how large the gap of optimal codes may be, since prices and means are float64. It
            grows with the penalty: at ``λ = 1e9`` no float64 price tells costs of 1e-7 apart.
    """

    codes: NDArray[np.int32]
    objective: float
    prices: NDArray[np.float64]
    gap: float
    rounding: float

    def __repr__(self) -> str:
        classes, active = self.codes.shape
        state = "certified" if self.certified else f"not certified, rounding {self.rounding:.1e}"
        return (
            f"Assignment({classes} classes, {active} of {len(self.prices)} buckets each, "
            f"objective {self.objective:.6g}, gap {self.gap:.1e}, {state})"
        )

    @property
    def certified(self) -> bool:
        """Whether the gap is zero up to rounding, so that the codes are proven optimal."""
        return abs(self.gap) <= self.rounding


def assign_codes(
    class_means: ArrayLike,
    active: int,
    penalty: ArrayLike,
    *,
    outside: ArrayLike | None = None,
    prices: ArrayLike | None = None,
    solver: str = "flow",
) -> Assignment:
    """The optimal k-sparse codes of the classes of a mini-batch (Theorem 1).

    Minimises, exactly, over codes z with k active buckets each::

        ĝ(z) = Σ_i -c_i · z_i  +  Σ_i Σ_{j≠i} z_i · P z_j,     P = diag(λ_1, …, λ_d)

    Every class wants the buckets where its mean is large; two classes that share bucket ``q`` cost
    ``2 λ_q``. Classes that are not in the batch keep the codes they have; with their loads in
    ``outside``, Σ_i 2 z_i · P outside is added, what the batch shares with them. Then the codes are
    an exact step of the objective over all classes in the block of those of the batch.

    Args:
        class_means: c, the mean activations of each class [n, d]; see ``class_means``.
        active: k, the number of active buckets, 1 <= k <= d.
        penalty: λ >= 0, one number or one per bucket [d]. With 0 the codes are each class's top-k;
            with a huge one the loads are even.
        outside: how many classes that are not in the batch are in each bucket [d]; none by default.
        prices: the ``prices`` of an earlier batch over the same buckets. Where costs change slowly
            they make it faster; they never change the optimum.
        solver: ``"flow"``, FlowHash's own, or ``"ortools"``, the paper's way (the flow network G'
            on OR-Tools, costs rounded to millionths of the largest; needs ``flowhash[ortools]``).

    Returns:
        The codes, the minimum, and prices that prove it. Where several codes are optimal, which
        one comes back may depend on ``prices``; the same call always gives the same answer.

    Raises:
        InputError: wrong shapes, NaN or infinity, k out of range, a negative penalty.
        MissingExtraError: the solver's package is not installed.

    Example:
        >>> both_want_bucket_0 = [[0.9, 0.2, 0.0], [0.8, 0.0, 0.5]]
        >>> assign_codes(both_want_bucket_0, active=1, penalty=1.0).codes.tolist()
        [[0], [2]]
        >>> assign_codes(both_want_bucket_0, active=1, penalty=0.0).codes.tolist()
        [[0], [0]]
    """
    if not isinstance(solver, str) or solver not in SOLVERS:
        raise InputError(f"solver is {solver!r}; choose one of {', '.join(map(repr, SOLVERS))}")
    means = matrix(class_means, "class_means", "buckets", (np.float64,))
    rows, size = means.shape
    if rows == 0:
        raise InputError(f"class_means has shape {means.shape}: no class; expected at least one")
    summable(means, "class_means")
    count = active_count(active, size)
    penalty_of = penalties(penalty, size)
    if outside is not None:
        means = means - 2 * penalty_of * outside_loads(outside, size)
        summable(means, "class_means less 2 · penalty · outside")
    warm = None if prices is None else start_prices(prices, size)
    codes, dual = SOLVERS[solver](means, count, penalty_of, warm)
    objective, gap, rounding = certify(codes, means, penalty_of, dual)
    return Assignment(codes, objective, dual, gap, rounding)


@inner_kernel
def _bucket_shortfall(loads: LoadCosts, bucket: int, price: float, load: int) -> float:
    """How much worse ``load`` is for a bucket than the best load at ``price``."""
    best = agreed_load(loads, bucket, price, load)
    shortfall = 0.0
    for place in range(best, load):
        shortfall += marginal(loads, bucket, place) - price
    for place in range(load, best):
        shortfall += price - marginal(loads, bucket, place)
    return shortfall


@kernel
def certify(
    codes: NDArray[np.int32],
    means: NDArray[np.float64],
    penalty: NDArray[np.float64],
    prices: NDArray[np.float64],
) -> tuple[float, float, float]:
    """What ``codes`` [n, k] cost, how far above the bound of ``prices`` [d], and the rounding.

    Any prices give a lower bound on the objective: at those prices the best that each class could
    do on its own, and the best load of each bucket on its own (the Lagrangian dual of Theorem 1's
    linear programme). Codes whose cost equals that bound are optimal, however they were found.

    The difference of the two is a sum of what each class and each bucket falls short of its best.
    Those are small numbers even where cost and bound are huge, so they are added up, not the
    totals.
    """
    rows, active = codes.shape
    size = means.shape[1]
    best = best_codes(means, prices, active)
    load = loads_of(codes, size)
    loads = load_costs(2.0 * penalty, rows, 0.0)
    objective, gap, magnitude = 0.0, 0.0, 0.0
    for row in range(rows):
        for index in range(active):
            held, wanted = codes[row, index], best[row, index]
            objective -= means[row, held]
            gap += (means[row, wanted] - prices[wanted]) - (means[row, held] - prices[held])
            magnitude += abs(means[row, held]) + abs(means[row, wanted])
            magnitude += abs(prices[held]) + abs(prices[wanted])
    for bucket in range(size):
        taken = float(load[bucket])
        objective += penalty[bucket] * taken * (taken - 1.0)
        gap += _bucket_shortfall(loads, bucket, prices[bucket], load[bucket])
        magnitude += abs(prices[bucket])
    return objective, gap, ROUNDINGS * UNIT * magnitude
