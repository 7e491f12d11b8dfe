"""``flowhash index`` and ``search`` as a person runs them, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flowhash import HashTable
from flowhash.data.thumbnails import picture_of
from tests.cli.test_command import COMMAND, run
from tests.encoder.encoders import DIM, make


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder of vectors and a file of them."""
    folder = tmp_path_factory.mktemp("vectors")
    make("mlp").save(folder / "encoder")
    rng = np.random.default_rng(5)
    values = rng.normal(size=(300, DIM)).astype(np.float32)
    labels = np.array(["ant", "bée", "cow"])[rng.integers(0, 3, 300)]
    np.savez(folder / "items.npz", embeddings=values, labels=labels)
    np.save(folder / "plain.npy", values[:40])
    np.save(folder / "query.npy", values[:2])
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder of images, and pictures in class folders, of many sizes."""
    folder = tmp_path_factory.mktemp("images")
    make("residual").save(folder / "encoder")
    rng = np.random.default_rng(6)
    for number in range(24):
        place = folder / "pictures" / ("cats", "dogs")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        size = (int(rng.integers(20, 200)), int(rng.integers(20, 200)), 3)
        Image.fromarray(rng.integers(0, 256, size, np.uint8)).save(place / f"no {number}.png")
    Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(
        folder / "pictures" / "loose.jpg"
    )
    return folder


def words(folder: Path, items: str, out: Path, *more: str) -> list[str]:
    return [
        COMMAND,
        "index",
        str(folder / "encoder"),
        str(folder / items),
        "--out",
        str(out),
        *more,
    ]


def test_vectors_are_stored_and_found(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.table"
    done = run(*words(vectors, "items.npz", out, "--batch", "77"))
    assert done.returncode == 0, done.stderr
    assert "300 items added" in done.stdout
    encoder = make("mlp")
    values = np.load(vectors / "items.npz")["embeddings"]
    labels = np.load(vectors / "items.npz")["labels"]
    table = HashTable.open(out)
    assert sorted(table) == list(range(300))
    for item in (0, 76, 77, 299):
        assert table[item].payload == {"name": f"items.npz row {item}", "label": labels[item]}
    found = run(COMMAND, "search", str(out), str(vectors / "query.npy"), "--top", "4", "--json")
    assert found.returncode == 0, found.stderr
    facts = json.loads(found.stdout)
    expected = encoder.search(table, values[:2], top=4)
    for answer, ids, scanned in zip(facts["answers"], expected.ids, expected.scanned, strict=True):
        assert [hit["id"] for hit in answer["hits"]] == [item for item in ids.tolist() if item >= 0]
        assert answer["scanned"] == scanned
        assert all(hit["label"] == labels[hit["id"]] for hit in answer["hits"])
        assert set(answer["opened"]) & set(answer["hits"][0]["buckets"])
    np.save(tmp_path / "one.npy", values[1])  # a single vector, without rows
    one = json.loads(run(COMMAND, "search", str(out), str(tmp_path / "one.npy"), "--json").stdout)
    same = [[hit["id"] for hit in answer["hits"][:4]]
            for answer in (one["answers"][0], facts["answers"][1])]  # fmt: skip
    assert same[0] == same[1]
    shown = run(COMMAND, "search", str(out), str(vectors / "query.npy"), "--top", "4")
    assert "of 300 items" in shown.stdout
    assert "times fewer" in shown.stdout


def test_a_stored_item_finds_others_not_itself(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.table"
    assert run(*words(vectors, "items.npz", out, "--quiet")).returncode == 0
    done = run(COMMAND, "search", str(out), "id:7", "--top", "500", "--json")
    (answer,) = json.loads(done.stdout)["answers"]
    table = HashTable.open(out)
    mates = {item for bucket in table.buckets_of(7) for item in table.bucket(bucket).tolist()}
    assert {hit["id"] for hit in answer["hits"]} == mates - {7}
    for text, said in (
        ("id:900", "no item 900"),
        ("id:x", "no whole number"),
        ("no.npy", "is not"),
    ):
        wrong = run(COMMAND, "search", str(out), text)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
        assert said in wrong.stderr


def test_more_items_are_added_to_a_table(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.table"
    assert run(*words(vectors, "items.npz", out, "--quiet")).returncode == 0
    done = run(*words(vectors, "plain.npy", out, "--json", "--quiet"))
    facts = json.loads(done.stdout)
    assert (facts["added"], facts["replaced"], facts["items"]) == (40, 0, 340)
    assert HashTable.open(out)[339].payload == {"name": "plain.npy row 39"}
    other = run(*words(vectors, "plain.npy", out, "--metric", "cosine"))
    assert other.returncode == 2
    assert "metric=euclidean" in other.stderr


def test_images_of_a_folder_keep_name_class_and_picture(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.table"
    done = run(*words(images, "pictures", out, "--json", "--quiet"))
    assert done.returncode == 0, done.stderr
    table = HashTable.open(out)
    assert len(table) == 25
    payload = table["cats/no 0.png"].payload
    assert (payload["label"], payload["name"]) == ("cats", "cats/no 0.png")
    assert picture_of(payload) is not None
    assert "label" not in table["loose.jpg"].payload
    again = run(*words(images, "pictures", out, "--json", "--quiet"))
    facts = json.loads(again.stdout)
    assert (facts["added"], facts["replaced"], facts["items"]) == (25, 25, 25)
    path = images / "pictures" / "dogs" / "no 3.png"
    found = run(COMMAND, "search", str(out), str(path), "id:dogs/no 3.png", "--json")
    for answer in json.loads(found.stdout)["answers"]:
        assert all(hit["name"] == hit["id"] for hit in answer["hits"])
    first = json.loads(found.stdout)["answers"][0]["hits"][0]
    assert first["id"] == "dogs/no 3.png"
    assert first["distance"] < 1e-6


def test_an_interrupt_leaves_what_resumes(vectors: Path, tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(6000, DIM)).astype(np.float32)
    (tmp_path / "encoder").symlink_to(vectors / "encoder")
    np.save(tmp_path / "many.npy", values)
    out = tmp_path / "x.table"
    start = words(tmp_path, "many.npy", out, "--batch", "10")
    process = subprocess.Popen(
        start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    journal = out / "index.json"
    while process.poll() is None:
        if journal.exists() and json.loads(journal.read_text())["done"] >= 50:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert "the same command goes on" in said
    before = len(HashTable.open(out))
    assert 50 <= before < 6000
    done = run(*words(tmp_path, "many.npy", out, "--batch", "1000"))
    assert done.returncode == 0, done.stderr
    assert "going on after" in done.stdout
    assert not journal.exists()
    table = HashTable.open(out)
    assert sorted(table) == list(range(6000))  # each once, none lost
    encoded = make("mlp").encode(values[[0, 55, 5999]])
    for row, item in enumerate((0, 55, 5999)):
        np.testing.assert_allclose(table[item].embedding, encoded.embeddings[row], rtol=1e-5)


def test_a_kill_between_table_and_journal_doubles_nothing(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.table"
    assert run(*words(vectors, "items.npz", out, "--quiet")).returncode == 0
    record = {"source": f"{vectors / 'items.npz'} train", "items": 300, "first": 0, "done": 200}
    (out / "index.json").write_text(json.dumps(record))  # as if 100 more had not been noted
    done = run(*words(vectors, "items.npz", out, "--quiet", "--json"))
    facts = json.loads(done.stdout)
    assert (facts["added"], facts["items"]) == (100, 300)


@pytest.mark.parametrize(
    ("items", "more", "said"),
    [
        ("nothing", (), "neither a data set nor a folder"),
        ("items.npz", ("--ids", "letters"), "numbers or names"),
        ("items.npz", ("--batch", "0"), "one or more items"),
        ("items.npz", ("--label", "colour"), "--label"),
    ],
)
def test_mistakes_are_one_line(
    items: str, more: tuple[str, ...], said: str, vectors: Path, tmp_path: Path
) -> None:
    done = run(*words(vectors, items, tmp_path / "x.table", *more))
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "x.table").exists()


def test_items_of_another_kind_are_refused(vectors: Path, images: Path, tmp_path: Path) -> None:
    done = run(COMMAND, "index", str(vectors / "encoder"), str(images / "pictures"), "--out",
               str(tmp_path / "x.table"))  # fmt: skip
    assert done.returncode == 2
    assert "holds images, but the encoder takes vectors" in done.stderr


def test_a_table_without_its_encoder_says_so(vectors: Path, tmp_path: Path) -> None:
    encoder = tmp_path / "moving"
    make("mlp").save(encoder)
    out = tmp_path / "x.table"
    query = str(vectors / "query.npy")
    assert run(COMMAND, "index", str(encoder), query, "--out", str(out)).returncode == 0
    encoder.rename(tmp_path / "moved")
    lost = run(COMMAND, "search", str(out), query)
    assert lost.returncode == 2
    assert "is not there any more" in lost.stderr
    found = run(COMMAND, "search", str(out), query, "--encoder", str(tmp_path / "moved"))
    assert found.returncode == 0, found.stderr
