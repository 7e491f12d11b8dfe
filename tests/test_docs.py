"""The documents tell the truth: their examples run, their figures are the measured ones."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import flowhash

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+?)(?:#[^)]*)?\)")


def test_the_readme_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        names: dict[str, object] = {}
        exec(compile(block, "README.md", "exec"), names)
        assert names["found"].certified  # type: ignore[attr-defined]


def test_the_bound_in_the_documents_is_the_certificate() -> None:
    page = (ROOT / "docs/solver.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    means = np.random.default_rng(0).normal(size=(30, 20))
    found = flowhash.assign_codes(means, 3, 0.2)
    names = {"np": np, "means": means, "active": 3, "penalty": 0.2, "found": found}
    exec(compile(block, "docs/solver.md", "exec"), names)


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


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in LINK.findall(page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
