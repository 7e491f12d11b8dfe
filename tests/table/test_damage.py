"""Damaged files: an error that names the file, or the right answer; nothing else, ever.

The campaigns run in a child process, so that a crash is a failed test and not the end of all.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.errors import DamagedFileError, StorageError
from flowhash.table import HashTable
from flowhash.table.integrity import folder_faults
from tests.table.process import in_a_process
from tests.table.writer import BUCKETS, DIM, Kind, added

TABLES = {
    "k1-float32-int64": Kind(1, "float32", "int64"),
    "k3-float32-string": Kind(3, "float32", "string"),
    "k1-float16-string": Kind(1, "float16", "string"),
    "k3-float16-int64": Kind(3, "float16", "int64"),
    "one-segment": Kind(1, "float32", "int64"),
    "one-listed-segment": Kind(2, "float32", "string"),
}
BLOCK = 1024


def build(path: Path, name: str) -> None:
    """A table with payloads; of several segments with replaced and deleted items, or of one."""
    kind = TABLES[name]
    rng = np.random.default_rng(sorted(TABLES).index(name))
    with kind.create(path) as table:
        for size in (150,) if name.startswith("one-") else (90, 40, 25):
            ids: list[Any] = rng.choice(200, size=size, replace=False).tolist()
            if kind.ids == "string":
                ids = [f"Ding {one} é" for one in ids]
            added(kind, rng, ids, size).run(table)
        if not name.startswith("one-"):
            table.delete(sorted(table)[::9])


class Questions:
    """What is asked of a table, again and again; the answers do not depend on its segments."""

    def __init__(self, table: HashTable, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.ids = sorted(table)
        items = [table[item] for item in self.ids]
        self.queries = np.concatenate(
            [[item.embedding for item in items], rng.normal(size=(8, DIM))], dtype=np.float32
        )
        self.order = np.array([rng.permutation(BUCKETS) for _ in self.queries], np.int32)
        for line, item in zip(self.order, items, strict=False):  # first its own buckets
            line[:] = [*item.code, *(bucket for bucket in line if bucket not in item.code)]

    def search(self, table: HashTable, lines: Any = slice(None), **options: Any) -> dict[str, Any]:
        found = table.search(self.order[lines], self.queries[lines], **options)
        return {
            "ids": found.ids.tolist(),
            "distances": found.distances.tobytes(),
            "counts": [found.counts.tolist(), found.scanned.tolist()],
            "payloads": found.payloads,
        }

    def answer(self, table: HashTable, question: str) -> Any:
        if question == "walk":
            return [sorted(table), len(table)]
        if question == "items":
            return [
                (item.id, item.code.tolist(), item.embedding.tobytes(), item.payload)
                for item in map(table.__getitem__, self.ids)
            ]
        if question == "buckets":
            return [sorted(table.bucket(bucket).tolist()) for bucket in range(BUCKETS)]
        if question == "batch":
            return self.search(table, top=4, payloads=True)
        if question == "at least":
            return self.search(table, top=3, at_least=30)
        if question == "where":
            return self.search(table, top=3, probe=2, where=self.ids[::2])
        return [self.search(table, [line], top=9) for line in range(0, len(self.queries), 4)]


QUESTIONS = ["walk", "items", "buckets", "batch", "at least", "where", "alone"]


def mutate(chance: random.Random, folder: Path) -> tuple[str, set[str]]:
    """Damage a stored table in one way; what was done, and to which files."""
    names = sorted(entry.name for entry in folder.iterdir())
    file = folder / chance.choice(names)
    data = bytearray(file.read_bytes())
    what = chance.choice(
        ["bit", "bit", "byte", "byte", "range", "zeros", "cut", "longer", "gone", "swap", "empty"]
    )
    place = chance.randrange(len(data)) if data else 0
    if what == "gone":
        file.unlink()
        return what, {file.name}
    if what == "swap":
        kin = [name for name in names if name[:4] == file.name[:4]]
        other = folder / chance.choice(kin if chance.random() < 0.7 else names)
        data = bytearray(other.read_bytes())
        other.write_bytes(file.read_bytes())
        file.write_bytes(data)
        return what, {file.name, other.name}
    if what == "longer":
        data += chance.randbytes(chance.randrange(1, 2000))
    elif what == "empty":
        data.clear()
    elif data and what == "bit":
        data[place] ^= 1 << chance.randrange(8)
    elif data and what == "byte":
        data[place] = chance.randrange(256)
    elif data and what in ("range", "zeros"):
        size = min(len(data) - place, chance.randrange(1, 300))
        data[place : place + size] = bytes(size) if what == "zeros" else chance.randbytes(size)
    elif what == "cut":
        del data[place:]
    file.write_bytes(data)
    return what, {file.name}


def outcome(
    path: Path,
    questions: Questions,
    expected: dict[str, Any],
    touched: set[str],
    chance: random.Random,
) -> str:
    """What happens to users of a damaged table: "right", "error", or what must never happen.

    They ask in any order, since whoever reads a damaged block first has to notice. Some compact
    the table first, which must not make damage look like data.
    """
    results = set()
    compact = chance.random() < 0.25
    try:
        with HashTable.open(path, "r+" if compact else "r") as table:
            if compact:
                table.compact()
            for question in chance.sample(QUESTIONS, len(QUESTIONS)):
                results.add(_ask(table, questions, question, expected, touched))
    except Exception as error:
        results.add(_judge(error, touched))
    bad = results - {"right", "error"}
    return bad.pop() if bad else min(results)


def _ask(
    table: HashTable,
    questions: Questions,
    question: str,
    expected: dict[str, Any],
    touched: set[str],
) -> str:
    try:
        answer = questions.answer(table, question)
    except Exception as error:
        return _judge(error, touched)
    return "right" if answer == expected[question] else f"a wrong answer to {question!r}"


def _judge(error: Exception, touched: set[str]) -> str:
    if not isinstance(error, StorageError):
        return f"{type(error).__name__}: {error}"
    if any(name in str(error) for name in (*touched, "manifest.json")):
        return "error"
    return f"an error that does not name {touched}: {error}"


def reported(path: Path) -> bool:
    """Whether the check-up finds something wrong."""
    try:
        return bool(folder_faults(path))
    except StorageError:
        return True


def campaign(names: list[str], count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Mutate each table so many times; the outcomes."""
    tally: Counter[str] = Counter()
    failures = []
    for name in names:
        base = folder / name
        build(base, name)
        files = {entry.name: entry.read_bytes() for entry in base.iterdir()}
        with HashTable.open(base) as table:
            questions = Questions(table)
            expected = {one: questions.answer(table, one) for one in QUESTIONS}
            nearest = [line[0] for line in expected["batch"]["ids"]]
            assert nearest[: len(table)] == questions.ids  # every item finds itself
        for number in range(count):
            chance = random.Random(f"{seed} {name} {number}")
            copy = folder / "copy"
            shutil.copytree(base, copy)
            what, touched = mutate(chance, copy)
            left = {entry.name: entry.read_bytes() for entry in copy.iterdir()}
            changed = {one for one in files if files[one] != left.get(one)} - {"writer.lock"}
            found = reported(copy)
            result = outcome(copy, questions, expected, touched, chance)
            tally[result if result in ("right", "error") else "bad"] += 1
            if result not in ("right", "error"):
                failures.append(f"{name} {number} {what} {sorted(touched)}: {result}")
            if found != bool(changed):
                failures.append(f"{name} {number} {what} {sorted(touched)}: check says {found}")
            shutil.rmtree(copy)
    return {"tally": tally, "failures": failures}


def run_campaign(names: list[str], count: int, seed: int, folder: Path) -> None:
    result = in_a_process(
        "test_damage", f"campaign({names!r}, {count}, {seed}, Path({str(folder)!r}))"
    )
    assert result["failures"] == []
    assert sum(result["tally"].values()) == count * len(names)
    assert result["tally"]["error"] > count * len(names) // 2
    assert result["tally"]["right"] > 0


def test_150_mutations(tmp_path: Path) -> None:
    run_campaign(sorted(TABLES), 25, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TABLES))
def test_2400_mutations(tmp_path: Path, name: str) -> None:
    run_campaign([name], 400, 1, tmp_path)


# A flipped byte in every array, and who must notice.


def everything(table: HashTable) -> list[Any]:
    return [table[item] for item in table]


def search_all(table: HashTable, payloads: bool = False) -> None:
    order = np.arange(table.buckets, dtype=np.int32)[None, :].repeat(3, axis=0)
    table.search(order, np.zeros((3, table.dim)), 2000, probe=table.buckets, payloads=payloads)


def search_one(table: HashTable) -> None:
    order = np.arange(table.buckets, dtype=np.int32)[None, :]
    table.search(order, np.zeros((1, table.dim)), 2000, probe=8)
    for bucket in range(table.buckets):
        table.search([[bucket]], np.zeros((1, table.dim)), 2000, probe=1)


def walk(table: HashTable) -> None:
    list(table)


def look_up(table: HashTable) -> None:
    assert "no such id" not in table
    assert 10**9 not in table


def list_buckets(table: HashTable) -> None:
    for bucket in range(table.buckets):
        table.bucket(bucket)


def only_open(table: HashTable) -> None:
    assert len(table)


def compact(table: HashTable) -> None:
    table.compact()


def use(path: Path, read: Callable[[HashTable], Any]) -> None:
    with HashTable.open(path, "r+") as table:
        read(table)


READERS: dict[str, list[Callable[[HashTable], Any]]] = {
    "ids": [search_all, search_one, look_up, everything, compact],
    "order": [look_up, everything],
    "offsets": [only_open],
    "checksums": [only_open],
    "embeddings": [search_all, search_one, everything, compact],
    "highs": [search_all, search_one, everything, compact],
    "lows": [search_all, search_one, everything, compact],
    "norms": [search_all, search_one],
    "codes": [search_all, search_one, everything, compact],
    "postings": [search_all, search_one, list_buckets],
    "names": [walk, search_all, search_one, look_up, everything, list_buckets, compact],
    "name_offsets": [walk, search_all, search_one, look_up, everything, list_buckets, compact],
    "payloads": [everything, lambda table: search_all(table, payloads=True), compact],
    "payload_offsets": [everything, lambda table: search_all(table, payloads=True), compact],
}


def header_of(file: Path) -> tuple[int, dict[str, Any]]:
    """Where the data of a segment's file starts, and its header."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return 8 + length, json.loads(data[8 : 8 + length])


def make_large(path: Path, active: int, dtype: str, ids: str) -> Path:
    """A table of one segment whose every array is longer than two blocks; its file."""
    rng = np.random.default_rng(0)
    count, buckets = 700, 600
    codes = np.array([rng.permutation(buckets)[:active] for _ in range(count)])
    names: list[Any] = list(range(count))
    if ids == "string":
        names = [f"item {one}" for one in names]
    with HashTable.create(
        path, buckets=buckets, dim=DIM, active=active, dtype=dtype, ids=ids
    ) as table:
        payloads = [{"number": one} for one in range(count)]
        table.add(codes, rng.normal(size=(count, DIM)), names, payloads)
        table.delete(names[:3])
    (file,) = path.glob("segment-*")
    return file


@pytest.mark.parametrize(
    ("active", "dtype", "ids"), [(1, "float16", "int64"), (3, "float32", "string")]
)
def test_a_flipped_byte_is_found_by_whoever_reads_it(
    tmp_path: Path, active: int, dtype: str, ids: str
) -> None:
    file = make_large(tmp_path / "table", active, dtype, ids)
    intact = file.read_bytes()
    base, header = header_of(file)
    tried = set()
    for name, place in header.items():
        if name == "__metadata__" or name.startswith("padding."):
            continue
        start, stop = place["data_offsets"]
        assert stop - start > 2 * BLOCK or name == "checksums", f"{name} shares its blocks"
        damaged = bytearray(intact)
        damaged[base + (start + stop) // 2] ^= 16
        file.write_bytes(damaged)
        for read in READERS[name]:
            with pytest.raises(DamagedFileError, match=file.name):
                use(file.parent, read)
        assert reported(file.parent)
        tried.add(name)
    assert tried == {
        name
        for name in READERS
        if (name != "embeddings" if dtype == "float32" else name not in ("highs", "lows"))
        and (active > 1 or name not in ("codes", "postings"))
        and (ids == "string" or not name.startswith("name"))
    }


@pytest.mark.parametrize("place", [0, 7, 8, 40])
def test_a_damaged_header_is_found_at_once(tmp_path: Path, place: int) -> None:
    file = make_large(tmp_path / "table", 1, "float32", "int64")
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedFileError, match=file.name):
        HashTable.open(file.parent)


def test_damage_is_reported_where_it_is(tmp_path: Path) -> None:
    file = make_large(tmp_path / "table", 1, "float32", "int64")
    data = bytearray(file.read_bytes())
    base, header = header_of(file)
    start, _ = header["lows"]["data_offsets"]
    blocks = [start // BLOCK + 1, start // BLOCK + 3]
    for block in blocks:
        data[base + block * BLOCK + 5] ^= 255
    file.write_bytes(data)
    faults = folder_faults(file.parent)
    assert len(faults) == 2
    for fault, block in zip(faults, blocks, strict=True):
        assert file.name in fault
        assert f"bytes {block * BLOCK} to {(block + 1) * BLOCK}" in fault


# The manifest.


def signed(body: dict[str, Any]) -> bytes:
    """A manifest with the right checksum, whatever is in it."""
    body = {name: value for name, value in body.items() if name != "crc32"}
    body["crc32"] = zlib.crc32(json.dumps(body, indent=1, sort_keys=True).encode())
    return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"


def rewrite(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest and sign it."""
    file = path / "manifest.json"
    body = json.loads(file.read_text())
    edit(body)
    file.write_bytes(signed(body))


@pytest.fixture
def table_path(tmp_path: Path) -> Path:
    build(tmp_path / "table", "k3-float32-string")
    return tmp_path / "table"


@pytest.mark.parametrize("flip", [1, 4, 128, 255])
def test_every_byte_of_the_manifest_matters(table_path: Path, flip: int) -> None:
    file = table_path / "manifest.json"
    data = file.read_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= flip
        file.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"manifest\.json"):
            HashTable.open(table_path)
    file.write_bytes(data)
    HashTable.open(table_path).close()


def test_signing_again_changes_nothing(table_path: Path) -> None:
    data = (table_path / "manifest.json").read_bytes()
    rewrite(table_path, lambda body: None)
    assert (table_path / "manifest.json").read_bytes() == data


def test_a_newer_format_is_refused_clearly(table_path: Path) -> None:
    rewrite(table_path, lambda body: body.update(version=5, something="new"))
    with pytest.raises(StorageError, match=r"manifest\.json has format version 5.*newer") as caught:
        HashTable.open(table_path)
    assert not isinstance(caught.value, DamagedFileError)


@pytest.mark.parametrize(
    "name",
    ["../outside/segment-0000000001.safetensors", "/etc/passwd", "segment-1.safetensors", "", 5],
)
def test_no_name_leads_out_of_the_folder(table_path: Path, name: Any) -> None:
    outside = table_path.parent / "outside"
    outside.mkdir()
    shutil.copy(table_path / "segment-0000000001.safetensors", outside)
    original = (table_path / "manifest.json").read_bytes()
    for edit in (
        lambda body: body["segments"][0].update(file=name),
        lambda body: body["segments"][0]["deleted"].update(file=name),
    ):
        (table_path / "manifest.json").write_bytes(original)
        rewrite(table_path, edit)
        with pytest.raises(DamagedFileError, match=r"manifest\.json"):
            HashTable.open(table_path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda body: body.update(segments=5),
        lambda body: body.update(segments={}),
        lambda body: body.update(next_id="7"),
        lambda body: body.update(next_file=None),
        lambda body: body.update(generation=[]),
        lambda body: body.update(extra=1),
        lambda body: body.pop("settings"),
        lambda body: body["settings"].update(buckets="12"),
        lambda body: body["settings"].update(dim=-1),
        lambda body: body["settings"].update(metric="manhattan"),
        lambda body: body["segments"][0].update(rows="many"),
        lambda body: body["segments"][0].update(rows=-1),
        lambda body: body["segments"][0].update(size=None),
        lambda body: body["segments"][0].update(header_crc32="x"),
        lambda body: body["segments"][0].update(largest="x"),
        lambda body: body["segments"][0].update(residual=None),
        lambda body: body["segments"][0]["deleted"].update(rows="x"),
        lambda body: body["segments"][0]["deleted"].update(crc32=None),
        lambda body: body["segments"][0].update(deleted=7),
    ],
)
def test_a_signed_manifest_that_makes_no_sense_is_an_error(
    table_path: Path, edit: Callable[[dict[str, Any]], Any]
) -> None:
    rewrite(table_path, edit)
    with pytest.raises(DamagedFileError, match=r"manifest\.json|segment-|deleted-"):
        HashTable.open(table_path)


@pytest.mark.parametrize("name", ["k3-float32-string", "k3-float16-int64"])
def test_a_segment_that_is_named_twice_is_reported(tmp_path: Path, name: str) -> None:
    build(tmp_path / "table", name)
    rewrite(tmp_path / "table", lambda body: body["segments"].append(body["segments"][0]))
    assert reported(tmp_path / "table")


def test_files_that_are_far_too_large_are_called_so(tmp_path: Path) -> None:
    with HashTable.create(tmp_path, buckets=2, dim=1) as table:
        ids = table.add([[0], [1], [1]], [[0.0], [1.0], [2.0]])
        table.delete(ids[:1])
    (deleted,) = tmp_path.glob("deleted-*")
    for path in (deleted, tmp_path / "manifest.json"):
        with path.open("r+b") as file:
            file.truncate(1 << 40)  # none of it on the disk
        with pytest.raises(DamagedFileError, match=rf"{path.name} has {1 << 40} bytes; expected"):
            HashTable.open(tmp_path)


def test_no_folder_no_table_no_segment(table_path: Path, tmp_path: Path) -> None:
    for mode in ("r", "r+"):
        with pytest.raises(StorageError, match="nothing here"):
            HashTable.open(tmp_path / "nothing here", mode)
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(StorageError, match="empty is not a table"):
            HashTable.open(tmp_path / "empty", mode)
        with pytest.raises(StorageError, match=r"manifest\.json"):
            HashTable.open(table_path / "manifest.json", mode)
    gone = sorted(table_path.glob("segment-*"))[1]
    gone.unlink()
    with pytest.raises(DamagedFileError, match=f"{gone.name} is missing"):
        HashTable.open(table_path)
    assert any(gone.name in fault for fault in folder_faults(table_path))


# Files that were changed with care: every checksum is right, but the numbers lead astray.


def forge(path: Path, name: str, place: int | slice, value: int) -> str:
    """Put a number into an array of the first segment, and make all checksums right."""
    file = min(path.glob("segment-*"))
    data = bytearray(file.read_bytes())
    base, header = header_of(file)
    kind = {"I32": "<i4", "I64": "<i8", "U8": "u1"}[header[name]["dtype"]]
    start, stop = header[name]["data_offsets"]
    array = np.frombuffer(bytes(data[base + start : base + stop]), kind).copy()
    array[place] = value
    data[base + start : base + stop] = array.tobytes()
    first, last = header["checksums"]["data_offsets"]
    content = bytes(data[base : base + first])
    sums = [zlib.crc32(content[start : start + BLOCK]) for start in range(0, first, BLOCK)]
    data[base + first : base + last] = np.array(sums, "<u4").tobytes()
    file.write_bytes(data)
    entry = {"sums_crc32": zlib.crc32(data[base + first : base + last])}
    rewrite(path, lambda body: body["segments"][0].update(entry))
    return file.name


ALL = slice(None)
SHORT = [-(2**31), -1, 100, 2**31 - 1]
LONG = [-(2**62), -1, 10**6, 2**62]
# What is forged, and who must notice. Others may, but not with another error.
FORGED: dict[str, tuple[int | slice, list[int], list[Callable[[HashTable], Any]]]] = {
    "postings": (7, SHORT, [search_all, search_one]),
    "codes": (7, SHORT, [search_all, search_one]),
    "order": (7, SHORT, []),
    "ids": (7, LONG, []),
    "name_offsets": (7, LONG, []),
    "payload_offsets": (7, LONG, []),
    "offsets": (7, LONG, [only_open]),
    "names": (ALL, [255], [walk, everything, search_all]),
    "payloads": (ALL, [255], [everything]),
}
USERS: list[Callable[[HashTable], Any]] = [
    search_all, search_one, everything, walk, look_up, list_buckets, compact, only_open,
]  # fmt: skip


def use_forged(base: Path, name: str) -> list[str]:
    """Use tables with a forged array; what happened that must not."""
    problems = []
    place, values, noticing = FORGED[name]
    for value in values:
        for use in USERS:
            copy = base.parent / "copy"
            shutil.copytree(base, copy)
            file = forge(copy, name, place, value)
            what = f"{name} {value}, {use.__name__}"
            print(what, file=sys.stderr, flush=True)  # the last words before a crash
            try:
                if not reported(copy) and name != "payloads":
                    problems.append(f"{what}: the check-up is content")
                with HashTable.open(copy, "r+") as table:
                    use(table)
                if use in noticing:
                    problems.append(f"{what}: not noticed")
            except DamagedFileError as error:
                if file not in str(error):
                    problems.append(f"{what}: {error}")
            except KeyError:  # an id of the forged file is not found
                pass
            except Exception as error:
                problems.append(f"{what}: {type(error).__name__}: {error}")
            shutil.rmtree(copy)
    return problems


@pytest.mark.parametrize("name", sorted(FORGED))
def test_forged_numbers_lead_nowhere(table_path: Path, name: str) -> None:
    assert in_a_process("test_damage", f"use_forged(Path({str(table_path)!r}), {name!r})") == []
