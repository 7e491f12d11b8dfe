"""The page of the search benchmark, docs/results/search.md, and the README's table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measurement import README, RESULTS, machine, put

# Measured by hand: whoever has another processor must not expect the ratios of this one.
ELSEWHERE = """\
The ratios depend on the processor, and are lower where it has AVX2 only: on a two-core AMD EPYC without AVX-512 the first row was
1.7 to 2.0× for the batch and 0.8 to 1.3× for one query a call."""  # noqa: E501
PAGE = """\
# Search, measured

Written by `python -m benchmarks.search.run` (`make bench-search`); do not edit by hand. 10,000 queries,
the 16 nearest each, {threads} threads for everyone; medians of ratios taken turn by turn in one process,
but FAISS Flat, which runs once, and hnswlib, which runs by itself (median of three). Same
vectors and same lists for all: an item is in the lists of its *k* nearest centres, a query opens those of its own *k* nearest.

Machine: {machine}.
{elsewhere}

- *FAISS, same lists*: `IndexIVFFlat.search_preassigned`, told which lists to open as the table is;
  with k > 1 it returns 16·k and numpy removes the copies, which the same answer needs.
- *FAISS, other call*: with k = 1 `IndexIVFFlat.search` at nprobe 1, which also finds the list with its own
  quantiser; with k > 1 `search_preassigned` without the removal of copies, which is not the same answer.
- *recall* is against exhaustive search; *SUF* is items / items scanned.

## A batch of 10,000

| data | FAISS, same lists | FlowHash | faster | FAISS, other call | faster | same answers |
|---|---:|---:|---:|---:|---:|---:|
{batch}

## One query a call

| data | FAISS, same lists | FlowHash | faster | FAISS, other call | faster |
|---|---:|---:|---:|---:|---:|
{one}

## Against exhaustive search: items and time

SUF counts items, *time* is FAISS Flat's time for the same batch divided by the table's.

| data | recall | SUF | time | time / SUF |
|---|---:|---:|---:|---:|
{flat}

## Against a graph: hnswlib (M = 16, ef_construction = 100)

The smallest ef of a list whose recall reaches the table's, or the largest tried.

| data | recall | FlowHash, q/s | hnswlib: recall | ef | q/s | FlowHash is faster | its graph took |
|---|---:|---:|---:|---:|---:|---:|---:|
{graph}

## Adding, size, opening

FAISS adds with given lists, in memory as ours. *On disk* is written, flushed and checksummed. Sizes
are multiples of the raw vectors: memory is the sum of all arrays, disk that of all files. Opening and
the first search are in a fresh process, with a warm compile cache and the file in the page cache; the
import of numpy, numba and FlowHash comes before and is given beside.

| data | FAISS add | add | faster | add on disk | memory | disk | import | open | first search |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{rest}
"""  # noqa: E501


def _milliseconds(value: float) -> str:
    return f"{value * 1e3:,.0f} ms"


def _microseconds(value: float) -> str:
    return f"{value * 1e6:,.1f} µs"


def _lines(results: list[dict[str, Any]], kind: str, unit: Any, more: bool) -> str:
    lines = []
    for row in results:
        found, itself = row[kind], row.get(f"{kind}_itself", row.get(f"{kind}_raw"))
        cells = [row["name"], unit(found["theirs"]), unit(found["ours"])]
        cells.append(f"{found['ratio']:.2f}×")
        cells += [unit(itself["theirs"]), f"{itself['ratio']:.2f}×"] if itself else ["", ""]
        if more:
            cells.append(f"{row['equal']:.2%}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _flat(row: dict[str, Any]) -> str:
    return (
        f"| {row['name']} | {row['recall']:.3f} | {row['suf']:.1f} | {row['flat']:,.0f}× "
        f"| {row['flat'] / row['suf']:.2f} |"
    )


def _graph(row: dict[str, Any]) -> str:
    graph = row.get("graph")
    if graph is None:
        return ""
    ours, theirs = row["queries"] / row["batch"]["ours"], row["queries"] / graph["seconds"]
    return (
        f"| {row['name']} | {row['recall']:.3f} | {ours:,.0f} | {graph['recall']:.3f} "
        f"| {graph['ef']} | {theirs:,.0f} | {ours / theirs:.2f}× | {graph['building']:.0f} s |"
    )


def _rest(row: dict[str, Any]) -> str:
    add, disk = row["add"], row["disk"]
    return (
        f"| {row['name']} | {_milliseconds(add['theirs'])} | {_milliseconds(add['ours'])} "
        f"| {add['ratio']:.2f}× | {disk['add']:.2f} s | {row['memory']:.3f} "
        f"| {disk['size']:.3f} | {disk['import']:.0f} ms | {disk['open']:.1f} ms "
        f"| {disk['first']:.1f} ms |"
    )


def _processor() -> str:
    """The machine, with the instructions that decide how fast it compares vectors."""
    information = Path("/proc/cpuinfo")
    flags = information.read_text().split() if information.exists() else []
    vectors = [name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags]
    model, _, versions = machine().partition(";")
    return f"{model}{f', {vectors[0]}' if vectors else ''};{versions}"


def _gains(results: list[dict[str, Any]], processor: str) -> str:
    """The README's table, with the processor that it holds for."""
    lines = [
        f"Measured on {processor.partition(';')[0]}.\n{ELSEWHERE}",
        "",
        "| data | SUF | recall | batch, against FAISS | one query, against FAISS | FAISS Flat |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['name']} | {row['suf']:.1f} | {row['recall']:.3f} "
        f"| {row['batch']['ratio']:.1f}× | {row['one']['ratio']:.2f}× "
        f"| {row['flat']:,.0f}× |"
        for row in results
    ]
    return "\n".join(lines)


def write_report(results: list[dict[str, Any]], threads: int, keep: bool) -> None:
    """Print the page; with ``keep`` write it, and the README's table too."""
    processor = _processor()
    text = PAGE.format(
        threads=threads,
        machine=processor,
        elsewhere=ELSEWHERE,
        batch=_lines(results, "batch", _milliseconds, True),
        one=_lines(results, "one", _microseconds, False),
        flat="\n".join(map(_flat, results)),
        graph="\n".join(map(_graph, results)),
        rest="\n".join(map(_rest, results)),
    )
    print(text)
    if not keep:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "search.md").write_text(text)
    put(README, "search gains", _gains(results, processor))
