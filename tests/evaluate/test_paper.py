"""Every number of the paper, read out of its source again by a parser that knows no number."""

from __future__ import annotations

import math
import re
from itertools import combinations
from pathlib import Path

import pytest

from flowhash.errors import InputError
from flowhash.evaluate.paper_numbers import (
    EXPERIMENTS,
    PAPER_SOLVER_SECONDS,
    paper_experiment,
    paper_rows,
)
from flowhash.evaluate.results import read_rows, write_rows
from flowhash.quality import expected_speed_up

SUFFIXES = {"": "exhaustive", "-Th": "th", "-VQ": "vq", "-Ours": "flowhash"}
LABELS = {
    "cifar_triplet_train_test": ("cifar100", "triplet"),
    "cifar_npairs_train_test": ("cifar100", "npairs"),
    "imagenet_npairs": ("imagenet32", "npairs"),
    "imagenet_triplet": ("imagenet32", "triplet"),
}
Numbers = dict[tuple[str, str, int | None], list[float]]


@pytest.fixture(scope="module")
def source() -> str:
    folder = Path(__file__).resolve().parents[3] / "shared" / "paper"
    found = sorted(folder.glob("*.tex"))
    if not found:
        pytest.skip("the paper's source is not in shared/paper beside the repository")
    return found[0].read_text()


def tables_of(source: str) -> dict[str, str]:
    """The paper's tables by label, in their order."""
    bodies = re.findall(r"\\begin\{table\}(.*?)\\end\{table\}", source, re.DOTALL)
    labels = [re.search(r"\\label\{tab:(\w+)\}", body) for body in bodies]
    return {label[1]: body for label, body in zip(labels, bodies, strict=True) if label}


def lines_of(body: str) -> list[tuple[str, str, int | None, list[float]]]:
    """Loss, method, k and numbers of each line with numbers."""
    body = re.sub(r"\\textbf\{([\d.]+)\}", r"\1", body)
    lines, k = [], None
    for text in body.splitlines():
        group = re.search(r"k\\!=\\!(\d)", text)
        k = int(group[1]) if group else k
        name = re.search(r"(Triplet|Npairs)(-\w+)?\s*&", text)
        if name:
            numbers = re.findall(r"&\s*(\d+\.\d+)", text)
            method = SUFFIXES[name[2] or ""]
            lines.append((name[1].lower(), method, k, [float(number) for number in numbers]))
    return lines


def numbers_of(body: str) -> Numbers:
    """SUF and Pr@1, 4, 16 by method, table and k."""
    found: Numbers = {}
    for _, method, k, numbers in lines_of(body):
        tables = ("train", "test") if len(numbers) == 8 else ("test",)
        assert len(numbers) == 4 * len(tables)
        for place, table in enumerate(tables):
            key = (method, table, k)
            assert key not in found
            found[key] = numbers[4 * place : 4 * place + 4]
    return found


@pytest.mark.parametrize("label", LABELS)
def test_tables_are_the_papers(source: str, label: str) -> None:
    printed = numbers_of(tables_of(source)[label])
    rows = paper_rows(*LABELS[label])
    ours = {(row.method, row.table, row.k): [row.suf, row.pr1, row.pr4, row.pr16] for row in rows}
    assert ours == printed
    assert len(rows) == len(printed)  # no row twice
    assert list(tables_of(source)).index(label) + 1 == paper_experiment(*LABELS[label]).number


def test_nmi_is_the_papers(source: str) -> None:
    columns = (("cifar100", "train"), ("cifar100", "test"), ("imagenet32", "test"))
    printed = {
        (loss, method, *column): number
        for loss, method, _, numbers in lines_of(tables_of(source)["NMI"])
        for column, number in zip(columns, numbers, strict=True)
    }
    ours = {
        (loss, row.method, data, row.table): row.nmi
        for data, loss in EXPERIMENTS
        for row in paper_rows(data, loss)
        if row.nmi is not None
    }
    assert len(printed) == 18
    assert ours == printed


def test_solver_seconds_are_figure_2(source: str) -> None:
    figures = re.findall(r"\\begin\{figure\}(.*?)\\end\{figure\}", source, re.DOTALL)
    (figure,) = [text for text in figures if r"\label{fig:mcf_runtime}" in text]
    plots = re.findall(r"\\addplot coordinates \{(.*?)\};", figure, re.DOTALL)
    classes = re.findall(r"\$n_c=(\d+)\$", figure)
    printed = {
        (int(count), int(size)): float(seconds)
        for count, plot in zip(classes, plots, strict=True)
        for size, seconds in re.findall(r"\((\d+), ([\d.]+)\)", plot)
    }
    assert len(printed) == 16
    assert printed == PAPER_SOLVER_SECONDS


def test_figure_4_shows_numbers_of_the_tables(source: str) -> None:
    figures = re.findall(r"\\begin\{figure\}(.*?)\\end\{figure\}", source, re.DOTALL)
    (figure,) = [text for text in figures if r"\label{fig:SUF}" in text]
    shown = [
        {int(k): float(suf) for k, suf in re.findall(r"\((\d),([\d.]+)\)", plot)}
        for plot in re.findall(r"coordinates \{(.*?)\}", figure, re.DOTALL)
    ]
    ours = [
        {row.k: row.suf for row in paper_rows(*key) if (row.method, row.table) == (method, "test")}
        for key in (("cifar100", "npairs"), ("imagenet32", "triplet"))
        for method in ("flowhash", "vq", "th")
    ]
    assert shown == ours


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (r"triplet network with \$d\\!=\\!(\d+)", ("cifar100", "triplet")),
        (r"npairs network with \$d\\!=\\!(\d+)", ("cifar100", "npairs")),
        (r"npairs base model for \$d\\!=\\!(\d+)", ("imagenet32", "npairs")),
        (r"triplet base model for \$d\\!=\\!(\d+)", ("imagenet32", "triplet")),
    ],
)
def test_buckets_are_the_papers(source: str, words: str, key: tuple[str, str]) -> None:
    found = re.search(words, source)
    assert found is not None
    assert {row.buckets for row in paper_rows(*key) if row.k} == {int(found[1])}


@pytest.mark.parametrize("key", EXPERIMENTS)
def test_what_follows_from_the_numbers(key: tuple[str, str], tmp_path: Path) -> None:
    experiment, rows = EXPERIMENTS[key], paper_rows(*key)
    for row in rows:
        assert row.scanned * row.suf == pytest.approx(row.items)
        assert (row.seed, row.seconds) == (-1, 0.0)
        assert row.items == experiment.items[row.table]
        assert (row.nmi is not None) == (row.k == 1)
        assert row.passes == (2 if row.method == "flowhash" else 1)
    assert {row.k for row in rows} == {None, *experiment.active}
    assert {row.table for row in rows} == set(experiment.table_names)
    write_rows(tmp_path / "rows.json", rows)
    assert read_rows(tmp_path / "rows.json") == rows


def test_items_of_the_tables() -> None:
    items = {
        (data, row.table): row.items for data, loss in EXPERIMENTS for row in paper_rows(data, loss)
    }
    assert items == {
        ("cifar100", "train"): 50_000,
        ("cifar100", "test"): 10_000,
        ("imagenet32", "test"): 50_000,
    }
    assert EXPERIMENTS["imagenet32", "npairs"].table_names == {"test": "val"}


@pytest.mark.parametrize(("buckets", "active"), [(4, 1), (6, 2), (7, 3), (5, 4), (3, 3)])
def test_expected_suf_counts_pairs_of_codes(buckets: int, active: int) -> None:
    codes = [set(code) for code in combinations(range(buckets), active)]
    met = sum(bool(codes[0] & other) for other in codes)
    assert expected_speed_up(buckets, active) == pytest.approx(len(codes) / met, rel=1e-15)


def test_expected_suf_nears_d_over_k_squared() -> None:
    assert math.isclose(expected_speed_up(10**6, 3), 10**6 / 9, rel_tol=1e-4)


def test_what_the_paper_has_not() -> None:
    with pytest.raises(InputError, match="no 'cifar10' with 'triplet'; it has cifar100 with"):
        paper_rows("cifar10", "triplet")
