"""The pages of the scale benchmark: docs/results/scale.md and the figures in docs/scale.md.

    python -m benchmarks.scale.report

fits and writes everything again from the measurements in docs/results/scale.json, where only the
model or its words have changed.
"""

from __future__ import annotations

import json
import re
from typing import Any

from benchmarks.measurement import RESULTS, ROOT
from benchmarks.scale.figures import Estimate, Machine, Plan
from benchmarks.scale.fit import NOISE, summary
from benchmarks.scale.loads import trained_skews
from benchmarks.scale.model import estimate
from benchmarks.scale.words import in_bytes, in_time, rounded

GUIDE = ROOT / "docs" / "scale.md"
START, END = "<!-- scale: written by benchmarks/scale/run.py -->", "<!-- /scale -->"
# Items, d, k of the rows in the guide.
CASES = [
    (1e7, 4096, 1), (1e8, 4096, 1), (1e8, 65536, 1), (1e8, 65536, 2), (1e9, 65536, 1),
    (1e9, 65536, 2), (1e9, 1048576, 1),
]  # fmt: skip

OPEN, SHARE = 0.2, 0.5  # the bar: seconds to open, and items scanned a second against a million
READINGS = {
    "same_buckets": "a million in as many buckets",
    "same_load": "a million in buckets of the same size",
}

PAGE = """\
# Scale, measured

Written by `python -m benchmarks.scale.run`; do not edit by hand. What it means is in [the guide](../scale.md). Machine: {machine}.
Load average when it began: {load}.
{warning}
Synthetic clusters, 64 numbers stored as float16, in files that are mapped. Sizes of clusters are uneven as trained codes are (skew {skew:.2f}).
Added in parts of 500,000, then merged into one segment; each step in a fresh process. Two threads; {top} nearest. *Cold*: the system was told
to forget the files (`posix_fadvise`), so that a search reads them from the disk and compares every block with its checksum. Opening, cold batches and
calls with one query are the least of three times (of one query the mean over 200 of them), warm batches the median of three, adding and merging are done once.

| table | items | d | k | scanned | files | add | merge | open | open, cold | 10,000 cold | 10,000 | 100,000 | one query | memory: add, merge, search |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{tables}

## The bar

Ten million items: open in less than 200 ms, and batches at least 0.5× the queries a second per scanned item of a table of a million, warm. That is items
scanned a second (queries a second × items scanned a query), here as a multiple of a table of a million.

| reading | measured | bar | |
|---|---:|---:|---|
{bars}

A bucket is read and unpacked once a batch, for all of its queries together. Ten times the buckets, each of the same size, leave a tenth of the
queries to each: with {few:.1f} queries a bucket instead of {many:.0f} the reading shows, which is what buckets of the same size measure at 10,000.

## The model against the measurement

The rates and the skew of the tables of a million items say this of the large one, of which the model knows only n, d and k:

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


def _warning(noisy: dict[str, list[float]]) -> str:
    """Nothing, if the machine was quiet."""
    if not noisy:
        return ""
    found = ", ".join(f"`{name}` {low:.2g} and {high:.2g}" for name, (low, high) in noisy.items())
    return (
        '\n!!! warning "Something else ran, or the disk was uneven"\n'
        f"    The two tables of a million with k = 1 differ by more than {NOISE}×: "
        f"{found} seconds a byte.\n"
        "    Figures that depend on them are rough; measure again on a quiet machine.\n"
    )


def _bars(bars: dict[str, Any]) -> str:
    """A line for each reading of the bar."""

    def line(name: str, shown: str, bar: str, passed: bool) -> str:
        return f"| {name} | {shown} | {bar} | {'reached' if passed else '**missed**'} |"

    lines = [
        line(name, f"{bars[key] * 1e3:.1f} ms", f"< {OPEN * 1e3:.0f} ms", bars[key] < OPEN)
        for key, name in (("open", "open, warm"), ("open_cold", "open, cold"))
    ]
    lines += [
        line(f"against {name}, batches of {int(size):,}", f"{value:.2f}×", f"≥ {SHARE}×",
             value >= SHARE)
        for key, name in READINGS.items()
        for size, value in bars[key].items()
    ]  # fmt: skip
    return "\n".join(lines)


def page(result: dict[str, Any]) -> str:
    """docs/results/scale.md."""
    tables, large, load = result["tables"], result["tables"]["large"], result.get("load")
    rates = [
        f"| `{name}` | {value:.3g} | {result['rates'][name]:.3g} |"
        for name, value in result["rates_small"].items()
        if value is not None
    ]
    return PAGE.format(
        machine=result["machine"],
        load="not recorded" if load is None else f"{load:.1f}",
        warning=_warning(result["noisy"]),
        skew=large["skew"],
        top=16,
        tables="\n".join(_table(name, found) for name, found in tables.items()),
        bars=_bars(result["bars"]),
        few=10_000 / large["buckets"],
        many=10_000 / tables["small"]["buckets"],
        check="\n".join(map(_check, result["check"])),
        rates="\n".join(rates),
    )


def block(result: dict[str, Any]) -> str:
    """The tables of the guide."""
    machine, skews = Machine(**result["rates"]), trained_skews(RESULTS)
    heads = (
        "scanned a query | files | memory of one machine | open | one query | cold | batch",
        "encode | add and merge | copy | disk meanwhile",
        "PostgreSQL | Citus nodes | Qdrant | Qdrant nodes",
    )
    found = [
        [f"| items | d | k | {head} |", "|---:|---:|---:|" + "---:|" * (head.count("|") + 1)]
        for head in heads
    ]
    for items, buckets, active in CASES:
        plan = Plan(buckets=buckets, active=active, skew=skews[active])
        start = f"| {items / 1e6:,.0f}M | {buckets:,} | {active} | "
        for lines, cells in zip(found, _cells(estimate(items, plan, machine)), strict=True):
            lines.append(start + " | ".join(cells) + " |")
    skew = ", ".join(f"{value:.2f} for k = {k}" for k, value in sorted(skews.items()) if k < 3)
    words = f"64 numbers as float16, batches of 10,000, skew {skew}; machine: {result['machine']}."
    check = ["| at ten million | measured / model |", "|---|---:|"]
    check += [
        f"| {row['name']} | {row['measured'] / row['model']:.2f} |" for row in result["check"]
    ]
    return "\n\n".join([START, words, *("\n".join(lines) for lines in (*found, check)), END])


def _cells(found: Estimate) -> tuple[list[str], list[str], list[str]]:
    """A case's figures, for each of the guide's tables: to serve, to build, elsewhere."""
    serve = [
        rounded(found.scanned), in_bytes(found.disk), in_bytes(found.memory),
        in_time(found.opening), in_time(found.latency), in_time(found.cold),
        f"{rounded(found.rate)}/s",
    ]  # fmt: skip
    # The encoder that was measured has 4,096 outputs.
    known = found.encode is not None and found.buckets == 4096
    encode = in_time(found.encode) if known and found.encode is not None else ""
    build = [encode, in_time(found.build), in_time(found.copy), in_bytes(found.building_disk)]
    elsewhere = [
        in_bytes(found.postgres), str(found.citus_nodes), in_bytes(found.qdrant),
        str(found.qdrant_nodes),
    ]  # fmt: skip
    return serve, build, elsewhere


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


def main() -> None:
    """Compute and write again."""
    result = json.loads((RESULTS / "scale.json").read_text())
    known = result["rates_small"]
    result |= summary(result["tables"], known["opening"], known["encode"])
    write_report(result, keep=True)


if __name__ == "__main__":
    main()
