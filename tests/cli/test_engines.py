"""``index --to``, ``copy``, ``search``, ``table`` with addresses: a real PostgreSQL, and Qdrant.

Most run in this process, as ``flowhash`` would in its own; what is stopped by a signal has one.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flowhash.cli.app import _code
from flowhash.cli.commands.search import conditions
from flowhash.data import open_collection
from flowhash.engines import copy, create_engine, hidden, open_any, open_engine
from flowhash.errors import InputError
from flowhash.indexing import IndexRun, TableChoices, open_table
from flowhash.table import HashTable
from tests.cli.commands import COMMAND, run
from tests.encoder.encoders import DIM, make
from tests.engines.servers import PASSWORD, Postgres, Server, running_server, sql, table_of

ITEMS = 300


@dataclass
class Said:
    code: int
    out: str
    error: str

    @property
    def facts(self) -> dict[str, Any]:
        assert self.code == 0, self.error
        found: dict[str, Any] = json.loads(self.out)
        return found

    def mistake(self, *words: str, code: int = 2) -> None:
        assert (self.code, self.error.count("\n")) == (code, 1), self.error
        for word in words:
            assert word in self.error


class Command:
    """``flowhash`` with these words; nothing that it says may have the password."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capture = capfd

    def __call__(self, *words: object) -> Said:
        self._capture.readouterr()
        try:
            code = _code([str(word) for word in words])
        except SystemExit as error:
            code = int(error.code or 0)
        out, error_text = self._capture.readouterr()
        assert "staple" not in out + error_text
        assert "Traceback" not in error_text, error_text
        return Said(code, out, error_text)


@pytest.fixture
def flowhash(capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(capfd)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with encoders of vectors, a file of them, and a table in a folder."""
    folder = tmp_path_factory.mktemp("vectors")
    make("mlp").save(folder / "encoder")
    make("mlp", seed=6).save(folder / "other")
    rng = np.random.default_rng(5)
    values = rng.normal(size=(ITEMS, DIM)).astype(np.float32)
    labels = np.array(["ant", "bée", "7"])[rng.integers(0, 3, ITEMS)]
    np.savez(folder / "items.npz", embeddings=values, labels=labels)
    np.save(folder / "plain.npy", values[:40])
    np.save(folder / "query.npy", values[:2])
    words = ["index", folder / "encoder", folder / "items.npz", "--out", folder / "x.table", "-q"]
    assert _code([str(word) for word in words]) == 0
    return folder


@pytest.fixture(params=["postgres", "qdrant"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_address")
    else:
        pytest.importorskip("qdrant_client", reason="the tests of Qdrant need flowhash[qdrant]")
        yield f"qdrant+local://{tmp_path / 'qdrant'}?collection=pets"


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A PostgreSQL that is killed, and that asks for a password."""
    with running_server() as server:
        yield server


def answers(said: Said) -> list[Any]:
    """The answers of a search, without times."""
    found = said.facts["answers"]
    for answer in found:
        del answer["milliseconds"]
        for hit in answer["hits"]:
            hit["distance"] = pytest.approx(hit["distance"], rel=1e-5, abs=1e-6)
    return list(found)


def names_in(place: str | Path) -> list[str]:
    """The names of all items, sorted."""
    with open_any(str(place)) as table:
        batches = [part.payloads for part in table.batches()]
    return sorted(payload["name"] for part in batches for payload in part if payload is not None)


def rows(count: int = ITEMS, file: str = "items.npz") -> list[str]:
    return sorted(f"{file} row {row}" for row in range(count))


def test_items_go_to_an_engine_as_into_a_folder(
    vectors: Path, address: str, flowhash: Command
) -> None:
    start = ("index", vectors / "encoder", vectors / "items.npz", "--to", address)
    facts = flowhash(*start, "--batch", 77, "--json", "-q").facts
    assert (facts["added"], facts["replaced"], facts["items"]) == (ITEMS, 0, ITEMS)
    assert facts["table"] == hidden(address)
    assert names_in(address) == rows()
    query = vectors / "query.npy"
    for words in (
        (query, "id:17", "--top", 4), (query, "--top", 3, "--probe", 5), (query, "--at-least", 50),
    ):  # fmt: skip
        theirs = answers(flowhash("search", address, *words, "--json"))
        assert theirs == answers(flowhash("search", vectors / "x.table", *words, "--json"))
    shown = flowhash("search", address, "id:17", "--top", 2)
    assert f"of {ITEMS} items" in shown.out
    again = flowhash(*start)
    assert "was indexed before" in again.out
    assert flowhash(*start, "--again", "--json", "-q").facts["items"] == 2 * ITEMS
    assert flowhash("index", vectors / "encoder", vectors / "plain.npy", "--to", address,
                    "--json", "-q").facts["items"] == 2 * ITEMS + 40  # fmt: skip


def test_what_does_not_fit_is_refused(vectors: Path, address: str, flowhash: Command) -> None:
    flowhash("search", address, "id:1").mistake("flowhash index --to", "flowhash copy")
    flowhash("table", "stats", address).mistake("flowhash copy")
    start = ("index", vectors / "encoder", vectors / "plain.npy", "--to", address)
    assert flowhash(*start).code == 0
    other = ("index", vectors / "other", vectors / "items.npz", "--to", address)
    flowhash(*other).mistake("was made with encoder")
    flowhash(*start, "--metric", "cosine").mistake(
        "metric=euclidean", "give another address, or leave out --metric"
    )
    flowhash(*start, "--ids", "names").mistake("ids=numbers")
    query = vectors / "query.npy"
    flowhash("search", address, query, "--encoder", vectors / "other").mistake("encoder")
    flowhash("search", address, "id:900").mistake("no item 900")
    # Also where no query needs it, at an address as in a folder.
    for table in (address, vectors / "x.table"):
        for query_words in ("id:1", query):
            wrong = ("search", table, query_words, "--encoder", vectors / "nowhere")
            flowhash(*wrong).mistake("nowhere does not exist", "flowhash fit --out")
    assert names_in(address) == rows(40, "plain.npy")


def half_indexed(folder: Path, place: str, count: int) -> None:
    """Index some of the items, then stop."""
    encoder, items = make("mlp"), open_collection(folder / "items.npz")
    with open_table(place, encoder, items, TableChoices(None, True, None, None)) as table:
        source = [str((folder / "items.npz").resolve()), "train", "[]"]
        next(IndexRun(table, encoder, items, source, True)._parts(count, "cpu"))


def test_a_stop_doubles_nothing_and_loses_nothing(
    vectors: Path, address: str, flowhash: Command
) -> None:
    half_indexed(vectors, address, 120)
    with open_engine(address, "r+") as engine:  # somebody else, meanwhile
        engine.add([[0, 1]], np.ones((1, engine.dim)), payloads=[{"name": "of others"}])
    start = ("index", vectors / "encoder", vectors / "items.npz", "--to", address)
    facts = flowhash(*start, "--json", "-q").facts
    assert (facts["added"], facts["items"]) == (ITEMS - 120, ITEMS + 1)
    assert names_in(address) == sorted([*rows(), "of others"])
    assert "was indexed before" in flowhash(*start).out


def stop_after_first(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Press Ctrl-C before the first batch, after it, or when it was seen."""
    original = IndexRun._parts

    def stopping(self: IndexRun, size: int, device: str) -> Iterator[Any]:
        parts = original(self, size, device)
        if when != "before":
            part = next(parts)
            if when == "seen":
                yield part
        raise KeyboardInterrupt

    monkeypatch.setattr(IndexRun, "_parts", stopping)


@pytest.mark.parametrize("alike", [False, True], ids=["other rows", "a copy"])
@pytest.mark.parametrize("when", ["before", "stored", "seen"])
@pytest.mark.parametrize("where", ["address", "folder"])
def test_rows_of_a_file_of_the_same_name_are_not_taken_for_ours(
    vectors: Path, address: str, tmp_path: Path, flowhash: Command, when: str, alike: bool,
    where: str,
) -> None:  # fmt: skip
    if where == "folder" and not address.startswith("qdrant"):
        pytest.skip("a folder needs no server")
    place = ("--to", address) if where == "address" else ("--out", tmp_path / "x.table")
    values = np.random.default_rng(7).normal(size=(20, DIM)).astype(np.float32)
    for number, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        rows_of = values[:10] if alike else values[10 * number : 10 * number + 10]
        np.save(tmp_path / name / "same.npy", rows_of)
    first = ("index", vectors / "encoder", tmp_path / "a" / "same.npy", *place, "--batch", 4)
    other = ("index", vectors / "encoder", tmp_path / "b" / "same.npy", *place, "--batch", 3)
    with pytest.MonkeyPatch.context() as patch:
        stop_after_first(patch, when)
        assert flowhash(*first, "-q").code == 130
    stored = 0 if when == "before" else 4
    assert flowhash(*other, "--json", "-q").facts["items"] == 10 + stored
    facts = flowhash(*first, "--json", "-q").facts
    assert (facts["added"], facts["items"]) == (10 - stored, 20)
    assert names_in(place[1]) == sorted(2 * rows(10, "same.npy"))
    found = []
    with open_any(str(place[1])) as table:
        for part in table.batches():
            found += part.embeddings.tolist()
    again = np.concatenate([values[:10], values[:10]]) if alike else values
    expected = make("mlp").encode(again).embeddings
    np.testing.assert_allclose(sorted(found), sorted(expected.tolist()), rtol=1e-4, atol=1e-5)
    for words in (first, other):
        assert "was indexed before" in flowhash(*words).out


def test_ids_of_others_leave_a_wide_gap(vectors: Path, address: str, flowhash: Command) -> None:
    """Somebody gives an id of their own: not every number up to it is looked for."""
    half_indexed(vectors, address, 120)
    with open_engine(address, "r+") as engine:
        engine.add([[0, 1]], np.ones((1, engine.dim)), [1 << 60], [{"name": "of others"}])
    start = ("index", vectors / "encoder", vectors / "items.npz", "--to", address)
    assert flowhash(*start, "--json", "-q").facts["added"] == ITEMS - 120
    assert names_in(address) == sorted([*rows(), "of others"])


def test_others_may_add_at_the_same_time(
    vectors: Path, postgres_address: str, flowhash: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two batches of ours: an id of theirs is never taken for one of ours."""
    parts = IndexRun._parts

    def with_others(self: IndexRun, size: int, device: str) -> Iterator[Any]:
        for part in parts(self, size, device):
            with open_engine(postgres_address, "r+") as engine:
                engine.add([[0, 1]], np.ones((1, engine.dim)), payloads=[{"name": "of others"}])
            yield part

    monkeypatch.setattr(IndexRun, "_parts", with_others)
    start = ("index", vectors / "encoder", vectors / "items.npz", "--to", postgres_address)
    assert flowhash(*start, "--batch", 100, "-q").code == 0
    assert names_in(postgres_address) == sorted([*rows(), *["of others"] * 3])


def test_names_replace_themselves(address: str, tmp_path: Path, flowhash: Command) -> None:
    make("residual").save(tmp_path / "encoder")
    rng = np.random.default_rng(6)
    for place in ("pictures/cats", "pictures/dogs", "more/cats"):
        (tmp_path / place).mkdir(parents=True)
        for number in range(3):
            image = rng.integers(0, 256, (40, 50, 3), np.uint8)
            Image.fromarray(image).save(tmp_path / place / f"no {number}.png")
    start = ("index", tmp_path / "encoder", tmp_path / "pictures", "--to", address, "-q", "--json")
    assert flowhash(*start).facts["items"] == 6
    again = flowhash(*start).facts
    assert (again["added"], again["replaced"], again["items"]) == (6, 6, 6)
    more = ("index", tmp_path / "encoder", tmp_path / "more", "--to", address, "-q", "--json")
    flowhash(*more).mistake("cats/no 0.png", "--replace")
    assert flowhash(*more, "--replace").facts["replaced"] == 3
    query = tmp_path / "more" / "cats" / "no 1.png"
    (answer,) = flowhash("search", address, query, "--top", 2, "--json").facts["answers"]
    assert answer["hits"][0]["id"] == "cats/no 1.png"
    assert answer["hits"][0]["distance"] < 1e-6


def test_filters(vectors: Path, address: str, flowhash: Command) -> None:
    assert flowhash("copy", vectors / "x.table", address, "-q").code == 0
    query = vectors / "query.npy"
    labels = np.load(vectors / "items.npz")["labels"]
    for wanted in (["7"], ["bée"], ["bée", "7"], ["nothing"]):
        words = [word for one in wanted for word in ("--where", f"label={one}")]
        found = flowhash("search", address, query, "--top", ITEMS, *words, "--json").facts
        with HashTable.open(vectors / "x.table") as table:
            ids = np.flatnonzero(np.isin(labels, wanted))
            hits = make("mlp").search(table, np.load(query), ITEMS, where=ids)
        for answer, expected, scanned in zip(found["answers"], hits.ids, hits.scanned, strict=True):
            assert [hit["id"] for hit in answer["hits"]] == expected[expected >= 0].tolist()
            assert answer["scanned"] == scanned
    both = ("--where", "label=7", "--where", "name=items.npz row 1")
    (answer, _) = flowhash("search", address, query, *both, "--json").facts["answers"]
    assert len(answer["hits"]) == (labels[1] == "7")
    flowhash("search", vectors / "x.table", query, "--where", "label=7").mistake("folder", "engine")
    flowhash("search", address, query, "--where", "label").mistake("KEY=VALUE")


def test_a_filter_opens_more_buckets(vectors: Path, address: str, flowhash: Command) -> None:
    """And the answer says how many: the oracle opens one after the other and counts what passes."""
    assert flowhash("copy", vectors / "x.table", address, "-q").code == 0
    query = vectors / "query.npy"
    labels = np.load(vectors / "items.npz")["labels"]
    made = make("mlp").encode(np.load(query))
    with HashTable.open(vectors / "x.table") as table:
        buckets = [set(table.bucket(bucket).tolist()) for bucket in range(table.buckets)]
        fewest = table.active
    orders = made.ordered_buckets(None).tolist()
    least = len(set().union(*(buckets[bucket] for bucket in orders[0][:fewest])))
    asked = ("search", address, query, "--at-least", least, "--json")
    numbers = []
    for words, allowed in (
        ((), set(range(ITEMS))),
        (("--where", "label=7"), set(np.flatnonzero(labels == "7").tolist())),
        (("--where", "label=nothing"), set[int]()),
    ):
        answers = flowhash(*asked, *words).facts["answers"]
        for answer, order in zip(answers, orders, strict=True):
            count, found = 0, set[int]()
            while count < fewest or (len(found) < least and count < len(order)):
                found |= buckets[order[count]] & allowed
                count += 1
            assert answer["opened"] == order[:count]
            assert answer["scanned"] == len(found)
            numbers.append(count)
    assert numbers[0] == fewest < numbers[2]


def test_values_of_filters() -> None:
    assert conditions([]) is None
    assert conditions(["a=cat", "b=1", "c=true", 'd="1"', "a=dog", "e=x=y", "f=", "g=[1]"]) == {
        "a": ["cat", "dog"], "b": [1, "1"], "c": [True, "true"], "d": "1", "e": "x=y", "f": "",
        "g": "[1]",
    }  # fmt: skip
    with pytest.raises(InputError, match="KEY=VALUE"):
        conditions(["=3"])


def test_a_copy_is_the_table(
    vectors: Path, address: str, tmp_path: Path, flowhash: Command
) -> None:
    facts = flowhash("copy", vectors / "x.table", address, "--json", "-q").facts
    assert (facts["items"], facts["before"], facts["address"]) == (ITEMS, 0, hidden(address))
    query = vectors / "query.npy"
    theirs = answers(flowhash("search", address, query, "--json"))  # it knows the encoder
    assert theirs == answers(flowhash("search", vectors / "x.table", query, "--json"))
    start = ("index", vectors / "encoder", vectors / "items.npz", "--to", address)
    assert "was indexed before" in flowhash(*start).out
    again = flowhash("copy", vectors / "x.table", address, "--json", "-q").facts
    assert (again["items"], again["before"]) == (ITEMS, ITEMS)  # complete: compared once more
    back = tmp_path / "new" / "back.table"
    assert flowhash("copy", address, back, "--json", "-q").facts["items"] == ITEMS
    assert answers(flowhash("search", back, query, "--json")) == theirs
    with HashTable.open(vectors / "x.table") as ours, HashTable.open(back) as copied:
        assert sorted(copied) == sorted(ours)
        for item in ours:
            assert copied[item].payload == ours[item].payload
            np.testing.assert_array_equal(copied[item].code, ours[item].code)
            np.testing.assert_array_equal(copied[item].embedding, ours[item].embedding)
    assert [path.name for path in back.parent.iterdir()] == ["back.table"]
    flowhash("copy", address, back).mistake("is there already")
    assert flowhash("table", "check", back).code == 0


def test_a_copy_does_not_name_an_encoder_from_before_new_codes(
    vectors: Path, address: str, tmp_path: Path, flowhash: Command
) -> None:
    folder, query = tmp_path / "x.table", vectors / "query.npy"
    index = ("index", vectors / "encoder", vectors / "items.npz", "--out", folder, "-q")
    assert flowhash(*index).code == 0
    with HashTable.open(folder, "r+") as table:
        table.recode(lambda some: [[0, 1]] * len(some), make("mlp", seed=6).fingerprint)
    assert flowhash("copy", folder, address, "-q").code == 0
    flowhash("search", address, query).mistake("does not say which encoder made it", "--encoder")
    assert flowhash("search", address, query, "--encoder", vectors / "other").code == 0


def meanwhile(monkeypatch: pytest.MonkeyPatch, happen: Callable[[], object]) -> None:
    """Something happens once, after the first items of a copy into a folder have come."""
    fetching = importlib.import_module("flowhash.cli.commands.copy")
    original, happened = fetching._checksum, []

    def checksum(batch: Any) -> int:
        if not happened:
            happened.append(batch)
            happen()
        return int(original(batch))

    monkeypatch.setattr(fetching, "_checksum", checksum)


@pytest.mark.parametrize("what", ["add", "add and delete", "replace"])
def test_changes_while_a_table_is_fetched(
    vectors: Path, address: str, tmp_path: Path, flowhash: Command,
    monkeypatch: pytest.MonkeyPatch, what: str,
) -> None:  # fmt: skip
    """A snapshot is copied as it is; where there are none, a mixture is refused."""
    assert flowhash("copy", vectors / "x.table", address, "-q").code == 0

    def change() -> None:
        with open_engine(address, "r+") as engine:
            ids = [5] if what == "replace" else None
            engine.add([[0, 1]], np.ones((1, engine.dim)), ids, payloads=[{"name": "of others"}])
            if what == "add and delete":
                engine.delete([7])

    meanwhile(monkeypatch, change)
    back = tmp_path / "back.table"
    if address.startswith("postgresql"):
        assert flowhash("copy", address, back, "--json", "-q").facts["items"] == ITEMS
        assert names_in(back) == rows()
    else:
        flowhash("copy", address, back).mistake("changed while it was copied")
        assert not back.exists()
    assert flowhash("copy", address, tmp_path / "again.table", "-q").code == 0
    assert "of others" in names_in(tmp_path / "again.table")


def test_a_journal_that_goes_on_while_its_table_is_fetched(
    vectors: Path, postgres_address: str, tmp_path: Path, flowhash: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The copy must not say that items are there which came after its snapshot."""
    start = ("index", vectors / "encoder", vectors / "items.npz", "--batch", 100)
    with pytest.MonkeyPatch.context() as patch:
        stop_after_first(patch, "seen")
        assert flowhash(*start, "--to", postgres_address, "-q").code == 130
    words = [str(word) for word in (*start, "--to", postgres_address, "-q")]
    meanwhile(monkeypatch, lambda: _code(words))
    back = tmp_path / "back.table"
    assert flowhash("copy", postgres_address, back, "-q").code == 0
    assert len(names_in(back)) == 100
    assert names_in(postgres_address) == rows()
    assert flowhash(*start, "--out", back, "--json", "-q").facts["added"] == ITEMS - 100
    assert names_in(back) == rows()


def test_a_note_and_its_items_are_fetched_from_one_state(
    vectors: Path, postgres_address: str, tmp_path: Path, flowhash: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Items that came after the note was read would be stored again by the next index."""
    start = ("index", vectors / "encoder", vectors / "items.npz", "--batch", 100)
    with pytest.MonkeyPatch.context() as patch:
        stop_after_first(patch, "seen")
        assert flowhash(*start, "--to", postgres_address, "-q").code == 130
    engine = importlib.import_module("flowhash.engines.postgres.postgres_table").PostgresTable
    original, happened = engine.batches, list[int]()

    def late(self: Any, *given: Any, **named: Any) -> Iterator[Any]:
        if not happened:
            words = (*start, "--to", postgres_address, "-q")
            happened.append(_code([str(word) for word in words]))
        batches: Iterator[Any] = original(self, *given, **named)
        return batches

    monkeypatch.setattr(engine, "batches", late)
    back = tmp_path / "back.table"
    assert flowhash("copy", postgres_address, back, "-q").code == 0
    assert happened == [0]
    assert names_in(back) == rows()
    assert "was indexed before" in flowhash(*start, "--out", back).out


@pytest.mark.parametrize("where", ["folder", "postgres"])
def test_a_killed_command_goes_on(
    vectors: Path, tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    """With kill -9, twice, wherever that hits it; tests/indexing has every moment there is."""
    values = np.random.default_rng(3).normal(size=(3000, DIM)).astype(np.float32)
    np.save(tmp_path / "many.npy", values)
    place = str(tmp_path / "x.table")
    if where == "postgres":
        place = request.getfixturevalue("postgres_address")
    option = "--out" if where == "folder" else "--to"
    words = [
        COMMAND, "index", str(vectors / "encoder"), str(tmp_path / "many.npy"), option, place,
        "--batch", "10",
    ]  # fmt: skip
    for least in (30, 900):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        while process.poll() is None and items_in(place) < least:
            time.sleep(0.02)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    before = items_in(place)
    assert before < 3000
    done = run(*words[:-2], "--json", "-q")
    assert json.loads(done.stdout)["added"] == 3000 - before, done.stderr
    assert names_in(place) == rows(3000, "many.npy")


def items_in(place: str) -> int:
    """How many items are at a place; none where nothing is."""
    try:
        with open_any(place) as table:
            return len(table)
    except OSError:
        return 0


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_ids_of_deleted_items_are_not_given_again(
    address: str, tmp_path: Path, flowhash: Command, metric: str
) -> None:
    with create_engine(address, buckets=5, dim=2, active=2, metric=metric) as engine:
        engine.add([[0, 1]] * 6, np.ones((6, 2)))
        engine.delete([4, 5])
    assert flowhash("copy", address, tmp_path / "back.table", "-q").code == 0
    assert flowhash("table", "check", tmp_path / "back.table").code == 0
    with HashTable.open(tmp_path / "back.table", "r+") as table:
        assert (sorted(table), table.next_id) == ([0, 1, 2, 3], 6)
        assert table.add([[0, 1]], np.ones((1, 2))).tolist() == [6]


@pytest.mark.parametrize("metric", ["cosine", "inner"])
def test_copies_of_other_tables(
    postgres_address: str, metric: str, tmp_path: Path, flowhash: Command
) -> None:
    random = np.random.default_rng(8)
    table = HashTable.create(
        tmp_path / "x", buckets=6, dim=3, active=2, metric=metric, dtype="float16", ids="string"
    )
    codes = np.argsort(random.random((90, 6)), axis=1)[:, :2]
    payloads = [None if row % 3 else {"n": row, "text": "é"} for row in range(90)]
    with table:
        table.add(codes, random.normal(size=(90, 3)), [f"é/{row}" for row in range(90)], payloads)
        table.delete(["é/4"])
    assert flowhash("copy", tmp_path / "x", postgres_address, "-q").code == 0
    assert flowhash("table", "check", postgres_address).code == 0
    assert flowhash("copy", postgres_address, tmp_path / "y", "-q").code == 0
    with HashTable.open(tmp_path / "x") as ours, HashTable.open(tmp_path / "y") as copied:
        assert sorted(copied) == sorted(ours)
        assert all(copied[item].payload == ours[item].payload for item in ours)


def test_tables_at_addresses(
    vectors: Path, address: str, postgres: Postgres, flowhash: Command
) -> None:
    assert flowhash("copy", vectors / "x.table", address, "-q").code == 0
    theirs = flowhash("table", "stats", address, "--json").facts
    ours = flowhash("table", "stats", vectors / "x.table", "--json").facts
    for name in ("items", "buckets", "active", "dim", "metric", "dtype", "ids", "encoder",
                 "load_p50", "load_max", "empty", "expected_suf"):  # fmt: skip
        assert theirs[name] == ours[name], name
    assert str(ITEMS) in flowhash("table", "stats", address).out
    clean = flowhash("table", "check", address)
    assert (clean.code, "clean" in clean.out) == (0, True)
    flowhash("table", "compact", address).mistake("folder")
    if not address.startswith("postgresql"):
        return
    name = table_of(address)
    # The row in an item's last bucket, then that in its first, which stands for the item.
    for order, said in (("DESC", "items name it"), ("ASC", "items were read")):
        (row,) = postgres.sql(
            f'SELECT bucket, id FROM "{name}" ORDER BY id, bucket {order} LIMIT 1'
        )
        postgres.sql(f'DELETE FROM "{name}" WHERE bucket = %s AND id = %s', row)
        broken = flowhash("table", "check", address)
        assert broken.code == 1
        assert said in broken.out


def test_mistakes_are_one_line(
    vectors: Path, own_server: Server, flowhash: Command, tmp_path: Path
) -> None:
    encoder, items = vectors / "encoder", vectors / "items.npz"
    good = own_server.guarded(table="mistakes")
    flowhash("index", encoder, items).mistake("--out", "--to")
    flowhash("index", encoder, items, "--out", tmp_path / "x", "--to", good).mistake("give one")
    flowhash("index", encoder, items, "--to", "pets.table").mistake("expected an address")
    flowhash("index", encoder, items, "--out", good).mistake("--to")
    flowhash("index", encoder, items, "--out", tmp_path / "x", "--distribute").mistake("Citus")
    flowhash("index", encoder, items, "--to", good, "--distribute").mistake("no Citus")
    flowhash("copy", vectors / "x.table", "qdrant://h/x", "--distribute").mistake("PostgreSQL")
    flowhash("copy", vectors / "x.table", tmp_path / "y").mistake("both folders", "cp -r")
    flowhash("copy", good, "qdrant://h/x").mistake("both addresses", "Copy to a folder, then from")
    flowhash("copy", good, tmp_path / "y", "--restart").mistake("--restart")
    flowhash("copy", good, tmp_path / "y").mistake("flowhash copy")
    flowhash("search", "mysql://me:staple@host/db", "id:1").mistake("postgresql://", "qdrant://")
    for wrong, word in (
        (own_server.guarded("staple", table="x"), "password authentication failed"),
        (own_server.guarded(database="nowhere"), '"nowhere" does not exist'),
        ("postgresql://me:staple@127.0.0.1:1/db", "see that the server runs"),
    ):
        for command in (("search", wrong, "id:1"), ("table", "stats", wrong), ("serve", wrong),
                        ("copy", vectors / "x.table", wrong), ("table", "check", wrong),
                        ("index", encoder, items, "--to", wrong)):  # fmt: skip
            flowhash(*command).mistake(word)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "place", "extra"),
    [("psycopg", "postgresql://h/db", "postgres"), ("qdrant_client", "qdrant://h/x", "qdrant")],
)
def test_without_its_extra(
    module: str, place: str, extra: str, flowhash: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    flowhash("search", place, "id:1").mistake(f"flowhash[{extra}]")


def test_an_address_in_a_file(
    vectors: Path, own_server: Server, tmp_path: Path, flowhash: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    place = own_server.guarded(table="of_a_file")
    secret = hidden(place)
    config = tmp_path / "flowhash.toml"
    config.write_text(f'[index]\nto = "{secret}"\n\n[search]\ntable = "{secret}"\ntop = 1\n')
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    start = ("index", vectors / "encoder", vectors / "plain.npy", "--config", config)
    assert flowhash(*start, "--json", "-q").facts["table"] == secret
    words = ("search", secret, "id:3", "--config", config, "--json")
    assert len(flowhash(*words).facts["answers"][0]["hits"]) == 1
    # The command line wins over a file: the settings of a folder's table run for an address too.
    settings = vectors / "x.table" / "index.toml"
    other = own_server.guarded(table="of_settings")
    facts = flowhash("index", "--config", settings, "--to", other, "--json", "-q").facts
    assert facts["items"] == ITEMS
    noted = sql(own_server.address(), "SELECT notes::text FROM flowhash_tables")
    assert len(noted) >= 2
    assert all("staple" not in str(row) and "postgresql" not in str(row) for row in noted)


def test_an_unfinished_copy_is_not_used(
    vectors: Path, own_server: Server, flowhash: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost in the middle: the server is killed after the first piece."""
    loading = importlib.import_module("flowhash.engines.postgres.table_load")
    place = own_server.guarded(table="unfinished")
    monkeypatch.setattr("flowhash.engines.postgres.row_stream.ROWS", 100)
    original, killed = loading.PostgresLoading.parts, []

    def killing(self: Any) -> Iterator[Any]:
        for part in original(self):
            if not killed:
                killed.append(part)
                own_server.kill()
            yield part

    monkeypatch.setattr(loading.PostgresLoading, "parts", killing)
    start = ("copy", vectors / "x.table", place, "-q")
    try:
        flowhash(*start).mistake(f" of {ITEMS} items are stored, the same command goes on")
    finally:
        own_server.start()
    flowhash("search", place, "id:1").mistake("unfinished copy")
    flowhash("table", "stats", place).mistake("unfinished copy")
    words = ("index", vectors / "encoder", vectors / "items.npz", "--to", place)
    flowhash(*words).mistake("unfinished copy")
    with HashTable.create(buckets=8, dim=3, active=2) as other, pytest.raises(InputError):
        copy(other, place)
    facts = flowhash(*start, "--json").facts
    assert facts["items"] == ITEMS
    assert 0 < facts["before"] < ITEMS
    assert names_in(place) == rows()
    assert flowhash("table", "check", place).code == 0


def test_a_server_lost_while_indexing(
    vectors: Path, own_server: Server, flowhash: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = own_server.guarded(table="lost")
    original, batches = IndexRun._add, list[Any]()

    def killing(self: IndexRun, places: Any, device: str) -> None:
        if len(batches) == 2:
            own_server.kill()
        batches.append(places)
        original(self, places, device)

    monkeypatch.setattr(IndexRun, "_add", killing)
    start = ("index", vectors / "encoder", vectors / "items.npz", "--to", place, "--batch", 100)
    try:
        flowhash(*start, "-q").mistake("at least 200 of 300 items are stored, the same command")
    finally:
        own_server.start()
    assert len(names_in(place)) == 200
    said = flowhash(*start)
    assert "going on after 200" in said.out
    assert names_in(place) == rows()


@pytest.mark.parametrize("how", ["lost", "stopped"])
def test_what_is_stored_in_the_middle_of_a_batch(
    vectors: Path, own_server: Server, flowhash: Command, how: str
) -> None:
    """It is noted with the items, and the user hears of it."""
    place = own_server.guarded(table=f"middle_{how}")
    original, added = IndexRun._add, list[Any]()

    def ending(self: IndexRun, places: Any, device: str) -> Any:
        if len(added) == 3 and how == "stopped":
            raise KeyboardInterrupt
        if len(added) == 3:
            own_server.kill()
        added.append(places)
        return original(self, places, device)

    start = ("index", vectors / "encoder", vectors / "items.npz", "--to", place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flowhash.indexing.index_run.AT_ONCE", 50)
        patch.setattr(IndexRun, "_add", ending)
        try:
            said = flowhash(*start, "-q")
        finally:
            if how == "lost":
                own_server.start()
    if how == "lost":
        said.mistake("at least 150 of 300 items are stored, the same command goes on")
    else:
        said.mistake("150 of 300 items are in", "the same command goes on", code=130)
    assert len(names_in(place)) == 150
    assert "going on after 150" in flowhash(*start).out
    assert names_in(place) == rows()


def stopped(words: list[str], begun: Any) -> str:
    """Press Ctrl-C in a process of its own once ``begun`` says so; what it says."""
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    while process.poll() is None and not begun():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert said.count("\n") == 1, said
    return said


def test_an_interrupt_leaves_what_goes_on(
    vectors: Path, postgres: Postgres, postgres_address: str, tmp_path: Path, flowhash: Command
) -> None:
    values = np.random.default_rng(1).normal(size=(6000, DIM)).astype(np.float32)
    np.save(tmp_path / "many.npy", values)
    name = table_of(postgres_address)
    start = ["index", str(vectors / "encoder"), str(tmp_path / "many.npy"), "--to",
             postgres_address]  # fmt: skip

    def begun() -> bool:
        if not postgres.sql("SELECT to_regclass('flowhash_tables') IS NOT NULL")[0][0]:
            return False
        items = postgres.sql("SELECT items FROM flowhash_tables WHERE name = %s", [name])
        return bool(items) and items[0][0] >= 50

    said = stopped([COMMAND, *start, "--batch", "10"], begun)
    assert "the same command goes on" in said
    assert 50 <= len(names_in(postgres_address)) < 6000
    done = flowhash(*start)
    assert "going on after" in done.out
    assert names_in(postgres_address) == rows(6000, "many.npy")


def test_an_interrupted_copy_goes_on(
    postgres: Postgres, postgres_address: str, tmp_path: Path, flowhash: Command
) -> None:
    random = np.random.default_rng(2)
    count, name = 300_000, table_of(postgres_address)
    with HashTable.create(tmp_path / "x", buckets=64, dim=4) as table:
        table.add(random.integers(0, 64, (count, 1)), random.normal(size=(count, 4)))

    def begun() -> bool:
        if not postgres.sql("SELECT to_regclass('flowhash_tables') IS NOT NULL")[0][0]:
            return False
        found = postgres.sql(
            "SELECT (progress ->> 'rows')::bigint FROM flowhash_tables WHERE name = %s", [name]
        )
        return bool(found) and found[0][0] is not None and found[0][0] > 0

    words = ["copy", str(tmp_path / "x"), postgres_address]
    said = stopped([COMMAND, *words, "--quiet"], begun)
    assert "the same command goes on" in said
    facts = flowhash(*words, "--json", "-q").facts
    assert facts["items"] == count
    assert 0 < facts["before"] < count
    assert flowhash("table", "check", postgres_address, "-q").code == 0


def test_encoders_use_any_engine(address: str) -> None:
    encoder = make("mlp")
    values = np.random.default_rng(3).normal(size=(50, DIM)).astype(np.float32)
    ours = encoder.create_table()
    encoder.add(ours, values)
    with encoder.create_table(address) as engine:
        encoder.add(engine, values, batch_size=20)
        hits, expected = (encoder.search(table, values[:9], 4) for table in (engine, ours))
        np.testing.assert_array_equal(hits.ids, expected.ids)
        np.testing.assert_allclose(hits.distances, expected.distances, rtol=1e-5, atol=1e-7)
        with pytest.raises(InputError, match="encoder"):
            make("mlp", seed=6).search(engine, values[:1])


def test_the_start_imports_no_driver() -> None:
    code = (
        "import sys\n"
        "from flowhash.cli.app import _code\n"
        "_code(['copy', '--help'])\n"
        "heavy = {'numba', 'torch', 'psycopg', 'psycopg_pool', 'qdrant_client', 'ray'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
    assert "postgresql://" in done.stdout
