"""``Stats``: the loads of a table's buckets, its speed-up and size; and random samples."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowhash.table.search.bucket_plan import add_fresh, bucket_sizes
from flowhash.table.segments.arrays import LAYOUTS
from flowhash.table.segments.segment import TableState
from flowhash.table.table_settings import TableSettings

STATS_SAMPLE = 2000  # items whose own buckets are counted to measure SUF with k > 1


@dataclass(frozen=True)
class Stats:
    """Figures of a table.

    Attributes:
        items: how many there are.
        deleted: rows that are deleted and still take space; ``compact`` drops them.
        segments: how many segments the items lie in.
        buckets: d.
        active: k.
        mean_active: buckets that an item is in, on average; k unless some are in fewer.
        dim: numbers in an embedding.
        load_p50: items in the median bucket.
        load_p99: items in a bucket that 99 % of the buckets do not exceed.
        load_max: items in the fullest bucket.
        empty: buckets without items.
        suf: measured speed-up: each item (with k > 1, up to 2000 of them) opens its own buckets and
            finds the others there; items / items found. NaN below two items.
        expected_suf: what the paper expects of codes that spread evenly and independently.
        expected_variance: the variance that it expects of the number of items found.
        bytes: of all files, or of all arrays in memory.
        bytes_per_item: the same for one item.
        bytes_per_embedding: the embedding's share of that.
    """

    items: int
    deleted: int
    segments: int
    buckets: int
    active: int
    mean_active: float
    dim: int
    load_p50: float
    load_p99: float
    load_max: int
    empty: int
    suf: float
    expected_suf: float
    expected_variance: float
    bytes: int
    bytes_per_item: float
    bytes_per_embedding: int


def expected_share(buckets: int, active: float) -> float:
    """The probability that two random codes share a bucket: 1 - C(d-k, k) / C(d, k).

    Where k is a mean, codes have the whole number of buckets below it or the one above.
    """
    low = int(active)
    sizes = {low: low + 1 - active, low + 1: active - low}
    apart = 0.0
    for mine, yours in itertools.product([size for size in sizes if sizes[size]], repeat=2):
        share = sizes[mine] * sizes[yours]
        for index in range(mine):
            share *= max(0, buckets - yours - index) / (buckets - index)
        apart += share
    return 1.0 - apart


def table_stats(settings: TableSettings, state: TableState) -> Stats:
    """Measure a state."""
    loads = bucket_sizes(settings, state, [part.alive for part in state.parts])
    deleted = sum(part.segment.rows - part.live for part in state.parts)
    size = sum(part.segment.bytes() + part.alive.nbytes for part in state.parts)
    found = _others_found(settings, state, loads)
    return stats_of(
        settings, state.live, loads, found, size, deleted=deleted, segments=len(state.parts)
    )


def stats_of(
    settings: TableSettings,
    items: int,
    loads: NDArray[np.int64],
    found: float,
    size: int,
    *,
    deleted: int = 0,
    segments: int = 1,
    number_bytes: int | None = None,
) -> Stats:
    """Figures of a table, wherever it is kept.

    Args:
        settings: of the table.
        items: how many there are.
        loads: how many items each bucket holds [d].
        found: the mean number of others that an item finds in its own buckets.
        size: bytes of everything.
        deleted: rows that are deleted and still take space.
        segments: how many there are.
        number_bytes: of one number of an embedding, where the dtype does not say so.
    """
    mean_active = float(loads.sum() / items) if items else float(settings.active)
    share = expected_share(settings.buckets, mean_active)
    if number_bytes is None:
        number_bytes = LAYOUTS[settings.dtype].dtype.itemsize
    suf = float("nan")
    if items > 1:
        suf = (items - 1) / found if found else float("inf")
    return Stats(
        items=items,
        deleted=deleted,
        segments=segments,
        buckets=settings.buckets,
        active=settings.active,
        mean_active=mean_active,
        dim=settings.dim,
        load_p50=float(np.percentile(loads, 50)),
        load_p99=float(np.percentile(loads, 99)),
        load_max=int(loads.max()),
        empty=int((loads == 0).sum()),
        suf=suf,
        expected_suf=1.0 / share,
        expected_variance=max(0, items - 1) * share * (1.0 - share),
        bytes=size,
        bytes_per_item=size / items if items else 0.0,
        bytes_per_embedding=settings.dim * number_bytes,
    )


def draw_sample(total: int, count: int, seed: int) -> NDArray[np.int64]:
    """Up to ``count`` different numbers below ``total``, ascending."""
    if count >= total:
        return np.arange(total, dtype=np.int64)
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(total, count, replace=False, shuffle=False))


def _others_found(settings: TableSettings, state: TableState, loads: NDArray[np.int64]) -> float:
    """The mean number of others that an item finds in its own buckets."""
    if state.live < 2:
        return 0.0
    if settings.active == 1:
        return float((loads * (loads - 1)).sum()) / state.live
    codes = []
    for part in state.parts:
        rows = part.live_rows()
        step = max(1, state.live // STATS_SAMPLE)
        codes.append(part.segment.codes_at(rows[::step]))
    order = np.concatenate(codes)
    reached = np.zeros(len(order), np.int64)
    first = np.zeros(len(order), np.int32)
    last = (order >= 0).sum(axis=1).astype(np.int32)
    for part in state.parts:
        fault = add_fresh(
            part.segment.arrays, part.alive, order, np.arange(len(order)), first, last, reached
        )
        part.segment.check(fault)
    return float((reached - 1).mean())
