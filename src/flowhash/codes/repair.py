"""From the best codes at some prices to the optimal codes: shortest paths over the buckets.

At given prices every row holds its best buckets, but a bucket's load may not suit its price. By
the paper's Theorem 1 the load ``y`` of bucket ``q`` costs ``penalty[q] * y * (y - 1)``, so price
and load agree when ``2 * penalty[q] * (y - 1) <= price <= 2 * penalty[q] * y``. Where they do not,
units must flow from buckets with too many rows to buckets with too few, along shortest paths.

The reduced costs of a search are never negative because the rows hold their best buckets; its
distances then change the prices so that this stays true. When no bucket disagrees any more, codes
and prices are optimal together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.codes.matching import NOBODY, Matching
from flowhash.codes.network import Network, shift
from flowhash.codes.pricing import LoadCosts
from flowhash.codes.search import new_trail, reprice, search, trace
from flowhash.compile import kernel


@kernel
def repair(
    network: Network,
    matching: Matching,
    means: NDArray[np.float64],
    loads: LoadCosts,
    prices: NDArray[np.float64],
    slack: float,
) -> None:
    """Send every surplus unit where one lacks; then matching and prices are optimal, in place.

    At the start the rows must hold their best buckets at ``prices`` [d + 1], the sink's last and 0.
    Prices and ``loads`` count from the same level; ``slack`` is a rounding error of the means.
    """
    size = means.shape[1]
    trail = new_trail(means.shape[0], size)
    for source in range(size + 1):
        while network.surplus[source] > 0:
            count = search(network, matching, means, prices, source, trail, slack)
            length = trace(network, matching, means, trail, count) if count > 0 else NOBODY
            if length == NOBODY:
                raise RuntimeError(
                    "FlowHash's solver lost its way; please report these class means"
                )
            network.surplus[source] -= 1
            network.surplus[trail.order[count - 1]] += 1
            for hop in range(length):
                start, end, holding = trail.path[hop + 1], trail.path[hop], trail.carriers[hop]
                shift(network, matching, means, loads, start, end, holding)
            reprice(trail, count, prices)
    prices -= prices[size]
