"""``flowhash bench …`` and ``flowhash data …`` as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flowhash import HashTable
from tests.cli.commands import COMMAND, run


def test_the_solver_is_measured_beside_ortools() -> None:
    done = run(COMMAND, "bench", "solver", "--classes", "8", "--buckets", "16", "--repeats", "3",
               "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["gain"] > 0
    assert facts["milliseconds"] > 0
    wrong = run(COMMAND, "bench", "solver", "--repeats", "0")
    assert wrong.returncode == 2
    assert "--repeats" in wrong.stderr


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner"])
@pytest.mark.parametrize("active", [1, 2])
def test_a_table_is_measured_beside_faiss(metric: str, active: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    out = tmp_path / "x.table"
    with HashTable.create(out, buckets=8, dim=5, active=active, metric=metric) as table:
        codes = rng.permuted(np.tile(np.arange(8), (400, 1)), axis=1)[:, :active]
        table.add(codes, rng.normal(size=(400, 5)))
    done = run(COMMAND, "bench", "search", str(out), "--queries", "50", "--repeats", "1", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["items"], facts["queries"]) == (400, 50)
    assert facts["faiss_flat_ratio"] > 0
    assert facts["faiss_same_lists_ratio"] > 0
    assert 8 / active**2 * 0.6 < facts["suf"] < 8 / active * 1.6


def test_a_data_set_is_described() -> None:
    done = run(COMMAND, "data", "info", "digits", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["splits"] == {"train": 1079, "validation": 359, "test": 359}
    assert sum(facts["classes"].values()) == 1079
    assert facts["fit"]["hash"]["outputs"] == 10
    assert "10 classes" in run(COMMAND, "data", "info", "digits").stdout


def test_broken_images_are_all_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(12):
        place = tmp_path / "pets" / ("cat", "dog")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)).save(place / f"{number}.png")
    good = run(COMMAND, "data", "check", str(tmp_path / "pets"))
    assert (good.returncode, good.stdout) == (
        0, f"{tmp_path / 'pets'}: 12 items, all of them readable\n"
    )  # fmt: skip
    for name in ("cat/2.png", "dog/5.png"):
        path = tmp_path / "pets" / name
        path.write_bytes(path.read_bytes()[:50])
    done = run(COMMAND, "data", "check", str(tmp_path / "pets"), "--json")
    assert done.returncode == 1
    faults = json.loads(done.stdout)["faults"]
    assert len(faults) == 2
    assert {name for name in ("2.png", "5.png") if any(name in fault for fault in faults)} == {
        "2.png", "5.png",
    }  # fmt: skip


def test_what_cannot_be_downloaded_is_said(tmp_path: Path) -> None:
    done = run(COMMAND, "data", "download", "imagenet32", "--folder", str(tmp_path))
    assert done.returncode == 2
    assert "cannot be downloaded" in done.stderr
