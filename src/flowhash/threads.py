"""Threads for work that splits by rows: a pool that shards, kernels that release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from numbers import Integral
from typing import TypeVar

from flowhash.errors import InputError

Result = TypeVar("Result")

ROWS_PER_SHARD = 1024  # below this a second thread costs more than it brings


def available_threads() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_shards(
    work: Callable[[int, int], Result], rows: int, threads: int | None = None
) -> list[Result]:
    """Call ``work(start, stop)`` on consecutive shards of ``rows``; the results in order.

    Args:
        work: does rows ``start`` to ``stop``; must not touch others.
        rows: how many there are.
        threads: how many threads at the most; all available cores by default.
    """
    if threads is not None and (not isinstance(threads, Integral) or threads < 1):
        raise InputError(f"threads is {threads}; give a whole number from 1, or None for all cores")
    most = available_threads() if threads is None else threads
    count = max(1, min(most, rows // ROWS_PER_SHARD))
    if count == 1:
        return [work(0, rows)]
    edges = [rows * shard // count for shard in range(count + 1)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, edges[:-1], edges[1:]))
