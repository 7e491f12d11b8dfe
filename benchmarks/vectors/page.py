"""The page of what this room measured, from the figures that each part has kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement import RESULTS, machine

HEAD = """\
# Vectors without labels, measured

Written by `python -m benchmarks.vectors.run`, `….timing` and `….fit`; do not edit by hand. Figures
are kept in vectors.json, and each part says on what machine it was measured.

What was asked of it:

{bars}
"""
RECALL = """
## What a recall takes

`FlowHasher(buckets=d, metric=…).fit(X)` on the items alone, {seeds} seeds: means, and the standard
deviation behind ±. Recall is the share of a query's ten nearest items that is found, on average
over {test:,} queries that are neither items nor were used for anything else. A calibration by
1,000 further queries, `calibrate(queries)`, sets how many buckets are opened. *Asked* is the recall
asked for, *reached* the one on the test queries; *scanned* the share of the items that were
compared.
*k-means* is FAISS's on the same items with as many lists and the same seed, each query opening the
same number of them; its scan is read off at the recall that FlowHash reached, on a line between two
numbers of lists opened. On a sphere it is the cheaper of plain k-means and of one whose centres are
kept at length one. *Router only* has each item in one bucket (`copies=0`). *Best k-means* is that
of 256 to 4,096 lists that is cheapest at that recall, where for both sides the centres that a query
is compared with are counted, too. *Hardest tenth* is the recall of the tenth of the queries of
which least is found, and behind it that of k-means; *p99 over mean* how much more than on average
one query in a hundred scans.
"""
DATA = """
### {name}: {items:,} × {dim}, {metric}

Machine: {machine}.

| d | items in two buckets | asked | reached | scanned, % | over k-means | over best k-means | hardest tenth | k-means' | p99 over mean | fit and calibrate, seconds |
|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{lines}
"""  # noqa: E501
DRAWS = """
Twenty calibrations by 1,000 other queries each (of 5,000, so that they share some), d =
{drawn_from}, what was reached on the test queries: {draws}.
"""
TIMING = """
## Time at equal recall

{test:,} queries in a batch, or one a call; medians of turns in one process, and ratios of one turn. Above 1×
FlowHash is faster. FlowHash's time has all in it, and it reaches the recall that is asked for by itself, calibrated by
other queries. Peers get the least effort that finds as much of the same test queries, by which it is chosen, and of
their settings the quickest:
*IVFFlat* is FAISS's with the quickest of 256 to 4,096 lists, centres as above; *preassigned* the same with lists looked for
beforehand; *big_batch_search* is of `faiss.contrib`, for batches only; *IVFPQFastScan* has four bits for two numbers, 1,024
or 4,096 lists, and measures 40, 160 or 640 again; graphs have M = 16 and 32 and were built with 200 candidates; ScaNN has 500
or 2,000 leaves and measures 30, 100 or 300 again. A peer without a figure does not reach the recall with any of these. *Encode, table* is
`encoder.encode` and `HashTable.search`; *server* the same with the encoder of `flowhash serve`.

![Queries a second against recall]({figure})
"""  # noqa: E501
TIMED = """
### {name}: {items:,} × {dim}

{alone} queries were asked one a call; medians of {repeats} turns. Machine: {machine}.
Built in seconds: {built}.
"""
TIMED_HEAD = """
#### {title}

| {columns} |
|{rules}|
"""
PROFILE = """
#### Where the time goes

`FlowHasher.search` at a recall of {profiled}, microseconds of a query; *buckets* are chosen
and put in order, *rest* is what is left of all: checks of the arguments, lengths, distances.

| d | in two buckets | threads | asked | all | encode | buckets | scan and rerank | rest |
|---:|---:|---:|---|---:|---:|---:|---:|---:|
"""
FIT = """
## Fitting, calibrating, memory

Processes of their own that do nothing else; compiling comes before. *Peak* is all that the process
ever had in memory, Python, torch and the data included.

| what | items | buckets | seconds | CPU seconds | peak | bar | machine |
|---|---:|---:|---:|---:|---:|---|---|
"""
BARS = {"glove": 360, "million": 1_200, "calibrate": 30}
MOST_MEMORY, MOST_SECOND = 3e9, 1.1
SAME, BEST, ROUTER = {0.9: 0.65, 0.95: 0.62, 0.99: 0.62}, 0.75, 0.78
BATCH, ONE = 3.0, 1.5
FIGURE = "vectors-time.png"
NAMES = {"glove": "fit, GloVe", "million": "fit, clusters", "calibrate": "calibrate by 1,000"}


def keep(part: str, figures: dict[str, Any]) -> None:
    """Keep what a part measured, and write the page of all that is known."""
    store = RESULTS / "vectors.json"
    known = json.loads(store.read_text()) if store.exists() else {}
    known[part] = {"machine": machine(), **figures}
    store.write_text(json.dumps(known, indent=1) + "\n")
    (RESULTS / "vectors.md").write_text(page(known))
    if part.startswith("timing/"):
        timed = [figures for name, figures in known.items() if name.startswith("timing/")]
        draw(timed, RESULTS / FIGURE)


def page(known: dict[str, Any]) -> str:
    """The page, of the parts that there are."""
    sets = [figures for part, figures in known.items() if part.startswith("recall/")]
    bars = [bar for figures in sets for bar in _recall_bars(figures)]
    parts = [RECALL.format(**sets[0])] if sets else []
    for figures in sets:
        lines = "\n".join(line for row in figures["rows"] for line in _recall_lines(row))
        draws = "; ".join(
            f"{asked} asked: {np.mean(values):.4f} on average, {min(values):.4f} to "
            f"{max(values):.4f}"
            for asked, values in figures["draws"].items()
        )
        parts.append(DATA.format(**figures | {"lines": lines}))
        parts += [DRAWS.format(**figures | {"draws": draws})] if draws else []
    timed = [figures for part, figures in known.items() if part.startswith("timing/")]
    if timed:
        parts.append(TIMING.format(figure=FIGURE, **timed[0]))
    for figures in timed:
        bars += _timing_bars(figures)
        parts.append(_timing(figures))
    fits = {part[4:]: figures for part, figures in known.items() if part.startswith("fit/")}
    if fits:
        found = [_fit(part, run, figures) for part, figures in fits.items()
                 for run in figures["runs"]]  # fmt: skip
        bars += [bar for _, bar in found]
        parts.append(FIT + "\n".join(line for line, _ in found) + "\n")
    return HEAD.format(bars="\n".join(f"- {bar}" for bar in bars)) + "".join(parts)


def _cell(values: Sequence[float], digits: int, factor: float = 1.0) -> str:
    """Mean, with the deviation where there are several."""
    array = factor * np.array(values)
    text = f"{array.mean():.{digits}f}"
    return text if len(array) == 1 else f"{text} ± {array.std(ddof=1):.{digits}f}"


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def _recall_lines(row: dict[str, Any]) -> list[str]:
    """One line for each recall asked for."""
    copies = " or ".join(f"{100 * share:.0f} %" for share in sorted(set(row["copies"])))
    lines = []
    for number, runs in enumerate(zip(*row["runs"], strict=True)):
        cells = [f"{row['lists']:,}", "router only" if row["router_only"] else copies]
        cells.append(f"{runs[0]['asked']:g}")
        columns = [("reached", 3, 1), ("scanned", 2, 100), ("same", 3, 1), ("best", 3, 1)]
        for name, digits, factor in [*columns, ("hardest", 2, 1), ("their_hardest", 2, 1)]:
            cells.append(_cell([run[name] for run in runs], digits, factor))
        cells += [_cell([run["tail"] for run in runs], 1), ""]
        if number == 0:
            cells[-1] = _cell(row["seconds"], 0)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _recall_bars(figures: dict[str, Any]) -> list[str]:
    """Less than k-means scans, which was asked of GloVe, and the recall that was asked for."""
    bars = []

    def judged(value: float, most: float) -> str:
        if not figures["name"].startswith("GloVe"):
            return ", where nothing was asked."
        return f", at most {most} was asked: {_verdict(value <= most)}."

    cheapest: dict[float, tuple[float, int]] = {}  # against the best k-means, by our best number
    for row in figures["rows"]:
        for runs in zip(*row["runs"], strict=True):
            asked = runs[0]["asked"]
            same, best = (float(np.mean([run[name] for run in runs])) for name in ("same", "best"))
            if asked in SAME:
                cheapest[asked] = min(cheapest.get(asked, (np.inf, 0)), (best, row["lists"]))
            most = {0.9: ROUTER}.get(asked) if row["router_only"] else SAME.get(asked)
            if most is None:
                continue
            words = f"{figures['name']}, {row['lists']:,} buckets, recall {asked:g}"
            if row["router_only"]:
                words += ", router only"
            bars.append(f"{words}: {same:.3f} of k-means' scan{judged(same, most)}")
    bars += [
        f"{figures['name']}, recall {asked:g}, {lists:,} buckets against the best k-means, centres "
        f"counted: {best:.3f}{judged(best, BEST)}"
        for asked, (best, lists) in cheapest.items()
    ]
    for asked, values in figures["draws"].items():
        off = 100 * (np.array(values) - float(asked))
        met = bool(abs(off.mean()) <= 0.5 and np.abs(off).max() <= 1.5)
        bars.append(
            f"{figures['name']}, twenty calibrations for {asked}: {off.mean():+.2f} points on "
            f"average, at most 0.5 was asked, and {off.min():+.2f} to {off.max():+.2f}, at most "
            f"1.5: {_verdict(met)}."
        )
    return bars


def _layout(row: dict[str, Any]) -> list[str]:
    """The number of buckets, and how many items are in two of them."""
    return [f"{row['lists']:,}", f"{100 * row['second']:.0f} %"]


def _timing(figures: dict[str, Any]) -> str:
    """Tables of batches, of single queries, and of stages, of one data set."""
    built = ", ".join(f"{name} {seconds:.0f}" for name, seconds in figures["built"].items())
    text = TIMED.format(**figures | {"built": built})
    for kind, title in (("batch", "A batch, microseconds of a query"), ("one", "One query a call")):
        rows = figures["rows"]
        own = list(rows[0][kind]["faster"])
        names = dict.fromkeys(name for row in rows for name in row[kind]["settings"])
        columns = ["d", "in two buckets", "threads", "asked", "reached", *own, *names]
        rules = "|".join(["---:"] * len(columns))
        text += TIMED_HEAD.format(title=title, columns=" | ".join(columns), rules=rules)
        for row in rows:
            found = row[kind]
            cells = [*_layout(row), str(row["threads"]), f"{row['asked']:g}"]
            cells += [f"{row['reached']:.3f}"]
            cells += [f"{1e6 * found['seconds'][name]:,.1f}" for name in own]
            cells += [_peer(found, name, own[0]) for name in names]
            text += f"| {' | '.join(cells)} |\n"
    text += PROFILE.format(**figures)
    kinds = {"batch": "a batch", "one": "one a call"}
    for profile in figures["profiles"]:
        cells = [*_layout(profile), str(profile["threads"]), kinds[profile["kind"]]]
        cells += [f"{1e6 * seconds:.1f}" for seconds in profile["stages"].values()]
        text += f"| {' | '.join(cells)} |\n"
    return text


def _peer(found: dict[str, Any], name: str, own: str) -> str:
    """Its time, how much faster we are, and its setting."""
    if name not in found["settings"]:
        return ""
    ratio = found["faster"][own][name]
    return f"{1e6 * found['seconds'][name]:,.1f} (**{ratio:.2f}×**; {found['settings'][name]})"


def draw(sets: Sequence[dict[str, Any]], path: Path) -> None:
    """Recall against queries a second, of the most threads; a line for each method."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    kinds = {"batch": "in a batch", "one": "one a call"}
    figure, grid = plt.subplots(
        len(sets), 2, figsize=(11, 4.2 * len(sets)), squeeze=False, layout="constrained"
    )
    for axes, figures in zip(grid, sets, strict=True):
        threads = max(row["threads"] for row in figures["rows"])
        lists = figures["rows"][-1]["lists"]
        rows = [
            row for row in figures["rows"] if (row["threads"], row["lists"]) == (threads, lists)
        ]
        own = next(iter(rows[0]["batch"]["faster"]))
        for axis, (kind, words) in zip(axes, kinds.items(), strict=True):
            names = [own, *figures["built"]]
            for place, name in enumerate(names):
                points = [
                    (row["reached"], 1 / row[kind]["seconds"][name])
                    for row in rows
                    if name in row[kind]["seconds"]
                ]
                if not points:
                    continue
                # The same colour in both, also where one of them is not measured.
                style = (2.6, "black") if name == own else (1.3, f"C{place - 1}")
                marker = "os^vDP*X"[place % 8]
                axis.plot(
                    *zip(*points, strict=True), marker=marker, ms=5, label=name, lw=style[0],
                    color=style[1],
                )  # fmt: skip
            axis.set_yscale("log")
            axis.set_title(f"{figures['name']}, {words}, threads: {threads}", fontsize=10)
            axis.set_xlabel("recall of the ten nearest")
            axis.set_ylabel("queries a second")
            axis.grid(alpha=0.3, which="both")
    grid[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _timing_bars(figures: dict[str, Any]) -> list[str]:
    """How much quicker than IVFFlat at a recall of 0.95."""
    bars = []
    for row in figures["rows"]:
        if row["asked"] != figures["profiled"]:
            continue
        for kind, words, least in (("batch", "a batch", BATCH), ("one", "one query a call", ONE)):
            ratios = {name: peers["IVFFlat"] for name, peers in row[kind]["faster"].items()}
            (name, ratio), (best, most) = next(iter(ratios.items())), max(
                ratios.items(), key=lambda item: item[1]
            )  # fmt: skip
            also = "" if best == name else f" ({best}: {most:.2f} times, {_verdict(most >= least)})"
            bars.append(
                f"{figures['name']}, {' buckets, '.join(_layout(row))} in two, recall "
                f"{row['asked']:g}, {words}, threads: {row['threads']}: {name} is {ratio:.2f} "
                f"times as fast as IVFFlat, {least} was asked: {_verdict(ratio >= least)}{also}."
            )
    return bars


def _fit(part: str, run: dict[str, Any], figures: dict[str, Any]) -> tuple[str, str]:
    """The line of a process, and its bar."""
    size = f"{run['rows']:,} × {run['dim']}"
    if part == "memory":
        met = run["ratio"] <= MOST_SECOND
        what, spent = f"table, {100 * run['second']:.0f} % in two buckets", ["", "", ""]
        words = f"{run['ratio']:.3f}× of it without, at most {MOST_SECOND}"
    else:
        met = run["seconds"] <= BARS[part] and not (part == "glove" and run["peak"] > MOST_MEMORY)
        what, words = NAMES[part], f"at most {BARS[part]:,} s"
        spent = [f"{run['seconds']:.1f}", f"{run['cpu']:.0f}" if "cpu" in run else ""]
        spent.append(f"{run['peak'] / 1e9:.2f} GB")
        if part == "glove":
            words += f" and {MOST_MEMORY / 1e9:.0f} GB"
    cells = [what, size, f"{run['buckets']:,}", *spent, f"{words}: {_verdict(met)}"]
    took = "" if part == "memory" else f" {run['seconds']:.1f} s, {run['peak'] / 1e9:.2f} GB;"
    bar = f"{what}, {size}, {run['buckets']:,} buckets:{took} {words}: {_verdict(met)}."
    return f"| {' | '.join(cells)} | {figures['machine']} |", bar
