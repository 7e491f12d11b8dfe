"""The page of the scale benchmark, docs/results/scale.md, with the rates that docs/scale.md uses.

    python -m benchmarks.scale.report

writes the page again from the measurements in docs/results/scale.json, where only words changed.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.measurement import RESULTS
from benchmarks.scale.data import DIM
from benchmarks.scale.steps import PART, TOP

ROW = 2 * DIM  # bytes of an embedding, float16
BATCHES = (1_000, 10_000, 100_000)
FAN = 8  # segments of like size that are merged into one
NOISE = 1.5  # tables of as many items that differ by more were not measured on a quiet machine
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

## Rates

What [the formulas](../scale.md#the-formulas) multiply with, computed from what was measured: of the large table, and where that cannot tell, of those of a million
(`query`, `call`, `scattered`, `call_scattered`).

| rate | |
|---|---:|
{rates}
"""  # noqa: E501


def fitted(batches: list[dict[str, float]], known: float | None = None) -> list[float]:
    """The rates read, compare and query: least squares of relative errors, none negative.

    The batches of one table cannot tell what a query costs from what it compares: with ``known``
    the former is given.
    """
    times = np.array([batch["seconds"] for batch in batches])
    terms = _terms(batches) / times[:, None]
    if known is None:
        return list(map(float, nnls(terms, np.ones(len(times)))[0]))
    return [*map(float, nnls(terms[:, :2], 1 - known * terms[:, 2])[0]), known]


def _terms(batches: list[dict[str, float]]) -> Any:
    """What read, compare and query are multiplied with."""
    return np.array([
        [b["reads"] * ROW, b["queries"] * b["compared"] * DIM, b["queries"]] for b in batches
    ])  # fmt: skip


def work_rates(found: dict[str, Any]) -> dict[str, float]:
    """The rates add, merge and touch, as one table shows them."""
    size, search = found["compact"]["bytes"], found["search"]
    merge = found["compact"]["seconds"] / size
    # Adding merges segments of like size meanwhile.
    levels = max(0, math.floor(math.log(max(1.0, found["items"] / PART), FAN)))
    touched = found["batches"][BATCHES.index(10_000)]["reads"] * (ROW + 4)
    return {
        "add": max(0.0, found["build"]["seconds"] / size - levels * merge),
        "merge": merge,
        "touch": max(0.0, search["cold"] - search["warm"]) / touched,
    }


def rates(tables: dict[str, Any], opening: float) -> dict[str, float]:
    """All of them, in seconds and bytes; docs/scale.md says what each is."""
    small, wide, pairs, large = (tables[name] for name in ("small", "wide", "pairs", "large"))
    million = fitted(small["batches"] + wide["batches"])
    read, compare, query = fitted(large["batches"], million[2])
    span = (small["alone_compared"] - wide["alone_compared"]) * ROW
    a_byte = max(0.0, small["alone"] - wide["alone"]) / span
    call = wide["alone"] - wide["alone_compared"] * ROW * a_byte
    two = pairs["batches"][BATCHES.index(10_000)]
    return {
        "read": read, "compare": compare, "query": query, "call": call,
        "call_read": max(0.0, large["alone"] - call) / (large["alone_compared"] * ROW),
        "scattered": two["seconds"] / float((_terms([two]) @ million)[0]),
        "call_scattered": (pairs["alone"] - call) / (pairs["alone_compared"] * ROW * a_byte),
        "opening": opening,
        "opening_byte": max(0.0, large["search"]["open"] - opening) / large["compact"]["bytes"],
        **work_rates(large),
    }  # fmt: skip


def noisy(tables: dict[str, Any]) -> dict[str, list[float]]:
    """Rates, lowest and highest, that differ more than they should between the small tables."""
    shown = [work_rates(tables[name]) for name in ("small", "wide")]
    ranges = {name: sorted(rate[name] for rate in shown) for name in ("add", "touch")}
    return {name: ends for name, ends in ranges.items() if ends[1] > NOISE * ends[0]}


def bars(tables: dict[str, Any]) -> dict[str, Any]:
    """How fast the large table opens, and items scanned a second against a million."""

    def scanned_rate(name: str, size: int) -> float:
        batch = tables[name]["batches"][BATCHES.index(size)]
        return float(batch["queries"] * batch["scanned"] / batch["seconds"])

    def against(name: str) -> dict[str, float]:
        return {str(s): scanned_rate("large", s) / scanned_rate(name, s) for s in BATCHES[1:]}

    opened = {key: tables["large"]["search"][key] for key in ("open", "open_cold")}
    return opened | {"same_buckets": against("wide"), "same_load": against("small")}


def summary(tables: dict[str, Any], opening: float) -> dict[str, Any]:
    """All that is computed from what was measured."""
    return {"rates": rates(tables, opening), "bars": bars(tables), "noisy": noisy(tables)}


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
    found = [f"| `{name}` | {value:.3g} |" for name, value in result["rates"].items()]
    return PAGE.format(
        machine=result["machine"],
        load="not recorded" if load is None else f"{load:.1f}",
        warning=_warning(result["noisy"]),
        skew=large["skew"],
        top=TOP,
        tables="\n".join(_table(name, found) for name, found in tables.items()),
        bars=_bars(result["bars"]),
        few=10_000 / large["buckets"],
        many=10_000 / tables["small"]["buckets"],
        rates="\n".join(found),
    )


def write_report(result: dict[str, Any], keep: bool) -> None:
    """Print the page; with ``keep`` write it, and the JSON."""
    print(page(result))
    if keep:
        (RESULTS / "scale.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "scale.md").write_text(page(result))


if __name__ == "__main__":
    stored = json.loads((RESULTS / "scale.json").read_text())
    write_report(stored | summary(stored["tables"], stored["rates"]["opening"]), keep=True)
