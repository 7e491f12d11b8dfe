"""Rows of several seeds as one entry: means and standard deviations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flowhash.evaluate.results import METHODS, Row

Value = Callable[[Row], float | None]

# What is searched, as a heading says it; other names are headings as they are.
TABLES = {
    "train": "Train table",
    "test": "Test table",
    "validation": "Validation table",
    "unseen": "Unseen classes",
}


@dataclass(frozen=True)
class Measure:
    """A number over seeds.

    Attributes:
        mean: over all seeds that have it.
        deviation: the sample standard deviation (n − 1); None for one seed.
    """

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class Entry:
    """All seeds of one method on one table at one k."""

    method: str
    table: str
    k: int | None
    rows: tuple[Row, ...]

    @property
    def label(self) -> str:
        """What people call the method."""
        return method_label(self.method)

    def measure(self, value: Value) -> Measure | None:
        """Mean and deviation of what ``value`` reads from a row; None if no row has it."""
        found = [value(row) for row in self.rows]
        known = [number for number in found if number is not None and not math.isnan(number)]
        if not known:
            return None
        if len(known) == 1:
            return Measure(float(known[0]))
        return Measure(float(np.mean(known)), float(np.std(known, ddof=1)))

    def mean(self, value: Value) -> float | None:
        """The mean alone."""
        found = self.measure(value)
        return None if found is None else found.mean


def speed_over_flat(row: Row) -> float | None:
    """How many times faster than FAISS Flat, in the same run."""
    return row.flat / row.seconds if row.flat is not None and row.seconds > 0 else None


def method_label(method: str) -> str:
    """What people call a method; a name that is no key stands for itself."""
    return METHODS.get(method, method)


def merge(rows: Iterable[Row]) -> list[Entry]:
    """One entry a table, k and method, in the order of a printed table."""
    found: dict[tuple[str, int | None, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.table, row.k, row.method), []).append(row)
    entries = [Entry(method, table, k, tuple(same)) for (table, k, method), same in found.items()]
    return sorted(entries, key=_place)


def table_names(entries: Sequence[Entry]) -> list[str]:
    """The searched tables, each once, in order."""
    return list(dict.fromkeys(entry.table for entry in entries))


def active_counts(entries: Sequence[Entry]) -> list[int]:
    """Every k that is there, ascending."""
    return sorted({entry.k for entry in entries if entry.k is not None})


def _place(entry: Entry) -> tuple[int, str, int, int, str]:
    # Exhaustive search has no k and comes first; what nobody has named yet comes last.
    tables = list(TABLES)
    table = tables.index(entry.table) if entry.table in TABLES else len(tables)
    return table, entry.table, entry.k or 0, method_order(entry), entry.method


def method_order(entry: Entry) -> int:
    """Where a method stands among those of one k."""
    methods = list(METHODS)
    return methods.index(entry.method) if entry.method in METHODS else len(methods)
