"""The rules of the released evaluation, as one would do them by hand: loops, sets and fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any


def ordered(row: list[int]) -> list[int]:
    """Buckets, the largest activation first; of equal ones the lowest first."""
    return sorted(range(len(row)), key=lambda bucket: (-row[bucket], bucket))


def by_hand(case: dict[str, Any], top: int) -> dict[str, Fraction]:
    """Pr@K, SUF at the plain k, SUF with further buckets, recall@K and AP@R of one case.

    A case has items and queries with whole numbers as activations and embeddings; ``itself`` says
    that the queries are the items.
    """
    items, queries, active = case["items"], case["queries"], case["active"]
    probe = case.get("probe") or active
    itself = case["itself"]
    codes = [set(ordered(item["activations"])[:active]) for item in items]
    right = plain = opened_items = agreed = 0
    averages = []
    for number, query in enumerate(queries):
        others = [place for place in range(len(items)) if not (itself and place == number)]
        order = ordered(query["activations"])

        def inside(opened: int, order: Any = order, others: Any = others) -> list[int]:
            return [place for place in others if codes[place] & set(order[:opened])]

        def ranked(places: list[int], query: Any = query) -> list[int]:
            return sorted(places, key=lambda other: (distance(items[other], query), other))

        retrieved = inside(probe)
        plain += len(retrieved)
        same = [place for place in others if items[place]["label"] == query["label"]]
        if same:
            found = ranked(retrieved)[: len(same)]
            total = Fraction(0)
            hits = 0
            for place, item in enumerate(found, 1):
                if item in same:
                    hits += 1
                    total += Fraction(hits, place)
            averages.append(total / len(same))
        opened = probe
        while len(inside(opened)) < top and opened < len(order):
            opened += 1
        opened_items += len(inside(opened))
        nearest = ranked(inside(opened))[:top]
        right += sum(items[place]["label"] == query["label"] for place in nearest)
        agreed += len(set(nearest) & set(ranked(others)[:top]))
    count, size = len(queries), len(items) - itself
    return {
        "precision": Fraction(right, count * top),
        "speed_up": Fraction(size * count, max(plain, 1)),
        "speed_up_at": Fraction(size * count, max(opened_items, 1)),
        "recall": Fraction(agreed, count * top),
        "average": sum(averages, Fraction(0)) / len(averages) if averages else Fraction(0),
    }


def each_by_hand(case: dict[str, Any], top: int) -> list[tuple[int, int]]:
    """Of each query: right ones among its first K, and items scanned at the plain buckets."""
    found = []
    for number in range(len(case["queries"])):
        alone = by_hand_of(case, number)
        found.append((alone(top), alone(None)))
    return found


def by_hand_of(case: dict[str, Any], number: int) -> Any:
    """For one query, a function of K: its right ones; of None: how many items it scans."""
    query, items = case["queries"][number], case["items"]
    order = ordered(query["activations"])
    others = [place for place in range(len(items)) if not (case["itself"] and place == number)]

    def inside(opened: int) -> list[int]:
        held = set(order[:opened])
        codes = {place: ordered(items[place]["activations"])[: case["active"]] for place in others}
        return [place for place in others if held & set(codes[place])]

    def counted(top: int | None) -> int:
        opened = case.get("probe") or case["active"]
        if top is None:
            return len(inside(opened))
        while len(inside(opened)) < top and opened < len(order):
            opened += 1
        nearest = sorted(inside(opened), key=lambda place: (distance(items[place], query), place))
        return sum(items[place]["label"] == query["label"] for place in nearest[:top])

    return counted


def distance(one: dict[str, Any], other: dict[str, Any]) -> int:
    """Squared Euclidean, exact."""
    pairs = zip(one["embedding"], other["embedding"], strict=True)
    return sum((left - right) ** 2 for left, right in pairs)
