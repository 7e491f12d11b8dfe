"""The chart of recall against items scanned, and its table, for the report and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowhash.evaluate.output.report_charts import (
    INK,
    Chart,
    draw_chart,
    id_word,
    legend_below,
    line_style,
    round_ticks,
)
from flowhash.evaluate.output.result_grid import SPACE
from flowhash.evaluate.results import (
    RECALL_CURVES,
    RECALL_TOP,
    RecallCurves,
    RecallPoint,
    table_heading,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADING = "Recall against items scanned"
LOWEST = 50  # per cent of recall, where the chart begins: less is no search
ABOUT = (
    f"How many of its {RECALL_TOP} nearest items (found by exhaustive search in the embeddings "
    "that rank) a query finds, against how many items it is compared with. With a fixed probe "
    "FlowHash opens as many buckets for every query, as inverted lists do (IVF: k-means of as many "
    "lists on the same items); with one threshold it opens the buckets that are worth more, as a "
    "search with recall= does. HNSW is FAISS's graph with growing efSearch; what it scans are the "
    "distances that it computes. Networks and distances to centroids are not counted."
)
HEADS = {"flowhash-probe": "fixed probe", "ivf": "IVF", "hnsw": "HNSW"}  # of the table's columns


@dataclass(frozen=True)
class RecallColumn:
    """One column of the table below a chart: its head, and what that means."""

    head: str
    meaning: str


def recall_chart(curves: RecallCurves) -> Chart:
    """Recall against the share of the items that is scanned, with the recalls asked for on it."""

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for name, label in RECALL_CURVES.items():
            if name in curves.points:
                ours = name == "flowhash"
                style = line_style(name) | {"markersize": 0 if ours else 4}
                axes.plot(
                    *zip(*map(_place, curves.points[name]), strict=True), label=label,
                    linewidth=2.6 if ours else 1.5, zorder=3 if ours else 2, **style,
                )  # fmt: skip
        for number, point in enumerate(curves.asked):
            [mark] = axes.plot(
                *_place(point), "o", color=line_style("flowhash")["color"], markersize=9,
                markeredgecolor=INK, zorder=5, label=None if number else "a recall asked for",
            )  # fmt: skip
            mark.set_gid(f"asked-{number}")
            axes.annotate(
                _per_cent(point.asked), _place(point), (-7, 5), textcoords="offset points",
                ha="right", zorder=6,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_ylim(bottom=max(LOWEST, axes.get_ylim()[0]))
        round_ticks(axes.xaxis)
        axes.set_xlabel("items scanned (%)")
        axes.set_ylabel(f"recall@{RECALL_TOP} (%)")
        legend_below(figure, axes)

    table = table_heading(curves.table)
    marks = " The marks are recalls that were asked for." if curves.asked else ""
    return draw_chart(
        f"recall-{id_word(table)}",
        f"{table}: recall@{RECALL_TOP} against the share of items scanned, one line a method",
        f"{curves.queries:,} queries among {curves.items:,} items, FlowHash with k = {curves.k}; "
        f"items scanned are logarithmic. Left and high is better.{marks}",
        paint,
        3.8,
        {f"asked-{number}": _told(point) for number, point in enumerate(curves.asked)},
    )


def _place(point: RecallPoint) -> tuple[float, float]:
    return 100 * point.scanned, 100 * point.recall


def _per_cent(share: float | None, decimals: int = 0) -> str:
    return "–" if share is None else f"{100 * share:.{decimals}f}"


def _told(point: RecallPoint) -> str:
    """What a mark of the chart says."""
    asked, reached, scanned = (
        _per_cent(share, decimals) + f"{SPACE}%"
        for share, decimals in ((point.asked, 0), (point.recall, 1), (point.scanned, 2))
    )
    return f"asked for {asked}, reached {reached}, scanned {scanned} of the items"


def recall_columns(curves: RecallCurves) -> list[RecallColumn]:
    """The columns of the table below the chart; shares are in per cent."""
    return [
        RecallColumn("asked", "recall that was asked for, %"),
        RecallColumn("reached", "recall on the queries that did not calibrate, %"),
        RecallColumn("buckets", "buckets that a query opens, on average"),
        RecallColumn("scanned", "items that a query scans, %"),
        *(
            RecallColumn(head, f"items that {RECALL_CURVES[name]} scans at that recall, %")
            for name, head in HEADS.items()
            if name in curves.points
        ),
    ]


def recall_lines(curves: RecallCurves) -> list[list[str]]:
    """The cells of the table below the chart, a line for each recall that was asked for."""
    return [
        [
            _per_cent(point.asked), _per_cent(point.recall, 1), f"{point.opened:.1f}",
            _per_cent(point.scanned, 2),
            *(
                _per_cent(curves.scanned_at(name, point.recall), 2)
                for name in HEADS
                if name in curves.points
            ),
        ]
        for point in curves.asked
    ]  # fmt: skip


def recall_caption(curves: RecallCurves) -> str:
    """What the table below the chart shows."""
    return (
        f"Recalls asked for, after a calibration by {curves.calibrated:,} other queries, and those "
        "reached; items scanned by FlowHash, and what the others scan to find as much, read off "
        "their curves (the least that they can; – if they never do). All in %, but for buckets."
    )


def recall_markdown(title: str, every: Sequence[RecallCurves]) -> str:
    """The tables of all searched tables as a page."""
    parts = [f"# {title}: {HEADING[0].lower()}{HEADING[1:]}", ABOUT]
    for curves in every:
        parts.append(f"## {table_heading(curves.table)}")
        if curves.asked:
            heads = [column.head for column in recall_columns(curves)]
            lines = [heads, ["---:"] * len(heads), *recall_lines(curves)]
            parts += [recall_caption(curves), "\n".join(f"| {' | '.join(x)} |" for x in lines)]
        parts += curves.words
    return "\n\n".join(parts) + "\n"
