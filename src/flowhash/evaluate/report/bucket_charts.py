"""Charts of buckets: how full and how pure they are, and which class lies where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowhash.evaluate.report.canvas import BLUE, INK, LINE, VERMILION, Chart, draw
from flowhash.evaluate.results import Buckets
from flowhash.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    return draw(
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

    return draw(
        f"classes-{number}",
        f"{buckets.name}: heat map of classes by buckets",
        "Where each class lies: the share of a class (row) in each bucket (column). One strong "
        f"square a row is a class with a bucket of its own. {empty_words(buckets)}",
        paint,
        4.2,
    )


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"
