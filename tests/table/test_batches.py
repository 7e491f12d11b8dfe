"""All items of a table, some at a time: whole, once, and never damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowhash.errors import DamagedFileError, InputError
from flowhash.table import HashTable


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "table"


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("kind", ["int64", "string"])
def test_batches_are_all_live_items_once(place: Path | None, size: int, kind: str) -> None:
    rng = np.random.default_rng(size)
    table = HashTable.create(place, buckets=6, dim=3, active=2, ids=kind)
    names = [number if kind == "int64" else f"no {number}" for number in range(40)]
    for start in range(0, 40, 7):  # several segments
        chosen = names[start : start + 7]
        codes = rng.permuted(np.tile(np.arange(6), (len(chosen), 1)), axis=1)[:, :2]
        table.add(codes, rng.normal(size=(len(chosen), 3)), ids=chosen,
                  payloads=[{"of": str(name)} for name in chosen])  # fmt: skip
    table.delete(names[3:12])
    parts = list(table.batches(size))
    assert all(1 <= len(part) <= size for part in parts)
    found = [item for part in parts for item in part.ids.tolist()]
    assert sorted(found, key=str) == sorted([*names[:3], *names[12:]], key=str)
    for part in parts:
        for row, item in enumerate(part.ids.tolist()):
            stored = table[item]
            assert part.codes[row].tolist() == stored.code.tolist()
            assert part.embeddings[row].tolist() == stored.embedding.tolist()
            assert part.payloads[row] == stored.payload == {"of": str(item)}
    assert {text for part in table.batches(payloads=False) for text in part.payloads} == {None}
    with pytest.raises(InputError, match="one or more items"):
        next(table.batches(0))


def test_batches_name_a_damaged_file(tmp_path: Path) -> None:
    with HashTable.create(tmp_path / "t", buckets=2, dim=64) as table:
        table.add(np.zeros((200, 1), int), np.random.default_rng(0).normal(size=(200, 64)))
    (path,) = (tmp_path / "t").glob("segment-*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="segment-"), HashTable.open(tmp_path / "t") as table:
        list(table.batches())


def test_next_id_is_what_an_item_gets(place: Path | None) -> None:
    table = HashTable.create(place, buckets=2, dim=1)
    assert table.next_id == 0
    table.add([[0]], [[1.0]], ids=[41])
    assert table.next_id == 42
    assert table.add([[0]], [[1.0]]).tolist() == [42]
