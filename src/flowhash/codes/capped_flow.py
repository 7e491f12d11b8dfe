"""Items to buckets that have room for so many, at the least cost: exact transportation.

Each item may go to its candidates only. Buckets have prices, zero or more; at the optimal ones each
item holds the candidate with the least cost and price together, and only full buckets have a price.
First prices rise and fall bucket by bucket until almost every load is right (``level``), then items
are moved along shortest paths over buckets until all are (``repair``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import inner_kernel, kernel, larger, smaller

SWEEPS = 400  # over all buckets at the most
TURN = 4  # sweeps after which they are compared with the paths that they save
ARCS = 1 << 24  # arcs that are kept, 128 MiB; those of other buckets are found each time


@inner_kernel
def best_slot(
    buckets: NDArray[np.int32], costs: NDArray[np.float64], prices: NDArray[np.float64], item: int
) -> int:
    """Where in its list the candidate stands that is the cheapest at these prices; the first."""
    found, least = 0, np.inf
    for slot in range(buckets.shape[1]):
        cost = costs[item, slot] + prices[buckets[item, slot]]
        if cost < least:
            found, least = slot, cost
    return found


@inner_kernel
def margin(
    buckets: NDArray[np.int32],
    costs: NDArray[np.float64],
    prices: NDArray[np.float64],
    item: int,
    held: int,
) -> tuple[float, int]:
    """How much more the best other candidate costs than the one held, and where it stands."""
    found, least = held, np.inf
    for slot in range(buckets.shape[1]):
        cost = costs[item, slot] + prices[buckets[item, slot]]
        if slot != held and cost < least:
            found, least = slot, cost
    return least - costs[item, held] - prices[buckets[item, held]], found


@inner_kernel
def loads_at(buckets: NDArray[np.int32], held: NDArray[np.int32], load: NDArray[np.int64]) -> None:
    """Count the items of each bucket into ``load``."""
    load[:] = 0
    for item in range(buckets.shape[0]):
        load[buckets[item, held[item]]] += 1


@kernel
def listed(buckets: NDArray[np.int32], size: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """For each bucket where it is a candidate: the edges of its part [d + 1], and the places."""
    edges = np.zeros(size + 1, np.int64)
    for item in range(buckets.shape[0]):
        for slot in range(buckets.shape[1]):
            edges[buckets[item, slot] + 1] += 1
    for bucket in range(size):
        edges[bucket + 1] += edges[bucket]
    ends = edges[:-1].copy()
    places = np.empty(buckets.size, np.int32)
    for item in range(buckets.shape[0]):
        for slot in range(buckets.shape[1]):
            bucket = buckets[item, slot]
            places[ends[bucket]] = item * buckets.shape[1] + slot
            ends[bucket] += 1
    return edges, places


@inner_kernel
def unsettled(
    load: NDArray[np.int64], room: NDArray[np.int64], prices: NDArray[np.float64], bucket: int
) -> int:
    """How many items a bucket has too many; less than zero where it costs and is not full."""
    more = load[bucket] - room[bucket]
    if more < 0 and prices[bucket] <= 0.0:
        return 0
    return int(more)


@kernel
def cut_at(values: NDArray[np.float64], count: int) -> tuple[float, float]:
    """The value that stands at ``count`` when sorted, and what lies half-way to the next."""
    if count >= values.shape[0]:
        last = values.max()
        return last, last
    ordered = np.partition(values, count)
    last = ordered[:count].max()
    return last, (0.5 * (last + ordered[count]) if ordered[count] < np.inf else last)


@kernel
def level(
    buckets: NDArray[np.int32],
    costs: NDArray[np.float64],
    room: NDArray[np.int64],
    prices: NDArray[np.float64],
) -> None:
    """Change prices, bucket after bucket, to what makes its load right, while that helps; in place.

    Too full, a bucket becomes dearer until those leave who lose least; not full, it becomes cheaper
    until as many come, or it costs nothing. It is an ascent of the dual in one price at a time,
    which comes near the end and need not reach it.
    """
    size, width = room.shape[0], buckets.shape[1]
    held = np.empty(buckets.shape[0], np.int32)
    for item in range(buckets.shape[0]):
        held[item] = best_slot(buckets, costs, prices, item)
    load = np.empty(size, np.int64)
    loads_at(buckets, held, load)
    edges, places = listed(buckets, size)
    longest = 0
    for bucket in range(size):
        longest = max(longest, edges[bucket + 1] - edges[bucket])
    values = np.empty(longest)
    owners = np.empty(longest, np.int32)
    # Steps of a unit's path: Dijkstra's over half of the buckets, and new arcs of a few.
    path = size * size // 2 + 4 * buckets.size // size
    before, work = np.inf, 0
    for sweep in range(SWEEPS):
        wrong = 0
        for bucket in range(size):
            wrong += abs(unsettled(load, room, prices, bucket))
        if wrong == 0 or (sweep % TURN == 0 and work > (before - wrong) * path):
            break
        if sweep % TURN == 0:
            before, work = wrong, 0
        for bucket in range(size):
            more = unsettled(load, room, prices, bucket)
            if more == 0:
                continue
            work += edges[bucket + 1] - edges[bucket]
            work += load[bucket] * width if more > 0 else 0
            count = 0
            for place in places[edges[bucket] : edges[bucket + 1]]:
                item, slot = place // width, place % width
                if more > 0:
                    if held[item] != slot:
                        continue
                    value, _ = margin(buckets, costs, prices, item, slot)
                    if value == np.inf:
                        continue
                else:
                    if held[item] == slot:
                        continue
                    here = costs[item, held[item]] + prices[buckets[item, held[item]]]
                    value = costs[item, slot] + prices[bucket] - here
                    if value >= prices[bucket]:
                        continue
                values[count], owners[count] = value, place
                count += 1
            if count == 0:
                if more < 0:
                    prices[bucket] = 0.0
                continue
            wanted = abs(more)
            last, middle = cut_at(values[:count], wanted)
            rest = wanted
            for index in range(count):
                rest -= values[index] < last
            for index in range(count):
                if values[index] > last or (values[index] == last and rest <= 0):
                    continue
                if values[index] == last:
                    rest -= 1
                item, slot = owners[index] // width, owners[index] % width
                if more > 0:
                    _, slot = margin(buckets, costs, prices, item, held[item])
                load[buckets[item, held[item]]] -= 1
                load[buckets[item, slot]] += 1
                held[item] = slot
            if more > 0:
                prices[bucket] += max(middle, 0.0)
            elif count <= wanted:
                prices[bucket] = 0.0
            else:
                prices[bucket] = max(prices[bucket] - max(middle, 0.0), 0.0)


@inner_kernel
def find_arcs(
    buckets: NDArray[np.int32],
    costs: NDArray[np.float64],
    held: NDArray[np.int32],
    members: NDArray[np.int32],
    arcs: NDArray[np.float64],
) -> None:
    """What the cheapest move of a bucket's ``members`` to each other bucket costs, less prices."""
    arcs[:] = np.inf
    for item in members:
        here = costs[item, held[item]]
        for slot in range(buckets.shape[1]):
            bucket = buckets[item, slot]
            arcs[bucket] = smaller(costs[item, slot] - here, arcs[bucket])


@inner_kernel
def cheapest_move(
    buckets: NDArray[np.int32],
    costs: NDArray[np.float64],
    held: NDArray[np.int32],
    members: NDArray[np.int32],
    bucket: int,
) -> tuple[int, int]:
    """Which of ``members`` moves to ``bucket`` at the least cost, and where in its list that is."""
    found, where, least = -1, -1, np.inf
    for index in range(members.shape[0]):
        item = members[index]
        for slot in range(buckets.shape[1]):
            cost = costs[item, slot] - costs[item, held[item]]
            if buckets[item, slot] == bucket and cost < least:
                found, where, least = index, slot, cost
    return found, where


@inner_kernel
def relax(
    arcs: NDArray[np.float64],
    nodes: NDArray[np.float64],
    here: int,
    far: NDArray[np.float64],
    shut: NDArray[np.float64],
    before: NDArray[np.int64],
) -> int:
    """One step of Dijkstra's: go on from ``here``; the nearest node that is not shut, or -1."""
    least = far[here]
    base = nodes[here] - least
    best = np.inf
    for other in range(far.shape[0]):
        length = larger(arcs[other] + nodes[other] - base, least)
        nearer = length < far[other]
        far[other] = length if nearer else far[other]
        before[other] = here if nearer else before[other]
        best = smaller(far[other] + shut[other], best)
    if best == np.inf:
        return -1
    found = 0
    while far[found] + shut[found] != best:
        found += 1
    return found


@kernel
def repair(
    buckets: NDArray[np.int32],
    costs: NDArray[np.float64],
    room: NDArray[np.int64],
    prices: NDArray[np.float64],
) -> tuple[NDArray[np.int32], int]:
    """Optimal places [n] in the lists of candidates, and how many items found no room.

    Vacant places count as items that any bucket suits, so that all buckets end exactly full: they
    are always where the price is least, and pass through node ``d``, which has that price. An arc
    from one bucket to another is the cheapest move of one of its items. Prices [d] end optimal.

    Items find no room where all their candidates, and those of all whom they could push away, are
    full; their buckets stay too full.
    """
    rows, size = buckets.shape[0], room.shape[0]
    held = np.empty(rows, np.int32)
    for item in range(rows):
        held[item] = best_slot(buckets, costs, prices, item)
    load = np.empty(size, np.int64)
    loads_at(buckets, held, load)
    # The items of each bucket, with room for as many as it may come to have.
    starts = np.zeros(size + 1, np.int64)
    for bucket in range(size):
        starts[bucket + 1] = starts[bucket] + max(load[bucket], room[bucket])
    members = np.empty(starts[size], np.int32)
    ends = starts[:-1].copy()
    for item in range(rows):
        bucket = buckets[item, held[item]]
        members[ends[bucket]] = item
        ends[bucket] += 1
    # Vacant places, where they cost least.
    nodes = np.zeros(size + 1)
    nodes[:size] = prices - prices.min()
    vacant = np.zeros(size, np.int64)
    left = room.sum() - rows
    for bucket in range(size):
        if nodes[bucket] == 0.0 and load[bucket] < room[bucket]:
            vacant[bucket] = min(room[bucket] - load[bucket], left)
            left -= vacant[bucket]
    vacant[np.argmin(nodes[:size])] += left
    # Arcs of the first buckets are kept until their items change; the last line is of the others.
    kept = min(size, ARCS // (size + 1))
    arcs = np.empty((kept + 1, size + 1))
    known = np.zeros(kept + 1, np.bool_)
    anywhere = np.zeros(size + 1)  # the arcs of vacant places
    far = np.empty(size + 1)
    shut = np.empty(size + 1)
    before = np.empty(size + 1, np.int64)
    hopeless = np.zeros(size + 1, np.bool_)
    for source in range(size):
        while load[source] + vacant[source] > room[source] and not hopeless[source]:
            far[:] = np.inf
            shut[:] = 0.0
            far[source] = 0.0
            here = source
            while here >= 0:
                if here < size and load[here] + vacant[here] < room[here]:
                    break
                shut[here] = np.inf
                if here == size:
                    here = relax(anywhere, nodes, here, far, shut, before)
                    continue
                line = min(here, kept)
                if not known[line]:
                    own = members[starts[here] : starts[here] + load[here]]
                    find_arcs(buckets, costs, held, own, arcs[line])
                    known[line] = line < kept
                arcs[line, size] = 0.0 if vacant[here] > 0 else np.inf
                here = relax(arcs[line], nodes, here, far, shut, before)
            if here < 0:
                for other in range(size + 1):
                    hopeless[other] |= shut[other] > 0.0
                break
            for other in range(size + 1):
                if shut[other] > 0.0:
                    nodes[other] += far[here] - far[other]
            # Back along the path: each bucket gives one item on and takes one from before.
            hole = -1
            while True:
                known[min(here, kept)] = False
                origin = before[here] if here != source else -1
                if origin < 0 or origin == size:
                    if hole >= 0:
                        load[here] -= 1
                        members[hole] = members[starts[here] + load[here]]
                    if origin < 0:
                        break
                    vacant[here] += 1
                    here, hole = int(before[size]), -1
                    vacant[here] -= 1
                    continue
                given = members[starts[origin] : starts[origin] + load[origin]]
                index, slot = cheapest_move(buckets, costs, held, given, here)
                item = given[index]
                held[item] = slot
                if hole < 0:
                    hole = starts[here] + load[here]
                    load[here] += 1
                members[hole] = item
                here, hole = int(origin), starts[origin] + index
    homeless = 0
    for bucket in range(size):
        homeless += max(load[bucket] - room[bucket], 0)
    lowest = nodes[size] if room.sum() > rows else nodes[:size].min()
    for bucket in range(size):
        prices[bucket] = max(nodes[bucket] - lowest, 0.0)
    return held, homeless


class CappedAssignment(NamedTuple):
    """Where items go, and the proof that no other way in this room costs less.

    Attributes:
        labels: the bucket of each item [n] int32.
        prices: of the buckets [d] float64, zero where there is room left.
        gap: the cost less the bound that ``prices`` prove, over these candidates; zero up to
            rounding, unless some are homeless.
        homeless: how many items found no room; they are in buckets that are too full.
    """

    labels: NDArray[np.int32]
    prices: NDArray[np.float64]
    gap: float
    homeless: int


def capped_assignment(
    buckets: NDArray[np.int32],
    costs: NDArray[np.float64],
    room: NDArray[np.int64],
    prices: NDArray[np.float64] | None = None,
) -> CappedAssignment:
    """Items in one of their candidates each, at the least cost, where buckets have so much room.

    Args:
        buckets: the candidates of each item [n, k], none twice.
        costs: what they cost [n, k], finite.
        room: how many items each bucket takes [d], together n or more.
        prices: to start from [d], zero or more; zero by default. They never change the optimum.
    """
    dual = np.zeros(len(room)) if prices is None else prices.copy()
    level(buckets, costs, room, dual)
    held, homeless = repair(buckets, costs, room, dual)
    labels = np.take_along_axis(buckets, held[:, None].astype(np.int64), 1)[:, 0]
    priced = costs + dual[buckets]
    least, paid = priced.min(axis=1), np.take_along_axis(priced, held[:, None].astype(np.int64), 1)
    vacant = room - np.bincount(labels, minlength=len(room))
    gap = float((paid[:, 0] - least).sum() + vacant @ dual)
    return CappedAssignment(labels, dual, gap, homeless)
