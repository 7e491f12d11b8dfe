"""The table's face: what it says of itself, how it is changed, opened, closed and refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from flowhash.errors import DamagedFileError, InputError, LockedTableError, StorageError
from flowhash.table import HashTable, arguments, ids as ids_module
from flowhash.table.segments.segment_draft import SegmentDraft
from flowhash.table.storage import segment_file as mapped
from tests.table.oracles import Model, brute_force, contents, differences, model_contents, put


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "table"


@pytest.fixture
def table(place: Path | None) -> Iterator[HashTable]:
    """Three items in five buckets, two each."""
    with HashTable.create(place, buckets=5, dim=2, active=2) as made:
        made.add(
            [[0, 1], [4, 1], [2, 3]],
            [[0, 0], [1, 0], [0, 2]],
            ids=[10, -7, 30],
            payloads=[{"name": "ten"}, None, {"list": [1, 2.5, "x", None, True]}],
        )
        yield made


def test_create_says_what_it_made(place: Path | None) -> None:
    table = HashTable.create(
        place, buckets=7, dim=3, active=2, metric="cosine", dtype="float16", ids="string",
        encoder="abc",
    )  # fmt: skip
    assert (table.buckets, table.dim, table.active) == (7, 3, 2)
    assert (table.metric, table.dtype, table.id_kind) == ("cosine", "float16", "string")
    assert table.encoder == "abc"
    assert table.path == place
    assert table.writable
    assert len(table) == 0
    assert list(table) == []
    assert table.check() == []
    where = "in memory" if place is None else f"at {place}"
    assert repr(table) == (
        f"<HashTable {where}: 0 items, buckets=7, dim=3, active=2, metric='cosine'>"
    )
    table.close()
    table.close()
    assert repr(table) == f"<HashTable {where}, closed>"
    assert not table.writable


def test_numbers_of_numpy_are_numbers() -> None:
    table = HashTable.create(buckets=np.int64(4), dim=np.uint8(2), active=np.int32(2))
    assert (table.buckets, table.dim, table.active) == (4, 2, 2)
    assert type(table.buckets) is int


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"buckets": 0}, "buckets is 0; expected a whole number from 1"),
        ({"buckets": 2.0}, r"buckets is 2\.0; expected a whole number"),
        ({"buckets": True}, "buckets is True; expected a whole number"),
        ({"buckets": "5"}, "buckets is '5'; expected a whole number"),
        ({"dim": -1}, "dim is -1; expected a whole number"),
        ({"dim": 2**21}, "dim is 2097152; expected a whole number from 1 to"),
        ({"active": 6}, "active is 6; expected a whole number from 1 to 5"),
        ({"active": 0}, "active is 0; expected"),
        ({"metric": "l2"}, "metric is 'l2'; expected one of euclidean, cosine, inner"),
        ({"metric": []}, "metric is .*; expected one of euclidean, cosine, inner"),
        ({"dtype": "float64"}, "dtype is 'float64'; expected one of float32, float16"),
        ({"ids": "int32"}, "ids is 'int32'; expected one of int64, string"),
        ({"encoder": 3}, "encoder is 3; expected its fingerprint"),
    ],
)
def test_settings_that_cannot_be(changed: Any, message: str, place: Path | None) -> None:
    with pytest.raises(InputError, match=message):
        HashTable.create(place, **{"buckets": 5, "dim": 2, "active": 1} | changed)
    assert place is None or not place.exists()


def test_reads_like_a_collection(table: HashTable) -> None:
    assert len(table) == 3
    assert sorted(table) == [-7, 10, 30]
    assert {type(item) for item in table} == {int}
    assert 10 in table
    assert np.int64(-7) in table
    for stranger in (11, -1, 10.0, "10", None, True, (10,), [10], 2**70, {10: 1}, {10}):
        assert stranger not in table
    item = table[-7]
    assert item.id == -7
    assert type(item.id) is int
    assert item.code.tolist() == [1, 4]
    assert item.code.dtype == np.int32
    assert item.embedding.tolist() == [1, 0]
    assert item.embedding.dtype == np.float32
    assert item.payload is None
    assert table[10].payload == {"name": "ten"}
    assert table[30].payload == {"list": [1, 2.5, "x", None, True]}
    assert table.buckets_of(-7).tolist() == [1, 4]
    for stranger in (11, "10", None, 2**70):
        with pytest.raises(KeyError):
            table[stranger]  # type: ignore[index]
        with pytest.raises(KeyError):
            table.buckets_of(stranger)  # type: ignore[arg-type]


def test_who_is_in_a_bucket(table: HashTable) -> None:
    assert [sorted(table.bucket(bucket).tolist()) for bucket in range(5)] == [
        [10], [-7, 10], [30], [30], [-7],
    ]  # fmt: skip
    assert table.bucket(0).dtype == np.int64
    table.delete([10])
    table.add([[0, 4]], [[1, 1]], [99])
    assert sorted(table.bucket(np.int64(4)).tolist()) == [-7, 99]
    assert table.bucket(1).tolist() == [-7]
    for wrong in (5, -1, 1.5, "1", True, None):
        with pytest.raises(InputError, match=r"bucket is .*; expected a.*number from 0 to 4"):
            table.bucket(wrong)  # type: ignore[arg-type]


def test_deletes(table: HashTable) -> None:
    del table[10]
    assert 10 not in table
    with pytest.raises(KeyError):
        del table[10]
    assert table.delete([10, 11]) == 0
    assert table.delete([30, 30, 5]) == 1
    assert table.delete(-7) == 1
    assert len(table) == 0
    assert list(table) == []
    assert table.bucket(1).tolist() == []
    assert table.delete([]) == 0
    assert table.delete({1, 2}) == 0
    assert table.check() == []


def test_deleting_in_every_form() -> None:
    table = HashTable.create(buckets=1, dim=1)
    table.add([[0]] * 12, np.zeros((12, 1)))
    forms = [[0], (1,), {2}, frozenset([3]), np.array([4]), 5, np.int64(6), range(7, 8)]
    for number, form in enumerate(forms):
        assert table.delete(form) == 1
        assert number not in table
    assert table.delete(item for item in (8, 9)) == 2
    assert table.delete({10: None}.keys()) == 1
    assert list(table) == [11]


@pytest.mark.parametrize("wrong", [None, 2.5, [2.5], "a", ["a"], [None], True, [[1]], {1: 2}])
def test_what_cannot_be_deleted(wrong: Any) -> None:
    table = HashTable.create(buckets=1, dim=1)
    table.add([[0]] * 3, np.zeros((3, 1)))
    with pytest.raises(InputError, match="ids"):
        table.delete(wrong)
    assert len(table) == 3


def test_replaces_and_the_last_of_one_add_wins(table: HashTable) -> None:
    before = table.stats().items
    given = table.add(
        [[0, 1], [2, 3], [3, 4], [0, 4]], [[1, 1], [2, 2], [3, 3], [4, 4]], [10, 50, 10, 51],
        payloads=[{"turn": 0}, {"turn": 1}, {"turn": 2}, None],
    )  # fmt: skip
    assert given.tolist() == [10, 50, 10, 51]
    assert len(table) == before + 2
    assert table[10].embedding.tolist() == [3, 3]
    assert table[10].payload == {"turn": 2}
    assert table.buckets_of(10).tolist() == [3, 4]
    assert table.bucket(1).tolist() == [-7]
    table.add([[0, 1]], [[5, 5]], [10])
    assert table[10].payload is None
    hits = table.search([[0, 1]], [[5, 5]], 9)
    assert sorted(hits.ids[0, : hits.counts[0]].tolist()) == [-7, 10, 51]
    assert table.check() == []


def test_counts_on_and_never_gives_an_id_twice(tmp_path: Path) -> None:
    def add(count: int, ids: Any = None) -> Any:
        return table.add([[0]] * count, np.zeros((count, 1)), ids).tolist()

    table = HashTable.create(tmp_path, buckets=1, dim=1)
    assert add(2) == [0, 1]
    table.delete([0, 1])
    assert add(1) == [2]
    add(3, [-5, 7, 4])
    assert add(2) == [8, 9]
    table.delete([8, 9])
    table.compact()
    table.close()
    table = HashTable.open(tmp_path, "r+")
    assert add(1) == [10]
    table.delete(list(table))
    table.close()
    table = HashTable.open(tmp_path, "r+")
    assert add(1) == [11]
    assert add(0) == []
    assert add(1) == [12]
    largest = 2**63 - 1
    add(2, [largest, -(2**63)])
    with pytest.raises(InputError, match="no number is left; give ids"):
        add(1)
    assert sorted(table) == [-(2**63), 11, 12, largest]
    table.close()
    table = HashTable.open(tmp_path, "r+")
    with pytest.raises(InputError, match="no number is left; give ids"):
        add(1)
    assert largest in table
    assert table.check() == []


def test_ids_that_are_strings(place: Path | None) -> None:
    names = ["", "a", "ä", "a\0", "a\0\0", "日本", "🙂", "x" * 65_535]
    table = HashTable.create(place, buckets=2, dim=1, ids="string")
    given = table.add([[0]] * 8, np.arange(8)[:, None], names)
    assert given.dtype == object
    assert given.tolist() == names
    if place is not None:
        table.close()
        table = HashTable.open(place, "r+")
    assert sorted(table) == sorted(names)
    for number, name in enumerate(names):
        assert name in table
        assert table[name].id == name
        assert table[name].embedding.tolist() == [number]
        hits = table.search([[0, 1]], [[number]], 1)
        assert hits.ids.tolist() == [[name]]
    for stranger in ("b", 1, None, b"a", "\ud800", "x" * 65_536, "a\0\0\0"):
        assert stranger not in table
    assert sorted(table.bucket(0)) == sorted(names)
    assert table.bucket(1).dtype == object
    table.add([[1], [1]], [[50], [60]], ["ä", "ä"])
    assert table["ä"].embedding.tolist() == [60]
    assert len(table) == 8
    del table["🙂"]
    with pytest.raises(KeyError):
        table["🙂"]
    assert table.delete("a") == 1
    assert table.delete(np.array(["日本", "no"])) == 1
    table.compact()
    assert sorted(table) == sorted(["", "ä", "a\0", "a\0\0", "x" * 65_535])
    assert table.check() == []
    with pytest.raises(InputError, match="cannot make up; give ids"):
        table.add([[0]], [[1]])


def test_strings_whose_keys_collide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def short_keys(content: Any, offsets: Any) -> Any:
        return (np.diff(offsets) % 2).astype(np.int64)

    monkeypatch.setattr(ids_module, "string_keys", short_keys)
    names = ["a", "b", "cc", "dd", "eee", "f"]
    table = HashTable.create(tmp_path, buckets=1, dim=1, ids="string")
    table.add([[0]] * 7, np.arange(7)[:, None], [*names, "b"])
    assert sorted(table) == sorted(names)
    assert [table[name].embedding[0] for name in names] == [0, 6, 2, 3, 4, 5]
    assert "g" not in table
    assert table.delete(["a", "dd", "h"]) == 2
    table.add([[0]] * 2, [[8], [9]], ["eee", "a"])
    assert {name: table[name].embedding[0] for name in table} == {
        "a": 9, "b": 6, "cc": 2, "eee": 8, "f": 5,
    }  # fmt: skip
    table.compact()
    table.close()
    with HashTable.open(tmp_path) as again:
        assert {name: again[name].embedding[0] for name in again} == {
            "a": 9, "b": 6, "cc": 2, "eee": 8, "f": 5,
        }  # fmt: skip
        hits = again.search([[0]], [[0]], 9, where=["f", "cc", "a"])
        assert hits.ids[0, :3].tolist() == ["cc", "f", "a"]


@pytest.mark.parametrize("ids", ["int64", "string"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("active", [1, 2])
def test_opens_what_was_stored(tmp_path: Path, ids: str, dtype: str, active: int) -> None:
    generator = np.random.default_rng(0)
    model: Model = {}
    made = HashTable.create(
        tmp_path / "deep" / "er", buckets=6, dim=3, active=active, dtype=dtype, ids=ids
    )
    with made as table:
        for start in range(0, 120, 30):
            names = list(range(start, start + 40))
            given = [f"item {name}" for name in names] if ids == "string" else names
            codes = np.argsort(generator.random((40, 6)), axis=1)[:, :active]
            embeddings = generator.normal(size=(40, 3))
            payloads = [{"number": name} if name % 2 else None for name in names]
            table.add(codes, embeddings, given, payloads)
            put(model, dtype, codes, embeddings, given, payloads)
        gone = list(model)[::7]
        assert table.delete(gone) == len(gone)
        for name in gone:
            del model[name]
        assert contents(table) == model_contents(model)
    queries, order = generator.normal(size=(5, 3)), np.tile(np.arange(6), (5, 1))
    answer = brute_force(model, order, queries, 9, metric="euclidean", probe=active)
    for mode in ("r", "r+"):
        with HashTable.open(str(tmp_path / "deep" / "er"), mode) as table:
            assert (table.buckets, table.dim, table.active) == (6, 3, active)
            assert (table.dtype, table.id_kind, table.encoder) == (dtype, ids, None)
            assert len(table) == len(model)
            assert contents(table) == model_contents(model)
            hits = table.search(order, queries, 9, payloads=True)
            assert differences(hits, answer, exact=False) == []
            assert table.check() == []
            if mode == "r+":
                table.compact()
                assert table.stats().segments == 1
                assert table.stats().deleted == 0
                assert contents(table) == model_contents(model)
                again = table.search(order, queries, 9)
                assert again.ids.tolist() == hits.ids.tolist()


def test_one_writer_many_readers(tmp_path: Path) -> None:
    writer = HashTable.create(tmp_path, buckets=2, dim=1)
    with pytest.raises(LockedTableError, match=f"{tmp_path} is being written by another"):
        HashTable.open(tmp_path, "r+")
    readers = [HashTable.open(tmp_path) for _ in range(3)]
    writer.add([[0]], [[1]])
    assert [len(reader) for reader in readers] == [0, 0, 0]
    assert readers[0].refresh()
    assert not readers[0].refresh()
    assert [len(reader) for reader in readers] == [1, 0, 0]
    writer.add([[0]], [[2]])
    writer.delete([0])
    writer.compact()
    assert [reader.refresh() for reader in readers] == [True, True, True]
    assert [list(reader) for reader in readers] == [[1], [1], [1]]
    assert not writer.refresh()
    writer.close()
    with HashTable.open(tmp_path, "r+") as other:
        other.add([[1]], [[3]])
        with pytest.raises(LockedTableError):
            HashTable.open(tmp_path, "r+")
    assert readers[2].refresh()
    assert sorted(readers[2]) == [1, 2]


def test_a_refused_open_gives_the_lock_back(tmp_path: Path) -> None:
    HashTable.create(tmp_path, buckets=2, dim=1, encoder="one").close()
    with pytest.raises(InputError, match=r"encoder 'one', not 'two'.* index afresh"):
        HashTable.open(tmp_path, "r+", encoder="two")
    HashTable.open(tmp_path, "r+", encoder="one").close()
    with HashTable.open(tmp_path) as table:
        assert table.encoder == "one"
    HashTable.create(tmp_path / "other", buckets=2, dim=1).close()
    with pytest.raises(InputError, match="encoder None, not 'two'"):
        HashTable.open(tmp_path / "other", encoder="two")


def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    with HashTable.create(tmp_path, buckets=2, dim=1) as table:
        table.add([[0]], [[1]])
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with HashTable.open(tmp_path) as reader:
        assert not reader.writable
        for change in (
            lambda: reader.add([[0]], [[1]]),
            lambda: reader.delete([0]),
            lambda: reader.__delitem__(0),
            reader.compact,
        ):
            with pytest.raises(StorageError, match=r'searched only; use .*mode="r\+"'):
                change()
        assert list(reader) == [0]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_reader_keeps_what_a_writer_removes(tmp_path: Path) -> None:
    writer = HashTable.create(tmp_path, buckets=2, dim=1)
    for number in range(4):
        writer.add([[0]] * 5, np.full((5, 1), number))
    reader = HashTable.open(tmp_path)
    writer.delete(range(10))
    writer.compact()
    assert len(list(tmp_path.glob("segment-*"))) == 1
    assert len(reader) == 20
    assert reader.search([[0, 1]], [[0]], 20).counts.tolist() == [20]
    assert reader.check() == []
    assert reader.refresh()
    assert sorted(reader) == list(range(10, 20))


def test_a_refresh_that_failed_can_be_repeated(tmp_path: Path) -> None:
    writer = HashTable.create(tmp_path / "table", buckets=2, dim=1)
    reader = HashTable.open(tmp_path / "table")
    writer.add([[0]], [[1]])
    segment = next((tmp_path / "table").glob("segment-*"))
    away = segment.rename(tmp_path / "away")
    with pytest.raises(DamagedFileError, match=segment.name):
        reader.refresh()
    assert len(reader) == 0
    away.rename(segment)
    assert reader.refresh()
    assert len(reader) == 1


def test_places_where_no_table_can_be(tmp_path: Path) -> None:
    for mode in ("r", "r+"):
        with pytest.raises(StorageError, match=r"nowhere does not exist"):
            HashTable.open(tmp_path / "nowhere", mode)
        assert not (tmp_path / "nowhere").exists()
        with pytest.raises(StorageError, match=r"no manifest\.json\. Use HashTable\.create"):
            HashTable.open(tmp_path, mode)
        assert list(tmp_path.iterdir()) == []  # no lock is left in a folder of something else
    with pytest.raises(InputError, match="mode is 'w'; expected \"r\""):
        HashTable.open(tmp_path, "w")
    (tmp_path / "file").write_text("something")
    with pytest.raises(StorageError, match="is not empty; give a new or empty folder"):
        HashTable.create(tmp_path, buckets=2, dim=1)
    with pytest.raises(StorageError, match="file"):
        HashTable.create(tmp_path / "file", buckets=2, dim=1)
    assert (tmp_path / "file").read_text() == "something"
    (tmp_path / "empty").mkdir()
    HashTable.create(tmp_path / "empty", buckets=2, dim=1).close()
    with pytest.raises(StorageError, match="is not empty"):
        HashTable.create(tmp_path / "empty", buckets=2, dim=1)


def test_a_closed_table_says_so(table: HashTable) -> None:
    table.close()
    for use in (
        lambda: len(table),
        lambda: list(table),
        lambda: 10 in table,
        lambda: table[10],
        lambda: table.__delitem__(10),
        lambda: table.bucket(0),
        lambda: table.buckets_of(10),
        lambda: table.add([[0, 1]], [[0, 0]]),
        lambda: table.delete([10]),
        lambda: table.search([[0, 1]], [[0, 0]]),
        table.compact,
        table.stats,
        table.check,
        table.refresh,
    ):
        with pytest.raises(StorageError, match="this table is closed"):
            use()


def test_leaving_the_context_closes_also_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), HashTable.create(tmp_path, buckets=1, dim=1) as table:
        table.add([[0]], [[1 / 0]])
    with HashTable.open(tmp_path, "r+") as again:
        assert len(again) == 0


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"": None},
        {"text": 'quotes " and ü 🙂 \0 \n'},
        {"deep": [{"er": [[], {}]}], "numbers": [0, -1, 2**70, 1.5e300, -0.25]},
        {"long": "x" * 1_000_000},
    ],
)
def test_payloads_come_back(payload: dict[str, Any], place: Path | None) -> None:
    table = HashTable.create(place, buckets=1, dim=1)
    table.add([[0]] * 3, [[1], [2], [3]], payloads=[None, payload, {"other": 1}])
    table.add([[0]], [[4]])
    for _ in range(2):
        assert [table[item].payload for item in range(4)] == [None, payload, {"other": 1}, None]
        hits = table.search([[0], [0]], [[2], [9]], 9, payloads=True)
        assert hits.payloads is not None
        assert sorted(hits.ids[0, :4].tolist()) == [0, 1, 2, 3]
        for line, found in zip(hits.ids.tolist(), hits.payloads, strict=True):
            expected = {0: None, 1: payload, 2: {"other": 1}, 3: None}
            assert found == [expected[item] for item in line[:4]]
        table.compact()


ADDS: dict[str, tuple[dict[str, Any], str]] = {
    "nan": ({"embeddings": [[0, 1], [0, np.nan]]}, r"embeddings\[1, 1\] is nan; .* finite"),
    "infinite": ({"embeddings": [[-np.inf, 1], [0, 0]]}, r"embeddings\[0, 0\] is -inf; .*finite"),
    "beyond float32": ({"embeddings": [[0, 1], [1e39, 0]]}, r"embeddings\[1, 0\] is inf"),
    "too long": ({"embeddings": [[0, 1], [1e19, 0]]}, r"embeddings\[1\] has length 1e\+19; .*over"),
    "one row": ({"embeddings": [0, 1]}, r"embeddings has shape \(2,\); expected \[n, 2\]"),
    "wrong dim": ({"embeddings": [[0, 1, 2]] * 2}, r"embeddings has shape \(2, 3\); expected"),
    "ragged": ({"embeddings": [[0, 1], [2]]}, "embeddings cannot be read as an array of numbers"),
    "text": ({"embeddings": [["a", "b"]] * 2}, "embeddings has dtype .* real numbers"),
    "complex": ({"embeddings": [[1j, 0]] * 2}, "embeddings has dtype complex128"),
    "masked": ({"embeddings": np.ma.masked_array(np.ones((2, 2)))}, "masked array"),
    "no codes": ({"codes": []}, r"codes has shape \(0,\).*expected whole numbers \[2, 2\]"),
    "flat codes": ({"codes": [0, 1]}, r"codes has shape \(2,\)"),
    "one code": ({"codes": [[0, 1]]}, r"codes has shape \(1, 2\)"),
    "wide codes": ({"codes": [[0, 1, 2]] * 2}, r"codes has shape \(2, 3\).*the 2 active buckets"),
    "real codes": ({"codes": [[0.0, 1.0]] * 2}, "codes has .* dtype float64; expected whole"),
    "boolean codes": ({"codes": [[True, False]] * 2}, "codes has .* dtype bool; expected whole"),
    "bucket 5": ({"codes": [[0, 1], [5, 1]]}, r"codes\[1\] is \[5, 1\]; expected 1 to 2 different"),
    "bucket -1": ({"codes": [[-1, 1], [0, 1]]}, r"codes\[0\] is \[-1, 1\]; .* from 0 to 4"),
    "bucket twice": ({"codes": [[0, 1], [3, 3]]}, r"codes\[1\] is \[3, 3\]; expected 1 to 2 diff"),
    "huge bucket": ({"codes": [[0, 1], [2**32, 1]]}, r"codes\[1\] is \[4294967296, 1\]"),
    "unsigned bucket": (
        {"codes": np.array([[0, 1], [2**32 - 1, 1]], np.uint32)}, r"codes\[1\] is \[4294967295, 1\]"
    ),
    "one id": ({"ids": [1]}, "ids has 1 ids for 2 embeddings"),
    "real ids": ({"ids": [1.0, 2.0]}, "ids have shape .* float64; expected a list of integers"),
    "boolean ids": ({"ids": [True, False]}, "ids have shape .* bool"),
    "text ids": ({"ids": ["a", "b"]}, "ids contain 'a', but this table has whole numbers"),
    "no ids": ({"ids": [None, 1]}, "ids contain None, but this table has whole numbers"),
    "square ids": ({"ids": [[1, 2]] * 2}, r"ids have shape \(2, 2\)"),
    "large ids": (
        {"ids": np.array([1, 2**63], np.uint64)}, "ids contain 9223372036854775808; the largest id"
    ),
    "list of large ids": ({"ids": [1, 2**63]}, "ids"),
    "very large ids": ({"ids": [1, 2**64]}, "ids"),
    "ids of a dict": ({"ids": {1: "a", 2: "b"}}, "ids"),
    "ids of a number": ({"ids": 1.5}, "ids"),
    "one payload": ({"payloads": [{}]}, "payloads has 1 entries for 2 items"),
    "text payload": ({"payloads": [None, "x"]}, r"payloads\[1\] is 'x'; expected a dict"),
    "number as key": ({"payloads": [{1: 2}, None]}, r"payloads\[0\] is \{1: 2\}; .*strings as"),
    "set": ({"payloads": [{"a": {1}}, None]}, r"payloads\[0\] cannot be written as JSON"),
    "nan in payload": ({"payloads": [{"a": np.nan}, None]}, r"payloads\[0\] cannot be written"),
    "large payload": ({"payloads": [None, {"a": "x" * 2**20}]}, r"payloads\[1\] has 1048\d* bytes"),
    "payload number": ({"payloads": 3}, "payloads"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ADDS))
def test_refused_adds_change_nothing(name: str, table: HashTable, place: Path | None) -> None:
    changed, message = ADDS[name]
    arguments = {"codes": [[0, 1], [2, 3]], "embeddings": [[1, 2], [3, 4]]} | changed
    before = contents(table)
    with pytest.raises(InputError, match=message):
        table.add(**arguments)
    assert contents(table) == before
    assert table.check() == []
    if place is not None:
        assert len(list(place.glob("segment-*"))) == 1
    assert table.add([[0, 1]], [[0, 0]]).tolist() == [31]  # nor was an id used up


def test_refused_replacement_keeps_the_old_item(table: HashTable) -> None:
    before = contents(table)
    with pytest.raises(InputError, match="finite"):
        table.add([[0, 1], [0, 1]], [[0, 0], [np.nan, 0]], [10, 40])
    assert contents(table) == before


def test_embeddings_that_do_not_fit_metric_or_dtype(place: Path | None) -> None:
    table = HashTable.create(place, buckets=1, dim=2, metric="cosine", dtype="float16")
    with pytest.raises(InputError, match=r"embeddings\[1\] has length 0; its direction"):
        table.add([[0]] * 2, [[1, 0], [0, 0]])
    with pytest.raises(InputError, match=r"embeddings\[0\] has length 0; its direction"):
        table.add([[0]], [[1e-9, 0]])  # float16 rounds it to zero
    with pytest.raises(InputError, match=r"embeddings\[0, 1\] is inf; .* up to 65504"):
        table.add([[0]], [[1, 70_000]])
    assert len(table) == 0
    table.add([[0]], [[65_504, 1]])
    assert table[0].embedding.tolist() == [65_504, 1]
    for query, message in (
        ([[0, 0]], r"queries\[0\] has length 0; .* for cosine at least"),
        ([[1, 1], [np.nan, 1]], r"queries\[1, 0\] is nan; every value must be finite"),
    ):
        with pytest.raises(InputError, match=message):
            table.search([[0]] * len(query), query)


def test_string_tables_refuse_other_ids() -> None:
    table = HashTable.create(buckets=1, dim=1, ids="string")
    for ids, message in (
        ([1], "ids contain 1, but this table has strings as ids"),
        ([b"a"], "ids contain b'a', but this table has strings"),
        ([None], "ids contain None, but"),
        (["\ud800"], "not valid Unicode"),
        (["x" * 65_536], "has 65536 bytes; expected at most 65535"),
        (["a", "b"], "ids has 2 ids for 1 embeddings"),
        (1.5, "ids"),
    ):
        with pytest.raises(InputError, match=message):
            table.add([[0]], [[1]], ids)
    assert len(table) == 0
    table.add([[0]], [[1]], ["a"])
    for where in ([1], [None], [True], np.array([True]), 1.5):
        with pytest.raises(InputError):
            table.search([[0]], [[1]], where=where)
    with pytest.raises(InputError, match="ids contain 1, but"):
        table.delete([1])


SEARCHES: dict[str, tuple[dict[str, Any], str]] = {
    "nan": ({"queries": [[0, 0], [0, np.nan]]}, r"queries\[1, 1\] is nan; every value must be"),
    "infinite": ({"queries": [[np.inf, 0], [0, 0]]}, r"queries\[0, 0\] is inf"),
    "too long": ({"queries": [[1e19, 0], [0, 0]]}, r"queries\[0\] has length 1e\+19"),
    "flat": ({"queries": [0, 0]}, r"queries has shape \(2,\); expected \[n, 2\]"),
    "wrong dim": ({"queries": [[0]] * 2}, r"queries has shape \(\d+, 1\); expected \[n, 2\]"),
    "text": ({"queries": [["a", "b"]] * 2}, "queries has dtype"),
    "flat order": ({"ordered_buckets": [0, 1]}, r"ordered_buckets has shape \(2,\)"),
    "one order": ({"ordered_buckets": [[0, 1]]}, r"ordered_buckets has shape \(1, 2\)"),
    "real order": ({"ordered_buckets": [[0.0, 1.0]] * 2}, "dtype float64; expected whole numbers"),
    "narrow order": ({"ordered_buckets": [[0]] * 2}, "probe is 2, but .* names only 1 buckets"),
    "out of range": (
        {"ordered_buckets": [[0, 1], [5, 0]]}, r"ordered_buckets\[1\] opens \[5, 0\]; .* 0 to 4"
    ),
    "negative": ({"ordered_buckets": [[0, -1], [1, 0]]}, r"ordered_buckets\[0\] opens \[0, -1\]"),
    "huge": ({"ordered_buckets": [[0, 2**33], [1, 0]]}, r"ordered_buckets\[0\] opens"),
    "twice": ({"ordered_buckets": [[0, 1], [3, 3]]}, r"ordered_buckets\[1\] opens \[3, 3\]; .*d"),
    "twice later": (
        {"ordered_buckets": [[0, 1, 2], [3, 1, 3]], "at_least": 9}, r"ordered_buckets\[1\] opens"
    ),
    "probe too large": ({"probe": 3}, "probe is 3, but ordered_buckets names only 2 buckets"),
    "probe beyond all": (
        {"probe": 6}, "^probe is 6, and the table has 5 buckets; expected 5 at the most, which "
    ),
    "probe 0": ({"probe": 0}, "probe is 0; expected a whole number from 1"),
    "probe real": ({"probe": 1.0}, r"probe is 1\.0; expected a whole number from 1"),
    "top 0": ({"top": 0}, "top is 0; expected a whole number from 1"),
    "top negative": ({"top": -4}, "top is -4; expected"),
    "top true": ({"top": True}, "top is True; expected"),
    "top text": ({"top": "3"}, "top is '3'; expected"),
    "top none": ({"top": None}, "top is None; expected"),
    "at_least 0": ({"at_least": 0}, "at_least is 0; expected"),
    "at_least real": ({"at_least": 2.5}, r"at_least is 2\.5; expected"),
    "threads 0": ({"threads": 0}, "threads is 0; expected"),
    "threads real": ({"threads": 1.5}, r"threads is 1\.5; expected"),
    "where text": ({"where": ["a"]}, "ids contain 'a', but this table has whole numbers"),
    "where one text": ({"where": "a"}, "ids contain 'a'"),
    "where real": ({"where": [1.5]}, "float64; expected a list of integers"),
    "where square": ({"where": [[1, 2]]}, r"ids have shape \(1, 2\)"),
    "where ragged": ({"where": [[1], [1, 2]]}, "ids|where"),
    "where square mask": ({"where": np.ones((2, 2), bool)}, "where is a mask; .*one dimension"),
    "where true": ({"where": True}, "where is a mask"),
    "where number": ({"where": 2.5}, "ids|where"),
    "where object": ({"where": object()}, "ids|where"),
    "where dict": ({"where": {1: 2}}, "ids|where"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SEARCHES))
@pytest.mark.parametrize("kind", ["one segment", "two segments", "many queries"])
def test_refused_searches(name: str, kind: str) -> None:
    """By the kernel for few queries and by the one for batches alike."""
    changed, message = SEARCHES[name]
    table = HashTable.create(buckets=5, dim=2, active=2)
    table.add([[0, 1], [3, 4]], [[0, 0], [1, 0]])
    if kind == "two segments":
        table.add([[0, 1]], [[2, 2]])
    arguments: dict[str, Any] = {"ordered_buckets": [[0, 1], [1, 0]], "queries": [[0, 0], [1, 1]]}
    arguments |= changed
    if kind == "many queries":
        more = {"ordered_buckets": [[0, 1]], "queries": [[1, 1]]}
        for key, line in more.items():
            given = arguments[key]
            if isinstance(given[0], list) and len(given) == 2:
                line = [(line[0] * len(given[0]))[: len(given[0])]]
                if key == "ordered_buckets":
                    line = [list(range(len(given[0])))]
                arguments[key] = given + line * 30
    with pytest.raises(InputError, match=message):
        table.search(**arguments)
    assert table.search([[0, 1]], [[0, 0]], 1).ids.tolist() == [[0]]


def test_where_takes_what_holds_ids(table: HashTable) -> None:
    mask = np.zeros(31, bool)
    mask[[10, 30]] = True
    for where in (
        [10, 30], (10, 30), {10, 30}, frozenset([10, 30]), np.array([10, 30]), mask,
        mask.tolist(), (item for item in (10, 30)), {10: "a", 30: "b"}.keys(), range(10, 31, 20),
    ):  # fmt: skip
        hits = table.search([[0, 1, 2, 3, 4]], [[0, 0]], 4, probe=5, where=where)
        assert hits.ids.tolist() == [[10, 30, -1, -1]]
        assert hits.scanned.tolist() == [2]
    assert table.search([[0, 1]], [[0, 0]], 1, where=10).ids.tolist() == [[10]]
    # Negative ids have no place in a mask, also not from its end.
    everything = np.ones(100, bool)
    hits = table.search([[0, 1, 2, 3, 4]], [[0, 0]], 4, probe=5, where=everything)
    assert hits.ids.tolist() == [[10, 30, -1, -1]]


def test_compact_keeps_everything(place: Path | None) -> None:
    generator = np.random.default_rng(3)
    table = HashTable.create(place, buckets=9, dim=4, active=3)
    model: Model = {}
    table.compact()
    assert len(table) == 0
    for _ in range(5):
        ids = generator.integers(0, 60, size=20)
        codes = np.argsort(generator.random((20, 9)), axis=1)[:, :3]
        embeddings = generator.normal(size=(20, 4))
        payloads = [{"number": int(number)} for number in generator.integers(0, 9, size=20)]
        table.add(codes, embeddings, ids, payloads)
        put(model, "float32", codes, embeddings, ids.tolist(), payloads)
    for item in list(model)[::4]:
        del table[item]
        del model[item]
    assert table.stats().segments > 1
    table.compact()
    stats = table.stats()
    assert (stats.segments, stats.deleted, stats.items) == (1, 0, len(model))
    assert contents(table) == model_contents(model)
    assert table.check() == []
    if place is not None:
        assert len(list(place.iterdir())) == 3  # manifest, lock, one segment
    table.compact()
    table.delete(list(model))
    table.compact()
    assert (len(table), table.stats().segments) == (0, 0)
    if place is not None:
        assert list(place.glob("segment-*")) == []


def test_many_small_adds_do_not_pile_up(place: Path | None) -> None:
    table = HashTable.create(place, buckets=3, dim=1)
    for number in range(100):
        assert table.add([[number % 3]], [[number]]).tolist() == [number]
    assert table.stats().segments < 30
    assert sorted(table) == list(range(100))
    assert table.delete(range(0, 100, 2)) == 50
    assert table.stats().deleted <= 50
    assert sorted(table) == list(range(1, 100, 2))
    assert [table[number].embedding[0] for number in (1, 51, 99)] == [1, 51, 99]
    assert table.check() == []


def paper_share(buckets: int, active: int) -> float:
    return 1 - math.comb(buckets - active, active) / math.comb(buckets, active)


@pytest.mark.parametrize(("buckets", "active"), [(1, 1), (7, 1), (7, 2), (30, 3), (5, 4), (64, 4)])
def test_stats_are_the_formulas(buckets: int, active: int, place: Path | None) -> None:
    generator = np.random.default_rng(buckets)
    table = HashTable.create(place, buckets=buckets, dim=3, active=active)
    share = paper_share(buckets, active)
    empty = table.stats()
    assert (empty.items, empty.deleted, empty.segments, empty.bytes) == (0, 0, 0, 0)
    assert (empty.load_p50, empty.load_p99, empty.load_max, empty.empty) == (0, 0, 0, buckets)
    assert math.isnan(empty.suf)
    assert empty.expected_suf == pytest.approx(1 / share)
    codes = np.argsort(generator.random((200, buckets)) ** 2, axis=1)[:, :active]
    table.add(codes[:120], np.ones((120, 3)))
    table.add(codes[120:], np.ones((80, 3)))
    table.delete(range(0, 200, 5))
    kept = [set(codes[item].tolist()) for item in range(200) if item % 5]
    loads = [sum(bucket in code for code in kept) for bucket in range(buckets)]
    found = [sum(bool(code & other) for other in kept) - 1 for code in kept]
    stats = table.stats()
    assert (stats.items, stats.deleted, stats.segments) == (160, 40, 2)
    assert (stats.buckets, stats.active, stats.dim) == (buckets, active, 3)
    assert stats.load_p50 == pytest.approx(np.percentile(loads, 50))
    assert stats.load_p99 == pytest.approx(np.percentile(loads, 99))
    assert (stats.load_max, stats.empty) == (max(loads), loads.count(0))
    assert stats.suf == pytest.approx(159 / (sum(found) / 160))
    assert stats.expected_suf == pytest.approx(1 / share)
    assert stats.expected_variance == pytest.approx(159 * share * (1 - share))
    assert stats.bytes_per_embedding == 12
    assert stats.bytes_per_item == pytest.approx(stats.bytes / 160)
    assert stats.bytes >= 200 * 12
    if place is not None:
        files = sum(path.stat().st_size for path in place.glob("segment-*"))
        assert stats.bytes == pytest.approx(files, rel=0.5)


def test_stats_of_lonely_items() -> None:
    table = HashTable.create(buckets=4, dim=1, dtype="float16")
    table.add([[0]], [[1]])
    assert math.isnan(table.stats().suf)
    table.add([[1]], [[1]])
    assert table.stats().suf == math.inf
    assert table.stats().bytes_per_embedding == 2
    table.add([[1]], [[1]])
    assert table.stats().suf == pytest.approx(2 / (2 / 3))


def test_suf_of_a_large_table_is_measured_on_a_sample() -> None:
    generator = np.random.default_rng(5)
    codes = np.argsort(generator.random((9000, 16)), axis=1)[:, :2]
    table = HashTable.create(buckets=16, dim=1, active=2)
    table.add(codes, np.zeros((9000, 1)))
    assert table.stats().suf == pytest.approx(1 / paper_share(16, 2), rel=0.02)


def test_iteration_sees_one_state(table: HashTable) -> None:
    walk = iter(table)
    seen = [next(walk)]
    table.delete([10, -7, 30])
    table.add([[0, 1]], [[0, 0]], [77])
    seen += list(walk)
    assert sorted(seen) == [-7, 10, 30]
    assert list(table) == [77]


def test_a_mistake_late_in_a_large_batch_is_named_by_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flowhash.table.search.searcher.QUERIES_AT_ONCE", 30)
    table = HashTable.create(buckets=3, dim=1)
    table.add([[0]], [[1.0]])
    order, queries = np.zeros((100, 1), int), np.ones((100, 1))
    queries[77] = np.inf
    with pytest.raises(InputError, match=r"queries\[77, 0\] is inf"):
        table.search(order, queries)
    queries[77] = 1e30
    with pytest.raises(InputError, match=r"queries\[77\] has length 1e\+30"):
        table.search(order, queries)
    queries[77], order[94] = 1.0, 9
    with pytest.raises(InputError, match=r"ordered_buckets\[94\] opens \[9\]"):
        table.search(order, queries)


def nested(levels: int) -> dict[str, Any]:
    """A payload that many levels deep, of dicts and lists."""
    payload: Any = 1
    for level in range(levels):
        payload = {"in": payload} if (levels - level) % 2 else [payload]
    return cast(dict[str, Any], payload)


def test_payloads_are_not_nested_too_deeply(tmp_path: Path) -> None:
    path = tmp_path / "table"
    wide = {"lists": [[number] for number in range(500)]}
    with HashTable.create(path, buckets=2, dim=1) as table:
        table.add([[0], [1]], [[1], [2]], payloads=[nested(100), wide])
        for levels in (101, 988, 5000, 200_000):
            with pytest.raises(InputError, match=r"payloads\[1\] .*(levels deep|JSON)"):
                table.add([[0], [1]], [[1], [2]], payloads=[None, nested(levels)])
        with pytest.raises(InputError, match="nested 101 levels deep; expected at most 100"):
            table.add([[0]], [[1]], payloads=[nested(101)])
    with HashTable.open(path) as table:
        assert (table[0].payload, table[1].payload) == (nested(100), wide)
        assert table.check() == []


def test_a_deep_payload_of_an_older_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    monkeypatch.setattr(arguments, "DEEPEST_PAYLOAD", 10**6)
    with HashTable.create(path, buckets=2, dim=1) as table:
        table.add([[0], [1]], [[1], [2]], payloads=[{"a": 1}, nested(300)])
    monkeypatch.undo()
    with HashTable.open(path, "r+") as table:
        assert table[1].payload == nested(300)
        table.compact()
        assert table.check() == []

        def give_up(text: str) -> None:
            raise RecursionError("maximum recursion depth exceeded")

        monkeypatch.setattr(json, "loads", give_up)
        with pytest.raises(StorageError, match="payload of 1 is nested too deeply"):
            table.search([[1]], [[1]], payloads=True)
        monkeypatch.undo()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_stored_segment_is_computed_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str
) -> None:
    """Norms, lengths and checks of every row once, in an add and in a merge, in pieces too."""
    computed: list[tuple[int, int]] = []
    copy_range = SegmentDraft.copy_range

    def counted(plan: SegmentDraft, start: int, stop: int, *others: Any) -> Any:
        computed.append((start, stop))
        return copy_range(plan, start, stop, *others)

    rng = np.random.default_rng(0)
    codes, embeddings = rng.integers(4, size=(90, 1)), rng.normal(size=(90, 8)).astype(dtype)
    monkeypatch.setattr(SegmentDraft, "copy_range", counted)
    monkeypatch.setattr(mapped, "PIECE_BYTES", 16 * 40)  # 40 rows
    with HashTable.create(tmp_path / "table", buckets=4, dim=8, dtype=dtype) as table:
        table.add(codes[:50], embeddings[:50])
        assert computed == [(0, 40), (40, 50)]
        table.add(codes[50:], embeddings[50:])
        computed.clear()
        table.compact()
        assert computed == [(0, 40), (40, 80), (80, 90)]
        assert table.check() == []
        for item in range(90):
            assert np.array_equal(table[item].embedding, embeddings[item].astype(np.float32))
