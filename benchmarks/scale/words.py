"""The model's figures as people read them: bytes, times, and what each line is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def in_bytes(value: float) -> str:
    """Gigabytes, or what fits."""
    if value < 1e8:
        return f"{value / 1e6:,.1f} MB"
    return f"{value / 1e9:,.{1 if value < 1e11 else 0}f} GB"


def in_time(seconds: float) -> str:
    """From milliseconds to hours."""
    if seconds < 1:
        return f"{seconds * 1e3:,.{1 if seconds < 0.01 else 0}f} ms"
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def rounded(value: float) -> str:
    """Two digits: a model knows no more."""
    return f"{float(f'{value:.2g}'):,.0f}"


def _known_time(value: float | None) -> str:
    return "not measured" if value is None else in_time(value)


# What was asked for, then what follows from it; each with its unit and what it means.
LINES: dict[str, tuple[Callable[[Any], str], str]] = {
    "items": (lambda value: f"{value:,.0f}", ""),
    "dim": (str, "numbers of an embedding"),
    "buckets": (str, "d"),
    "active": (str, "k"),
    "skew": (lambda value: f"{value:.4g}", "times what even codes would scan"),
    "dtype": (str, "of the stored embeddings"),
    "payload": (lambda value: f"{value:,} bytes", "of JSON an item"),
    "batch": (lambda value: f"{value:,} queries", "asked together"),
    "node": (in_bytes, "memory of one machine"),
    "network": (lambda value: f"{in_bytes(value)}/s", "between machines; assumed, not measured"),
    "scanned": (lambda value: f"{value:,.0f} items", "that a query is compared with"),
    "disk": (in_bytes, "files"),
    "building_disk": (in_bytes, "while everything is merged, at the most"),
    "memory": (in_bytes, "so that nothing is read from the disk twice"),
    "merging_memory": (in_bytes, "while everything is merged; most of it are mapped files"),
    "opening": (in_time, "to open the table"),
    "latency": (in_time, "one query, one thread, warm"),
    "cold": (in_time, "the same, from the disk"),
    "rate": (lambda value: f"{rounded(value)} queries/s", "of a batch, two threads, warm"),
    "encode": (_known_time, "to encode all items on one machine, with the measured network"),
    "build": (in_time, "to add and merge them"),
    "copy": (in_time, "to carry the files to another machine"),
    "postgres": (in_bytes, "rows and indexes on PostgreSQL"),
    "citus_nodes": (str, "machines whose memory holds those"),
    "qdrant": (in_bytes, "memory that Qdrant's own rule asks for"),
    "qdrant_nodes": (str, "machines that have so much"),
}


def told(values: Mapping[str, Any]) -> list[str]:
    """A line for each figure: its name, its value with a unit, and what it is."""
    shown = [(name, show(values[name]), meaning) for name, (show, meaning) in LINES.items()]
    return [f"{name:16} {value:>18}  {meaning}".rstrip() for name, value, meaning in shown]
