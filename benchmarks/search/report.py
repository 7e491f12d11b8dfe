"""The page of the search benchmark, docs/results/search.md, and the README's table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.measurement import README, RESULTS, machine, put

PAGE = """\
# Search, measured

Written by `python -m benchmarks.search.run` and `… --avx2` (`make bench-search`); do not edit by hand. 10,000 queries,
the 16 nearest each, {threads} threads for everyone; medians of ratios taken turn by turn in one process,
but FAISS Flat, which runs once, and hnswlib, which runs by itself (median of three; not where a part has no table of it). Same
vectors and same lists for all: an item is in the lists of its *k* nearest centres, a query opens those of its own *k* nearest.
The ratios depend on the processor, so that there is a part for each kind of instructions. Figures are kept in search.json.

- *FAISS, same lists*: `IndexIVFFlat.search_preassigned`, told which lists to open as the table is;
  with k > 1 it returns 16·k and numpy removes the copies, which the same answer needs.
- *FAISS, other call*: with k = 1 `IndexIVFFlat.search` at nprobe 1, which also finds the list with its own
  quantiser; with k > 1 `search_preassigned` without the removal of copies, which is not the same answer.
- *FAISS, big batch*: `faiss.contrib.big_batch_search`, k = 1, which goes list by list and finds the lists itself.
- *recall* is against exhaustive search; *SUF* is items / items scanned. *Mapped* is the time of searches of a table on disk,
  in the page cache, over that of the same searches in memory.

{parts}
"""  # noqa: E501
PART = """# {title}

Machine: {machine}.

What was asked of it:

{bars}

## A batch of 10,000

| data | FAISS, same lists | FlowHash | faster | FAISS, other call | faster | FAISS, big batch | faster | same answers | mapped |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{batch}

## One query a call

| data | FAISS, same lists | FlowHash | faster | FAISS, other call | faster | mapped |
|---|---:|---:|---:|---:|---:|---:|
{one}

## Against exhaustive search: items and time

SUF counts items, *time* is FAISS Flat's time for the same batch divided by the table's.

| data | recall | SUF | time | time / SUF |
|---|---:|---:|---:|---:|
{flat}

{graph}## Adding, size, opening

FAISS adds with given lists, in memory as ours. *On disk* is written, flushed and checksummed. Sizes
are multiples of the raw vectors: memory is the sum of all arrays, disk that of all files. Opening and
the first search are in a fresh process, with a warm compile cache and the file in the page cache; the
import of numpy, numba and FlowHash comes before and is given beside.

| data | FAISS add | add | faster | add on disk | memory | disk | import | open | first search |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{rest}
"""  # noqa: E501


GRAPH = """\
## Against a graph: hnswlib (M = 16, ef_construction = 100)

The smallest ef of a list whose recall reaches the table's, or the largest tried.

| data | recall | FlowHash, q/s | hnswlib: recall | ef | q/s | FlowHash is faster | its graph took |
|---|---:|---:|---:|---:|---:|---:|---:|
{graph}

"""
PLAYED = "AVX2, played"  # by a processor that has AVX-512
BATCH, BATCH_GLOVE, BIG_BATCH, ONE, ONE_GLOVE, SHARE, SHARE_GLOVE, MAPPED = (
    3.0, 2.5, 1.5, 1.6, 1.4, 0.7, 0.5, 1.15
)  # fmt: skip


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
            big = row.get("batch_big")
            cells += [unit(big["theirs"]), f"{big['ratio']:.2f}×"] if big else ["", ""]
            cells.append(f"{row['equal']:.2%}")
        cells.append(f"{row['mapped'][kind]:.2f}")
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


def _processor(played: bool) -> str:
    """The machine, with the instructions that decide how fast it compares vectors."""
    information = Path("/proc/cpuinfo")
    flags = information.read_text().split() if information.exists() else []
    vectors = [name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags]
    model, _, versions = machine().partition(";")
    instructions = PLAYED if played else vectors[0] if vectors else ""
    return f"{model}{f', {instructions}' if instructions else ''};{versions}"


def _bars(results: list[dict[str, Any]]) -> str:
    """What was asked, and whether it is so."""
    lines = []

    def judge(words: str, value: float, bar: float, met: bool) -> None:
        side = "at most" if words.endswith("memory") else "at least"
        verdict = "met" if met else "**missed**"
        lines.append(f"- {words}: {value:.2f}, {side} {bar:g} was asked: {verdict}.")

    for row in results:
        glove = row["name"].startswith("GloVe")
        if row["k"] == 1:
            ratio, least = row["batch_itself"]["ratio"], BATCH_GLOVE if glove else BATCH
            judge(f"{row['name']}, batch against `search`", ratio, least, ratio >= least)
            if not glove:
                ratio = row["batch_big"]["ratio"]
                judge(f"{row['name']}, batch against `big_batch_search`", ratio, BIG_BATCH,
                      ratio >= BIG_BATCH)  # fmt: skip
            share, least = row["flat"] / row["suf"], SHARE_GLOVE if glove else SHARE
            judge(f"{row['name']}, time over SUF", share, least, share >= least)
        least = ONE_GLOVE if glove else ONE
        ratio = min(row[kind]["ratio"] for kind in ("one", "one_itself", "one_raw") if kind in row)
        judge(f"{row['name']}, one query, against FAISS's faster call", ratio, least,
              ratio >= least)  # fmt: skip
        longer = max(row["mapped"].values())
        judge(f"{row['name']}, mapped over in memory", longer, MAPPED, longer <= MAPPED)
    return "\n".join(lines)


def _gains(found: dict[str, Any]) -> str:
    """The README's table, with the processor that it holds for."""
    lines = [
        "| data | on | SUF | recall | batch, to FAISS | one query, to FAISS | to FAISS Flat |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['name']} | {title} | {row['suf']:.1f} | {row['recall']:.3f} "
        f"| {row['batch']['ratio']:.1f}× | {row['one']['ratio']:.2f}× "
        f"| {row['flat']:,.0f}× |"
        for title, part in found.items()
        for row in part["rows"]
    ]
    machines = dict.fromkeys(part["machine"].partition(";")[0] for part in found.values())
    return f"Measured on {'; '.join(machines)}.\n\n" + "\n".join(lines)


def _part(title: str, part: dict[str, Any]) -> str:
    results = part["rows"]
    graphs = "\n".join(line for row in results if (line := _graph(row)))
    return PART.format(
        title=title,
        machine=part["machine"],
        bars=_bars(results),
        batch=_lines(results, "batch", _milliseconds, True),
        one=_lines(results, "one", _microseconds, False),
        flat="\n".join(map(_flat, results)),
        graph=GRAPH.format(graph=graphs) if graphs else "",
        rest="\n".join(map(_rest, results)),
    )


def write_report(results: list[dict[str, Any]], threads: int, played: bool, keep: bool) -> None:
    """Print what was found; with ``keep`` also write the page and the README's table."""
    processor = _processor(played)
    title = PLAYED if played else processor.partition(";")[0].rpartition(", ")[2]
    store = RESULTS / "search.json"
    found = json.loads(store.read_text()) if store.exists() else {}
    found[title] = {"machine": processor, "rows": results}
    print(_part(title, found[title]))
    if not keep:
        return
    store.write_text(json.dumps(found, indent=1) + "\n")
    parts = "\n".join(_part(title, part) for title, part in found.items())
    # Deeper by one: the page has a title of its own.
    deeper = re.sub(r"^#", "##", parts, flags=re.M)
    (RESULTS / "search.md").write_text(PAGE.format(threads=threads, parts=deeper))
    put(README, "search gains", _gains(found))
