"""The charts of results: as the report shows them, and for the figures in files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from flowhash.evaluate.output.result_grid import PRECISIONS, SUF, Column
from flowhash.evaluate.results import (
    Buckets,
    MergedRow,
    active_counts,
    is_ours,
    method_label,
    method_order,
    table_heading,
)
from flowhash.extras import require
from flowhash.quality import expected_speed_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind can tell apart; without their black and yellow,
# which vanish on a dark and on a light page.
ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
GREY = "#8C8C8C"  # seen on both
COLOURS = (VERMILION, BLUE, GREEN, PURPLE, ORANGE, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P")

# Colours that nobody draws with stand for the page's own, light or dark.
INK, LINE = "#010203", "#040506"
PAGE_COLOURS = {INK: "currentColor", LINE: "var(--grid)"}

# What charts of the page and of files have alike.
SHARED_STYLE: dict[str, Any] = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "flowhash",  # the same rows twice are the same file
}
# At this width in inches a phone shows the figure at about its own size, and text stays legible.
WIDTH = 4.5
PAGE_STYLE = SHARED_STYLE | {
    "font.size": 10.5,
    "axes.labelsize": 10.5,
    "axes.titlesize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "lines.markersize": 6,
    "svg.fonttype": "none",  # text stays text: smaller, selectable, in the reader's fonts
    "text.parse_math": False,  # a $ in someone's name is no formula
}
FILE_STYLE = SHARED_STYLE | {"font.size": 11.0, "grid.alpha": 0.3, "lines.markersize": 5.5}


# Colour and marker of each method: shapes tell them apart where colours do not.
LOOKS = {
    "exhaustive": (INK, "*"),
    "exhaustive-raw": (INK, "*"),
    "exhaustive-unit": (INK, "*"),
    "th": (ORANGE, "v"),
    "vq": (SKY, "s"),
    "vq-raw": (SKY, "8"),
    "vq-unit": (SKY, "8"),
    "vq-train": (GREEN, "D"),
    "ivf": (PURPLE, "P"),
    "classifier": (BLUE, "^"),
    "start": (GREY, "X"),
    "flowhash": (VERMILION, "o"),
    "flowhash-free": (VERMILION, "h"),
    "flowhash-own": (VERMILION, "p"),  # and hollow and dashed, see line_style
    "flowhash-probe": (VERMILION, "o"),  # of the curves of recall, as the next
    "hnsw": (BLUE, "D"),
}


@dataclass(frozen=True)
class Chart:
    """A figure of the page: SVG that is safe to put in as it is, and plain text below it."""

    svg: str
    caption: str


def draw_chart(
    name: str,
    label: str,
    caption: str,
    paint: Callable[[Figure], None],
    height: float = 3.5,
    titles: Mapping[str, str] | None = None,
) -> Chart:
    """Draw one chart with matplotlib into SVG that takes its colours from the page it lives in.

    Args:
        name: letters and digits, of no other chart on the page.
        label: what it shows, for those who cannot see it.
        caption: goes below.
        paint: draws into the figure.
        height: in inches; the width is the same for all.
        titles: what a pointer at a part of the figure is told, by the gid of the part.
    """
    matplotlib = require("matplotlib", "evaluate")
    with matplotlib.rc_context(PAGE_STYLE):
        figures = require("matplotlib.figure", "evaluate")
        figure = figures.Figure(figsize=(WIDTH, height), layout="constrained")
        figure.patch.set_alpha(0)
        paint(figure)
        for axes in figure.axes:
            axes.patch.set_alpha(0)
        buffer = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return Chart(_inline(buffer.getvalue(), name, label, titles or {}), caption)


def _inline(text: str, name: str, label: str, titles: Mapping[str, str]) -> str:
    """A stand-alone SVG as an element of a page: own ids, the page's colours, any width."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<(defs)>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None  # matplotlib writes it always
    # Two figures of one page must not share an id: the second would use the first one's markers.
    body = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    for part, words in titles.items():
        opened = f'<g id="{name}-{part}">'
        body = body.replace(opened, f"{opened}<title>{escape(words)}</title>")
    for colour, own in PAGE_COLOURS.items():
        body = body.replace(colour, own)
    spoken = escape(label, {'"': "&quot;"})
    return f'<svg {box.group()} role="img" aria-label="{spoken}">{body.strip()}'


def legend_below(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """The axes' lines under the figure, where they hide no data."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=columns,
            handlelength=1.8, columnspacing=1.2, borderaxespad=0.2,
        )  # fmt: skip


def plain_numbers(axis: Any) -> None:
    """Ticks as 0.5, 20 and 3,000, also on a logarithmic axis, instead of powers of ten."""
    ticker = require("matplotlib.ticker", "evaluate")

    def written(value: float, _: int) -> str:
        return f"{value:,.0f}" if value >= 1 else f"{value:g}"

    axis.set_major_formatter(ticker.FuncFormatter(written))
    axis.set_minor_formatter(ticker.NullFormatter())


def round_ticks(axis: Any) -> None:
    """A logarithmic axis with ticks at 1, 2, 5, 10, …, as plain numbers."""
    plain_numbers(axis)
    low, high = axis.get_view_interval()
    ticks = [step * 10.0**power for power in range(-6, 7) for step in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) > 1:  # else powers of ten say more
        axis.set_ticks(ticks)
        axis.set_ticks([], minor=True)


def row_charts(merged: Sequence[MergedRow]) -> list[Chart]:
    """The charts of one searched table; none without a method that has buckets."""
    if not active_counts(merged):
        return []
    if len(active_counts(merged)) < 2:  # nothing to draw against k
        return [_time_chart(merged)]
    charts = [_speed_up_chart(merged), _time_chart(merged)]
    charts += [_precision_chart(merged, column) for column in PRECISIONS]
    return charts


def paint_speed_ups(
    axes: Axes,
    merged: Sequence[MergedRow],
    paper: Sequence[MergedRow] = (),
    methods: Sequence[str] | None = None,
) -> None:
    """SUF against k, logarithmic, beside what Eq. 9 expects of independent, even codes.

    Args:
        axes: to draw into.
        merged: of one searched table.
        paper: the paper's rows of it, or none.
        methods: which are drawn, in this order; all unless given.
    """
    counts = active_counts([*merged, *paper])
    for size, line in zip(_bucket_counts(merged), ("-", ":"), strict=False):
        curve = [expected_speed_up(size, k) for k in counts if k <= size]
        label = f"expected (Eq. 9), d = {size}"
        axes.plot(counts[: len(curve)], curve, line, color=INK, label=label)
    shown = _methods(merged) if methods is None else methods
    for method in shown:
        theirs = [(each.k, each.mean(SUF.name)) for each in paper if each.method == method]
        if theirs:
            # Larger and hollow, so that they are seen behind measured ones of the same value.
            axes.plot(
                *zip(*theirs, strict=True), "--", color=GREY, marker=line_style(method)["marker"],
                markersize=10, markerfacecolor="none",
            )  # fmt: skip
    _lines(axes, merged, SUF.name, shown)
    axes.set_yscale("log")
    round_ticks(axes.yaxis)


def _bucket_counts(merged: Sequence[MergedRow]) -> list[int]:
    """FlowHash's d; and the classifier's, which has as many buckets as there are classes."""
    ours, theirs = (
        {row.buckets for each in merged if each.method == method for row in each.rows}
        for method in ("flowhash", "classifier")
    )
    return [*sorted(ours), *sorted(theirs - ours)] if ours else []


def _speed_up_chart(merged: Sequence[MergedRow]) -> Chart:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        paint_speed_ups(axes, merged)
        _finish(figure, axes, merged, "SUF")

    table = table_heading(merged[0].table)
    return draw_chart(
        f"suf-{id_word(table)}",
        f"{table}: speed-up factor against k, one line a method",
        "Speed-up factor against k, logarithmic; higher is better. Expected: codes that are "
        "independent and even.",
        paint,
    )


def _precision_chart(merged: Sequence[MergedRow], column: Column) -> Chart:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for each in merged:
            if each.k is None and (level := each.mean(column.name)) is not None:
                line = ":" if each.method == "exhaustive" else "-."  # of vectors of another length
                axes.axhline(level, linestyle=line, color=INK, label=each.label)
        _lines(axes, merged, column.name)
        _finish(figure, axes, merged, f"{column.title} (%)")

    table = table_heading(merged[0].table)
    return draw_chart(
        f"{id_word(column.title)}-{id_word(table)}",
        f"{table}: {column.title} against k, one line a method, exhaustive search level",
        f"{column.title} against k; higher is better.",
        paint,
    )


def _time_chart(merged: Sequence[MergedRow]) -> Chart:
    points = _points(merged)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.set_yscale("log")
        for method in _methods(merged):
            own = [point[1:] for point in points if point[0].method == method]
            if own:
                axes.plot(
                    *zip(*own, strict=True), linewidth=0.8, label=method_label(method),
                    **line_style(method),
                )  # fmt: skip
        flat = mean_flat(merged)
        if flat is not None:
            axes.axhline(1e6 * flat, linestyle=":", color=INK, label="FAISS Flat")
        axes.margins(0.1)
        _name_points(axes, points)
        plain_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
        axes.set_xlabel("SUF")
        axes.set_ylabel("µs a query")
        legend_below(figure, axes)

    table = table_heading(merged[0].table)
    return draw_chart(
        f"time-{id_word(table)}",
        f"{table}: microseconds of search a query against speed-up factor",
        "Search time a query against speed-up factor, both logarithmic; numbers are k, where there "
        "is room for them. Right and low is better. Without the networks' time.",
        paint,
    )


def mean_flat(merged: Sequence[MergedRow]) -> float | None:
    """What FAISS Flat took a query, the mean over all rows."""
    everything = MergedRow("", "", None, tuple(row for each in merged for row in each.rows))
    return everything.mean("flat")


def _points(merged: Sequence[MergedRow]) -> list[tuple[MergedRow, float, float]]:
    """Speed-up and microseconds; a logarithmic axis has no place for zeros."""
    found = []
    for each in merged:
        speed_up, seconds = each.mean(SUF.name), each.mean("seconds")
        if speed_up and seconds:
            found.append((each, speed_up, 1e6 * seconds))
    return found


def _name_points(axes: Axes, points: Sequence[tuple[MergedRow, float, float]]) -> None:
    """Write k at the points, FlowHash's first, but over no other k that is written already."""
    taken: list[tuple[float, float]] = []
    for each, across, up in sorted(points, key=lambda point: point[0].method != "flowhash"):
        if each.k is None:
            continue
        x, y = axes.transAxes.inverted().transform(axes.transData.transform((across, up)))
        if any(abs(x - other) < 0.05 and abs(y - height) < 0.09 for other, height in taken):
            continue
        taken.append((x, y))
        axes.annotate(
            str(each.k), (across, up), (5, 3),
            textcoords="offset points", color=line_style(each.method)["color"], fontsize=10,
        )  # fmt: skip


def _lines(
    axes: Axes, merged: Sequence[MergedRow], name: str, methods: Sequence[str] | None = None
) -> None:
    """One line a method over k, with bars where several seeds were run."""
    for method in _methods(merged) if methods is None else methods:
        found = [
            (each.k, measure)
            for each in merged
            if each.method == method
            and each.k is not None
            and (measure := each.measure(name)) is not None
        ]
        if not found:
            continue
        ours = is_ours(method)
        deviations = [measure.deviation or 0.0 for _, measure in found]
        axes.errorbar(
            [k for k, _ in found],
            [measure.mean for _, measure in found],
            yerr=deviations if any(deviations) else None,
            label=method_label(method), capsize=3, linewidth=2.6 if ours else 1.5,
            # The start's line is thin, and often lies on FlowHash's thick one.
            zorder=4 if method == "start" else 3 if ours else 2, **line_style(method),
        )  # fmt: skip


def _finish(figure: Figure, axes: Axes, merged: Sequence[MergedRow], label: str) -> None:
    counts = active_counts(merged)
    axes.set_xticks(counts)
    axes.set_xlim(counts[0] - 0.3, counts[-1] + 0.3)
    axes.set_xlabel("k")
    axes.set_ylabel(label)
    legend_below(figure, axes)


def _methods(merged: Sequence[MergedRow]) -> list[str]:
    return sorted(dict.fromkeys(each.method for each in merged), key=method_order)


def line_style(method: str) -> dict[str, Any]:
    """How a method's line and markers look; a variant of FlowHash has its colour, but hollow."""
    colour, marker = LOOKS.get(method, (INK, "X"))
    style: dict[str, Any] = {"color": colour, "marker": marker}
    if is_ours(method) and method != "flowhash":
        style |= {"markerfacecolor": "none", "markersize": 9, "linestyle": (0, (2, 1.5))}
    if method.endswith(("-raw", "-unit")):  # of vectors of another length
        style |= {"linestyle": "-."}
    return style


def id_word(text: str) -> str:
    """Letters and digits only, for an id."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower())


NAMED = 20  # more names than that do not fit at an axis
LETTERS = 14  # nor do longer ones
PIXELS = 400  # of a heat map's side, at least


def bucket_charts(buckets: Buckets, number: int, class_names: Sequence[str]) -> list[Chart]:
    """Load, purity and classes of one method's buckets; none if all of them are empty."""
    if not buckets.counts.any():
        return []
    return [_load_chart(buckets, number), _class_chart(buckets, number, class_names)]


def empty_words(buckets: Buckets) -> str:
    """How many buckets are empty, and so in no picture."""
    empty = int((buckets.loads == 0).sum())
    if empty == 0:
        return f"All {buckets.loads.size:,} buckets hold items."
    left = "is empty and left out" if empty == 1 else "are empty and left out"
    return f"{empty:,} of {buckets.loads.size:,} buckets {left}."


def _load_chart(buckets: Buckets, number: int) -> Chart:
    order = np.argsort(-buckets.loads, kind="stable")
    order = order[buckets.loads[order] > 0]
    loads, purity = buckets.loads[order], 100 * buckets.purity[order]

    def paint(figure: Figure) -> None:
        above, below = figure.subplots(2, sharex=True)
        above.stairs(loads, fill=True, color=BLUE)
        above.axhline(
            float(buckets.loads.mean()), linestyle=":", color=INK, label="if all were even"
        )
        above.legend(loc="upper right")
        above.set_ylabel("items")
        below.stairs(purity, fill=True, color=VERMILION)
        below.set_ylim(0, 100)
        below.set_ylabel("purity (%)")
        below.set_xlabel("bucket, fullest first")
        below.set_xlim(0, loads.size)

    words = (
        f"Items in each bucket, fullest first, and the share of them that have the bucket's most "
        f"frequent class. {empty_words(buckets)} The fullest "
        f"holds {loads[0]:,} items, the median of those shown {np.median(loads):,.0f}."
        if loads.size > 1
        else f"The only bucket with items holds {loads[0]:,}. {empty_words(buckets)}"
    )
    return draw_chart(
        f"load-{number}", f"{buckets.name}: load and purity of each bucket", words, paint, 4.2
    )


def diagonal(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Non-empty buckets, by the class most frequent in them, fuller ones first."""
    loads = counts.sum(axis=0)
    order = np.lexsort((-loads, counts.argmax(axis=0)))
    return np.asarray(order[loads[order] > 0])


def enlarged(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each number as a block of pixels, so that a browser blurs no edge of a small matrix."""
    for axis in (0, 1):
        values = np.repeat(values, -(-PIXELS // values.shape[axis]), axis=axis)
    return values


def _class_chart(buckets: Buckets, number: int, class_names: Sequence[str]) -> Chart:
    counts = buckets.counts
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares = 100 * (counts / totals)[:, diagonal(counts)]

    def paint(figure: Figure) -> None:
        colours = require("matplotlib.colors", "evaluate")
        # From clear to full colour, so that nothing looks like the page, whether light or dark; by
        # the root of the share, or the few strays beside the diagonal would not be seen.
        shade = colours.LinearSegmentedColormap.from_list(
            "shade", [(*colours.to_rgb(VERMILION), strength) for strength in (0.0, 1.0)]
        )
        norm = colours.PowerNorm(0.5, 0, 100)
        axes, key = figure.subplots(1, 2, width_ratios=(24, 1))
        extent = (-0.5, shares.shape[1] - 0.5, shares.shape[0] - 0.5, -0.5)
        axes.imshow(
            enlarged(shares), cmap=shade, norm=norm, aspect="auto", interpolation="none",
            extent=extent,
        )  # fmt: skip
        axes.grid(False)
        axes.spines[:].set(visible=True, color=LINE)
        axes.set_xlabel("bucket, by its most frequent class")
        axes.set_ylabel("class")
        if len(class_names) == counts.shape[0] <= NAMED:
            axes.set_yticks(range(len(class_names)), [_short(name) for name in class_names])
        # The key is an image too: a colour bar's many rectangles show seams where they are clear.
        steps = np.linspace(0, 100, 256)[:, None]
        key.imshow(
            steps, cmap=shade, norm=norm, aspect="auto", interpolation="none", origin="lower",
            extent=(0, 1, 0, 100),
        )  # fmt: skip
        key.grid(False)
        key.set_xticks([])
        key.yaxis.tick_right()
        key.set_title("%", fontsize=10)

    return draw_chart(
        f"classes-{number}",
        f"{buckets.name}: heat map of classes by buckets",
        "Where each class lies: the share of a class (row) in each bucket (column). One strong "
        f"square a row is a class with a bucket of its own. {empty_words(buckets)}",
        paint,
        4.2,
    )


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"


Lines = Sequence[Mapping[str, Any]]
Curves = Mapping[str, Lines]
Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # steps and values

# What Algorithm 1 is about; only stage 2 has them.
OBJECTIVES = {
    "bound_gap": ("M(θ)", "The gap of the bound of Eq. 4, m·ĝ + M ≥ g; it should fall."),
    "class_objective": ("ĝ", "The objective of the class means, which the flow minimises exactly."),
    "item_objective": ("g", "The objective of the items of a batch, with the same codes."),
}
# Curves of a training, by their key in its journal: id, what is shown, label of the axis, caption.
CURVES = {
    "loss": ("loss", "loss", "loss",
             "Loss of single batches, averaged over neighbours where there are many."),
    "pr1": ("precision", "validation Pr@1", "Pr@1 (%)", "Pr@1 on the validation split."),
    "suf": ("speedup", "validation SUF", "SUF",
            "Speed-up factor on the validation split, logarithmic."),
    **{key: (key, head, head, words) for key, (head, words) in OBJECTIVES.items()},
}  # fmt: skip
SMOOTH = 40  # lines of a journal from which single batches are noise
POINTS = 500  # of a curve, at most: more are not seen, and make the file large


def stages(curves: Curves) -> list[str]:
    """The names of all stages, in the order they came."""
    return list(dict.fromkeys(str(line["stage"]) for lines in curves.values() for line in lines))


def curve_charts(curves: Curves, stage: str, number: int) -> list[Chart]:
    """The charts of one stage, one line a training."""
    own = {
        name: [line for line in lines if line["stage"] == stage] for name, lines in curves.items()
    }
    charts = []
    for key, (name, shown, axis, caption) in CURVES.items():
        every = {training: series(lines, key) for training, lines in own.items()}
        drawn = {training: found for training, found in every.items() if found[0].size}
        # Stage 1 searches everything: a SUF of 1 all the way is no picture.
        level = key == "suf" and all((values == 1).all() for _, values in drawn.values())
        if drawn and not level:
            label = f"{stage}: {shown} against step"
            charts.append(_curve_chart(drawn, key, f"{name}-{number}", label, axis, caption))
    return charts


def _curve_chart(
    drawn: Mapping[str, Series], key: str, name: str, label: str, axis: str, caption: str
) -> Chart:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, (training, (steps, values)) in enumerate(drawn.items()):
            paint_curve(axes, place, training, steps, 100 * values if key == "pr1" else values)
        if key == "suf":
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        ticker = require("matplotlib.ticker", "evaluate")
        axes.xaxis.set_major_locator(ticker.MaxNLocator(4, integer=True))
        plain_numbers(axes.xaxis)
        axes.set_xlabel("step")
        axes.set_ylabel(axis)
        legend_below(figure, axes, 1 if max(map(len, drawn)) > 20 else 2)

    # Every line of the legend takes from the height.
    return draw_chart(name, label, caption, paint, 3.2 + 0.1 * len(drawn))


def series(lines: Lines, key: str) -> Series:
    """Steps and values of one quantity, of the lines that have it."""
    found = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
    pairs = np.asarray(found, np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def paint_curve(
    axes: Axes, place: int, name: str, steps: NDArray[np.float64], values: NDArray[np.float64]
) -> None:
    """A line of one training over its steps; ``place`` among the trainings gives its look."""
    values = smoothed(values)
    thin = -(-steps.size // POINTS)
    axes.plot(
        steps[::thin],
        values[::thin],
        color=COLOURS[place % len(COLOURS)],
        # More trainings than colours: the pattern of the line tells them apart.
        linestyle=("-", "--", ":", "-.")[place // len(COLOURS) % 4],
        marker=MARKERS[place % len(MARKERS)] if steps.size <= SMOOTH else None,
        markersize=4,
        label=name.lstrip("_") or "training",  # matplotlib hides labels that begin with _
    )


def smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means over a window that slides, cut short at both ends; few values are left as they are."""
    if values.size <= SMOOTH:
        return values
    reach = values.size // SMOOTH
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first = np.maximum(np.arange(values.size) - reach, 0)
    last = np.minimum(np.arange(values.size) + reach + 1, values.size)
    return np.asarray((sums[last] - sums[first]) / (last - first))
