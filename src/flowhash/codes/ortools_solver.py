"""The paper's way to the optimal codes: the flow network G' on OR-Tools' SimpleMinCostFlow.

It is here as the oracle of the tests and the peer of the benchmark. OR-Tools wants whole numbers,
so costs are rounded to millionths of the largest one: its codes are optimal up to that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import SolverError
from flowhash.extras import require

RESOLUTION = 1e6  # steps between zero and the largest class mean
LARGEST_COST = 1e15  # OR-Tools multiplies costs by the number of nodes, in 64 bits


def _scale(means: NDArray[np.float64], penalty: NDArray[np.float64]) -> float:
    """What to multiply costs by before they are rounded to whole numbers."""
    largest, dearest = float(np.abs(means).max()), float(penalty.max())
    reference = largest or dearest or 1.0
    if dearest > LARGEST_COST / RESOLUTION * reference / (2.0 * len(means)) or reference < 1e-200:
        raise SolverError(
            f"class means up to {largest:g} beside a penalty of {dearest:g} do not fit OR-Tools' "
            f"whole numbers. Use solver='flow'"
        )
    return RESOLUTION / reference


def ortools_codes(
    means: NDArray[np.float64], active: int, penalty: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Minimum-cost flow on G' (Theorem 1): codes [n, k] of checked class means [n, d].

    Nodes are the classes, the buckets and the sink; the classes' supply of k units each stands for
    the source. Arcs go in as arrays, class to bucket first, so that their flows are the codes.
    """
    flow_module = require("ortools.graph.python.min_cost_flow", "ortools")
    rows, size = means.shape
    scale = _scale(means, penalty)
    classes = np.arange(rows, dtype=np.int32)
    buckets = np.arange(rows, rows + size, dtype=np.int32)
    sink = rows + size
    one = np.ones(rows * size, np.int64)

    flow = flow_module.SimpleMinCostFlow()
    values = np.rint(-scale * means).astype(np.int64).ravel()
    arcs = flow.add_arcs_with_capacity_and_unit_cost(
        np.repeat(classes, size), np.tile(buckets, rows), one, values
    )
    steps = np.rint(2.0 * scale * penalty[:, None] * np.arange(rows)).astype(np.int64).ravel()
    flow.add_arcs_with_capacity_and_unit_cost(
        np.repeat(buckets, rows), np.full(size * rows, sink, np.int32), one, steps
    )
    supplies = np.zeros(sink + 1, np.int64)
    supplies[:rows] = active
    supplies[sink] = -rows * active
    flow.set_nodes_supplies(np.arange(sink + 1, dtype=np.int32), supplies)
    status = flow.solve()
    if status != flow.OPTIMAL:
        raise SolverError(
            f"OR-Tools ended with status {status.name}, not OPTIMAL. Use solver='flow'"
        )
    flows = flow.flows(arcs).reshape(rows, size)
    return np.nonzero(flows)[1].reshape(rows, active).astype(np.int32)


def prices_of(
    codes: NDArray[np.int32], means: NDArray[np.float64], penalty: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Dual prices [d] of given codes: shortest distances to the sink in the residual network.

    OR-Tools keeps its prices to itself. Bellman-Ford over buckets and sink finds them again; with
    codes that are not optimal (here: by rounding) it stops when every node had its turn, and the
    certificate shows the difference.
    """
    rows, size = means.shape
    held = np.zeros((rows, size), bool)
    np.put_along_axis(held, codes.astype(np.int64), True, axis=1)
    load = held.sum(axis=0)
    cost = np.full((size + 1, size + 1), np.inf)
    for bucket in range(size):
        members = held[:, bucket]
        if members.any():
            moves = means[members, bucket, None] - np.where(held[members], -np.inf, means[members])
            cost[bucket, :size] = moves.min(axis=0)
    cost[:size, size] = np.where(load < rows, 2.0 * penalty * load, np.inf)
    cost[size, :size] = np.where(load > 0, -2.0 * penalty * (load - 1), np.inf)
    distance = np.full(size + 1, np.inf)
    distance[size] = 0.0
    for _ in range(size + 1):
        shorter = np.minimum(distance, (cost + distance).min(axis=1))
        if np.array_equal(shorter, distance):
            break
        distance = shorter
    # A bucket that all rows hold and none can leave has no way to the sink: any price from its
    # last step up will do.
    prices = np.where(np.isfinite(distance[:size]), distance[:size], 2.0 * penalty * (load - 1))
    return np.asarray(prices - distance[size])


def ortools_solver(
    means: NDArray[np.float64],
    active: int,
    penalty: NDArray[np.float64],
    prices: NDArray[np.float64] | None,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Solve with OR-Tools; see ``flowhash.codes.assignment.Solver``. It has no warm start."""
    codes = ortools_codes(means, active, penalty)
    return codes, prices_of(codes, means, penalty)
