"""Which row holds which buckets, the residual network over buckets and sink, Dijkstra's search.

A *row* is a class of the mini-batch, a *bucket* one of the d outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.codes.load_prices import LoadCosts, agreed_load, marginal
from flowhash.compile import inner_kernel, kernel, smaller

NOBODY = -1
SHORT_LIST = 64  # up to so many rows of a bucket are looked through to mend its line of costs
BLOCK = 32  # buckets that share one entry of Trail.block_best


class Matching(NamedTuple):
    """Which row holds which buckets, in every form that the search asks for.

    A *holding* is one entry of ``held``, numbered ``row * active + index``; the holdings of one
    bucket form a linked list.

    Attributes:
        held: the buckets of each row [n, k].
        row_of: the row of a holding [n * k].
        first: a bucket's first holding, or NOBODY [d].
        following: the next holding of the same bucket, or NOBODY [n * k].
        preceding: the previous holding of the same bucket, or NOBODY [n * k].
        load: how many rows each bucket has [d].
        free: the class means, minus infinity where the row holds the bucket already [n, d].
    """

    held: NDArray[np.int32]
    row_of: NDArray[np.int32]
    first: NDArray[np.int32]
    following: NDArray[np.int32]
    preceding: NDArray[np.int32]
    load: NDArray[np.int64]
    free: NDArray[np.float64]


@inner_kernel
def link(matching: Matching, holding: int, bucket: int) -> None:
    """Put ``holding`` at the head of the list of ``bucket``."""
    head = matching.first[bucket]
    matching.following[holding] = head
    matching.preceding[holding] = NOBODY
    if head != NOBODY:
        matching.preceding[head] = holding
    matching.first[bucket] = holding
    matching.load[bucket] += 1


@inner_kernel
def unlink(matching: Matching, holding: int, bucket: int) -> None:
    """Take ``holding`` out of the list of ``bucket``."""
    before = matching.preceding[holding]
    after = matching.following[holding]
    if before == NOBODY:
        matching.first[bucket] = after
    else:
        matching.following[before] = after
    if after != NOBODY:
        matching.preceding[after] = before
    matching.load[bucket] -= 1


@kernel
def match(
    codes: NDArray[np.int32], means: NDArray[np.float64], free: NDArray[np.float64]
) -> Matching:
    """The matching with these codes; ``free`` [n, d] is scratch space that it keeps."""
    rows, active = codes.shape
    size = means.shape[1]
    matching = Matching(
        codes,
        np.empty(rows * active, np.int32),
        np.full(size, NOBODY, np.int32),
        np.empty(rows * active, np.int32),
        np.empty(rows * active, np.int32),
        np.zeros(size, np.int64),
        free,
    )
    for row in range(rows):
        free[row] = means[row]
        for index in range(active):
            bucket = codes[row, index]
            matching.row_of[row * active + index] = row
            link(matching, row * active + index, bucket)
            free[row, bucket] = -np.inf
    return matching


@inner_kernel
def move(matching: Matching, means: NDArray[np.float64], holding: int, target: int) -> None:
    """Let the row of ``holding`` give up that bucket for bucket ``target``."""
    row = matching.row_of[holding]
    index = holding - row * matching.held.shape[1]
    source = matching.held[row, index]
    unlink(matching, holding, source)
    link(matching, holding, target)
    matching.held[row, index] = target
    matching.free[row, source] = means[row, source]
    matching.free[row, target] = -np.inf


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
    matching: Matching,
) -> None:
    """Cost of the cheapest move of one row from ``bucket`` to each other, into its line."""
    for target in range(costs.shape[1]):
        costs[bucket, target] = np.inf
    free = matching.free
    holding = matching.first[bucket]
    while holding != NOBODY:
        row = matching.row_of[holding]
        value = means[row, bucket]
        for target in range(costs.shape[1]):
            costs[bucket, target] = smaller(value - free[row, target], costs[bucket, target])
        holding = matching.following[holding]


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


class Trail(NamedTuple):
    """What one search has seen. A node's distance is its label plus its price.

    Attributes:
        labels: the best labels so far [d].
        open_prices: the prices, infinite once a bucket is settled [d].
        block_best: the least distance among the open buckets of each BLOCK.
        reached: label plus mean at which each row was reached [n].
        order: the settled nodes, nearest first [d + 1].
        settled: their labels [d + 1].
        path: the nodes of the way to the last settled node, backwards [d + 1].
        carriers: the holdings that move on its arcs, NOBODY on those of the sink [d + 1].
    """

    labels: NDArray[np.float64]
    open_prices: NDArray[np.float64]
    block_best: NDArray[np.float64]
    reached: NDArray[np.float64]
    order: NDArray[np.int64]
    settled: NDArray[np.float64]
    path: NDArray[np.int64]
    carriers: NDArray[np.int64]


@inner_kernel
def relax(
    labels: NDArray[np.float64],
    open_prices: NDArray[np.float64],
    block_best: NDArray[np.float64],
    costs: NDArray[np.float64],
    line: int,
    base: float,
) -> float:
    """Lower the labels to ``base + costs[line]``; the least distance of an open bucket.

    This is where the solver spends its time: one pass without a branch, compiled to SIMD.
    """
    size = labels.shape[0]
    nearest = np.inf
    for block in range(block_best.shape[0]):
        best = np.inf
        for bucket in range(block * BLOCK, min(size, block * BLOCK + BLOCK)):
            label = smaller(base + costs[line, bucket], labels[bucket])
            labels[bucket] = label
            best = smaller(label + open_prices[bucket], best)
        block_best[block] = best
        nearest = smaller(best, nearest)
    return nearest


@inner_kernel
def close(
    labels: NDArray[np.float64],
    open_prices: NDArray[np.float64],
    block_best: NDArray[np.float64],
    bucket: int,
) -> float:
    """Bring ``block_best`` up to date after ``bucket`` was settled; the least distance left."""
    block = bucket // BLOCK
    best = np.inf
    for other in range(block * BLOCK, min(labels.shape[0], block * BLOCK + BLOCK)):
        best = smaller(labels[other] + open_prices[other], best)
    block_best[block] = best
    nearest = np.inf
    for other in range(block_best.shape[0]):
        nearest = smaller(block_best[other], nearest)
    return nearest


@inner_kernel
def reach_rows(
    reached: NDArray[np.float64],
    bucket: int,
    label: float,
    means: NDArray[np.float64],
    matching: Matching,
) -> bool:
    """Note that the search came to the rows of ``bucket``; whether to any of them more cheaply.

    A row may leave any of its buckets for the same others. So a bucket whose rows were all reached
    at least as cheaply from elsewhere opens no shorter way.
    """
    cheaper = False
    holding = matching.first[bucket]
    while holding != NOBODY:
        row = matching.row_of[holding]
        reach = label + means[row, bucket]
        if reach < reached[row]:
            reached[row] = reach
            cheaper = True
        holding = matching.following[holding]
    return cheaper


@inner_kernel
def locate(
    labels: NDArray[np.float64],
    open_prices: NDArray[np.float64],
    block_best: NDArray[np.float64],
    distance: float,
) -> int:
    """The first open bucket at ``distance``, or NOBODY."""
    for block in range(block_best.shape[0]):
        if block_best[block] == distance:
            for bucket in range(block * BLOCK, min(labels.shape[0], block * BLOCK + BLOCK)):
                if labels[bucket] + open_prices[bucket] == distance:
                    return bucket
    return NOBODY


@inner_kernel
def locate_lacking(
    labels: NDArray[np.float64],
    open_prices: NDArray[np.float64],
    block_best: NDArray[np.float64],
    surplus: NDArray[np.int64],
    distance: float,
) -> int:
    """The first open bucket within ``distance`` that lacks units, or NOBODY."""
    for block in range(block_best.shape[0]):
        if block_best[block] <= distance:
            for bucket in range(block * BLOCK, min(labels.shape[0], block * BLOCK + BLOCK)):
                if surplus[bucket] < 0 and labels[bucket] + open_prices[bucket] <= distance:
                    return bucket
    return NOBODY


@inner_kernel
def search(
    network: Network,
    matching: Matching,
    means: NDArray[np.float64],
    prices: NDArray[np.float64],
    source: int,
    trail: Trail,
    slack: float,
) -> int:
    """Settle nodes from ``source`` on until one lacks units; the number of settled nodes, or 0.

    The sink always leads to a bucket that lacks units, so 0 means that an invariant is broken.
    """
    surplus, costs, stale, to_sink = network.surplus, network.costs, network.stale, network.to_sink
    labels, open_prices, block_best, reached, order, settled, _, _ = trail
    sink = means.shape[1]
    for bucket in range(sink):
        labels[bucket] = np.inf
        open_prices[bucket] = prices[bucket]
    for block in range(block_best.shape[0]):
        block_best[block] = np.inf
    for row in range(reached.shape[0]):
        reached[row] = np.inf
    node, label, distance = source, -prices[source], 0.0
    sink_label, sink_open = np.inf, source != sink
    count = 0
    while True:
        order[count] = node
        settled[count] = label
        count += 1
        if surplus[node] < 0:
            return count
        if node == sink:
            nearest = relax(labels, open_prices, block_best, costs, sink, label)
        else:
            open_prices[node] = np.inf
            sink_label = min(sink_label, label + to_sink[node])
            if reach_rows(reached, node, label, means, matching):
                if stale[node]:
                    cheapest_moves(costs, node, means, matching)
                    stale[node] = False
                nearest = relax(labels, open_prices, block_best, costs, node, label)
            else:
                nearest = close(labels, open_prices, block_best, node)
        if sink_open and sink_label + prices[sink] <= nearest:
            node, label, sink_open = sink, sink_label, False
            distance = float(label + prices[sink])
        else:
            # Classes with equal means make all ways equally long up to rounding. To settle every
            # bucket that is nearer by a rounding error would take long.
            next_node = NOBODY
            if nearest <= distance + slack:
                next_node = locate_lacking(
                    labels, open_prices, block_best, surplus, nearest + slack
                )
            if next_node == NOBODY:
                next_node = locate(labels, open_prices, block_best, nearest)
            if next_node == NOBODY or nearest == np.inf:
                return 0
            node = next_node
            label = labels[node]
            distance = float(label + prices[node])


@inner_kernel
def trace(
    network: Network, matching: Matching, means: NDArray[np.float64], trail: Trail, count: int
) -> int:
    """Write the way to the last settled node into ``trail.path``, backwards; its length or NOBODY.

    A node's label is that of the node before it plus the arc between them, to the last bit, so the
    way is found again without having been noted. ``trail.carriers`` says which holding moves on
    each arc between buckets.
    """
    sink = network.served.shape[0]
    position, length = count - 1, 0
    trail.path[0] = trail.order[position]
    while position > 0:
        node, label = trail.order[position], trail.settled[position]
        earlier = 0
        while True:
            other = trail.order[earlier]
            if node == sink:
                cost = network.to_sink[other]
            else:
                cost = np.inf if network.stale[other] else network.costs[other, node]
            if trail.settled[earlier] + cost == label:
                break
            earlier += 1
            if earlier == position:
                return NOBODY
        holding = NOBODY
        if node != sink and other != sink:
            holding = matching.first[other]
            row = matching.row_of[holding]
            while means[row, other] - matching.free[row, node] != cost:
                holding = matching.following[holding]
                row = matching.row_of[holding]
        trail.carriers[length] = holding
        length += 1
        trail.path[length] = other
        position = earlier
    return length


@inner_kernel
def reprice(trail: Trail, count: int, prices: NDArray[np.float64]) -> None:
    """Raise the prices of settled nodes by how much nearer they were than the last one."""
    distance = 0.0
    for position in range(count):
        node = trail.order[position]
        distance = max(distance, trail.settled[position] + prices[node])
    for position in range(count):
        prices[trail.order[position]] = distance - trail.settled[position]


@kernel
def repair(
    codes: NDArray[np.int32],
    means: NDArray[np.float64],
    loads: LoadCosts,
    prices: NDArray[np.float64],
    free: NDArray[np.float64],
    costs: NDArray[np.float64],
    slack: float,
) -> None:
    """Send every surplus unit where one lacks; then codes and prices are optimal, in place.

    At the start the codes [n, k] must be the best ones at ``prices`` [d + 1], the sink's last and
    0. Prices and ``loads`` count from the same level; ``slack`` is a rounding error of the means.
    ``free`` [n, d] and ``costs`` [d + 1, d] are scratch space.
    """
    rows, size = means.shape
    matching = match(codes, means, free)
    network = build_network(matching, loads, prices, costs)
    trail = Trail(
        np.empty(size),
        np.empty(size),
        np.empty((size + BLOCK - 1) // BLOCK),
        np.empty(rows),
        np.empty(size + 1, np.int64),
        np.empty(size + 1),
        np.empty(size + 1, np.int64),
        np.empty(size + 1, np.int64),
    )
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
