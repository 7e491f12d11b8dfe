"""The page of what benchmarks/engines/run.py measured."""

from __future__ import annotations

from typing import Any

HEAD = """\
# Engines, measured

Written by `python -m benchmarks.engines.run`; do not edit by hand. PostgreSQL 18 with pgvector,
`shared_buffers = 1GB`, client and server on the same two cores, over a socket. Every ratio is from
one run, both sides in turn, the median of the repeats.
"""
PLACE = """
{machine}; load average when it began: {busy:.1f}.
"""
LAYOUTS = """
## PostgreSQL: the bucket layout

{rows:,} random items, dim 64, 256 buckets, {queries:,} queries for their 16 nearest, one
connection, prepared and pipelined. The other layout has one row an item, its code as `integer[]`
with a GIN index, and `&&`. It returns ids and the server's distances only; FlowHash also returns
exact distances and how many items were scanned. Bar: at least {bar:.0f} times as many, exact. The
engine asks for a batch bucket by bucket and has the server plan a query once; *tuned* is the other
layout by hand as careful: queries sorted by their first buckets, and planned once. Median of
{repeats} repeats.

| k | scanned | FlowHash, queries/s | `&&` with GIN | bar | `&&`, tuned | ratio |
|---:|---:|---:|---:|---:|---:|---:|
{lines}

Exact answers, for k = 1, 2, 3: {exact}.
"""
COPY = """
## `flowhash copy` against COPY

{rows:,} items, dim 64, k = 1, from a table on disk. `flowhash copy` reads the table, sends it in
transactions that can be gone on with, makes the keys, compares checksums of all rows and vacuums.
*Bare COPY* sends the same bytes, ready in memory, in one transaction: into a table without keys,
which nobody could search; the same, and the keys made afterwards; and into a table that has its
keys already. Bar: at least {bar} of the rate of the first, the fastest.

| | items/s | `flowhash copy` has | bar |
|---|---:|---:|---|
| `flowhash copy` | {copy:,.0f} | | |
| bare COPY, no keys | {bare:,.0f} | {ratio:.2f} of it | {verdict} |
| bare COPY, then the keys | {bare_then_keys:,.0f} | {ratio_then_keys:.2f} of it | |
| bare COPY into keys | {bare_into_keys:,.0f} | {ratio_into_keys:.2f} of it | |
"""
BULK = """
## Bulk search on Ray

{queries:,} queries on {rows:,} items, k = 1. Ray writes its answers to parquet files, which counts;
its start does not. Bar: at least {bar} of the rate of one process.

| | queries/s |
|---|---:|
| `HashTable.search`, two threads | {alone:,.0f} |
| `flowhash bulk search`, two Ray workers | {bulk:,.0f} |

The median ratio is {ratio:.2f}, the bar {verdict}; {answers}.
"""
SCALE = """
## Ten million items

Measured by `benchmarks/scale/run.py`: [results](scale.md), [the formulas](../scale.md).
"""


BARS = {"postgres": 3.0, "copy": 0.5, "bulk": 0.6}


def page(known: dict[str, Any]) -> str:
    """The page of what is known."""
    parts = [HEAD]
    if "postgres" in known:
        facts = known["postgres"]
        first, lines = facts["lines"][0], "\n".join(map(_line, facts["lines"]))
        parts.append(
            LAYOUTS.format(
                rows=first["rows"],
                queries=first["queries"],
                bar=BARS["postgres"],
                lines=lines,
                repeats=facts["repeats"],
                exact=", ".join(
                    f"{one['exact']:,} of {one['queries']:,}" for one in facts["lines"]
                ),
            )
            + PLACE.format(**facts)
        )
    if "copy" in known:
        facts = known["copy"]
        verdict = _verdict("copy", facts["ratio"])
        parts.append(
            COPY.format(**facts, bar=BARS["copy"], verdict=verdict) + PLACE.format(**facts)
        )
    if "bulk" in known:
        facts = known["bulk"]
        answers = "every answer is the same" if facts["exact"] else "**some answers differ**"
        verdict = _verdict("bulk", facts["ratio"], facts["exact"])
        words = {"answers": answers, "bar": BARS["bulk"], "verdict": verdict}
        parts.append(BULK.format(**facts, **words) + PLACE.format(**facts))
    parts.append(SCALE)
    return "".join(parts)


def _verdict(part: str, ratio: float, exact: bool = True) -> str:
    return "reached" if ratio >= BARS[part] and exact else "**missed**"


def _line(facts: dict[str, Any]) -> str:
    exact = facts["exact"] == facts["queries"]
    return (
        f"| {facts['active']} | {facts['scanned']:,.0f} | {facts['engine']:,.0f} | "
        f"{facts['gin']:,.0f} | {facts['ratio']:.2f}×, "
        f"{_verdict('postgres', facts['ratio'], exact)} | "
        f"{facts['gin_tuned']:,.0f} | {facts['ratio_tuned']:.2f}× |"
    )
