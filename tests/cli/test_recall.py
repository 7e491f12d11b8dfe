"""``flowhash calibrate`` and ``search --recall``, in processes of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash import HashTable
from flowhash.bulk import read_answers
from flowhash.encoder import Encoder
from flowhash.table import open_buckets
from tests.cli.commands import COMMAND, run
from tests.encoder.encoders import DIM, make

ITEMS, ASKED, TOP = 2_000, 300, 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose encoder takes embeddings, queries to calibrate with, and others."""
    folder = tmp_path_factory.mktemp("recall")
    make("linear", base=False).save(folder / "encoder")
    rng = np.random.default_rng(8)
    middles = rng.normal(size=(12, DIM))

    def drawn(count: int) -> np.ndarray:
        near = middles[rng.integers(0, 12, count)] + 0.3 * rng.normal(size=(count, DIM))
        return near.astype(np.float32)

    np.save(folder / "items.npy", drawn(ITEMS))
    np.save(folder / "known.npy", drawn(ASKED))
    np.save(folder / "others.npy", drawn(100))
    done = run(COMMAND, "index", "encoder", "items.npy", "--out", "x.table", "-q", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def searched(folder: Path, *words: str) -> list[dict[str, object]]:
    done = run(
        COMMAND, "search", "x.table", "others.npy", "--top", str(TOP), "--json", *words, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["answers"])


def test_a_recall_is_asked_for_after_calibration(folder: Path) -> None:
    before = run(COMMAND, "search", "x.table", "others.npy", "--recall", "0.9", cwd=folder)
    assert before.returncode == 2
    assert "never calibrated" in before.stderr
    assert "flowhash calibrate" in before.stderr
    done = run(COMMAND, "calibrate", "x.table", "known.npy", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["items"], facts["stored"], facts["tops"]) == (
        ITEMS,
        False,
        [1, 5, 10, 20, 50, 100],
    )
    assert facts["queries"] == ASKED - ASKED // 5
    shares = [cost["scanned"] for cost in facts["expected"]]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 1
    # Against brute force, over queries that the calibration has not seen.
    made = Encoder.load(folder / "encoder").encode(np.load(folder / "others.npy"))
    items = Encoder.load(folder / "encoder").encode(np.load(folder / "items.npy"))
    apart = np.square(made.embeddings[:, None] - items.embeddings).sum(axis=2, dtype=np.float64)
    nearest = np.argsort(apart, axis=1)[:, :TOP]
    for recall in (0.8, 0.95):
        answers = searched(folder, "--recall", str(recall))
        shares = [
            len({hit["id"] for hit in answer["hits"]} & set(true.tolist())) / TOP  # type: ignore[attr-defined]
            for answer, true in zip(answers, nearest, strict=True)
        ]
        assert np.mean(shares) > recall - 0.1
        assert all(answer["recall"] == recall for answer in answers)
        with HashTable.open(folder / "x.table") as table:
            hits = table.search(made.activations, made.embeddings, TOP, recall=recall)
        assert [answer["scanned"] for answer in answers] == hits.scanned.tolist()
        assert [len(answer["opened"]) for answer in answers] == hits.opened.tolist()  # type: ignore[arg-type]
        assert (
            [[hit["id"] for hit in answer["hits"]] for answer in answers]
            == [  # type: ignore[attr-defined]
                line[:found].tolist() for line, found in zip(hits.ids, hits.counts, strict=True)
            ]
        )


def test_stored_items_are_drawn_where_no_queries_are_given(folder: Path) -> None:
    done = run(COMMAND, "calibrate", "x.table", "--items", "200", "--top", "5", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "160 stored items" in done.stdout
    assert "5 nearest" in done.stdout
    with HashTable.open(folder / "x.table") as table:
        known = table.calibration
        assert known is not None
        assert (known.stored, known.queries, list(known.thresholds)) == (True, 160, [5])
    refused = run(COMMAND, "search", "x.table", "others.npy", "--recall", "0.9", cwd=folder)
    assert refused.returncode == 2
    assert "up to 5 neighbours" in refused.stderr
    both = run(
        COMMAND, "search", "x.table", "others.npy", "--recall", "0.9", "--probe", "2", cwd=folder
    )
    assert both.returncode == 2
    assert "recall came together with probe" in both.stderr


def test_a_stored_item_asks_for_a_recall_where_the_encoder_takes_its_embedding(
    folder: Path, tmp_path: Path
) -> None:
    done = run(COMMAND, "calibrate", "x.table", "known.npy", "-q", cwd=folder)
    assert done.returncode == 0, done.stderr
    words = ("id:3", "others.npy", "id:1200", "--top", "4", "--recall", "0.97", "--json")
    done = run(COMMAND, "search", "x.table", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)["answers"]
    assert len(answers) == 102
    with HashTable.open(folder / "x.table") as table:
        known = table.calibration
        assert known is not None
        for item, answer in ((3, answers[0]), (1200, answers[-1])):
            embedding = table[item].embedding[None]
            made = Encoder.load(folder / "encoder").encode_stored(embedding)
            order, opened = open_buckets(
                made.activations, table.bucket_loads(), known.temperature, known.threshold(0.97, 4)
            )
            assert answer["opened"] == order[0, : opened[0]].tolist()
            hits = table.search(order, embedding, 5, probe=opened)
            wanted = [each for each in hits.ids[0].tolist() if each != item][:4]
            assert [hit["id"] for hit in answer["hits"]] == wanted
    further = run(COMMAND, "search", "x.table", "id:3", "--at-least", "50", cwd=folder)
    assert further.returncode == 2
    assert "give --recall, or give the item itself" in further.stderr
    # Of a hash network that takes items, only the embedding is left.
    make("linear").save(tmp_path / "encoder")
    for line in (
        ("index", "encoder", str(folder / "items.npy"), "--out", "y.table", "-q"),
        ("calibrate", "y.table", str(folder / "known.npy"), "-q"),
    ):
        done = run(COMMAND, *line, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    refused = run(COMMAND, "search", "y.table", "id:3", "--recall", "0.9", cwd=tmp_path)
    assert refused.returncode == 2
    assert "of which only the embedding is kept" in refused.stderr


def test_an_old_calibration_is_named_once(folder: Path) -> None:
    for words in (["calibrate", "x.table", "known.npy"], ["index", "encoder", "known.npy"]):
        more = ["--out", "x.table"] if words[0] == "index" else []
        done = run(COMMAND, *words, *more, "-q", cwd=folder)
        assert done.returncode == 0, done.stderr
    with HashTable.open(folder / "x.table", "r+") as table:
        table.delete(list(range(200)))
    done = run(COMMAND, "search", "x.table", "others.npy", "--recall", "0.9", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("since recall was calibrated") == 1
    assert "Traceback" not in done.stderr
    assert ".py:" not in done.stderr


def test_an_encoder_that_takes_items_wants_queries(tmp_path: Path) -> None:
    make("mlp").save(tmp_path / "encoder")
    values = np.random.default_rng(5).normal(size=(300, DIM)).astype(np.float32)
    np.save(tmp_path / "items.npy", values)
    done = run(COMMAND, "index", "encoder", "items.npy", "--out", "x.table", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    refused = run(COMMAND, "calibrate", "x.table", cwd=tmp_path)
    assert refused.returncode == 2
    assert "give QUERIES" in refused.stderr
    few = run(COMMAND, "calibrate", "x.table", "items.npy", "--top", "5", cwd=tmp_path)
    assert few.returncode == 0, few.stderr


def test_health_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)

    def health(*words: str) -> Any:
        done = run(COMMAND, "table", "health", "y.table", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout

    done = run(COMMAND, "index", "encoder", "items.npy", "--out", "y.table", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "To do: flowhash calibrate y.table" in health()
    assert run(COMMAND, "calibrate", "y.table", "-q", cwd=tmp_path).returncode == 0
    facts = health("--json")
    assert (facts["calibrated"], facts["changed"], facts["measured"]) == (ITEMS, 0, 300)
    assert facts["why_not_measured"] is None
    reached = {one["before"]["recall"]: one["reached"] for one in facts["drift"]}
    assert reached.keys() == {0.8, 0.9, 0.95, 0.99}
    assert all(found > recall - 0.05 for recall, found in reached.items())
    words = health()
    assert "recall 0.95 of the 10 nearest" in words
    assert ("nothing is to be done" in words) == (facts["findings"] == [])
    with HashTable.open(tmp_path / "y.table", "r+") as table:
        table.delete(np.arange(500))
    shutil.move(tmp_path / "encoder", tmp_path / "elsewhere")
    facts = health("--json")
    assert (facts["changed"], facts["old"], facts["measured"]) == (500, True, 0)
    assert facts["why_not_measured"]
    assert "calibrate" in [one["action"] for one in facts["findings"]]
    assert all(one["reached"] is None for one in facts["drift"])
    assert health("--json", "--encoder", "elsewhere")["measured"] == 300


@pytest.mark.parametrize("shape", [(60, DIM + 3), (DIM + 3,)])
def test_queries_of_another_width_are_named_with_their_file(
    folder: Path, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    np.save(tmp_path / "wide.npy", np.zeros(shape, np.float32))
    for words in (("calibrate", "x.table"), ("search", "x.table")):
        done = run(COMMAND, *words, str(tmp_path / "wide.npy"), cwd=folder)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"wide.npy has vectors of {DIM + 3} numbers; expected {DIM}, which" in done.stderr


def test_a_stored_item_takes_no_probe_beside_a_recall(folder: Path) -> None:
    words = ("x.table", "id:3", "--recall", "0.9", "--probe", "5")
    done = run(COMMAND, "search", *words, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("flowhash: recall came together with probe; recall says itself")


def advised(folder: Path, table: str, *words: str) -> dict[str, str]:
    """What ``table health`` says is to be done, by action."""
    done = run(COMMAND, "table", "health", table, "--json", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return {one["action"]: one["to_do"] for one in json.loads(done.stdout)["findings"]}


def test_what_health_says_is_to_be_done_is_not_refused(tmp_path: Path) -> None:
    from flowhash.data import Preprocessing
    from flowhash.learn import fit_vectors, router_encoder

    rng = np.random.default_rng(2)
    rows = rng.normal(size=(1_200, DIM)).astype(np.float32)
    np.save(tmp_path / "QUERIES", rng.normal(size=(60, DIM)).astype(np.float32))
    (tmp_path / "QUERIES.npy").rename(tmp_path / "queries.npy")

    def follow(words: str) -> None:
        command = words.split(", with")[0].split(", which")[0].replace("QUERIES", "queries.npy")
        for each in command.split(", then "):
            done = run(COMMAND, *each.split()[1:], "-q", cwd=tmp_path)
            assert done.returncode == 0, done.stderr

    # An encoder that takes items, of which the table has embeddings: they cannot be queries.
    encoders = {"taker": make("linear"), "plain": make("linear", base=False)}
    for name, encoder in encoders.items():
        encoder.save(tmp_path / name)
        with encoder.create_table(tmp_path / f"{name}.table") as table:
            encoder.add(table, rows[:40])
    missing = advised(tmp_path, "taker.table")["calibrate"]
    assert "calibrate taker.table QUERIES --encoder RUN, with a file of 50 or more" in missing
    with HashTable.open(tmp_path / "taker.table", "r+") as table:
        encoders["taker"].add(table, rows[40:300])
    known = advised(tmp_path, "taker.table", "--encoder", "taker")["calibrate"]
    assert known.startswith("flowhash calibrate taker.table QUERIES --encoder taker, with a file")
    follow(known)
    few = advised(tmp_path, "plain.table", "--encoder", "plain")["calibrate"]
    assert few.startswith("flowhash calibrate plain.table QUERIES --encoder plain, with a file of")
    follow(few)
    with HashTable.open(tmp_path / "plain.table", "r+") as table:
        encoders["plain"].add(table, rows[40:600])
        table.add(np.full((3_000, 2), [3, 7]), rng.normal(size=(3_000, table.dim)))
    full = advised(tmp_path, "plain.table", "--encoder", "plain")
    assert full["calibrate"] == full["adapt"]  # which drops what is calibrated before it
    assert full["adapt"] == (
        "flowhash adapt plain.table --encoder plain, then flowhash calibrate plain.table"
    )
    follow(full["adapt"])

    # Vectors without labels, with a bucket that is too full.
    router, _ = fit_vectors(rows, 16, seed=0)
    taken = Preprocessing("vectors", None, 1.0, np.zeros(DIM, np.float32), np.ones((), np.float32))
    encoder = router_encoder(router, taken)
    encoder.save(tmp_path / "router")
    for items, name in ((1_000, "x.table"), (200, "small.table")):
        with encoder.create_table(tmp_path / name) as table:
            encoder.add(table, rows[: items // 10])
            table.add(
                np.full((items, 1), 5), 0.1 * rng.normal(size=(items, DIM)).astype(np.float32)
            )
    router_says = advised(tmp_path, "x.table", "--encoder", "router")
    assert set(router_says.values()) == {
        "flowhash adapt x.table --encoder router, which calibrates it, too"
    }
    follow(router_says["adapt"])
    after = advised(tmp_path, "x.table")
    assert "flowhash adapt" not in after.get("adapt", "")
    too_few = advised(tmp_path, "small.table", "--encoder", "router")
    assert too_few["adapt"].startswith("adapt would, but small.table has 220 items in 16 buckets;")
    assert too_few["calibrate"] == "flowhash calibrate small.table --encoder router"
    follow(too_few["calibrate"])


def test_bulk_search_asks_for_a_recall(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    encoder = Encoder.load(tmp_path / "encoder")
    known, made = (
        encoder.encode(np.load(tmp_path / f"{name}.npy")) for name in ("known", "others")
    )
    with HashTable.open(tmp_path / "x.table", "r+") as table:
        table.calibrate(known.activations, known.embeddings)
        expected = table.search(made.activations, made.embeddings, TOP, recall=0.9)

    def bulk(*words: str) -> None:
        done = run(COMMAND, "bulk", *words, "-q", cwd=tmp_path)
        assert done.returncode == 0, done.stderr

    asked = ("--top", str(TOP), "--recall", "0.9")
    bulk("search", "x.table", "others.npy", "--encoder", "encoder", "--out", "one", *asked)
    bulk("encode", "encoder", "others.npy", "--out", "queries", "--activations")
    bulk("search", "x.table", "queries", "--out", "two", *asked)
    for name in ("one", "two"):
        hits = read_answers(tmp_path / name).hits
        assert hits.ids.tolist() == expected.ids.tolist()
        assert hits.opened.tolist() == expected.opened.tolist()
    bulk("encode", "encoder", "others.npy", "--out", "bare")
    done = run(COMMAND, "bulk", "search", "x.table", "bare", "--out", "x", *asked, cwd=tmp_path)
    assert done.returncode == 2
    assert "encode the queries with --activations" in done.stderr
