"""New codes for every item, in one step: as if the items had been added to a new table with them.

Writers that are killed meanwhile are in test_kill.py, disks that are full in test_disk_full.py, and
sequences with other changes in test_machine.py.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flowhash.errors import DamagedFileError, InputError, StorageError
from flowhash.table import HashTable, changes
from flowhash.table.integrity import folder_faults
from flowhash.table.storage import manifest, segment_file
from flowhash.table.storage.table_folder import TableFolder
from tests.table.oracles import contents

BUCKETS, DIM, QUERIES = 9, 5, 25
numbers = itertools.count()


def codes_by(seed: int, buckets: int, active: int) -> Callable[[Any], Any]:
    """A function that makes codes of embeddings, each by its bits alone."""
    orders = np.random.default_rng(seed).permuted(np.tile(np.arange(buckets), (97, 1)), axis=1)

    def codes_of(embeddings: Any) -> Any:
        bits = embeddings.view(np.uint32).astype(np.int64)
        return orders[bits.sum(axis=1) % 97, :active].astype(np.int32)

    return codes_of


def filled(path: Path | None, sizes: list[int], seed: int = 0, **choices: Any) -> HashTable:
    """A table of segments of these sizes, with payloads; every fifth item is deleted."""
    rng = np.random.default_rng(seed)
    choices = {"buckets": BUCKETS, "dim": DIM, "encoder": "old", **choices}
    table = HashTable.create(path, **choices)
    first = 10
    for size in sizes:
        vectors = rng.integers(-30, 31, size=(size, table.dim)) / 7 + 0.01
        ids = [str(one) if table.id_kind == "string" else one for one in range(first, first + size)]
        payloads = [{"row": one} if one % 3 else None for one in range(first, first + size)]
        codes = codes_by(seed, table.buckets, table.active)(vectors.astype(np.float32))
        table.add(codes, vectors, ids, payloads)
        first += size
    table.delete([one for one in table if int(one) % 5 == 0])
    return table


def added_anew(table: HashTable, path: Path | None, codes_of: Callable[[Any], Any]) -> HashTable:
    """The oracle: a new table to which the same items are added with the new codes."""
    new = HashTable.create(
        path, buckets=table.buckets, dim=table.dim, active=table.active, metric=table.metric,
        dtype=table.dtype, ids=table.id_kind, encoder="new",
    )  # fmt: skip
    items = [table[one] for one in table]
    if items:
        vectors = np.stack([item.embedding for item in items])
        ids = [item.id for item in items]
        new.add(codes_of(vectors), vectors, ids, [item.payload for item in items])
    return new


def assert_same_answers(table: HashTable, expected: HashTable, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    queries = (rng.integers(-30, 31, size=(QUERIES, table.dim)) / 7).astype(np.float32)
    order = np.argsort(rng.random((QUERIES, table.buckets)), axis=1).astype(np.int32)
    options: list[dict[str, Any]] = [{}, {"probe": table.buckets}, {"at_least": 7}]
    for some, option in itertools.product((slice(None), slice(3, 4)), options):
        asked = (order[some], queries[some], 6)
        found = table.search(*asked, payloads=True, buckets=True, encoder="new", **option)
        wanted = expected.search(*asked, payloads=True, buckets=True, **option)
        for name in ("ids", "distances", "counts", "scanned", "opened", "buckets"):
            assert np.array_equal(getattr(found, name), getattr(wanted, name)), (name, option)
        assert found.payloads == wanted.payloads


def assert_recoded(table: HashTable, expected: HashTable) -> None:
    """That a table is as one to which its items were added anew."""
    assert table.encoder == "new"
    assert contents(table) == contents(expected)
    assert table.bucket_loads().tolist() == expected.bucket_loads().tolist()
    assert repr(table.stats()) == repr(expected.stats())  # where NaN is NaN
    assert table.check() == []
    assert_same_answers(table, expected)


def place(tmp_path: Path, where: str) -> Path | None:
    return None if where == "memory" else tmp_path / f"table {next(numbers)}"


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("ids", ["int64", "string"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner"])
@pytest.mark.parametrize("active", [1, 2, 3])
def test_it_is_a_new_table_with_the_same_items(
    tmp_path: Path, active: int, metric: str, dtype: str, ids: str, where: str
) -> None:
    path = place(tmp_path, where)
    table = filled(path, [40, 7, 25], active=active, metric=metric, dtype=dtype, ids=ids)
    codes_of = codes_by(1, BUCKETS, active)
    expected = added_anew(table, place(tmp_path, where), codes_of)
    table.search([list(range(BUCKETS))], [[1.0] * DIM])  # what is kept for searches is renewed, too
    table.stats()
    next_id = table.next_id
    table.recode(codes_of, "new")
    assert_recoded(table, expected)
    assert table.next_id == next_id
    if path is not None:
        table.close()
        assert table.encoder == "new"
        assert folder_faults(path) == []
        with HashTable.open(path, encoder="new") as again:
            assert_recoded(again, expected)


@given(
    sizes=st.lists(st.integers(1, 30), max_size=5),
    buckets=st.integers(1, 12),
    active=st.integers(1, 4),
    dim=st.integers(1, 9),
    rows=st.integers(1, 40),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(
    sizes: list[int], buckets: int, active: int, dim: int, rows: int, seed: int
) -> None:
    active = min(active, buckets)
    table = filled(None, sizes, seed, buckets=buckets, active=active, dim=dim)
    codes_of = codes_by(seed + 1, buckets, active)
    expected = added_anew(table, None, codes_of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "RECODED_BYTES", rows * dim * 4)
        table.recode(codes_of, "new")
    assert_recoded(table, expected)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_live_embedding_is_asked_for_once_in_blocks(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    table = filled(None, [40, 7, 25], dtype=dtype)
    monkeypatch.setattr(changes, "RECODED_BYTES", 10 * DIM * 4)
    blocks: list[Any] = []

    def codes_of(embeddings: Any) -> Any:
        blocks.append(embeddings.copy())
        embeddings.fill(0)  # they are its own
        return np.full((len(embeddings), 1), 3)

    table.recode(lambda some: np.full((len(some), 1), 5), None)
    table.delete(list(table)[10:25])  # the rows of a whole block
    expected = sorted(table[one].embedding.tobytes() for one in table)
    table.recode(codes_of, None)
    assert all(block.dtype == np.float32 and 0 < len(block) <= 10 for block in blocks)
    assert sorted(row.tobytes() for block in blocks for row in block) == expected
    assert sorted(table[one].embedding.tobytes() for one in table) == expected
    assert len(table.bucket(3)) == len(table)
    assert table.encoder is None


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("sizes", [[], [1]])
def test_an_empty_table_only_gets_the_encoder(tmp_path: Path, where: str, sizes: list[int]) -> None:
    path = place(tmp_path, where)
    table = filled(path, sizes)  # whose only item is deleted
    reader = None if path is None else HashTable.open(path)
    table.recode(lambda _: pytest.fail("there are no items"), "new")
    assert (table.encoder, len(table), table.next_id) == ("new", 0, 11 if sizes else 0)
    table.add([[1]], [[1.0] * DIM], encoder="new")
    assert len(table.bucket(1)) == 1
    if reader is not None:
        assert reader.encoder == "old"
        assert reader.refresh()
        assert (reader.encoder, len(reader)) == ("new", 1)


def test_as_many_segments_as_compact_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "LARGEST_SEGMENT", 40)
    table, other = filled(tmp_path / "one", [30, 20, 20, 20]), filled(None, [30, 20, 20, 20])
    other.compact()
    codes_of = codes_by(1, BUCKETS, 1)
    expected = added_anew(table, None, codes_of)
    generation = table._folder.manifest.generation  # type: ignore[union-attr]
    table.recode(codes_of, "new")
    assert table.stats().segments == other.stats().segments == 3
    assert table._folder.manifest.generation == generation + 1  # type: ignore[union-attr]
    assert contents(table) == contents(expected)
    assert_same_answers(table, expected)


def test_memory_is_for_blocks_not_for_all_embeddings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    rows, dim = 20_000, 100
    table = HashTable.create(tmp_path, buckets=BUCKETS, dim=dim)
    for part in np.array_split(rng.normal(size=(rows, dim)).astype(np.float32), 4):
        table.add(np.zeros((len(part), 1), np.int32), part)
    codes_of = codes_by(1, BUCKETS, 1)
    table.recode(codes_of, "compiled")
    monkeypatch.setattr(changes, "RECODED_BYTES", 1 << 16)
    monkeypatch.setattr(segment_file, "PIECE_BYTES", 1 << 16)
    tracemalloc.start()
    try:
        table.recode(codes_of, "new")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < rows * dim * 4 / 2


def test_notes_are_merged_in_the_same_step(tmp_path: Path) -> None:
    for path in (None, tmp_path):
        table = filled(path, [6])
        table.note("kept", 1)
        table.note("gone", 2)
        before = table.version
        for wrong in ({"new": object()}, {3: 4}):
            with pytest.raises(InputError, match="note"):
                table.recode(lambda _: pytest.fail("too late"), "new", wrong)
        assert (table.encoder, table.version) == ("old", before)
        table.recode(codes_by(1, BUCKETS, 1), "new", {"gone": None, "run": [3]})
        assert table.notes() == {"kept": 1, "run": [3]}
        table.recode(codes_by(2, BUCKETS, 1), "newer")
        assert table.notes() == {"kept": 1, "run": [3]}
    with HashTable.open(tmp_path) as reader:
        assert (reader.encoder, reader.notes()) == ("newer", {"kept": 1, "run": [3]})


def test_only_encoder_segments_and_counters_of_the_manifest_change(tmp_path: Path) -> None:
    table = filled(tmp_path, [6, 6])
    before = json.loads((tmp_path / "manifest.json").read_text())
    table.recode(codes_by(1, BUCKETS, 1), "new")
    after = json.loads((tmp_path / "manifest.json").read_text())
    assert after["settings"] == {**before["settings"], "encoder": "new"}
    counters = {"settings", "segments", "generation", "next_file", "crc32"}
    assert {name for name in before if before[name] != after[name]} == counters
    assert before.keys() == after.keys()
    files = {segment["file"] for segment in after["segments"]}
    assert {file.name for file in tmp_path.iterdir()} == {*files, "manifest.json", "writer.lock"}


WRONG = [
    lambda n: np.zeros((n, 0), np.int32),
    lambda n: np.zeros((n, 3), np.int32),
    lambda n: np.zeros((n - 1, 2), np.int32),
    lambda n: np.zeros((n, 2, 1), np.int32),
    lambda n: np.tile([0.0, 1.0], (n, 1)),
    lambda n: np.tile([0, BUCKETS], (n, 1)),
    lambda n: np.tile([-1, 0], (n, 1)),
    lambda n: np.tile([4, 4], (n, 1)),
    lambda n: np.tile([0, 1 << 32], (n, 1)),
    lambda n: [["a", "b"]] * n,
    lambda n: np.empty((0, 2), np.int32),
    lambda n: None,
]  # fmt: skip


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("wrong", range(len(WRONG)))
def test_wrong_codes_are_refused_as_add_refuses_them(
    tmp_path: Path, wrong: int, where: str
) -> None:
    table = filled(place(tmp_path, where), [12, 9], active=2)
    before = contents(table)
    asked = []

    def codes_of(embeddings: Any) -> Any:
        asked.append(embeddings)
        return WRONG[wrong](len(embeddings))

    with pytest.raises(InputError) as recoded:
        table.recode(codes_of, "new")
    with pytest.raises(InputError) as added:
        table.add(WRONG[wrong](len(asked[0])), asked[0])
    assert str(recoded.value) == f"what codes_of gave cannot be used: {added.value}"
    assert (contents(table), table.encoder) == (before, "old")


@pytest.mark.parametrize("wrong", [3, b"new", object()])
def test_a_fingerprint_is_a_string(wrong: Any) -> None:
    table = filled(None, [6])
    with pytest.raises(InputError, match=r"encoder is .*; expected its fingerprint"):
        table.recode(lambda _: pytest.fail("too late"), wrong)
    assert table.encoder == "old"


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, InputError])
def test_a_failure_of_the_encoder_leaves_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: type[BaseException]
) -> None:
    path = place(tmp_path, where)
    table = filled(path, [20, 20])
    table.note("kept", 1)
    monkeypatch.setattr(changes, "LARGEST_SEGMENT", 20)  # so that a segment is written before
    monkeypatch.setattr(changes, "RECODED_BYTES", 15 * DIM * 4)
    before = (contents(table), table.encoder, table.version, table.notes(), table.next_id)
    files = {} if path is None else {one.name: one.read_bytes() for one in path.iterdir()}
    for good in range(4):
        calls = itertools.count()

        def codes_of(embeddings: Any, good: int = good, calls: Any = calls) -> Any:
            if next(calls) == good:
                raise error("on purpose")
            return np.zeros((len(embeddings), 1), np.int32)

        with pytest.raises(error, match=r"^on purpose$"):
            table.recode(codes_of, "new", {"kept": 2})
        after = (contents(table), table.encoder, table.version, table.notes(), table.next_id)
        assert after == before
        if path is not None:
            assert {one.name: one.read_bytes() for one in path.iterdir()} == files
    table.recode(codes_by(1, BUCKETS, 1), "new")  # goes on from there
    assert table.check() == []
    assert table.encoder == "new"


def test_only_a_writer_may() -> None:
    table = filled(None, [6])
    table.close()
    with pytest.raises(StorageError, match="closed"):
        table.recode(lambda _: pytest.fail("too late"), "new")


def test_a_reader_may_not(tmp_path: Path) -> None:
    filled(tmp_path, [6]).close()
    with (
        HashTable.open(tmp_path) as reader,
        pytest.raises(StorageError, match="searched only"),
    ):
        reader.recode(lambda _: pytest.fail("too late"), "new")


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("what", ["add", "note", "recode", "close"])
def test_an_encoder_that_changes_the_table_is_refused(
    tmp_path: Path, where: str, what: str
) -> None:
    path = place(tmp_path, where)
    table = filled(path, [6])
    deeds: dict[str, Callable[[], Any]] = {
        "add": lambda: table.add([[1]], [[1.0] * DIM], [77]),
        "note": lambda: table.note("mine", 1),
        "recode": lambda: table.recode(codes_by(2, BUCKETS, 1), "inner"),
        "close": table.close,
    }

    def codes_of(embeddings: Any) -> Any:
        deeds[what]()
        return np.zeros((len(embeddings), 1), np.int32)

    with pytest.raises(InputError, match="codes_of changed or closed the table"):
        table.recode(codes_of, "new", {"other": 2})
    if what == "close":
        assert path is None or folder_faults(path) == []
        return
    if path is not None:
        table.close()
        table = HashTable.open(path, "r+")
    assert table.encoder == ("inner" if what == "recode" else "old")
    assert (77 in table) == (what == "add")
    assert table.notes() == ({"mine": 1} if what == "note" else {})
    assert table.check() == []


def test_searches_go_on_meanwhile_with_the_old_codes(tmp_path: Path) -> None:
    table = filled(tmp_path, [20, 20])
    reader = HashTable.open(tmp_path)
    before = contents(table)
    seen = []

    def codes_of(embeddings: Any) -> Any:
        def look() -> None:
            assert not reader.refresh()
            for one in (table, reader):
                hits = one.search([range(BUCKETS)], [[1.0] * DIM], probe=BUCKETS, encoder="old")
                seen.append((contents(one) == before, one.encoder, hits.counts[0] == 16))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return np.zeros((len(embeddings), 1), np.int32)

    table.recode(codes_of, "new")
    assert seen == [(True, "old", True)] * 4


def test_a_reader_takes_codes_and_encoder_together(tmp_path: Path) -> None:
    table = filled(tmp_path, [20, 20])
    reader = HashTable.open(tmp_path, encoder="old")
    before = contents(reader)
    codes_of = codes_by(1, BUCKETS, 1)
    expected = added_anew(table, None, codes_of)
    asked: Any = ([list(range(BUCKETS))], [[1.0] * DIM])
    table.recode(codes_by(2, BUCKETS, 1), "between")
    table.recode(codes_of, "new")
    assert (contents(reader), reader.encoder) == (before, "old")
    reader.search(*asked, encoder="old")
    with pytest.raises(InputError, match="made with encoder 'old', not 'new'"):
        reader.search(*asked, encoder="new")
    assert reader.refresh()
    assert not reader.refresh()
    with pytest.raises(InputError, match="made with encoder 'new', not 'old'"):
        reader.search(*asked, encoder="old")
    assert reader.encoder == "new"
    assert contents(reader) == contents(expected)
    assert_same_answers(reader, expected)
    with pytest.raises(InputError, match="made with encoder 'new', not 'old'"):
        HashTable.open(tmp_path, encoder="old")
    table.delete([11])
    assert reader.refresh()
    assert (reader.encoder, 11 in reader) == ("new", False)


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_opened_while_it_gets_new_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The manifest that was read first names files and an encoder that are gone by now."""
    filled(tmp_path, [20]).close()
    load = TableFolder.load

    def late(self: TableFolder, *known: Any) -> Any:
        monkeypatch.setattr(TableFolder, "load", load)
        if self.writable:
            return load(self, *known)
        with HashTable.open(tmp_path, "r+") as table:
            table.recode(codes_by(1, BUCKETS, 1), "new")
        return load(self, *known)

    monkeypatch.setattr(TableFolder, "load", late)
    encoder = "new" if mode == "r" else "old"
    with HashTable.open(tmp_path, mode, encoder=encoder) as opened:
        assert opened.encoder == opened._settings.encoder == encoder


@pytest.mark.parametrize(
    "other", [{"metric": "inner"}, {"dtype": "float16"}, {"identity": "other"}, {"dim": 6}]
)
def test_a_table_that_differs_in_more_is_another(tmp_path: Path, other: dict[str, Any]) -> None:
    filled(tmp_path, [6]).close()
    reader = HashTable.open(tmp_path)
    known = manifest.read_manifest(tmp_path)
    fields = {**known.settings.__dict__, "encoder": "new", **other}
    identity = fields.pop("identity", known.identity)
    changed = manifest.Manifest(type(known.settings)(**fields), identity, known.generation + 1)
    (tmp_path / "manifest.json").write_bytes(manifest.dump(changed))
    with pytest.raises(StorageError, match="is another table by now"):
        reader.refresh()
    assert (reader.encoder, len(reader)) == ("old", 4)


def test_segments_of_the_old_encoder_are_not_adopted_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path / "table", [6])
    filled(tmp_path / "old", [9]).close()
    filled(tmp_path / "new", [9], encoder="new").close()
    table.recode(codes_by(1, BUCKETS, 1), "new")
    with pytest.raises(InputError, match="other settings"):
        table.adopt([tmp_path / "old"])
    assert table.adopt([tmp_path / "new"]) == 7
    assert (table.encoder, len(table)) == ("new", 7)
    assert HashTable.open(tmp_path / "table").encoder == "new"

    # One that gets new codes after its manifest was read is of another encoder, too.
    load = TableFolder.load

    def late(self: TableFolder, *known: Any) -> Any:
        monkeypatch.setattr(TableFolder, "load", load)
        with HashTable.open(tmp_path / "new", "r+") as other:
            other.recode(codes_by(2, BUCKETS, 1), "newer")
        return load(self, *known)

    monkeypatch.setattr(TableFolder, "load", late)
    with pytest.raises(InputError, match="other settings"):
        table.adopt([tmp_path / "new"])


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_every_later_change_keeps_the_encoder(tmp_path: Path, where: str) -> None:
    path = place(tmp_path, where)
    table = filled(path, [6])
    table.recode(codes_by(1, BUCKETS, 1), "new")
    for number in range(9):  # the eighth merges
        table.add([[number]], [[1.0] * DIM], encoder="new")
    table.delete([12, 13])
    table.note("a", 1)
    table.compact()
    assert table.encoder == "new"
    with pytest.raises(InputError, match="made with encoder 'new', not 'old'"):
        table.add([[0]], [[1.0] * DIM], encoder="old")
    if path is not None:
        assert HashTable.open(path).encoder == "new"


def test_an_add_that_waited_for_new_codes_is_of_the_old_encoder() -> None:
    table = filled(None, [6])
    answers: list[Any] = []

    def add() -> None:
        try:
            answers.append(table.add([[0]], [[1.0] * DIM], encoder="old"))
        except InputError as error:
            answers.append(error)

    thread = threading.Thread(target=add)

    def codes_of(embeddings: Any) -> Any:
        thread.start()
        time.sleep(0.1)  # until it waits for the table
        return np.zeros((len(embeddings), 1), np.int32)

    table.recode(codes_of, "new")
    thread.join()
    assert "made with encoder 'new', not 'old'" in str(answers)
    assert len(table) == 4


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_no_search_finds_codes_of_another_encoder(tmp_path: Path, where: str) -> None:
    """All items are in bucket 0 for one encoder, and in bucket 1 for the other."""
    path = place(tmp_path, where)
    table = filled(path, [20, 20], buckets=2, encoder=None)
    table.recode(lambda some: np.zeros((len(some), 1), np.int32), "0")
    searched = table if path is None else HashTable.open(path)
    over = threading.Event()
    counts: list[int] = []
    refused = [0]
    refreshed: list[bool] = []

    def search(number: int) -> None:
        asked: Any = ([[number]], [[1.0] * DIM], 50)
        while not over.is_set():
            try:
                hits = searched.search(*asked, encoder=str(number), buckets=True)
            except InputError:
                refused[0] += 1
                continue
            counts.append(int(hits.counts[0]))

    def refresh() -> None:
        while not over.is_set():
            refreshed.append(searched.refresh())

    work = [threading.Thread(target=search, args=(number % 2,)) for number in range(4)]
    work.append(threading.Thread(target=refresh))
    for thread in work:
        thread.start()
    for turn in range(20):
        bucket = (turn + 1) % 2
        table.recode(lambda some, to=bucket: np.full((len(some), 1), to, np.int32), str(bucket))
    over.set()
    for thread in work:
        thread.join()
    assert set(counts) == {32}
    assert refused[0]
    assert any(refreshed) == (path is not None)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_what_was_compared_with_the_query_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """New codes come between the look at the encoder and the search."""
    from flowhash.table import hash_table

    path = place(tmp_path, where)
    table = filled(path, [20, 20], buckets=2)
    table.recode(lambda some: np.zeros((len(some), 1), np.int32), "0")
    searched = table if path is None else HashTable.open(path)
    check = hash_table.check_vectors

    def late(*given: Any) -> None:
        monkeypatch.setattr(hash_table, "check_vectors", check)
        check(*given)
        table.recode(lambda some: np.ones((len(some), 1), np.int32), "1")
        searched.refresh()

    monkeypatch.setattr(hash_table, "check_vectors", late)
    hits = searched.search([[0]], [[1.0] * DIM], 50, encoder="0")
    assert hits.counts.tolist() == [32]
    assert searched.encoder == "1"
    assert searched.search([[1]], [[1.0] * DIM], 50, encoder="1").counts.tolist() == [32]


def damage(folder: Path, array: str) -> None:
    """Change a byte in the middle of an array of the only segment."""
    (file,) = folder.glob("segment-*")
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    first, last = header[array]["data_offsets"]
    content[start + (first + last) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_embedding_is_named_and_nothing_changes(tmp_path: Path) -> None:
    filled(tmp_path, [400], active=2).close()
    damage(tmp_path, "highs")
    files = sorted(one.name for one in tmp_path.iterdir())
    with HashTable.open(tmp_path, "r+") as table:
        with pytest.raises(DamagedFileError, match="highs"):
            table.recode(lambda _: pytest.fail("it is damaged"), "new")
        assert table.encoder == "old"
    assert sorted(one.name for one in tmp_path.iterdir()) == files


def test_damaged_codes_are_replaced(tmp_path: Path) -> None:
    filled(tmp_path, [1000], active=2).close()
    damage(tmp_path, "codes")
    with HashTable.open(tmp_path, "r+") as table:
        assert "codes" in " ".join(table.check())
        table.recode(codes_by(1, BUCKETS, 2), "new")
        assert table.check() == []
        assert len(table) == 800
