"""The page of what benchmarks/engines.py measured."""

from __future__ import annotations

from typing import Any

HEAD = """\
# Engines, measured

Written by `python benchmarks/engines.py`; do not edit by hand. Machine: {machine}; load average
when it began, from other work: {busy:.1f}. PostgreSQL 18 with pgvector, `shared_buffers = 1GB`,
client and server on the same two cores, over a socket. Every ratio is from one run, both sides in
turn, the median of the repeats.
"""
LAYOUTS = """
## PostgreSQL: the bucket layout

{rows:,} random items, dim 64, 256 buckets, {queries:,} queries for their 16 nearest, one
connection, prepared and pipelined. The other layout has one row an item, its code as `integer[]`
with a GIN index, and `&&`. It returns ids and the server's distances only; FlowHash also returns
exact distances and how many items were scanned. Bar: at least 3 times as many, exact.

| k | scanned | FlowHash, queries/s | `&&` with GIN, queries/s | ratio | exact |
|---:|---:|---:|---:|---:|---:|
{lines}
"""
COPY = """
## `flowhash copy` against COPY

{rows:,} items, dim 64, k = 1, from a table on disk. `flowhash copy` reads the table, sends it in
transactions that can be gone on with, makes the keys, compares checksums of all rows and vacuums.
*Bare COPY* sends the same bytes, ready in memory, in one transaction, into a table with the same
keys, or with none, which nobody could search. Bar: at least half the rate.

| | items/s | `flowhash copy` has |
|---|---:|---:|
| `flowhash copy` | {copy:,.0f} | |
| bare COPY, same table with its keys | {bare_with_keys:,.0f} | {ratio_with_keys:.2f} of it |
| bare COPY, no keys | {bare_without_keys:,.0f} | {ratio_without_keys:.2f} of it |
"""
BULK = """
## Bulk search on Ray

{queries:,} queries on {rows:,} items, k = 1. Ray writes its answers to parquet files, which counts;
its start does not. Bar: at least 0.6 of the rate of one process.

| | queries/s |
|---|---:|
| `HashTable.search`, two threads | {alone:,.0f} |
| `flowhash bulk search`, two Ray workers | {bulk:,.0f} |

The median ratio is {ratio:.2f}; {answers}.
"""
SCALE = """
## Ten million items

Measured by `benchmarks/scale.py`: [results](scale.md), [the model](../scale.md).
"""


def page(known: dict[str, Any]) -> str:
    """The page of what is known."""
    parts = [HEAD.format(**known)]
    if "postgres" in known:
        first = known["postgres"][0]
        lines = "\n".join(_line(facts) for facts in known["postgres"])
        parts.append(LAYOUTS.format(rows=first["rows"], queries=first["queries"], lines=lines))
    if "copy" in known:
        parts.append(COPY.format(**known["copy"]))
    if "bulk" in known:
        exact = known["bulk"]["exact"]
        answers = "every answer is the same" if exact else "**some answers differ**"
        parts.append(BULK.format(**known["bulk"], answers=answers))
    parts.append(SCALE)
    return "".join(parts)


def _line(facts: dict[str, Any]) -> str:
    return (
        f"| {facts['active']} | {facts['scanned']:,.0f} | {facts['engine']:,.0f} | "
        f"{facts['gin']:,.0f} | **{facts['ratio']:.1f}×** | {facts['exact']:,} of "
        f"{facts['queries']:,} |"
    )
