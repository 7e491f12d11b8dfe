"""Charts of the rows: speed-up and precision against k, time against speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowhash.evaluate.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Chart,
    draw,
    legend_below,
    plain_numbers,
)
from flowhash.evaluate.report.merged import Entry, Value, active_counts, method_label
from flowhash.evaluate.report.tables import flat_seconds, heading
from flowhash.evaluate.results import METHODS, is_ours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    "flowhash-own": (VERMILION, "p"),  # and hollow and dashed, see _style
}
PRECISIONS: tuple[tuple[str, Value], ...] = (
    ("Pr@1", lambda row: row.pr1),
    ("Pr@4", lambda row: row.pr4),
    ("Pr@16", lambda row: row.pr16),
)


def row_charts(entries: Sequence[Entry]) -> list[Chart]:
    """The charts of one searched table; none without a method that has buckets."""
    if not active_counts(entries):
        return []
    if len(active_counts(entries)) < 2:  # nothing to draw against k
        return [_time_chart(entries)]
    charts = [_speed_up_chart(entries), _time_chart(entries)]
    charts += [_precision_chart(entries, head, value) for head, value in PRECISIONS]
    return charts


def _speed_up_chart(entries: Sequence[Entry]) -> Chart:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        expected = [
            (entry.k, value)
            for entry in entries
            if entry.method == "flowhash"
            and (value := entry.mean(lambda row: row.expected)) is not None
        ]
        if expected:
            axes.plot(*zip(*expected, strict=True), "--", color=INK, label="expected (FlowHash)")
        _lines(axes, entries, lambda row: row.suf)
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
        _finish(figure, axes, entries, "SUF")

    table = heading(entries[0].table)
    return draw(
        f"suf-{_word(table)}",
        f"{table}: speed-up factor against k, one line a method",
        "Speed-up factor against k, logarithmic; higher is better. Expected: codes that are "
        "independent and even.",
        paint,
    )


def _precision_chart(entries: Sequence[Entry], head: str, value: Value) -> Chart:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for entry in entries:
            if entry.k is None and (level := entry.mean(value)) is not None:
                line = ":" if entry.method == "exhaustive" else "-."  # of vectors of another length
                axes.axhline(level, linestyle=line, color=INK, label=entry.label)
        _lines(axes, entries, value)
        _finish(figure, axes, entries, f"{head} (%)")

    table = heading(entries[0].table)
    return draw(
        f"{_word(head)}-{_word(table)}",
        f"{table}: {head} against k, one line a method, exhaustive search level",
        f"{head} against k; higher is better.",
        paint,
    )


def _time_chart(entries: Sequence[Entry]) -> Chart:
    points = _points(entries)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.set_yscale("log")
        for method in _methods(entries):
            own = [point[1:] for point in points if point[0].method == method]
            if own:
                axes.plot(
                    *zip(*own, strict=True), linewidth=0.8, label=method_label(method),
                    **_style(method),
                )  # fmt: skip
        flat = flat_seconds(entries)
        if flat is not None:
            axes.axhline(1e6 * flat, linestyle=":", color=INK, label="FAISS Flat")
        axes.margins(0.1)
        _name_points(axes, points)
        plain_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
        axes.set_xlabel("SUF")
        axes.set_ylabel("µs a query")
        legend_below(figure, axes)

    table = heading(entries[0].table)
    return draw(
        f"time-{_word(table)}",
        f"{table}: microseconds of search a query against speed-up factor",
        "Search time a query against speed-up factor, both logarithmic; numbers are k, where there "
        "is room for them. Right and low is better. Without the networks' time.",
        paint,
    )


def _points(entries: Sequence[Entry]) -> list[tuple[Entry, float, float]]:
    """Speed-up and microseconds; a logarithmic axis has no place for zeros."""
    found = []
    for entry in entries:
        speed_up, seconds = entry.mean(lambda row: row.suf), entry.mean(lambda row: row.seconds)
        if speed_up and seconds:
            found.append((entry, speed_up, 1e6 * seconds))
    return found


def _name_points(axes: Axes, points: Sequence[tuple[Entry, float, float]]) -> None:
    """Write k at the points, FlowHash's first, but over no other k that is written already."""
    taken: list[tuple[float, float]] = []
    for entry, across, up in sorted(points, key=lambda point: point[0].method != "flowhash"):
        if entry.k is None:
            continue
        x, y = axes.transAxes.inverted().transform(axes.transData.transform((across, up)))
        if any(abs(x - other) < 0.05 and abs(y - height) < 0.09 for other, height in taken):
            continue
        taken.append((x, y))
        axes.annotate(
            str(entry.k), (across, up), (5, 3),
            textcoords="offset points", color=_style(entry.method)["color"], fontsize=10,
        )  # fmt: skip


def _lines(axes: Axes, entries: Sequence[Entry], value: Value) -> None:
    """One line a method over k, with bars where several seeds were run."""
    for method in _methods(entries):
        found = [
            (entry.k, measure)
            for entry in entries
            if entry.method == method
            and entry.k is not None
            and (measure := entry.measure(value)) is not None
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
            zorder=3 if ours else 2, **_style(method),
        )  # fmt: skip


def _finish(figure: Figure, axes: Axes, entries: Sequence[Entry], label: str) -> None:
    counts = active_counts(entries)
    axes.set_xticks(counts)
    axes.set_xlim(counts[0] - 0.3, counts[-1] + 0.3)
    axes.set_xlabel("k")
    axes.set_ylabel(label)
    legend_below(figure, axes)


def _methods(entries: Sequence[Entry]) -> list[str]:
    there = dict.fromkeys(entry.method for entry in entries)
    known = [method for method in METHODS if method in there]
    return known + [method for method in there if method not in METHODS]


def _style(method: str) -> dict[str, Any]:
    """How a method's line and markers look; a variant of FlowHash has its colour, but hollow."""
    colour, marker = LOOKS.get(method, (INK, "X"))
    style: dict[str, Any] = {"color": colour, "marker": marker}
    if is_ours(method) and method != "flowhash":
        style |= {"markerfacecolor": "none", "markersize": 9, "linestyle": (0, (2, 1.5))}
    return style


def _word(text: str) -> str:
    """Letters and digits only, for an id."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower())
