"""Figures 2 and 4: both files, the same each time, and the points that are drawn."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from flowhash.errors import InputError, MissingExtraError
from flowhash.evaluate.output import paper_figures as figures
from flowhash.evaluate.output.paper_figures import measure_solver, solver_figure, suf_figure
from flowhash.evaluate.paper_numbers import PAPER_SOLVER_SECONDS, paper_rows
from flowhash.evaluate.results import Row

pytest.importorskip("matplotlib")
SECONDS: figures.Seconds = {
    (classes, buckets): {"flowhash": 1e-7 * classes * buckets, "ortools": 1e-6 * classes * buckets}
    for classes in (64, 128, 256)
    for buckets in (64, 512)
}


def near_paper(seeds: int, data: str = "cifar100", loss: str = "triplet") -> list[Row]:
    rng = np.random.default_rng(0)
    return [
        dataclasses.replace(row, seed=seed, suf=row.suf * rng.uniform(0.9, 1.1))
        for seed in range(seeds)
        for row in paper_rows(data, loss)
    ]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The matplotlib figures that are saved."""
    kept: list[Any] = []
    save = figures._save

    def keep(figure: Any, stem: Any) -> list[Path]:
        kept.append(figure)
        return save(figure, stem)

    monkeypatch.setattr(figures, "_save", keep)
    return kept


def points(line: Any) -> dict[float, float]:
    return dict(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))


def check_files(paths: list[Path], stem: Path) -> None:
    assert [str(path) for path in paths] == [f"{stem}.svg", f"{stem}.png"]
    root = ElementTree.parse(paths[0]).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(r"<dc:date>", paths[0].read_text())
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_files_are_written_and_the_same_twice(tmp_path: Path) -> None:
    contents = []
    for run in ("first", "second.run"):  # a dot in the name is no ending
        rows, paper = near_paper(2), paper_rows("cifar100", "triplet")
        stems = [tmp_path / run / name for name in ("solver", "suf.v1")]
        written = [solver_figure(SECONDS, stems[0]), suf_figure(rows, paper, stems[1])]
        for paths, stem in zip(written, stems, strict=True):
            check_files(paths, stem)
        contents.append([path.read_bytes() for paths in written for path in paths])
    assert contents[0] == contents[1]


def test_solver_figure_draws_every_point(tmp_path: Path, drawn: list[Any]) -> None:
    solver_figure(SECONDS, tmp_path / "solver")
    shown = [axis for axis in drawn[0].axes if axis.get_visible()]
    assert [axis.get_title() for axis in shown] == ["64 classes", "128 classes", "256 classes"]
    for axis, classes in zip(shown, (64, 128, 256), strict=True):
        paper, theirs, ours = axis.get_lines()
        assert points(paper) == {d: s for (n, d), s in PAPER_SOLVER_SECONDS.items() if n == classes}
        assert paper.get_linestyle() == "--"
        for line, name in ((theirs, "ortools"), (ours, "flowhash")):
            assert points(line) == {d: s[name] for (n, d), s in SECONDS.items() if n == classes}
        assert axis.get_yscale() == "log"


def test_solver_figure_without_ortools(tmp_path: Path, drawn: list[Any]) -> None:
    solver_figure({(32, 16): {"flowhash": 1e-3, "ortools": None}}, tmp_path / "solver")
    lines = drawn[0].axes[0].get_lines()
    assert [line.get_label() for line in lines if len(line.get_xdata())] == ["FlowHash"]
    with pytest.raises(InputError, match="nothing to draw"):
        solver_figure({}, tmp_path / "solver")


@pytest.mark.parametrize("loss", ["triplet", "npairs"])
def test_expected_curve_is_equation_9(tmp_path: Path, drawn: list[Any], loss: str) -> None:
    buckets = {"triplet": 256, "npairs": 64}[loss]
    suf_figure(near_paper(1, loss=loss), paper_rows("cifar100", loss), tmp_path / "suf")
    (line,) = [line for line in drawn[0].axes[0].get_lines() if "Eq. 9" in str(line.get_label())]
    for k, value in points(line).items():
        apart = math.comb(buckets - int(k), int(k)) / math.comb(buckets, int(k))
        assert value == pytest.approx(1 / (1 - apart), rel=1e-12)
    assert set(points(line)) == {1, 2, 3, 4}


def test_suf_figure_draws_means_and_the_paper(tmp_path: Path, drawn: list[Any]) -> None:
    rows, paper = near_paper(3), paper_rows("cifar100", "triplet")
    suf_figure(rows, paper, tmp_path / "suf", table="train")
    axis = drawn[0].axes[0]
    lines = [points(line) for line in axis.get_lines()]
    assert len(axis.containers) == 3
    for container, method in zip(axis.containers, ("flowhash", "vq", "th"), strict=True):
        sufs = {
            k: [r.suf for r in rows if (r.method, r.table, r.k) == (method, "train", k)]
            for k in (1, 2, 3, 4)
        }
        assert points(container[0]) == pytest.approx({k: np.mean(v) for k, v in sufs.items()})
        low, high = container[2][0].get_segments()[0][:, 1]
        assert high - low == pytest.approx(2 * np.std(sufs[1], ddof=1))
        theirs = {r.k: r.suf for r in paper if (r.method, r.table) == (method, "train")}
        assert theirs in lines


def test_suf_figure_needs_one_d(tmp_path: Path) -> None:
    rows = near_paper(1)
    with pytest.raises(InputError, match="on 'unseen' have d of nothing"):
        suf_figure(rows, (), tmp_path / "suf", table="unseen")
    mixed = [*rows, *near_paper(1, loss="npairs")]
    with pytest.raises(InputError, match=re.escape("have d of [64, 256]; expected one d")):
        suf_figure(mixed, (), tmp_path / "suf")


def test_measure_solver_takes_every_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ortools")
    found = measure_solver(sizes=(4, 8), repeats=2, active=2)
    assert set(found) == {(4, 4), (4, 8), (8, 4), (8, 8)}
    for seconds in found.values():
        assert set(seconds) == {"flowhash", "ortools"}
        assert all(value is not None and value > 0 for value in seconds.values())

    def missing(*_: Any) -> None:
        raise MissingExtraError("ortools is not installed")

    monkeypatch.setattr(figures, "ortools_codes", missing)
    assert measure_solver(sizes=(4,), repeats=1)[4, 4]["ortools"] is None
    with pytest.raises(InputError, match="repeats is 0"):
        measure_solver(repeats=0)


def test_measure_solver_takes_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter([5.0, 1.0, 7.0, 2.0, 6.0, 9.0])  # OR-Tools, FlowHash, turn by turn
    monkeypatch.setattr(figures, "seconds_of", lambda work: next(given))
    monkeypatch.setattr(figures, "ortools_codes", lambda *_: None)
    assert measure_solver((4,), repeats=3) == {(4, 4): {"flowhash": 2.0, "ortools": 6.0}}
