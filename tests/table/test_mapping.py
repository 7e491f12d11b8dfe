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
    vectors = generator.normal(size=(4000, 64)).astype(np.float32)
    with HashTable.create(tmp_path / "table", buckets=8, dim=64, active=2) as table:
        table.add(codes, vectors)
    many, order = np.repeat(vectors[:1], 20, axis=0), np.full((20, 1), 5)
    with HashTable.open(tmp_path / "table") as table:
        segment = table._open_state().parts[0].segment
        marks = segment.arrays.verified[len(segment.arrays.sums) :]
        rows = segment.bucket_rows(5)
        away = ((segment.embeddings(rows) - vectors[0]) ** 2).sum(axis=1)
        block_of = (segment.arrays.starts[1] + rows * 128) // 1024
        used = set(block_of[np.argsort(away)[:40]]) | set(block_of[np.argsort(away)[:40]] + 1)
        far = [row for row, block in zip(rows.tolist(), block_of, strict=True) if block not in used]
        file = tmp_path / "table" / segment.file
        header = int.from_bytes(file.read_bytes()[:8], "little")
        place = int(8 + header + segment.arrays.starts[1] + far[0] * 128)
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


def codes_written_to(path: str) -> list[int]:
    """How many hits a search has before all codes are written to, in place, and after."""
    generator = np.random.default_rng(0)
    codes = np.argsort(generator.random((4000, 8)), axis=1)[:, :2]
    vectors = generator.normal(size=(4000, 16)).astype(np.float32)
    with HashTable.create(path, buckets=8, dim=16, active=2) as table:
        table.add(codes, vectors)
    order = np.tile(np.arange(8), (40, 1))
    counts = []
    with HashTable.open(path) as table:
        segment = table._open_state().parts[0].segment
        file = Path(path) / segment.file
        place = int(8 + int.from_bytes(file.read_bytes()[:8], "little") + segment.arrays.starts[5])
        for _ in range(2):
            hits = table.search(order, vectors[:40], top=5, probe=3)
            counts.append(hits.ids.size)
            with file.open("r+b") as opened:
                opened.seek(place)
                opened.write(np.full(codes.shape, 2**30 + 5, np.int32).tobytes())
    return counts


def test_codes_written_to_after_they_were_found_intact_lead_nowhere(tmp_path: Path) -> None:
    """They are not checked again; what is found may be wrong, as with any byte of such a file."""
    path = str(tmp_path / "table")
    assert in_a_process("test_mapping", f"codes_written_to({path!r})") == [200, 200]


def flip(path: Path, place: int) -> None:
    """Change one bit of a file where it is, so that whoever has mapped it sees it."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
