"""The documents tell the truth: their figures are the measured ones, their links lead somewhere.

Their examples are run by ``tests/documents``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flowhash.evaluate import METHODS

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+?)(?:#[^)]*)?\)")


def test_the_readme_quotes_the_measured_training() -> None:
    text = (ROOT / "README.md").read_text()
    quoted = re.search(r"<!-- results: .*?-->\n(.*?)<!-- /results", text, re.S)
    assert quoted is not None
    found = {}
    losses = {"256": "triplet", "64": "npairs"}
    for line in re.findall(r"^\| \d.*$", quoted[1], re.M):
        buckets, name, *numbers = (cell.strip(" *") for cell in line.strip("|").split("|"))
        found[losses[buckets], name] = [float(number) for number in numbers[:5] if number]
    assert len(found) == 16
    for (loss, name), numbers in found.items():
        rows = json.loads(
            (ROOT / f"docs/results/cifar100-{loss}-refined-classifier.json").read_text()
        )
        (row,) = [
            row
            for row in rows
            if METHODS[row["method"]] == name.removesuffix(f" ({loss})")
            and row["table"] == "test"
            and row["k"] in (None, 1)
        ]
        measured = [
            row[key] for key in ("pr1", "pr4", "pr16", "suf", "nmi") if row[key] is not None
        ]
        assert numbers == pytest.approx(measured, abs=0.00501)


def test_the_readme_quotes_the_measured_solver() -> None:
    measured = {}
    for line in (ROOT / "docs/results/solver.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8 and cells[0].isdigit():
            classes, size, active, penalty, paper, theirs, ours, ratio = cells
            measured[classes, size, active, penalty] = (paper, theirs, ours, ratio.strip("*"))
    quoted = re.findall(
        r"^\| (\d+) × (\d+), k = (\d) \| ([\d.]+) s \| ([\d.]+) ms \| ([\d.]+) ms \| \*\*([\d.]+×)",
        (ROOT / "README.md").read_text(),
        re.M,
    )
    assert len(quoted) >= 3
    for classes, size, active, *figures in quoted:
        assert tuple(figures) == measured[classes, size, active, "0.1"]
    least = min(measured.values(), key=lambda figures: float(figures[-1].rstrip("×")))[-1]
    assert re.search(rf"smallest gain of\s+the grid is {least} ", (ROOT / "README.md").read_text())


def test_the_readme_quotes_the_measured_search() -> None:
    page = (ROOT / "docs/results/search.md").read_text()
    found = {}  # by the processor, the table and the data
    processor = table = ""
    for line in page.splitlines():
        if line.startswith("## "):
            processor = line[3:]
        elif line.startswith("### "):
            table = line[4:].split()[0]
        elif len(cells := [cell.strip(" *") for cell in line.strip("|").split("|")]) > 4:
            found[processor, table, cells[0]] = cells[1:]
    quoted = re.search(
        r"<!-- search gains.*?-->\n(.*?)<!-- /", (ROOT / "README.md").read_text(), re.S
    )
    assert quoted is not None
    lines = [line for line in quoted[1].splitlines() if ", k = " in line]
    assert len(lines) >= 6
    for line in lines:
        name, processor, factor, recall, together, alone, exhaustive = (
            cell.strip(" *") for cell in line.strip("|").split("|")
        )
        batch, one, flat = (found[processor, table, name] for table in ("A", "One", "Against"))
        assert (recall, factor, exhaustive) == tuple(flat[:3])
        assert abs(float(together[:-1]) - float(batch[2][:-1])) <= 0.051
        assert alone == one[2]


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in LINK.findall(page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
