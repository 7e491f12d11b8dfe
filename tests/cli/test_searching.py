"""``flowhash index`` and ``search`` as a person runs them, in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flowhash import HashTable
from flowhash.data import open_collection
from flowhash.data.item_payloads import picture_of
from flowhash.errors import DamagedFileError
from flowhash.indexing import IndexRun, TableChoices, open_table
from tests.cli.commands import COMMAND, run
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


def test_items_in_fewer_than_k_buckets(tmp_path: Path) -> None:
    with HashTable.create(tmp_path / "x.table", buckets=4, dim=1, active=2) as table:
        table.add([[1, -1], [3, 1], [3, -1]], [[1.0], [2.0], [3.0]])
    done = run(COMMAND, "search", str(tmp_path / "x.table"), "id:0", "--json")
    (answer,) = json.loads(done.stdout)["answers"]
    assert (answer["opened"], answer["scanned"]) == ([1], 2)
    assert [(hit["id"], hit["buckets"]) for hit in answer["hits"]] == [(1, [1, 3])]
    stats = run(COMMAND, "table", "stats", str(tmp_path / "x.table"))
    assert "buckets of an item, on average" in stats.stdout
    assert "1.33" in stats.stdout
    assert run(COMMAND, "table", "check", str(tmp_path / "x.table")).returncode == 0


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
    many = run(COMMAND, "search", str(out), str(vectors / "query.npy"), "--probe", "1000")
    assert many.returncode == 2
    assert many.stderr == (
        f"flowhash: --probe is 1000, and the table has {table.buckets} buckets; expected "
        f"{table.buckets} at the most, which opens all of it\n"
    )


def test_more_items_are_added_to_a_table(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.table"
    assert run(*words(vectors, "items.npz", out, "--quiet")).returncode == 0
    done = run(*words(vectors, "plain.npy", out, "--json", "--quiet"))
    facts = json.loads(done.stdout)
    assert (facts["added"], facts["replaced"], facts["items"]) == (40, 0, 340)
    assert HashTable.open(out)[339].payload == {"name": "plain.npy row 39"}
    other = run(*words(vectors, "plain.npy", out, "--metric", "cosine"))
    assert other.returncode == 2
    assert (
        "has metric=euclidean, not cosine; give another folder, or leave out --metric"
        in " ".join(other.stderr.split())
    )


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


def noted(out: Path) -> int:
    """How far the source of a table is; read by hand, which is quick."""
    try:
        notes = json.loads((out / "manifest.json").read_text()).get("notes", {})
    except FileNotFoundError:  # there is none yet
        return 0
    return max((note["done"] for note in notes.values()), default=0)


def test_an_interrupt_leaves_what_resumes(vectors: Path, tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(6000, DIM)).astype(np.float32)
    (tmp_path / "encoder").symlink_to(vectors / "encoder")
    np.save(tmp_path / "many.npy", values)
    out = tmp_path / "x.table"
    start = words(tmp_path, "many.npy", out, "--batch", "10")
    process = subprocess.Popen(
        start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    # One batch more: a commit that is interrupted before it is acknowledged is taken back.
    while process.poll() is None and noted(out) < 60:
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
    table = HashTable.open(out)
    assert sorted(table) == list(range(6000))  # each once, none lost
    encoded = make("mlp").encode(values[[0, 55, 5999]])
    for row, item in enumerate((0, 55, 5999)):
        np.testing.assert_allclose(table[item].embedding, encoded.embeddings[row], rtol=1e-5)


def half_indexed(folder: Path, out: Path, rows: int) -> None:
    """Index ``rows`` of the 300 items, then stop."""
    encoder, items = make("mlp"), open_collection(folder / "items.npz")
    with open_table(out, encoder, items, TableChoices(None, True, None, None)) as table:
        source = [str((folder / "items.npz").resolve()), "train", "[]"]
        next(IndexRun(table, encoder, items, source, True)._parts(rows, "cpu"))


def test_a_stop_doubles_nothing(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.table"
    half_indexed(vectors, out, 120)
    done = run(*words(vectors, "items.npz", out, "--quiet", "--json"))
    facts = json.loads(done.stdout)
    assert (facts["added"], facts["items"]) == (180, 300)
    names = {HashTable.open(out)[item].payload["name"] for item in range(300)}
    assert names == {f"items.npz row {row}" for row in range(300)}


def test_what_others_added_meanwhile_stays(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.table"
    half_indexed(vectors, out, 100)
    assert run(*words(vectors, "plain.npy", out, "--quiet")).returncode == 0  # ids 100 to 139
    done = run(*words(vectors, "items.npz", out, "--quiet", "--json"))
    facts = json.loads(done.stdout)
    assert (facts["added"], facts["replaced"], facts["items"]) == (200, 0, 340)
    table = HashTable.open(out)
    found = sorted(table[item].payload["name"] for item in table)
    expected = [f"items.npz row {row}" for row in range(300)]
    assert found == sorted(expected + [f"plain.npy row {row}" for row in range(40)])


def test_rows_indexed_again_are_not_doubled(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.table"
    for _ in range(2):
        done = run(*words(vectors, "items.npz", out))
        assert done.returncode == 0, done.stderr
        assert len(HashTable.open(out)) == 300
    assert "was indexed before" in done.stdout
    facts = json.loads(run(*words(vectors, "items.npz", out, "--again", "--json", "-q")).stdout)
    assert (facts["added"], facts["items"]) == (300, 600)


def test_a_damaged_journal_is_named(vectors: Path, tmp_path: Path) -> None:
    """Taken for none, it would have all items stored a second time.

    A journal is what earlier versions kept beside a table.
    """
    out = tmp_path / "x.table"
    half_indexed(vectors, out, 100)
    with HashTable.open(out, "r+") as table:
        (name,) = table.notes()
        table.note(name, None)
    journal = out / f"{name}.json"
    record = {"done": 100, "first": 0, "finished": False, "batch": 100, "ids": [[0, 99]]}
    record["crc32"] = zlib.crc32(json.dumps(record, sort_keys=True).encode())
    whole = json.dumps(record)
    encoder, items = make("mlp"), open_collection(vectors / "items.npz")
    source = [str((vectors / "items.npz").resolve()), "train", "[]"]

    def indexing(again: bool = False) -> IndexRun:
        with HashTable.open(out, "r+") as table:
            return IndexRun(table, encoder, items, source, True, again)

    changed = {"done": 0, "first": 7, "batch": 3, "ids": [[0, 9]], "finished": True, "more": 1}
    texts = [whole[:cut] for cut in range(0, len(whole), 5)] + [
        "5",
        "null",
        "[]",
        "{}",
        "[" * 60_000,
    ]
    texts += [json.dumps({**record, name: value}) for name, value in changed.items()]
    unsealed = {name: value for name, value in record.items() if name != "crc32"}
    texts += [json.dumps({**unsealed, "done": wrong}) for wrong in (-1, 301, "x", None, 1e400, [])]
    for text in texts:
        journal.write_text(text)
        with pytest.raises(DamagedFileError, match=r"index-.*\.json is damaged .*again=True"):
            indexing()
        assert indexing(again=True).done == 0
    journal.unlink()
    os.mkfifo(journal)
    with pytest.raises(DamagedFileError, match="it is no file"):
        indexing()
    journal.unlink()
    # Journals of versions before this one have no checksum.
    for good in (whole, json.dumps(unsealed), json.dumps({"done": 100, "first": 0}, indent=1)):
        journal.write_text(good)
        assert indexing().done == 100
    # What the command says and does.
    journal.write_text(whole[:20])
    wrong = run(*words(vectors, "items.npz", out, "--quiet"))
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)
    assert str(journal) in wrong.stderr
    assert wrong.stderr.endswith("index it with --again\n")
    assert len(HashTable.open(out)) == 100
    assert run(COMMAND, "copy", str(out), f"qdrant+local://{tmp_path}/q").returncode == 1
    assert run(*words(vectors, "items.npz", out, "--quiet", "--again")).returncode == 0
    assert len(HashTable.open(out)) == 400
    assert not journal.exists()  # the table has a note of its own by now
    assert noted(out) == 300


def test_the_journal_of_another_source_is_damaged(vectors: Path, tmp_path: Path) -> None:
    """Nothing is looked for any more that could be taken for its items; it is named by a copy."""
    out = tmp_path / "x.table"
    half_indexed(vectors, out, 100)
    journal = out / "index-0123456789abcdef.json"
    journal.write_text('{"done": 3')
    assert run(*words(vectors, "items.npz", out, "--quiet")).returncode == 0
    assert len(HashTable.open(out)) == 300
    assert journal.read_text() == '{"done": 3'
    wrong = run(COMMAND, "copy", str(out), f"qdrant+local://{tmp_path}/q")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)
    assert str(journal) in wrong.stderr


def test_a_folder_that_changed_is_not_gone_on_with(images: Path, tmp_path: Path) -> None:
    (tmp_path / "encoder").symlink_to(images / "encoder")
    shutil.copytree(images / "pictures", tmp_path / "pictures")
    out, encoder = tmp_path / "x.table", make("residual")
    items = open_collection(tmp_path / "pictures", size=encoder.preprocessing.size)
    with open_table(out, encoder, items, TableChoices(None, False, None, None)) as table:
        source = [str((tmp_path / "pictures").resolve()), "train", "[]"]
        next(IndexRun(table, encoder, items, source, False)._parts(20, "cpu"))
    (tmp_path / "pictures" / "loose.jpg").rename(tmp_path / "pictures" / "cats" / "00.jpg")
    assert run(*words(tmp_path, "pictures", out, "--quiet")).returncode == 0
    assert "cats/00.jpg" in HashTable.open(out)


def test_files_of_another_folder_replace_only_when_asked(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.table"
    assert run(*words(images, "pictures", out, "--quiet")).returncode == 0
    other = tmp_path / "pictures"
    (other / "cats").mkdir(parents=True)
    Image.new("RGB", (30, 30), "red").save(other / "cats" / "no 0.png")
    start = [COMMAND, "index", str(images / "encoder"), str(other), "--out", str(out)]
    refused = run(*start)
    assert refused.returncode == 2
    assert "cats/no 0.png" in refused.stderr
    assert "--replace" in refused.stderr
    allowed = run(*start, "--replace", "--json", "--quiet")
    assert json.loads(allowed.stdout)["replaced"] == 1


def test_nothing_is_made_for_items_that_do_not_fit(vectors: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((3, DIM + 2), np.float32))
    out, encoder = tmp_path / "x.table", str(vectors / "encoder")
    wrong = {tmp_path / "wide.npy": (), vectors / "items.npz": ("--device", "foo")}
    for source, more in wrong.items():
        done = run(COMMAND, "index", encoder, str(source), "--out", str(out), *more)
        assert done.returncode == 2
        assert source.name in done.stderr
        assert not out.exists()


def test_payloads_of_others_are_shown(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.table"
    assert run(*words(vectors, "items.npz", out, "--quiet")).returncode == 0
    with HashTable.open(out, "r+") as table:
        stored = table[7]
        payloads = [{"label": ["[/bold]", 0]}, {"label": 0}]
        table.add([stored.code] * 2, [stored.embedding] * 2, [900, 901], payloads)
    done = run(COMMAND, "search", str(out), "id:7", "--top", "2")
    assert done.returncode == 0, done.stderr
    assert "[/bold]" in done.stdout


def test_table_and_encoder_may_move_together(vectors: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    make("mlp").save(tmp_path / "here" / "encoder")
    query = str(vectors / "query.npy")
    out = tmp_path / "here" / "x.table"
    start = [COMMAND, "index", str(tmp_path / "here" / "encoder"), query, "--out", str(out)]
    assert run(*start).returncode == 0
    (tmp_path / "here").rename(tmp_path / "there")
    done = run(COMMAND, "search", str(tmp_path / "there" / "x.table"), query)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("items", "more", "said"),
    [
        ("nothing", (), "neither a data set nor a folder"),
        ("items.npz", ("--ids", "letters"), "numbers or names"),
        ("items.npz", ("--batch", "0"), "--batch"),
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


def test_an_encoder_from_before_new_codes_is_refused(vectors: Path, tmp_path: Path) -> None:
    old, new = make("mlp"), make("mlp", seed=6)
    old.save(tmp_path / "old")
    new.save(tmp_path / "new")
    out, query = str(tmp_path / "x.table"), str(vectors / "query.npy")
    index = [COMMAND, "index", str(tmp_path / "old"), query, "--out", out]
    assert run(*index).returncode == 0
    with HashTable.open(out, "r+") as table:
        table.recode(lambda some: [[0, 1]] * len(some), new.fingerprint)
    for words in (["search", out, query], ["serve", out, "--port", "0"]):
        done = run(COMMAND, *words)
        assert done.returncode == 2
        assert done.stderr.endswith(
            f"{out} has codes of encoder '{new.fingerprint}', but {tmp_path / 'old'}, which is "
            f"noted as its encoder, is '{old.fingerprint}'; index afresh, or say where the first "
            "is with --encoder\n"
        )
        assert done.stderr.count("\n") == 1
    for words in (index, [COMMAND, "search", out, query, "--encoder", str(tmp_path / "old")]):
        assert "was made with encoder" in run(*words).stderr
    assert run(COMMAND, "search", out, "id:1").returncode == 0  # which needs none
    found = run(COMMAND, "search", out, query, "--encoder", str(tmp_path / "new"))
    assert found.returncode == 0, found.stderr
    index[2] = str(tmp_path / "new")
    assert "was indexed before, nothing was added" in run(*index).stdout  # but its encoder is noted
    found = run(COMMAND, "search", out, query)
    assert found.returncode == 0, found.stderr


def test_of_two_encoders_the_tables_own_is_used(vectors: Path, tmp_path: Path) -> None:
    here, there, query = tmp_path / "here", tmp_path / "there", str(vectors / "query.npy")
    make("mlp").save(here / "encoder")
    index = [COMMAND, "index", str(here / "encoder"), query, "--out", str(here / "x.table")]
    assert run(*index).returncode == 0
    shutil.copytree(here, there)
    make("mlp", seed=6).save(here / "encoder")
    done = run(COMMAND, "search", str(there / "x.table"), query)
    assert done.returncode == 0, done.stderr
    (here / "encoder" / "encoder.json").write_text("{")
    done = run(COMMAND, "search", str(here / "x.table"), query)
    assert done.returncode != 0
    assert "encoder.json is not JSON" in done.stderr
