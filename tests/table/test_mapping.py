"""Tables larger than memory: mapped, never read whole, never charged to memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from flowhash import HashTable
from flowhash.errors import DamagedFileError
from flowhash.table.storage.segment_file import map_file
from tests.table.process import in_a_process


def test_a_file_larger_than_memory_can_be_mapped(tmp_path: Path) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(4 * memory)
        file.seek(3 * memory)
        file.write(b"here")
    with path.open("rb") as file:
        buffer = map_file(file)
    array = np.frombuffer(buffer, np.uint8)
    del buffer  # the array alone keeps the mapping
    assert array[3 * memory : 3 * memory + 4].tobytes() == b"here"
    assert array.flags.writeable  # kernels are compiled once, for writable arrays


def test_opening_reads_little(tmp_path: Path) -> None:
    with HashTable.create(tmp_path / "table", buckets=16, dim=64) as table:
        codes = np.random.default_rng(0).integers(16, size=(20_000, 1))
        table.add(codes, np.random.default_rng(1).normal(size=(20_000, 64)))
    with HashTable.open(tmp_path / "table") as table:
        (part,) = table._open_state().parts
        verified = part.segment.arrays.verified
        assert verified.sum() <= 2  # the offsets
        table.search([[3]], np.zeros((1, 64)))
        assert 0.02 < verified.mean() < 0.2  # one bucket of sixteen, and a few ids


def test_a_bucket_found_intact_by_one_kind_of_scan_is_checked_by_the_other(tmp_path: Path) -> None:
    """With k > 1 its rows are not looked at again; a scan of upper halves has not seen the lower.

    One query of a bucket reads upper halves, many read whole numbers.
    """
    generator = np.random.default_rng(0)
    codes = np.argsort(generator.random((4000, 8)), axis=1)[:, :2]
    vectors = generator.normal(size=(4000, 16)).astype(np.float32)
    with HashTable.create(tmp_path / "table", buckets=8, dim=16, active=2) as table:
        table.add(codes, vectors)
    many, order = np.repeat(vectors[:1], 20, axis=0), np.full((20, 1), 5)
    with HashTable.open(tmp_path / "table") as table:
        segment = table._open_state().parts[0].segment
        marks = segment.arrays.verified[len(segment.arrays.sums) :]
        rows = segment.bucket_rows(5)
        away = ((segment.embeddings(rows) - vectors[0]) ** 2).sum(axis=1)
        block_of = (segment.arrays.starts[1] + rows * 32) // 1024
        used = set(block_of[np.argsort(away)[:40]]) | set(block_of[np.argsort(away)[:40]] + 1)
        far = [row for row, block in zip(rows.tolist(), block_of, strict=True) if block not in used]
        file = tmp_path / "table" / segment.file
        header = int.from_bytes(file.read_bytes()[:8], "little")
        place = int(8 + header + segment.arrays.starts[1] + far[0] * 32)
        flip(file, place)
        for _ in range(2):
            table.search(order[:1], many[:1], top=1, probe=1)
        assert marks.tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
        with pytest.raises(DamagedFileError, match="lows"):
            table.search(order, many, top=1, probe=1)
        assert marks[5] == 1  # and not what was not found
        flip(file, place)
        first = table.search(order, many, top=5, probe=1)
        assert marks[5] == 3
        again = table.search(order, many, top=5, probe=1)
        assert np.array_equal(first.distances, again.distances)


def lists_written_to(path: str, name: int, dim: int, queries: int, buckets: int) -> list[int]:
    """How many hits searches have before all codes, or all lists, are written to, and after.

    Args:
        path: of a new table.
        name: which array, by its place among the starts.
        dim: with 32 numbers a row has a quantised plane.
        queries: of a search.
        buckets: of the table.
    """
    generator = np.random.default_rng(0)
    # With many buckets codes tell a query which rows it has met, with few a bit for each row.
    codes = (generator.integers(buckets, size=(4000, 1)) + np.arange(2)) % buckets
    vectors = generator.normal(size=(4000, dim)).astype(np.float32)
    with HashTable.create(path, buckets=buckets, dim=dim, active=2) as table:
        table.add(codes, vectors)
    order = np.tile(np.arange(8), (queries, 1))
    counts = []
    with HashTable.open(path) as table:
        segment = table._open_state().parts[0].segment
        file = Path(path) / segment.file
        start = int(segment.arrays.starts[name])
        place = int(8 + int.from_bytes(file.read_bytes()[:8], "little") + start)
        for _ in range(2):
            try:
                hits = table.search(order, vectors[:queries], top=5, probe=3)
                counts.append(hits.ids.size)
            except DamagedFileError:
                counts.append(-1)
            with file.open("r+b") as opened:
                opened.seek(place)
                opened.write(np.full(codes.shape, 2**30 + 5, np.int32).tobytes())
    return counts


@pytest.mark.parametrize(("dim", "buckets"), [(16, 8), (32, 8), (32, 1000)])
@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize(("name", "found"), [(5, 5), (4, -1)])
def test_lists_written_to_after_they_were_found_intact_lead_nowhere(
    tmp_path: Path, name: int, found: int, dim: int, queries: int, buckets: int
) -> None:
    """They are not checked again; what is found may be wrong, as with any byte of such a file."""
    path = str(tmp_path / "table")
    code = f"lists_written_to({path!r}, {name}, {dim}, {queries}, {buckets})"
    after = found if found < 0 else found * queries
    assert in_a_process("test_mapping", code) == [5 * queries, after]


def test_a_bucket_found_intact_in_steps_is_not_looked_at_again(tmp_path: Path) -> None:
    """What the scan of steps reads of its rows; others, and other buckets, are."""
    generator = np.random.default_rng(0)
    codes = np.argsort(generator.random((4000, 8)), axis=1)[:, :2]
    vectors = generator.normal(size=(4000, 64)).astype(np.float32)
    with HashTable.create(tmp_path / "table", buckets=8, dim=64, active=2) as table:
        table.add(codes, vectors)
        expected = table.search([[5, 2]], vectors[:1], top=5)
    with HashTable.open(tmp_path / "table") as table:
        segment = table._open_state().parts[0].segment
        marks = segment.arrays.verified[len(segment.arrays.sums) :]
        for _ in range(2):
            found = table.search([[5, 2]], vectors[:1], top=5)
            assert np.array_equal(found.ids, expected.ids)
            assert found.scanned == expected.scanned
            assert marks.tolist() == [0, 0, 4, 0, 0, 4, 0, 0]
        rows = np.setdiff1d(segment.bucket_rows(7), np.concatenate(
            [segment.bucket_rows(bucket) for bucket in (2, 5)]
        ))  # fmt: skip
        file = tmp_path / "table" / segment.file
        header = int.from_bytes(file.read_bytes()[:8], "little")
        blocks = np.flatnonzero(segment.arrays.verified[: len(segment.arrays.sums)] == 0)
        places = segment.arrays.starts[6] + rows * 64
        flip(file, int(8 + header + places[np.isin(places // 1024, blocks)][0]))
        with pytest.raises(DamagedFileError, match="quantised"):
            table.search([[7]], vectors[:1], top=5, probe=1)
        assert marks[7] == 0


def flip(path: Path, place: int) -> None:
    """Change one bit of a file where it is, so that whoever has mapped it sees it."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def offsets_written_to(path: str, dim: int) -> list[int]:
    """How many hits a search has before all offsets are written to, in place, and after."""
    vectors = np.random.default_rng(0).normal(size=(400, dim)).astype(np.float32)
    with HashTable.create(path, buckets=4, dim=dim) as table:
        table.add(np.arange(400)[:, None] % 4, vectors)
    counts = []
    with HashTable.open(path) as table:
        segment = table._open_state().parts[0].segment
        file = Path(path) / segment.file
        content = file.read_bytes()
        offsets = np.array([0, 100, 200, 300, 400])
        for _ in range(2):
            for queries in (1, 40, 300):
                order = np.zeros((queries, 1), np.int32)
                counts.append(int(table.search(order, vectors[:queries], top=5).counts.sum()))
            with file.open("r+b") as opened:
                opened.seek(content.index(offsets.tobytes()))
                opened.write((offsets + np.arange(5) * 2**38).tobytes())
    return counts


@pytest.mark.parametrize("dim", [16, 32])
def test_offsets_written_to_after_they_were_checked_are_not_read_again(
    tmp_path: Path, dim: int
) -> None:
    path = str(tmp_path / "table")
    code = f"offsets_written_to({path!r}, {dim})"
    assert in_a_process("test_mapping", code) == [5, 200, 1500] * 2
