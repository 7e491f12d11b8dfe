"""``reproduce imagenet32`` from files in the official layout to all that it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flowhash.cli.commands.reproduce as command_room
import flowhash.evaluate as evaluate_room
from flowhash.cli import main
from flowhash.data import Splits
from flowhash.encoder import Encoder
from flowhash.evaluate import paper_experiment
from flowhash.evaluate.reproduction import experiment_plan as plans, reproduce_paper as reproduction

LABELS = np.array([1, 3, 500, 1000])  # of the thousand; the official ones start at 1
MEAN = np.random.default_rng(1).uniform(100, 150, 3072)
HELD = (5, 4, 3, 1)  # images of each class in file 10, all of them fewer than 50


def content(name: str) -> dict[str, Any]:
    """One pattern a class, under noise."""
    patterns = np.random.default_rng(0).integers(0, 256, (len(LABELS), 3072))
    each = {"train_data_batch_10": HELD, "val_data": (6,) * 4}.get(name, (2,) * 4)
    rng = np.random.default_rng(len(name) * 10 + ord(name[-1]))
    classes = rng.permutation(np.repeat(np.arange(len(LABELS)), each))
    noise = rng.integers(0, 128, (len(classes), 3072))
    data = (patterns[classes] * 0.5 + noise).astype(np.uint8)
    stored = {"data": data, "labels": LABELS[classes]}
    return stored if name == "val_data" else {**stored, "mean": MEAN}


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imagenet32")
    for place, names in (
        ("Imagenet32_train_npz", [f"train_data_batch_{number}" for number in range(1, 11)]),
        ("Imagenet32_val_npz", ["val_data"]),
    ):
        (folder / place).mkdir()
        for name in names:
            np.savez(folder / place / f"{name}.npz", **content(name))
    return folder


@pytest.fixture(scope="module")
def few_steps() -> Iterator[None]:
    """The paper's plan with a narrow NIN, four classes in a batch, a few steps and buckets."""
    original, threads = plans.preset, torch.get_num_threads()
    few = {"steps": 6, "classes": 4, "items": 2, "outputs": 8}

    def small(name: str, **changes: Any) -> Any:
        settings = original(name, **changes)
        return replace(
            settings, base=replace(settings.base, **few), hash=replace(settings.hash, **few),
            backbone={"name": "nin", "width": 1 / 16}, validate_every=3,
        )  # fmt: skip

    def experiment(data: str, loss: str) -> Any:
        return replace(paper_experiment(data, loss), buckets=8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "preset", small)
        patch.setattr(plans, "paper_experiment", experiment)
        torch.set_num_threads(1)
        yield
    torch.set_num_threads(threads)


def reproduced(official: Path, out: Path, loss: str, *words: str) -> Any:
    """Run the command in this process; its exit code."""
    with pytest.raises(SystemExit) as left:
        main(
            [
                "reproduce", "imagenet32", "--folder", str(official), "--out", str(out),
                "--preset", "paper", "--loss", loss, "--no-figure", "--quiet", *words,
            ]
        )  # fmt: skip
    return left.value.code


@pytest.mark.parametrize("loss", ["triplet", "npairs"])
def test_from_official_files_to_all_output_files(
    few_steps: None, official: Path, tmp_path: Path, loss: str
) -> None:
    assert reproduced(official, tmp_path, loss) in (0, None)
    results = tmp_path / "results"
    assert {path.name for path in results.iterdir()} == {
        f"imagenet32-{loss}{ending}"
        for ending in (".json", ".csv", ".md", ".tex", "-suf.svg", "-suf.png", "-objective.svg",
                       "-objective.png", "-objective.csv", ".html")
    }  # fmt: skip
    rows = json.loads((results / f"imagenet32-{loss}.json").read_text())
    # One table, no unseen classes, and no row of the start: that is drawn at random.
    assert {(row["table"], row["k"]) for row in rows} == {("test", k) for k in (None, 1, 2, 3)}
    methods = {"exhaustive", "th", "vq", "vq-train", "ivf", "classifier", "flowhash"}
    # Npairs' outputs have any length; embeddings are shown by that of training and by the other.
    own = {"flowhash-own"} if loss == "triplet" else set()
    other = "raw" if loss == "triplet" else "unit"
    others = {f"exhaustive-{other}", f"vq-{other}"}
    assert {row["method"] for row in rows} == methods | own | others
    page = (results / f"imagenet32-{loss}.md").read_text()
    assert f"flowhash reproduce imagenet32 --loss {loss} --preset paper --seeds 1 --folder" in page
    assert "unseen" not in (tmp_path / "reproduce.toml").read_text()
    exhaustive = next(row for row in rows if row["method"] == "exhaustive")
    expected, mean = nearest_neighbour(tmp_path / "seed-0" / loss)
    assert exhaustive["pr1"] == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(mean, MEAN.reshape(3, 32, 32).transpose(1, 2, 0) / 255, atol=1e-7)
    for row in rows:
        if row["method"] == "flowhash":
            suf = speed_up(tmp_path / "seed-0" / loss, row["k"])
            assert row["suf"] == pytest.approx(suf, rel=1e-6)


def nearest_neighbour(folder: Path) -> Any:
    """Pr@1 of val among itself, from its pixels, by loops; and the mean that the encoder keeps."""
    encoder, labels, images = opened(folder, 1)
    found = encoder.encode(images).embeddings.astype(np.float64)
    right = 0
    for query in range(len(labels)):
        others = [item for item in range(len(labels)) if item != query]
        distances = [((found[query] - found[item]) ** 2).sum() for item in others]
        right += labels[others[int(np.argmin(distances))]] == labels[query]
    return 100 * right / len(labels), encoder.preprocessing.mean


def speed_up(folder: Path, active: int) -> float:
    """The other items, over those that share a bucket with a query."""
    encoder, labels, images = opened(folder, active)
    order = np.argsort(-encoder.encode(images).activations, axis=1, kind="stable")[:, :active]
    codes = [set(row) for row in order.tolist()]
    scanned = sum(
        bool(one & other)
        for query, one in enumerate(codes)
        for item, other in enumerate(codes)
        if item != query
    )
    return (len(labels) - 1) * len(labels) / scanned


def opened(folder: Path, active: int) -> Any:
    val = content("val_data")
    images = np.ascontiguousarray(val["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return Encoder.load(folder / f"k{active}" / "encoder"), val["labels"], images


@pytest.mark.parametrize(
    ("data", "preset", "given", "expected"),
    [
        ("cifar100", "cpu", None, True),
        ("cifar100", "cpu", False, False),
        ("cifar100", "method", None, False),
        ("cifar100", "method", True, True),
        ("cifar100", "paper", None, False),
        ("imagenet32", "paper", None, False),
        ("imagenet32", "paper", True, True),
        ("imagenet32", "paper", False, False),
    ],
)
def test_unseen_classes_are_searched_where_asked_and_by_default_where_that_is_short(
    data: str,
    preset: str,
    given: bool | None,
    expected: bool,
    pictures: Splits,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(reproduction._Run, "seen", lambda run: done.append("seen"))
    monkeypatch.setattr(reproduction._Run, "unseen", lambda run: done.append("unseen"))
    evaluate_room.reproduce(pictures, data, "npairs", tmp_path, preset=preset, unseen=given)
    assert done == (["seen", "unseen"] if expected else ["seen"])


@pytest.mark.parametrize(
    ("words", "expected"), [((), None), (("--unseen",), True), (("--no-unseen",), False)]
)
def test_the_command_tells_what_was_said_of_unseen_classes(
    words: tuple[str, ...],
    expected: bool | None,
    pictures: Splits,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    told: list[Any] = []

    def reproduce(*given: Any, **options: Any) -> None:
        told.append(options["unseen"])
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate_room, "reproduce", reproduce)
    monkeypatch.setattr(command_room, "opened", lambda *given: pictures)
    assert reproduced(tmp_path, tmp_path / "out", "npairs", *words) == 130
    assert told == [expected]
    typed = command_room.repeating_command("imagenet32", "npairs", "paper", 1, False, expected)
    repeated = typed.split()
    assert [word for word in repeated if "unseen" in word] == list(words)
