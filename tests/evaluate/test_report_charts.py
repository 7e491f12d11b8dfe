from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from flowhash.evaluate.output.report_charts import diagonal, enlarged, smoothed
from flowhash.evaluate.results import METHODS
from tests.evaluate import report_pages as pages


@pytest.fixture(scope="module")
def page() -> pages.Element:
    return pages.read(pages.full_page())


def chart(page: pages.Element, label: str) -> pages.Element:
    return next(svg for svg in page.all("svg") if svg.attributes["aria-label"].startswith(label))


@pytest.mark.parametrize(
    ("label", "name", "scale"),
    [("speed-up", "suf", np.log), ("Pr@1 ", "pr1", float), ("Pr@4 ", "pr4", float),
     ("Pr@16 ", "pr16", float), ("microseconds", "seconds", np.log)],
)  # fmt: skip
def test_charts_have_the_points_where_the_numbers_are(
    page: pages.Element, label: str, name: str, scale: np.ufunc
) -> None:
    drawn = chart(page, f"Test table: {label}")
    assert set(METHODS.values()) - {"exhaustive"} <= {part.words for part in drawn.all("text")}
    marks = [
        use for use in drawn.all("use")
        if "fill: #d55e00" in use.attributes.get("style", "").lower()
    ]  # fmt: skip
    heights = np.array([float(mark.attributes["y"]) for mark in marks])[:4]  # the rest is legend
    values = {row.k: getattr(row, name) for row in pages.full_report().rows
              if row.method == "flowhash" and row.table == "test"}  # fmt: skip
    wanted = np.array([scale(values[k]) for k in (1, 2, 3, 4)])
    slope, start = np.polyfit(wanted, heights, 1)
    assert slope < 0  # SVG counts from the top
    np.testing.assert_allclose(slope * wanted + start, heights, atol=0.01)


def test_buckets_and_trainings_are_drawn(page: pages.Element) -> None:
    buckets = pages.section(page, "Buckets")
    assert [head.words for head in buckets.all("h3")] == ["FlowHash, k = 1", "VQ, k = 1"]
    assert buckets.words.count("3 of 16 buckets are empty and left out.") == 4
    named = {part.words for part in chart(page, "FlowHash, k = 1: heat map").all("text")}
    assert {"name_of_class…"} <= named
    training = pages.section(page, "Training")
    assert [head.words for head in training.all("h3")] == ["Stage: base", "Stage: hash"]
    labels = [svg.attributes["aria-label"] for svg in training.all("svg")]
    assert labels == [
        "base: loss against step", "base: validation Pr@1 against step", "hash: loss against step",
        "hash: validation Pr@1 against step", "hash: validation SUF against step",
    ]  # fmt: skip
    assert {"k = 1", "k = 2"} <= {part.words for part in training.all("svg")[0].all("text")}


@pytest.mark.parametrize(("colour", "name"), [("#0072b2", "loads"), ("#d55e00", "purity")])
def test_bars_are_as_high_as_buckets(page: pages.Element, colour: str, name: str) -> None:
    buckets = pages.full_report().buckets[0]
    order = [
        bucket for bucket in np.argsort(-buckets.loads, kind="stable") if buckets.loads[bucket]
    ]
    values = getattr(buckets, name)[order]
    [bars] = [path for path in chart(page, "FlowHash, k = 1: load").all("path")
              if f"fill: {colour}" in path.attributes.get("style", "").lower()]  # fmt: skip
    corners = np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", bars.attributes["d"]), float)
    across, up = corners[:, 0], corners[:, 1].max() - corners[:, 1]  # SVG counts from the top
    middles = across.min() + np.ptp(across) * (np.arange(len(order)) + 0.5) / len(order)
    # The line runs along the top of each bar: the last corner before a bar's middle is its height.
    tops = np.array([up[np.flatnonzero(across < middle)[-1]] for middle in middles])
    np.testing.assert_allclose(tops / tops.max(), values / values.max(), atol=1e-4)


def test_heat_map_shades_shares(page: pages.Element) -> None:
    counts = pages.full_report().buckets[0].counts
    [image, _] = chart(page, "FlowHash, k = 1: heat map").all("image")
    stored = base64.b64decode(image.attributes["xlink:href"].partition(",")[2])
    strength = np.asarray(Image.open(io.BytesIO(stored)).convert("RGBA"))[:, :, 3] / 255
    kept = counts[:, diagonal(counts)]
    shares = kept / counts.sum(axis=1, keepdims=True)
    high, wide = strength.shape[0] // shares.shape[0], strength.shape[1] // shares.shape[1]
    shown = strength[high // 2 :: high, wide // 2 :: wide]
    upright = re.match(r"matrix\([\d.]+ 0 0 [\d.]+ ", image.attributes["transform"])
    assert upright is not None  # the first row is drawn on top
    np.testing.assert_allclose(shown, np.sqrt(shares), atol=0.01)


def test_heat_map_is_diagonal() -> None:
    counts = np.random.default_rng(1).integers(0, 50, (6, 30))
    counts[:, [4, 9]] = 0
    order = diagonal(counts)
    assert sorted(order) == [bucket for bucket in range(30) if bucket not in (4, 9)]
    owners = counts[:, order].argmax(axis=0)
    assert (np.diff(owners) >= 0).all()
    small = np.arange(6.0).reshape(2, 3)
    large = enlarged(small)
    assert min(large.shape) >= 400
    np.testing.assert_array_equal(large[:: large.shape[0] // 2, :: large.shape[1] // 3], small)


def test_curves_are_smoothed_by_sliding_means() -> None:
    values = np.random.default_rng(2).normal(size=130)
    wanted = [values[max(place - 3, 0) : place + 4].mean() for place in range(130)]
    np.testing.assert_allclose(smoothed(values), wanted)
    np.testing.assert_array_equal(smoothed(values[:40]), values[:40])
