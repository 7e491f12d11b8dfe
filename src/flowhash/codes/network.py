"""The residual network over buckets and sink: its arcs, and what one unit over an arc changes.

For the search of ``repair`` the flow network G' shrinks to its buckets and the sink. An arc from
bucket ``a`` to bucket ``b`` is the cheapest move of any one row from ``a`` to ``b``; an arc to the
sink is one more unit of load, an arc from the sink one unit less.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.codes.matching import NOBODY, Matching, move
from flowhash.codes.pricing import LoadCosts, agreed_load, marginal
from flowhash.compile import inner_kernel, kernel, smaller

SHORT_LIST = 64  # up to so many rows of a bucket are looked through to mend its line of costs


class Network(NamedTuple):
    """The residual network over buckets 0 .. d - 1 and the sink, which is node d.

    Attributes:
        served: the units that each bucket sends to the sink [d].
        surplus: load less served; the sink's, units received less units due [d + 1].
        costs: of arcs to buckets [d + 1, d]. Line ``a`` has the cheapest move of one row from
            bucket ``a`` to each other; the sink's line has one unit of load less, infinite at none.
        stale: whether a line of ``costs`` must be computed anew [d + 1].
        to_sink: of arcs to the sink: one more unit of load, infinite at the most [d].
    """

    served: NDArray[np.int64]
    surplus: NDArray[np.int64]
    costs: NDArray[np.float64]
    stale: NDArray[np.bool_]
    to_sink: NDArray[np.float64]


@inner_kernel
def set_served(network: Network, loads: LoadCosts, bucket: int, served: int) -> None:
    """Let ``bucket`` send ``served`` units to the sink."""
    sink = network.served.shape[0]
    network.served[bucket] = served
    network.to_sink[bucket] = marginal(loads, bucket, served)
    network.costs[sink, bucket] = -marginal(loads, bucket, served - 1) if served > 0 else np.inf


@kernel
def build_network(
    matching: Matching,
    loads: LoadCosts,
    prices: NDArray[np.float64],
    costs: NDArray[np.float64],
) -> Network:
    """The residual network of a matching whose rows hold their best buckets at ``prices``.

    ``costs`` [d + 1, d] is scratch space that the network keeps.
    """
    sink = costs.shape[1]
    network = Network(
        np.empty(sink, np.int64),
        np.zeros(sink + 1, np.int64),
        costs,
        np.ones(sink + 1, np.bool_),
        np.empty(sink),
    )
    network.stale[sink] = False
    for bucket in range(sink):
        load = matching.load[bucket]
        served = agreed_load(loads, bucket, prices[bucket], load)
        set_served(network, loads, bucket, served)
        network.surplus[bucket] = load - served
        network.surplus[sink] += served - load
    return network


@inner_kernel
def cheapest_moves(
    costs: NDArray[np.float64],
    bucket: int,
    means: NDArray[np.float64],
    free: NDArray[np.float64],
    first: NDArray[np.int32],
    following: NDArray[np.int32],
    row_of: NDArray[np.int32],
) -> None:
    """Cost of the cheapest move of one row from ``bucket`` to each other, into its line."""
    for target in range(costs.shape[1]):
        costs[bucket, target] = np.inf
    holding = first[bucket]
    while holding != NOBODY:
        row = row_of[holding]
        value = means[row, bucket]
        for target in range(costs.shape[1]):
            costs[bucket, target] = smaller(value - free[row, target], costs[bucket, target])
        holding = following[holding]


@inner_kernel
def swap_offer(
    costs: NDArray[np.float64],
    bucket: int,
    row: int,
    source: int,
    target: int,
    means: NDArray[np.float64],
    matching: Matching,
) -> None:
    """Keep the line of a third bucket true after ``row``, its member, moved.

    It may no longer move that row to ``target``, but now to ``source``.
    """
    costs[bucket, source] = min(costs[bucket, source], means[row, bucket] - means[row, source])
    cheapest = np.inf
    holding = matching.first[bucket]
    while holding != NOBODY:
        member = matching.row_of[holding]
        cheapest = min(cheapest, means[member, bucket] - matching.free[member, target])
        holding = matching.following[holding]
    costs[bucket, target] = cheapest


@inner_kernel
def shift(
    network: Network,
    matching: Matching,
    means: NDArray[np.float64],
    loads: LoadCosts,
    source: int,
    target: int,
    holding: int,
) -> None:
    """Send one unit over the arc from ``source`` to ``target``, carried by ``holding``."""
    sink = network.served.shape[0]
    if target == sink:
        set_served(network, loads, source, network.served[source] + 1)
    elif source == sink:
        set_served(network, loads, target, network.served[target] - 1)
    else:
        row = matching.row_of[holding]
        move(matching, means, holding, target)
        network.stale[source] = True
        network.stale[target] = True
        for index in range(matching.held.shape[1]):
            other = matching.held[row, index]
            if other != target and not network.stale[other]:
                if matching.load[other] <= SHORT_LIST:
                    swap_offer(network.costs, other, row, source, target, means, matching)
                else:
                    network.stale[other] = True
