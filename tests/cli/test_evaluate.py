"""``flowhash evaluate`` and ``flowhash reproduce`` as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flowhash.evaluate import METHODS
from tests.cli.commands import COMMAND, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file of vectors, three clouds, and a run that learned them."""
    folder = tmp_path_factory.mktemp("evaluate")
    rng = np.random.default_rng(0)
    labels = np.repeat(["ant", "bee", "<cat>"], 120)
    centres = rng.normal(size=(3, 8)).repeat(120, 0)
    data = folder / "items.npz"
    np.savez(data, embeddings=centres + 0.6 * rng.normal(size=(360, 8)), labels=labels)
    done = run(COMMAND, "fit", str(data), "--out", str(folder / "run"), "--buckets", "8")
    assert done.returncode == 0, done.stderr
    return data, folder / "run"


def test_evaluate_writes_rows_and_a_report(trained: tuple[Path, Path], tmp_path: Path) -> None:
    data, folder = trained
    done = run(COMMAND, "evaluate", str(folder), str(data), "--out", str(tmp_path / "results"))
    assert done.returncode == 0, done.stderr
    assert "search the validation table" in done.stdout  # arrays have no test split by default
    assert "FlowHash k = 1" in done.stdout
    assert "evaluation.html" in done.stdout
    rows = json.loads((tmp_path / "results" / "evaluation.json").read_text())
    assert {row["table"] for row in rows} == {"train", "validation"}
    known = {row["method"] for row in rows}
    assert {"exhaustive", "th", "vq", "vq-train", "ivf", "classifier", "flowhash"} <= known
    assert known <= set(METHODS)
    ours = next(row for row in rows if row["method"] == "flowhash" and row["table"] != "train")
    assert ours["pr1"] > 70
    assert ours["suf"] > 1.5
    points = json.loads((tmp_path / "results" / "evaluation-recall.json").read_text())
    curves = {(point["table"], point["curve"]) for point in points}
    assert {("train", "flowhash-probe"), ("train", "ivf"), ("train", "hnsw")} <= curves
    page = (tmp_path / "results" / "evaluation.html").read_text()
    assert "Recall against items scanned" in page
    assert "&lt;cat&gt;" in page
    assert "<cat>" not in page
    quiet = run(
        COMMAND, "evaluate", str(folder / "encoder"), str(data), "--quiet", "--out",
        str(tmp_path / "again"),
    )  # fmt: skip
    assert quiet.returncode == 0, quiet.stderr
    assert "search the" not in quiet.stdout  # no progress, but the result


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate", "nowhere", "digits", "--out", "x"), "nowhere does not exist"),
        (("reproduce", "mnist", "--out", "x"), "the paper has cifar100 and imagenet32"),
        (("reproduce", "cifar100", "--out", "x", "--loss", "circle"), "circle"),
        (("reproduce", "cifar100", "--out", "x", "--preset", "gpu"), "paper"),
        (("reproduce", "imagenet32", "--out", "x"), "no cpu preset for imagenet32"),
        (("reproduce", "cifar100", "--out", "x", "--seeds", "0"), "--seeds"),
        (("reproduce", "cifar100", "--out", "x"), "--folder"),
        (("reproduce", "cifar100", "--out", "/dev/null/x"), "cannot write to /dev/null/x"),
        (("reproduce", "cifar100", "--out", "x", "--folder", "nowhere"), "nowhere"),
    ],
)
def test_a_users_mistake_is_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = run(COMMAND, *(str(tmp_path / word) if word == "x" else word for word in words))
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_data_that_does_not_fit_the_encoder_is_one_line(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    done = run(COMMAND, "evaluate", str(trained[1]), "digits", "--out", str(tmp_path / "x"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "8" in done.stderr
    assert "64" in done.stderr


@pytest.mark.parametrize("command", ["evaluate", "reproduce"])
def test_help_has_an_example(command: str) -> None:
    done = run(COMMAND, command, "--help")
    assert done.returncode == 0
    assert f"flowhash {command}" in done.stdout
    assert "--out" in done.stdout
