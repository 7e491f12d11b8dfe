"""The pages of the scale benchmark: docs/results/scale.md and the figures in docs/scale.md.

    python benchmarks/scale_report.py

writes both again from docs/results/scale.json, where only the model or its words have changed.
"""

from __future__ import annotations

import json
import re
from typing import Any

from measure import RESULTS, ROOT
from scale_model import Machine, Plan, estimate, trained_skews

GUIDE = ROOT / "docs" / "scale.md"
START, END = "<!-- scale: written by benchmarks/scale.py -->", "<!-- /scale -->"
# Items, d, k of the rows in the guide.
CASES = [
    (1e7, 4096, 1), (1e8, 4096, 1), (1e8, 65536, 1), (1e8, 65536, 2), (1e9, 65536, 1),
    (1e9, 65536, 2), (1e9, 1048576, 1),
]  # fmt: skip

PAGE = """\
# Scale, measured

Written by `python benchmarks/scale.py`; do not edit by hand. What it means is in [the guide](../scale.md). Machine: {machine}.

Synthetic clusters, 64 numbers stored as float16, in files that are mapped. Sizes of clusters are uneven as trained codes are (skew {skew:.2f}).
Added in parts of 500,000, then merged into one segment; each step in a fresh process. Two threads; {top} nearest; medians. *Cold*: the system was told
to forget the files (`posix_fadvise`), so that a search reads them from the disk and compares every block with its checksum.

| table | items | d | k | scanned | files | add | merge | open | open, cold | 10,000 cold | 10,000 | 100,000 | one query | memory: add, merge, search |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{tables}

## Ten times the items

Items scanned a second (queries a second × items scanned a query) of the large table, as a multiple of a table of a million.

| compared with | batch of 10,000 | batch of 100,000 |
|---|---:|---:|
| a million in as many buckets | {same_buckets} |
| a million in buckets of the same size | {same_load} |

A bucket is read and unpacked once a batch, for all of its queries together. Ten times the buckets, each of the same size, leave a tenth of the
queries to each: with {few:.1f} queries a bucket instead of {many:.0f} the reading shows, which is what the second row measures at 10,000.

## The model against the measurement

Rates fitted on the tables of a million items say this of the large one:

| what | model | measured | measured / model |
|---|---:|---:|---:|
{check}

## Rates

| rate | from a million | from the large table |
|---|---:|---:|
{rates}
"""  # noqa: E501


def _memory(value: float) -> str:
    return f"{value / 1e6:,.0f} MB"


def _table(name: str, found: dict[str, Any]) -> str:
    batches = {batch["queries"]: batch for batch in found["batches"]}
    search = found["search"]
    cells = [
        name, f"{found['items']:,}", f"{found['buckets']:,}", str(found["active"]),
        f"{batches[10_000]['scanned']:,.0f}", _memory(found["compact"]["bytes"]),
        f"{found['build']['seconds']:.1f} s", f"{found['compact']['seconds']:.1f} s",
        f"{search['open'] * 1e3:.1f} ms", f"{search['open_cold'] * 1e3:.1f} ms",
        f"{search['queries'] / search['cold']:,.0f}/s",
        *(f"{size / batches[size]['seconds']:,.0f}/s" if size in batches else ""
          for size in (10_000, 100_000)),
        f"{found['alone'] * 1e6:.0f} µs",
        ", ".join(_memory(found[step]["peak"]) for step in ("build", "compact", "search")),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _check(row: dict[str, Any]) -> str:
    unit = f" {row['unit']}" if row["unit"] else ""
    shown = [f"{row[key]:,.{0 if row[key] >= 100 else 1}f}{unit}" for key in ("model", "measured")]
    return f"| {row['name']} | {shown[0]} | {shown[1]} | {row['measured'] / row['model']:.2f} |"


def page(result: dict[str, Any]) -> str:
    """docs/results/scale.md."""
    tables, bars, large = result["tables"], result["bars"], result["tables"]["large"]
    rates = [
        f"| `{name}` | {value:.3g} | {result['rates'][name]:.3g} |"
        for name, value in result["rates_small"].items()
        if value is not None
    ]
    return PAGE.format(
        machine=result["machine"],
        skew=large["skew"],
        top=16,
        tables="\n".join(_table(name, found) for name, found in tables.items()),
        same_buckets=" | ".join(f"{value:.2f}×" for value in bars["same_buckets"].values()),
        same_load=" | ".join(f"{value:.2f}×" for value in bars["same_load"].values()),
        few=10_000 / large["buckets"],
        many=10_000 / tables["small"]["buckets"],
        check="\n".join(map(_check, result["check"])),
        rates="\n".join(rates),
    )


def _bytes(value: float) -> str:
    return f"{value / 1e9:,.{1 if value < 1e11 else 0}f} GB"


def _clock(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:,.{1 if seconds < 0.01 else 0}f} ms"
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _round(value: float) -> str:
    """Two digits: a model knows no more."""
    return f"{float(f'{value:.2g}'):,.0f}"


def block(result: dict[str, Any]) -> str:
    """The tables of the guide."""
    machine, skews = Machine(**result["rates"]), trained_skews()
    serving = [
        "| items | d | k | scanned a query | files | memory | nodes of 64 GB | open | one query "
        "| cold | batch |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    work = [
        "| items | d | k | encode | add and merge | copy | disk meanwhile | PostgreSQL | Qdrant |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for items, buckets, active in CASES:
        plan = Plan(buckets=buckets, active=active, skew=skews[active])
        found = estimate(items, plan, machine)
        start = f"| {items / 1e6:,.0f}M | {buckets:,} | {active} "
        serving.append(
            f"{start}| {_round(found.scanned)} | {_bytes(found.disk)} | {_bytes(found.memory)} "
            f"| {found.nodes} | {_clock(found.opening)} | {_clock(found.latency)} "
            f"| {_clock(found.cold)} | {_round(found.rate)}/s |"
        )
        # The encoder that was measured has 4,096 outputs.
        known = found.encode is not None and buckets == 4096
        encode = _clock(found.encode) if known and found.encode is not None else ""
        work.append(
            f"{start}| {encode} | {_clock(found.build)} | {_clock(found.copy)} "
            f"| {_bytes(found.building_disk)} | {_bytes(found.postgres)} | {_bytes(found.qdrant)} |"
        )
    skew = ", ".join(f"{value:.2f} for k = {k}" for k, value in sorted(skews.items()) if k < 3)
    words = f"64 numbers as float16, batches of 10,000, skew {skew}; machine: {result['machine']}."
    check = ["| at ten million | measured / model |", "|---|---:|"]
    check += [
        f"| {row['name']} | {row['measured'] / row['model']:.2f} |" for row in result["check"]
    ]
    parts = [words, "\n".join(serving), "\n".join(work), "\n".join(check)]
    return "\n\n".join([START, *parts, END])


def write_report(result: dict[str, Any], keep: bool) -> None:
    """Print the page; with ``keep`` write it, the JSON, and the guide's figures."""
    print(page(result))
    print(block(result))
    if not keep:
        return
    # What is written must be what a reader of the JSON computes: keys are strings there.
    text = json.dumps(result, indent=1)
    (RESULTS / "scale.json").write_text(text + "\n")
    result = json.loads(text)
    (RESULTS / "scale.md").write_text(page(result))
    if GUIDE.exists():
        made = block(result)
        pattern = re.compile(f"{re.escape(START)}.*?{re.escape(END)}", re.S)
        GUIDE.write_text(pattern.sub(lambda _: made, GUIDE.read_text()))


if __name__ == "__main__":
    write_report(json.loads((RESULTS / "scale.json").read_text()), keep=True)
