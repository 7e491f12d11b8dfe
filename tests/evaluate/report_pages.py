"""A report with every part in it, and a reader of the page that knows HTML only."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np

from flowhash.evaluate.output.report_page import render_report
from flowhash.evaluate.results import (
    METHODS,
    RECALL_CURVES,
    Buckets,
    Example,
    RecallCurves,
    RecallPoint,
    Report,
    Row,
)

VOID = {"meta", "img", "wbr", "br", "hr", "link", "input"}


def row(method: str, table: str, k: int | None, seed: int, rng: np.random.Generator) -> Row:
    """Numbers no two of which are alike, so that none can stand in for another."""
    some = rng.uniform(20, 90, 16)
    first = k == 1
    return Row(
        method, table, k, seed, suf=some[0], pr1=some[1], pr4=some[2], pr16=some[3],
        nmi=some[4] if first else None, scanned=100 * some[5], seconds=1e-6 * some[6],
        flat=1e-5 * some[7], passes=2 if method == "flowhash" else 1, buckets=256, items=9999,
        queries=1234, suf1=some[8], suf4=some[9], suf16=some[10], ami=some[11] if first else None,
        purity=some[12] if first else None, recall1=some[13], recall4=some[14], recall16=some[15],
        map_r=some[0] / 2, expected=None if k is None else 256 / k**2,
        note="fitted on the table" if method == "vq" else "",
    )  # fmt: skip


def rows(tables: tuple[str, ...], counts: tuple[int, ...], seeds: int = 1) -> list[Row]:
    rng = np.random.default_rng(5)
    return [
        row(method, table, k, seed, rng)
        for seed in range(seeds)
        for table in tables
        for method in reversed(METHODS)  # the page has to put them in order
        for k in ((None,) if method == "exhaustive" else counts)
    ]


def picture(rng: np.random.Generator, side: int = 32) -> Any:
    return rng.integers(0, 256, (side, side, 3), dtype=np.uint8)


def journal(active: int) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for stage in ("base", "hash"):
        lines += [
            {"stage": stage, "step": step, "loss": 9 / step, "rate": 0.1, "items_per_second": 5.0,
             "seconds": 0.1}
            for step in range(10, 1001, 10)
        ]  # fmt: skip
        lines += [
            {"stage": stage, "step": step, "validation": True, "pr1": step / 2000,
             "suf": 1.0 if stage == "base" else step / 10 / active}
            for step in (500, 1000)
        ]  # fmt: skip
    return lines


def recall_curves(table: str) -> RecallCurves:
    """Each curve some way to the right of the one before; three recalls were asked for."""
    points = {
        name: tuple(
            RecallPoint(recall, (1 + place) * scanned, 3.0)
            for recall, scanned in ((0.62, 0.013), (0.81, 0.031), (0.93, 0.057), (0.98, 0.17))
        )
        for place, name in enumerate(RECALL_CURVES)
    }
    asked = [
        RecallPoint(reached, scanned, 3.0, opened, recall)
        for recall, reached, scanned, opened in (
            (0.8, 0.8123, 0.0312, 2.24), (0.9, 0.9234, 0.0456, 4.46), (0.95, 0.9876, 0.0789, 7.68)
        )
    ]  # fmt: skip
    words = ("One recall is left out.",)
    return RecallCurves(table, 1, 9998, 1234, 567, points, tuple(asked), words)


def full_report(seeds: int = 1) -> Report:
    rng = np.random.default_rng(6)
    counts = rng.integers(0, 9, (10, 16))
    counts[:, [2, 7, 11]] = 0
    counts[:, 5] = np.arange(10) == 4  # a single item: nearly empty, and pure
    answers = [(3, picture(rng)), (4, picture(rng)), (3, picture(rng))]
    paper = [row(method, "test", 1, 0, rng) for method in ("th", "flowhash")]
    return Report(
        title="CIFAR-100, triplet",
        rows=rows(("test", "train"), (1, 2, 3, 4), seeds),
        facts=[("Data", "CIFAR-100"), ("Command", "flowhash reproduce " + 40 * "very_long_"),
               ("Time", "42 minutes"), ("Machine", "two cores")],
        paper=paper,
        buckets=[Buckets("FlowHash, k = 1", counts), Buckets("VQ, k = 1", counts[:, ::-1])],
        examples=[
            Example(3, picture(rng), {"exhaustive": answers, "flowhash": answers[:1]}),
            Example(5, None, {"flowhash": [(5, None), (1, None)], "th": []}),
        ],
        curves={f"k = {active}": journal(active) for active in (1, 2)},
        class_names=[f"name_of_class_{number}" for number in range(10)],
        notes=["It differs from the paper.", "Be careful."],
        recall_curves=[recall_curves("train"), recall_curves("test")],
    )  # fmt: skip


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parent: Element | None
    children: list[Element | str] = field(default_factory=list)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Elements below with this tag ("" is any), and these words in their attributes."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                wanted = {name.rstrip("_"): value for name, value in attributes.items()}
                if tag in ("", child.tag) and all(
                    value in child.attributes.get(name, "").split()
                    for name, value in wanted.items()
                ):
                    found.append(child)
                found += child.all(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        parts = [child if isinstance(child, str) else child.text for child in self.children]
        return "".join(parts)

    @property
    def words(self) -> str:
        """The text with every kind of space as one blank."""
        return " ".join(self.text.split())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = self.here = Element("", {}, None)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, self.here)
        self.here.children.append(element)
        if tag not in VOID:
            self.here = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.here.tag == tag, f"</{tag}> closes <{self.here.tag}>"
        assert self.here.parent is not None
        self.here = self.here.parent

    def handle_data(self, data: str) -> None:
        self.here.children.append(data)


def read(page: str) -> Element:
    """The page as elements; a tag that is closed in the wrong place is an error."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.here is reader.root
    return reader.root


def cells(table: Element) -> dict[tuple[str, str], dict[str, Element]]:
    """For each heading of a group and method, the cells by their column's name."""
    heads = [head.children[0] for head in table.all("thead")[0].all("th")]
    found = {}
    for body in table.all("tbody"):
        group = body.all("th", scope="rowgroup")[0].words
        for line in body.all("tr"):
            if line.all("td"):
                method = line.all("th")[0].children[0]
                named = dict(zip(heads[1:], line.all("td"), strict=True))
                found[group, str(method)] = {str(head): cell for head, cell in named.items()}
    return found


@functools.cache
def full_page() -> str:
    """The page of the full report, drawn once for all tests."""
    return render_report(full_report())


def section(page: Element, head: str) -> Element:
    return next(each for each in page.all("section") if each.all("h2")[0].words == head)
