"""Drawing with matplotlib into SVG that lives inside the page and takes its colours from there."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowhash.extras import require

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


@dataclass(frozen=True)
class Chart:
    """A figure of the page: SVG that is safe to put in as it is, and plain text below it."""

    svg: str
    caption: str


def draw(
    name: str, label: str, caption: str, paint: Callable[[Figure], None], height: float = 3.5
) -> Chart:
    """Draw one chart.

    Args:
        name: letters and digits, of no other chart on the page.
        label: what it shows, for those who cannot see it.
        caption: goes below.
        paint: draws into the figure.
        height: in inches; the width is the same for all.
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
    return Chart(_inline(buffer.getvalue(), name, label), caption)


def _inline(text: str, name: str, label: str) -> str:
    """A stand-alone SVG as an element of a page: own ids, the page's colours, any width."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<(defs)>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None  # matplotlib writes it always
    # Two figures of one page must not share an id: the second would use the first one's markers.
    body = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    for colour, own in PAGE_COLOURS.items():
        body = body.replace(colour, own)
    return f'<svg {box.group()} role="img" aria-label="{_attribute(label)}">{body.strip()}'


def _attribute(text: str) -> str:
    for letter, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(letter, written)
    return text


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
