"""Items in one to k buckets: short codes, each row stored and scanned once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from flowhash import HashTable
from flowhash.errors import DamagedFileError, InputError, StorageError
from flowhash.table.hash_table import state_of
from flowhash.table.integrity import folder_faults
from flowhash.table.storage import manifest
from tests.table.oracles import (
    Model,
    brute_force,
    contents,
    differences,
    model_contents,
    put,
    shortened,
)


def short_codes(rng: np.random.Generator, count: int, buckets: int, active: int) -> Any:
    """Codes of 1 to k buckets in any order, -1 behind the last [count, k]."""
    return shortened(rng, np.argsort(rng.random((count, buckets)), axis=1)[:, :active])


def compare(table: HashTable, model: Model, rng: np.random.Generator) -> None:
    """The table holds what the model does, and answers as brute force over the opened buckets."""
    assert contents(table) == model_contents(model)
    assert table.check() == []
    loads = np.zeros(table.buckets, np.int64)
    for item in model.values():
        loads[list(item.code)] += 1
    stats = table.stats()
    assert table.bucket_loads().tolist() == loads.tolist()
    assert stats.load_max == loads.max()
    if model:
        assert stats.mean_active == loads.sum() / len(model)
        found = [
            sum(bool(one.code & other.code) for other in model.values()) - 1
            for one in model.values()
        ]
        expected = (len(model) - 1) / np.mean(found) if any(found) else np.inf
        assert len(model) == 1 or stats.suf == pytest.approx(expected)
    bucket = int(rng.integers(table.buckets))
    assert set(table.bucket(bucket).tolist()) == {
        name for name, item in model.items() if bucket in item.code
    }
    names = list(model)
    for count in (1, 2, 40):  # one compiled call, few queries of a bucket, a matrix product
        order = np.argsort(rng.random((count, table.buckets)), axis=1).astype(np.int32)
        queries = rng.integers(-4, 5, (count, table.dim)) + 0.5
        for options in (
            {"probe": 1},
            {"probe": int(rng.integers(1, table.buckets + 1))},
            {"probe": 1, "at_least": int(rng.integers(1, 2 * len(model) + 2))},
            {"probe": table.buckets, "where": names[::2]},
            {"probe": 1, "at_least": 3, "where": names[1::2]},
        ):
            hits = table.search(order, queries, 5, buckets=True, payloads=True, **options)
            answer = brute_force(model, order, queries, 5, metric=table.metric, **options)
            assert differences(hits, answer, exact=table.metric != "cosine") == []
            for line, ids in zip(hits.buckets, hits.ids.tolist(), strict=True):
                for code, name in zip(line.tolist(), ids, strict=True):
                    expected = sorted(model[name].code) if name in model else []
                    assert code == expected + [-1] * (table.active - len(expected))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_is_done_answers_are_those_of_brute_force(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    draw = data.draw
    buckets = draw(st.integers(3, 7), "buckets")
    kinds = {
        "buckets": buckets,
        "dim": 3,
        "active": draw(st.integers(2, 3), "active"),
        "metric": draw(st.sampled_from(["euclidean", "inner", "cosine"]), "metric"),
        "dtype": draw(st.sampled_from(["float32", "float16"]), "dtype"),
    }
    path = None
    if draw(st.booleans(), "on disk"):
        path = tmp_path_factory.mktemp("short") / "table"
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16), "seed"))
    table, model = HashTable.create(path, **kinds), Model()
    steps = st.sampled_from(["add", "add", "delete", "compact", "reopen", "recode", "carry"])
    for step in ["add", *draw(st.lists(steps, max_size=5), "steps")]:
        if step == "add":
            count = draw(st.sampled_from([1, 30, 400]), "items")
            ids = rng.choice(3 * count, count, replace=False)
            codes = short_codes(rng, count, buckets, table.active)
            vectors = rng.integers(-4, 5, (count, 3)) + 0.5
            payloads = [{"n": int(one)} if one % 2 else None for one in ids]
            table.add(codes, vectors, ids, payloads)
            put(model, table.dtype, codes, vectors, ids.tolist(), payloads)
        elif step == "delete":
            gone = [name for name in model if rng.random() < 0.3]
            assert table.delete(gone) == len(gone)
            for name in gone:
                del model[name]
        elif step == "compact":
            table.compact()
        elif step == "reopen" and path is not None:
            table.close()
            assert folder_faults(path) == []
            table = HashTable.open(path, "r+")
        elif step == "recode":
            table.recode(lambda rows: parity(rows, buckets, kinds["active"]), None)
            for name, item in model.items():
                code = parity(item.embedding[None], buckets, table.active)[0]
                put(model, table.dtype, [code], [item.embedding], [name], [item.payload])
        elif step == "carry":  # as `flowhash copy` does
            other = HashTable.create(**kinds)
            for batch in table.batches(11):
                other.add(batch.codes, batch.embeddings, batch.ids, batch.payloads)
            assert contents(other) == contents(table)
        compare(table, model, rng)
    table.close()


def parity(rows: Any, buckets: int, active: int) -> Any:
    """Codes that follow from embeddings: a second bucket for some of them."""
    first = np.abs(rows.sum(axis=1)).astype(np.int64) % buckets
    codes = np.full((len(rows), active), -1, np.int64)
    codes[:, 0] = first
    some = rows[:, 0] > 0
    codes[some, 1] = (first[some] + 1) % buckets
    return codes


@pytest.mark.parametrize(
    "code",
    [[-1, -1, -1], [-1, 2, 3], [2, -1, 3], [2, 2, -1], [2, -2, -1], [2, 5, -1], [2, 3, -(2**40)]],
)
def test_refused(code: list[int]) -> None:
    table = HashTable.create(buckets=5, dim=1, active=3)
    with pytest.raises(InputError, match=r"codes\[1\] is .*; expected 1 to 3 different buckets"):
        table.add([[0, 1, 2], code], [[1], [2]])
    assert len(table) == 0


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.uint64])
def test_the_largest_number_is_not_minus_one(kind: Any) -> None:
    table = HashTable.create(buckets=5, dim=1, active=2)
    with pytest.raises(InputError, match=r"codes\[0\] is"):
        table.add(np.array([[0, np.iinfo(kind).max]], kind), [[1]])


def test_one_bucket_an_item_has_no_short_code() -> None:
    table = HashTable.create(buckets=5, dim=1)
    with pytest.raises(InputError, match=r"is \[-1\]; expected 1 different buckets from 0 to 4$"):
        table.add([[-1]], [[1]])


def written(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return body


def test_only_tables_with_short_codes_have_version_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HashTable.create(tmp_path / "table", buckets=5, dim=1, active=2) as table:
        table.add([[0, 1], [2, 3]], [[1], [2]])
        assert written(tmp_path / "table")["version"] == 1
        assert "entries" not in written(tmp_path / "table")["segments"][0]
        table.add([[3, -1], [4, 1]], [[3], [4]])
        body = written(tmp_path / "table")
        assert body["version"] == 3
        assert "notes" not in body
        assert [segment.get("entries") for segment in body["segments"]] == [None, 3]
        table.note("a", 1)
        assert written(tmp_path / "table")["version"] == 3
    monkeypatch.setattr(manifest, "VERSION", 2)  # what a FlowHash before this one reads
    with pytest.raises(StorageError, match=r"version 3; .* up to 2\. Install a newer one") as said:
        HashTable.open(tmp_path / "table")
    assert not isinstance(said.value, DamagedFileError)
    monkeypatch.undo()
    with HashTable.open(tmp_path / "table", "r+") as table:
        table.delete([2])
        table.compact()
        assert written(tmp_path / "table")["version"] == 2
        table.note("a", None)
        assert written(tmp_path / "table")["version"] == 1
        assert table.check() == []


def test_tables_become_one(tmp_path: Path) -> None:
    kinds = {"buckets": 5, "dim": 1, "active": 2}
    for number, code in enumerate(([1, -1], [3, 2])):
        with HashTable.create(tmp_path / str(number), **kinds) as table:
            table.add([code, [0, 4]], [[1], [2]], [2 * number, 2 * number + 1])
    with HashTable.create(tmp_path / "all", **kinds) as table:
        table.adopt([tmp_path / "0", tmp_path / "1"])
        assert written(tmp_path / "all")["version"] == 3
        assert table.codes_of([0, 1, 2, 3, 9]) == [[1], [0, 4], [2, 3], [0, 4], None]
        assert table.buckets_of(0).tolist() == [1]
        assert table[0].code.tolist() == [1]
        assert table.check() == []


def test_second_homes_cost_their_entries_only() -> None:
    rng = np.random.default_rng(0)
    count, buckets = 4000, 64
    codes = rng.integers(0, buckets, (count, 2))
    codes[:, 1] = (codes[:, 0] + 1 + codes[:, 1] % (buckets - 1)) % buckets
    codes[rng.random(count) >= 0.4, 1] = -1
    vectors = rng.normal(size=(count, 50))
    tables = [HashTable.create(buckets=buckets, dim=50, active=active) for active in (1, 2)]
    tables[0].add(codes[:, :1], vectors)
    tables[1].add(codes, vectors)
    alone, both = (table.stats() for table in tables)
    arrays = state_of(tables[1]).parts[0].segment.arrays
    assert len(arrays.postings) == (codes >= 0).sum()
    assert both.bytes - alone.bytes == arrays.postings.nbytes + arrays.codes.nbytes
    assert both.bytes <= 1.1 * alone.bytes
    assert both.mean_active == (codes >= 0).sum() / count
    assert both.expected_suf == pytest.approx(both.suf, rel=0.05)


FORGED = {
    "a code before its end": ([0, [-1, 3]], "not in order, or names a bucket twice, or none"),
    "no bucket": ([0, [-1, -1]], "not in order, or names a bucket twice, or none"),
    "a bucket below": ([0, [1, -2]], "names a bucket that does not exist"),
    "another bucket": ([0, [1, -1]], "bucket lists do not match"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_does_not_fit_together_is_named(name: str) -> None:
    (row, code), fault = FORGED[name]
    table = HashTable.create(buckets=5, dim=1, active=2)
    table.add([[0, -1], [2, 3], [4, -1]], [[1], [2], [3]])
    assert table.check() == []
    state_of(table).parts[0].segment.arrays.codes[row] = code
    assert any(fault in line for line in table.check())


def test_a_full_code_stays_refused_where_it_ends_early() -> None:
    """In a segment whose rows all have k buckets, -1 is no bucket."""
    table = HashTable.create(buckets=5, dim=1, active=2)
    table.add([[0, 1], [2, 3]], [[1], [2]])
    state_of(table).parts[0].segment.arrays.codes[0] = [0, -1]
    assert any("does not exist" in line for line in table.check())


@pytest.mark.parametrize("name", ["codes", "postings", "highs"])
def test_a_damaged_byte_is_named_never_searched(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    with HashTable.create(tmp_path / "table", buckets=3, dim=4, active=2) as table:
        table.add(short_codes(rng, 900, 3, 2), rng.normal(size=(900, 4)))
    (file,) = (tmp_path / "table").glob("segment-*")
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    first, last = json.loads(data[8:start])[name]["data_offsets"]
    data[start + (first + last) // 2] ^= 1
    file.write_bytes(data)
    with HashTable.open(tmp_path / "table") as table:
        for count in (1, 20):
            queries, order = rng.normal(size=(count, 4)), np.tile(np.arange(3), (count, 1))
            with pytest.raises(DamagedFileError, match=rf"\({name}.*do not match their checksum"):
                table.search(order, queries, probe=3)
        assert any(name in line for line in table.check())


@pytest.mark.parametrize("entries", [0, 2, 4, 6, 7, -1, True, "5", None])
def test_a_wrong_number_of_entries_is_damage(tmp_path: Path, entries: Any) -> None:
    with HashTable.create(tmp_path / "table", buckets=5, dim=1, active=2) as table:
        table.add([[0, -1], [2, 3], [4, 1]], [[1], [2], [3]])
    body = written(tmp_path / "table")
    assert body["segments"][0]["entries"] == 5
    body["segments"][0]["entries"] = entries
    if entries is None:
        del body["segments"][0]["entries"]
        body["version"] = 1
    del body["crc32"]
    text = json.dumps(body, indent=1, sort_keys=True)
    body["crc32"] = manifest.zlib.crc32(text.encode())
    text = json.dumps(body, indent=1, sort_keys=True)
    (tmp_path / "table" / "manifest.json").write_text(text + "\n")
    with pytest.raises(DamagedFileError):
        HashTable.open(tmp_path / "table")
