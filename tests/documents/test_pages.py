"""Every block of code in README, CONTRIBUTING and docs runs, or reads as it must."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.documents.blocks import ROOT, blocks_of, pages
from tests.documents.running import run_page

Names = dict[str, Any]


def check_learning(names: Names) -> None:
    assert names["speed_up"] > 5
    assert names["losses"][-1] < names["losses"][0] / 2
    assert names["again"].fingerprint == names["encoder"].fingerprint
    assert len(names["encoded"]) == len(names["splits"].test)


def check_evaluation(names: Names) -> None:
    assert {row.table for row in names["outcome"].rows} == {"train", "test"}
    assert 25 < names["found"].speed_up < 35


def check_table(names: Names) -> None:
    assert names["hits"].payloads[0][0] == {"size": 0}
    assert names["reader"].encoder == "of the new network"
    assert names["speed_up"] > 5


def check_solver(names: Names) -> None:
    assert names["found"].certified
    assert names["again"].objective == pytest.approx(names["found"].objective)


def check_format(names: Names) -> None:
    """What the page reads byte by byte is what the table gives."""
    table, items = names["table"], names["items"]
    assert set(items) == {name for name in names["names"] if name in table}
    for name in list(items)[:50]:
        assert (items[name] == table[name].embedding).all()


def check_method(names: Names) -> None:
    """The page's table of expected SUFs is what its code gives."""
    text = (ROOT / "docs/how-it-works.md").read_text("utf-8")
    rows = re.findall(r"^\| d = (\d+) \|(.+)\|$", text, re.MULTILINE)
    shown = {
        (int(size), active): cell.strip()
        for size, cells in rows
        for active, cell in enumerate(cells.split("|"), 1)
    }
    assert shown == {place: f"{value:.1f}" for place, value in names["expected"].items()}
    assert names["loss"] < 0.1


def check_first_page(names: Names) -> None:
    found = names["y"][names["neighbours"]] == names["y"][1500:, None]
    assert found.mean() > 0.85


# What a page promises of its own examples, beyond that they run.
PROMISES: dict[str, Callable[[Names], None]] = {
    "README.md": check_first_page,
    "docs/evaluation.md": check_evaluation,
    "docs/format.md": check_format,
    "docs/how-it-works.md": check_method,
    "docs/index.md": check_first_page,
    "docs/learning.md": check_learning,
    "docs/solver.md": check_solver,
    "docs/table.md": check_table,
}


# Pages that train, or start clusters and many commands; `make test-long` and CI run them.
LONG = {
    "bulk", "commands", "estimator", "evaluation", "learning", "tutorial-embeddings",
    "tutorial-images",
}  # fmt: skip


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.long if Path(page).stem in LONG else ())
        for page in pages()
    ],
)
def test_the_blocks_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = blocks_of(page)
    monkeypatch.chdir(tmp_path)
    names = run_page(blocks, tmp_path)
    if page in PROMISES:
        PROMISES[page](names)


def test_promises_are_of_pages_that_exist() -> None:
    assert set(PROMISES) <= set(pages())
    assert {Path(page).stem for page in pages()} >= LONG
