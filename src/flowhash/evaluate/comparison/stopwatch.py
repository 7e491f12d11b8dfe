"""A stopwatch: how long a piece of work takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

TURNS, SHORT_TURNS = 3, 15
SHORT = 0.05  # seconds; what takes less is mostly threads that wake up, so that it has more turns


def seconds_of(work: Callable[[], object]) -> float:
    """Of one turn."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_seconds(work: Callable[[], object]) -> float:
    """The middle of a few turns, after one that compiles and warms the caches."""
    work()
    seconds: list[float] = []
    while len(seconds) < (SHORT_TURNS if min(seconds, default=0) < SHORT else TURNS):
        seconds.append(seconds_of(work))
    return statistics.median(seconds)
