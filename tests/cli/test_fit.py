"""``flowhash fit`` as a person runs it, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from flowhash import Encoder
from tests.cli.commands import COMMAND, run
from tests.learn.launcher import free_port


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """A file of vectors: three clouds of points."""
    rng = np.random.default_rng(0)
    labels = np.repeat(["ant", "bee", "cat"], 30)
    centres = rng.normal(size=(3, 8)).repeat(30, 0)
    path = tmp_path / "items.npz"
    np.savez(path, embeddings=centres + 0.3 * rng.normal(size=(90, 8)), labels=labels)
    return path


def test_help_has_an_example() -> None:
    shown = run(COMMAND, "fit", "--help")
    assert shown.returncode == 0
    assert "flowhash fit digits" in shown.stdout
    for option in ("--preset", "--buckets", "--active", "--seed", "--device"):
        assert option in shown.stdout


def test_vectors_with_settings_that_suit_them(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run(COMMAND, "fit", str(vectors), "--out", str(out), "--buckets", "16", "--active", "2")
    assert done.returncode == 0, done.stderr
    assert "of 3 classes to learn from" in done.stdout
    assert "rank by their own Euclidean distance" in done.stdout
    encoder = Encoder.load(out / "encoder")
    assert (encoder.buckets, encoder.active) == (16, 2)
    assert encoder.class_names == ("ant", "bee", "cat")
    assert encoder.fingerprint in done.stdout
    again = run(COMMAND, "fit", str(vectors), "--out", str(out), "--buckets", "16", "--active", "2")
    assert encoder.fingerprint in again.stdout  # finished: read, not trained again


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere", "--out", "run"), "neither a data set nor a folder"),
        (("digits", "--out", "run", "--preset", "cpu"), "choose one of"),
        (("digits", "--out", "run", "--active", "99", "--buckets", "4"), "active is 99"),
        (
            ("digits", "--out", "run", "--first-active", "99", "--buckets", "40"),
            "first_active is 99; expected a whole number from 1, which is active, to 40",
        ),
        (("digits", "--out", "run", "--rank", "both"), 'expected "base", "whitened" or "hash"'),
        (
            ("digits", "--out", "run", "--new-classes", "--preset", "cpu-digits"),
            "--new-classes chooses settings of vectors, but came with --preset",
        ),
        (("cifar100", "--out", "run"), "Say where it is: --folder FOLDER"),
        (("digits", "--out", "run", "--device", "tpu"), "expected"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = run(COMMAND, "fit", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_classes_of_one_item_are_named(tmp_path: Path) -> None:
    labels = np.array(["ant"] * 20 + ["bee"] * 20 + ["lonely one"])
    np.savez(tmp_path / "x.npz", embeddings=np.eye(41, dtype=np.float32), labels=labels)
    words = (COMMAND, "fit", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"))
    done = run(*words, "--preset", "cpu-digits")
    assert done.returncode == 2
    assert "lonely one" in done.stderr
    assert run(*words, "--steps", "5").returncode == 0  # codes need no pairs


def test_what_is_left_open_is_tried_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    rows = 3 * rng.normal(size=(3, 8))[labels] + rng.normal(size=(600, 8))
    np.savez(tmp_path / "x.npz", embeddings=rows, labels=labels)
    out = tmp_path / "run"
    words = (COMMAND, "fit", str(tmp_path / "x.npz"), "--out", str(out), "--steps", "20")
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert "3 buckets, no hidden layer: Pr@1" in done.stdout
    chosen = json.loads((out / "choice.json").read_text())
    assert len(chosen["trials"]) >= 3
    assert chosen["trials"][-1]["buckets"] == chosen["buckets"]
    assert Encoder.load(out / "encoder").buckets == chosen["buckets"]
    again = run(*words)
    assert again.returncode == 0, again.stderr
    assert "hidden layer" not in again.stdout


def test_held_out_classes_choose_for_new_ones(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 12
    rows = 3 * rng.normal(size=(12, 8))[labels] + rng.normal(size=(600, 8))
    np.savez(tmp_path / "x.npz", embeddings=rows, labels=labels)
    out = tmp_path / "run"
    words = (COMMAND, "fit", str(tmp_path / "x.npz"), "--out", str(out), "--steps", "20")
    words = (*words, "--new-classes", "--buckets", "24")
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert "classes that are held out:" in done.stdout
    assert "24 buckets, no hidden layer, ranked by what is given: Pr@1" in done.stdout
    chosen = json.loads((out / "choice.json").read_text())
    assert [trial["neighbours"] for trial in chosen["trials"]].count(0.3) == 1
    told = json.loads((out / "settings.json").read_text())["settings"]
    assert (told["rank"], told["class_order"]) == (chosen["new_classes"]["rank"], 0)
    weight = told["hash"]["loss_options"].get("neighbours", 0)
    assert weight == chosen["new_classes"]["neighbours"]
    again = run(*words)
    assert again.returncode == 0, again.stderr
    assert "ranked by what is given" not in again.stdout
    assert "was finished before" in again.stdout
    config = run(COMMAND, "fit", "--config", str(out / "fit.toml"))
    assert "was finished before" in config.stdout, config.stderr
    other = "whitened" if told["rank"] == "base" else "base"
    changed = run(*words, "--rank", other)
    assert changed.returncode == 2
    assert "other settings" in changed.stderr


def test_a_fit_may_be_short(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run(COMMAND, "fit", str(vectors), "--out", str(out), "--steps", "7")
    assert done.returncode == 0, done.stderr
    assert "7 steps" in done.stdout
    assert json.loads((out / "settings.json").read_text())["settings"]["hash"]["steps"] == 7


def test_a_refused_run_leaves_the_settings_of_the_one_there(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = (COMMAND, "fit", str(vectors), "--out", str(out), "--quiet")
    assert run(*words, "--buckets", "12").returncode == 0
    before = (out / "fit.toml").read_text()
    refused = run(*words, "--buckets", "16", "--active", "2")
    assert refused.returncode == 2
    assert (out / "fit.toml").read_text() == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--seed", "-1"), "--seed"),
        (("--penalty", "nan"), "penalty is nan"),
        (("--buckets", "0"), "--buckets"),
        (("--buckets", str(2**31)), "2147483648; expected at most 1073741824, the most buckets"),
        (("--out", "afile"), "afile"),
        (("--out", "afile/run"), "afile"),
    ],
)
def test_values_that_cannot_be_are_one_line(
    more: tuple[str, ...], said: str, vectors: Path, tmp_path: Path
) -> None:
    (tmp_path / "afile").write_text("x")
    done = run(COMMAND, "fit", str(vectors), *more, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.long  # learn/test_resume.py has it without the command
def test_an_interrupt_leaves_what_resumes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [COMMAND, "fit", "digits", "--preset", "cpu-digits", "--out", str(out)]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    journal = out / "metrics.jsonl"  # its first line comes after 50 steps
    while process.poll() is None and not (journal.exists() and journal.stat().st_size):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "the same command goes on" in errors
    assert "Traceback" not in errors
    stopped = json.loads((out / "base" / "last.json").read_text())["step"]
    assert 0 < stopped <= 300
    assert run(*words).returncode == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line and line["stage"] == "base"] == [
        50, 100, 150, 200, 250, 300,
    ]  # fmt: skip


def pictures(folder: Path) -> Path:
    """Two classes of small images of different sizes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for place, name in enumerate(("dark", "light")):
        (folder / name).mkdir(parents=True)
        for number in range(8):
            pixels = rng.integers(0, 100, (10 + number, 12, 3)) + 150 * place
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def test_a_broken_image_is_named_before_training(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos")
    (folder / "dark" / "3.png").write_bytes(b"garbage")
    done = run(COMMAND, "fit", str(folder), "--out", str(tmp_path / "run"))
    assert done.returncode == 1  # damage, not a mistake
    assert "3.png" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_messages_speak_of_options(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos")
    (folder / "dark" / "notes.txt").write_text("hello")
    done = run(COMMAND, "fit", str(folder), "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "--ignore-other" in done.stderr
    np.save(tmp_path / "items.npy", np.zeros((4, 2), np.float32))
    words = ("--rank", "whitened", "--out", str(tmp_path / "run"))
    done = run(COMMAND, "fit", str(tmp_path / "items.npy"), *words)
    assert "has no labels, which --rank takes" in done.stderr
    assert "--labels" in done.stderr
    words = ("--preset", "cpu-digits", "--out", str(tmp_path / "run"), "--ignore-other")
    done = run(COMMAND, "fit", str(folder), *words)
    assert "without one the settings suit the data" in done.stderr


def test_objects_are_not_called_damage(tmp_path: Path) -> None:
    labels = np.array(["a", "b"] * 4, object)
    np.savez(tmp_path / "items.npz", embeddings=np.zeros((8, 2)), labels=labels)
    done = run(COMMAND, "fit", str(tmp_path / "items.npz"), "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "labels holds Python objects" in done.stderr


@pytest.mark.long  # two processes, and five trainings in each
def test_two_processes_try_together_and_take_what_the_first_one_chose(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 600)
    rows = 3 * rng.normal(size=(4, 8))[labels] + rng.normal(size=(600, 8))
    np.savez(tmp_path / "x.npz", embeddings=rows, labels=labels)
    out = tmp_path / "run"
    words = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--master-addr", "127.0.0.1", "--master-port", str(free_port()),
        "-m", "flowhash.cli", "fit", str(tmp_path / "x.npz"), "--out", str(out), "--steps", "20",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no hidden layer: Pr@1") >= 1
    chosen = json.loads((out / "choice.json").read_text())
    assert Encoder.load(out / "encoder").buckets == chosen["buckets"]


def test_vectors_without_labels_are_fitted_indexed_and_asked_for_a_recall(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 8))[rng.integers(0, 40, 2_000)] + 0.5 * rng.normal(size=(2_000, 8))
    items, asked = rows[:1_900].astype(np.float32), rows[1_900:].astype(np.float32)
    for name, values in (("items", items), ("asked", asked)):
        np.save(tmp_path / f"{name}.npy", values)
    files = {name: str(tmp_path / name) for name in ("items.npy", "asked.npy", "run", "table")}
    done = run(COMMAND, "fit", files["items.npy"], "--out", files["run"])
    assert done.returncode == 0, done.stderr
    assert "a trained router: scans" in done.stdout
    again = run(COMMAND, "fit", files["items.npy"], "--out", files["run"])
    assert "was finished before" in again.stdout
    config = run(COMMAND, "fit", "--config", files["run"] + "/fit.toml")
    assert "was finished before" in config.stdout, config.stderr
    np.save(tmp_path / "items.npy", items[::-1])
    changed = run(COMMAND, "fit", files["items.npy"], "--out", files["run"])
    assert "other data or settings" in changed.stderr
    np.save(tmp_path / "items.npy", items)
    other = run(COMMAND, "fit", files["asked.npy"], "--out", files["run"])
    assert other.returncode == 2
    assert "other data or settings" in other.stderr
    done = run(COMMAND, "index", files["run"], files["items.npy"], "--out", files["table"])
    assert done.returncode == 0, done.stderr
    done = run(COMMAND, "adapt", files["table"], "--copies", "0.2")
    assert done.returncode == 0, done.stderr
    assert "a trained router: scans" in done.stdout
    for name in ("--copies", "0.3"), ():
        done = run(COMMAND, "calibrate", files["table"], *name)
        assert done.returncode == 0, done.stderr
    words = ("--recall", "0.95", "--top", "5", "--json")
    done = run(COMMAND, "search", files["table"], files["asked.npy"], *words)
    assert done.returncode == 0, done.stderr
    found = [[hit["id"] for hit in answer["hits"]] for answer in json.loads(done.stdout)["answers"]]
    nearest = np.square(asked[:, None] - items[None]).sum(axis=2).argsort(axis=1)[:, :5]
    right = [len(set(ids) & set(best)) / 5 for ids, best in zip(found, nearest, strict=True)]
    assert np.mean(right) > 0.88
