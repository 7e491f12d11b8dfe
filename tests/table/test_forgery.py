"""Files made on purpose: every checksum is right, and what they say is wrong, or deadly.

Whoever opens such a table gets a right answer or an error of FlowHash in one line: no signal, no
traceback, no hang, no exhausted memory. All of it runs in a process of its own, so that a signal is
a failed test. ``python -m tests.table.test_forgery 5000`` tries so many forgeries.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.errors import DamagedFileError, InputError, StorageError
from flowhash.table import HashTable
from flowhash.table.integrity import folder_faults
from flowhash.table.storage.segment_file import KINDS
from tests.table.oracles import shortened
from tests.table.process import in_a_process
from tests.table.writer import BUCKETS, DIM

BLOCK = 1024
LONG = 33  # numbers of a row that has a quantised plane
SETTINGS: list[dict[str, Any]] = [
    {"active": 1},
    {"active": 3, "ids": "string"},
    {"active": 1, "dtype": "float16", "ids": "string", "metric": "cosine"},
    {"active": 2, "dtype": "float16", "metric": "inner"},
    {"active": 2, "metric": "cosine"},
    {"active": 1, "metric": "inner", "dim": LONG},
    {"active": 2, "dim": LONG},
]
MEMORY = 4 << 30  # what a case may take besides what the process has
PATIENCE = 900  # seconds after which a case hangs, also on a machine that does much else


def build(path: Path, number: int) -> None:
    """A table of one segment, or of two, with payloads and deletions."""
    settings = SETTINGS[number % len(SETTINGS)]
    rng = np.random.default_rng(number)
    with HashTable.create(path, buckets=BUCKETS, **{"dim": DIM, **settings}) as table:
        for first in (0, 40) if number % 2 else (0,):
            ids: list[Any] = list(range(first, first + 60))
            if table.id_kind == "string":
                ids = [f"Ding {one} é" for one in ids]
            codes = [rng.permutation(BUCKETS)[: table.active] for _ in ids]
            if number % 3 == 0:  # items in one to k buckets
                codes = shortened(rng, codes)
            payloads = [{"note": one} if one % 3 else None for one in range(len(ids))]
            table.add(codes, rng.normal(size=(len(ids), table.dim)), ids, payloads)
        table.delete(ids[3:9])


# How files are forged.


@dataclass
class Forger:
    """Changes the files of a table, and makes all checksums right."""

    folder: Path
    chance: random.Random

    def manifest(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        return body

    def sign(self, body: dict[str, Any]) -> None:
        """Write a manifest with its checksum."""
        body = {name: value for name, value in body.items() if name != "crc32"}
        text = json.dumps(body, indent=1, sort_keys=True)
        body["crc32"] = zlib.crc32(text.encode())
        text = json.dumps(body, indent=1, sort_keys=True)
        (self.folder / "manifest.json").write_bytes(text.encode() + b"\n")

    def segment(self) -> tuple[int, bytes, bytes]:
        """A segment: its number in the manifest, the header, the data."""
        body = self.manifest()
        number = self.chance.randrange(len(body["segments"]))
        data = (self.folder / body["segments"][number]["file"]).read_bytes()
        length = int.from_bytes(data[:8], "little")
        return number, data[8 : 8 + length], data[8 + length :]

    def write(self, number: int, header: bytes, data: bytes, sums: bytes | None = None) -> None:
        """Write a segment, and what the manifest says of it."""
        header += b" " * (-(8 + len(header)) % 64)
        content = len(header).to_bytes(8, "little") + header + data
        body = self.manifest()
        entry = body["segments"][number]
        (self.folder / entry["file"]).write_bytes(content)
        entry.update(size=len(content), header_crc32=zlib.crc32(header))
        if sums is not None:
            entry["sums_crc32"] = zlib.crc32(sums)
        self.sign(body)

    def write_fields(self, number: int, fields: Any, data: bytes) -> None:
        """Write a segment whose header was changed, with the sum of what it calls its checksums."""
        sums = None
        with contextlib.suppress(Exception):
            first, last = fields["checksums"]["data_offsets"]
            sums = data[first:last]
        self.write(number, json.dumps(fields).encode(), data, sums)

    def write_data(self, number: int, header: bytes, data: bytearray) -> None:
        """Write a segment whose data was changed, with new checksums."""
        first, last = json.loads(header)["checksums"]["data_offsets"]
        starts = range(0, first, BLOCK)
        sums = [zlib.crc32(data[start : min(first, start + BLOCK)]) for start in starts]
        data[first:last] = np.array(sums, "<u4").tobytes()
        self.write(number, header.rstrip(b" "), bytes(data), bytes(data[first:last]))

    def deletions(self, content: bytes, rows: int | None = None) -> None:
        """Write a file of deletions, and what the manifest says of it."""
        body = self.manifest()
        entry = body["segments"][-1]["deleted"]
        (self.folder / entry["file"]).write_bytes(content)
        entry.update(size=len(content), crc32=zlib.crc32(content))
        if rows is not None:
            entry["rows"] = rows
        self.sign(body)


def odd(chance: random.Random) -> Any:
    """Something that should not be there."""
    nested: Any = 1
    for _ in range(900):
        nested = [nested]
    return chance.choice(
        [None, True, False, -1, 0, 1, 2, 7, 59, 60, 61, 2**31 - 1, 2**31, 2**32, 2**45, 2**53,
         2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.0, 1.5, -2.0, 1e19, 1e308,
         float("nan"), float("inf"), "", "x", "x" * 5000, "a\nb\x1b[31mc", "\ud800", "é", "int64",
         "string", "float16", "cosine", "inner", [], {}, [1], [[]], {"a": 1}, {"a\nb": [1]},
         [2**64] * 3, nested]
    )  # fmt: skip


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a JSON text, those in others too."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield (*path, key)
        if isinstance(value[key], (dict, list)):
            yield from leaves(value[key], (*path, key))


def change_json(chance: random.Random, body: Any) -> str:
    """Change a value somewhere, take one away, or put one in."""
    *way, last = chance.choice(list(leaves(body)))
    holder = body
    for key in way:
        holder = holder[key]
    what = chance.choice(["change", "change", "change", "drop", "add", "near"])
    if what == "drop":
        del holder[last]
    elif what == "add" and isinstance(holder, dict):
        holder[chance.choice(["extra", "deleted", "names", "a\nb", "codes"])] = odd(chance)
    elif what == "near" and isinstance(holder[last], int):
        holder[last] += chance.choice([-64, -8, -1, 1, 8, 64, 4096])
    else:
        holder[last] = odd(chance)
    return f"{what} {[*way, last]}"


def forge_manifest(forger: Forger) -> str:
    body = forger.manifest()
    said = change_json(forger.chance, body)
    if forger.chance.random() < 0.2:
        said += f", {change_json(forger.chance, body)}"
    forger.sign(body)
    return said


RAW = [b"5", b"null", b"[]", b"{}", b'"x"', b"", b"\xff\xfe", b"{", b"[" * 60_000, b"1" * 6000]


def forge_raw_manifest(forger: Forger) -> str:
    content = forger.chance.choice([*RAW, b"[" * 10**6, b'{"format": "flowhash-table"}'])
    (forger.folder / "manifest.json").write_bytes(content)
    return f"the manifest is {content[:10]!r}"


def forge_raw_header(forger: Forger) -> str:
    number, header, data = forger.segment()
    fields = json.loads(header)
    few = json.dumps({"__metadata__": fields["__metadata__"]}).encode()
    deep = few[:-1] + b', "checksums": ' + b"[" * 60_000 + b"}"
    content = forger.chance.choice([*RAW, few, deep])
    forger.write(number, content, data)
    return f"the header is {content[:10]!r}, {len(content)} bytes"


def forge_header(forger: Forger) -> str:
    number, header, data = forger.segment()
    fields = json.loads(header)
    said = change_json(forger.chance, fields)
    forger.write_fields(number, fields, data)
    return f"header: {said}"


def forge_places(forger: Forger) -> str:
    """Let an array lie elsewhere, be longer or shorter, of another kind; sizes fit each other."""
    number, header, data = forger.segment()
    fields = json.loads(header)
    chance = forger.chance
    name = chance.choice([name for name in fields if name != "__metadata__"])
    field = fields[name]
    size = field["data_offsets"][1] - field["data_offsets"][0]
    what = chance.choice(["behind", "behind", "before", "kind", "shape", "swap", "order", "rename"])
    if what == "behind":  # the checksums, at the end of a longer file
        data += bytes(-len(data) % 64)
        field["data_offsets"] = [len(data), len(data) + size]
        data += bytes(size)
    elif what == "before":
        start = chance.randrange(0, len(data), 64)
        field["data_offsets"] = [start, start + size]
    elif what == "kind":
        field["dtype"] = chance.choice(list(KINDS))
        width = np.dtype(KINDS[field["dtype"]]).itemsize
        field["shape"] = [size // width]
    elif what == "shape":
        field["shape"] = chance.choice(
            [[10**30], [0, 10**30], [size], [1, *field["shape"]], [], [-1], [2**32, 2**32], [1.0]]
        )
        if chance.random() < 0.5:
            start = field["data_offsets"][0]
            with contextlib.suppress(TypeError):
                width = np.dtype(KINDS[field["dtype"]]).itemsize
                field["data_offsets"] = [
                    start,
                    start + width * int(np.prod(field["shape"], dtype=object)),
                ]
    elif what == "swap":
        other = chance.choice([one for one in fields if one != "__metadata__"])
        fields[name], fields[other] = fields[other], fields[name]
    elif what == "order":
        names = list(fields)
        chance.shuffle(names)
        fields = {one: fields[one] for one in names}
    else:
        new = chance.choice(["codes", "postings", "lows", "names", "payloads", "checksums", "a\nb"])
        fields = {new if one == name else one: fields[one] for one in fields}
    forger.write_fields(number, fields, data)
    return f"{what} {name}"


def forge_numbers(forger: Forger) -> str:
    """Change numbers in one array, or in two."""
    number, header, data = forger.segment()
    fields, content = json.loads(header), bytearray(data)
    chance, said = forger.chance, []
    names = [
        name for name in fields if name != "__metadata__" and name[:7] not in ("padding", "checksu")
    ]
    for name in chance.sample(names, chance.choice([1, 1, 2])):
        field = fields[name]
        first, last = field["data_offsets"]
        array = np.frombuffer(bytes(content[first:last]), KINDS[field["dtype"]]).copy()
        if not len(array):
            continue
        place = chance.randrange(len(array))
        what = chance.choice(["odd", "odd", "near", "all", "shuffle", "bytes", "wrap"])
        if array.dtype.kind == "f":
            few: list[Any] = [np.nan, np.inf, -np.inf, -1.0, 0.0, 6e4, 1e-7]
        else:
            limits = np.iinfo(array.dtype)
            few = [limits.min, limits.max, limits.max // 2, 0, 1, 12, 60, 255]
            if array.dtype == np.uint16:  # upper halves of infinity, of minus infinity and of NaN
                few += [0x7F80, 0xFF80, 0x7FC0]
        if what == "odd":
            array[place] = chance.choice(few)
        elif what == "near":
            array[place] += chance.choice([1, 2])
        elif what == "all":
            array[:] = chance.choice(few)
        elif what == "shuffle":
            array = array[np.random.default_rng(chance.randrange(99)).permutation(len(array))]
        elif what == "wrap" and array.dtype == np.int64 and len(array) > 4:
            array[place % (len(array) - 3) + 1 :][:2] = [
                2**63 - 1,
                -2,
            ]  # their difference wraps round
        else:
            raw = bytearray(array.tobytes())
            raw[: min(64, len(raw))] = chance.randbytes(min(64, len(raw)))
            array = np.frombuffer(bytes(raw), array.dtype)
        content[first:last] = array.tobytes()
        said.append(f"{what} {name}")
    forger.write_data(number, header, content)
    return ", ".join(said)


def forge_lengths(forger: Forger) -> str:
    """A file that is shorter or longer, and a manifest that agrees."""
    number, header, data = forger.segment()
    chance = forger.chance
    cut = chance.choice([0, 1, 63, 64, len(data) // 2, len(data) - 1])
    data = data[:cut] if chance.random() < 0.6 else data + bytes(chance.choice([1, 8, 64, 5000]))
    if chance.random() < 0.2:
        body = forger.manifest()
        body["segments"][number]["size"] = cut % 9
        (forger.folder / body["segments"][number]["file"]).write_bytes(bytes(cut % 9))
        forger.sign(body)
        return f"{cut % 9} bytes in all"
    forger.write(number, header.rstrip(b" "), data)
    return f"{len(data)} bytes of data"


def forge_deletions(forger: Forger) -> str:
    chance = forger.chance
    packed, archive = io.BytesIO(), io.BytesIO()
    bits = np.zeros(8, np.uint8)
    what = chance.choice(["zip", "npz", "large", "kind", "bits", "short", "text", "object", "deep"])
    rows = None
    if what == "zip":
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("a", "b")
        forger.deletions(archive.getvalue())
        return what
    if what == "npz":
        np.savez(archive, bits)
        forger.deletions(archive.getvalue())
        return what
    if what == "kind":
        bits = bits.astype(chance.choice(["<i8", "<f4", "?", "S3"]))
    elif what == "object":
        bits = np.array([None])
    elif what == "bits":
        rows = chance.choice([0, 6, 59, 60, 61, 64])
        marked = np.zeros(64, np.uint8)
        marked[: min(rows, 60)] = 1
        bits = np.packbits(marked)
    np.save(packed, bits, allow_pickle=True)
    content = packed.getvalue()
    if what == "large":
        new = chance.choice([b"(35184372088832,)", b"(-1,)", b"(8, 10000000)", b"(2**45,)"])
        content = content.replace(b"(8,)", new, 1)
    elif what == "short":
        content = content[: chance.choice([0, 6, 10, 60, len(content) - 1])]
    elif what == "text":
        content = chance.choice(
            [b"", b"x", b"5", b"\x93NUMPY", b"\x93NUMPY\x03\x00\xff\xff\xff\x7f"]
        )
    elif what == "deep":
        content = b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"(" * 9000
    forger.deletions(content, rows)
    return f"deletions: {what}"


def forge_files(forger: Forger) -> str:
    """Something else in a file's place: a pipe, a device, a folder, a link."""
    chance = forger.chance
    file = chance.choice(sorted(forger.folder.iterdir()))
    what = chance.choice(["pipe", "zero", "null", "folder", "loop", "nowhere", "link"])
    content = file.read_bytes()
    file.unlink()
    if what == "pipe":
        os.mkfifo(file)
    elif what in ("zero", "null"):
        file.symlink_to(f"/dev/{what}")
    elif what == "folder":
        file.mkdir()
    elif what == "loop":
        file.symlink_to(file)
    elif what == "nowhere":
        file.symlink_to(file.parent.parent / "nowhere at all")
    else:  # whoever keeps files elsewhere may read them
        elsewhere = file.parent.parent / "elsewhere"
        elsewhere.write_bytes(content)
        file.symlink_to(elsewhere)
    return f"{what} for {file.name}"


FORGERIES: list[Callable[[Forger], str]] = [
    forge_manifest, forge_manifest, forge_raw_manifest, forge_raw_header, forge_header,
    forge_header, forge_places, forge_places, forge_places, forge_numbers, forge_numbers,
    forge_numbers, forge_lengths, forge_deletions, forge_files,
]  # fmt: skip


# What users do with it.


def queries(table: HashTable, count: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(count, table.dim)).astype(np.float32)
    order = np.array([rng.permutation(table.buckets)[:BUCKETS] for _ in vectors], np.int32)
    return order, vectors


def some_ids(table: HashTable) -> list[Any]:
    return [3, 20, 59] if table.id_kind == "int64" else ["Ding 3 é", "Ding 20 é", "Ding 59 é"]


def get(table: HashTable) -> None:
    for item in some_ids(table):
        with contextlib.suppress(KeyError):
            table[item]


def few(table: HashTable) -> None:
    order, vectors = queries(table, 1)
    table.search(order, vectors, 5, probe=min(3, order.shape[1]), payloads=True)
    for bucket in range(0, table.buckets, 5):
        table.search([[bucket]], vectors, 100, probe=1)


def batch(table: HashTable) -> Any:
    order, vectors = queries(table, 30)
    return table.search(order, vectors, 7, probe=min(4, order.shape[1]), payloads=True)


def at_least(table: HashTable) -> None:
    table.search(*queries(table, 9), 70, at_least=50, probe=1)


def where(table: HashTable) -> None:
    table.search(*queries(table, 20), 4, where=some_ids(table), probe=1)


def walk(table: HashTable) -> None:
    list(table)
    for bucket in range(0, table.buckets, 4):
        table.bucket(bucket)
    list(table.batches(50))


USES: list[Callable[[HashTable], Any]] = [few, batch, get, HashTable.stats, at_least, where, walk]
CHANGES: list[Callable[[HashTable], Any]] = [
    HashTable.compact,
    lambda table: table.delete(some_ids(table)),
    lambda table: table.add(
        [list(range(table.active))], np.ones((1, table.dim)), some_ids(table)[:1]
    ),
]


def wrong_answers(table: HashTable) -> list[str]:
    """Where a batch is not what brute force finds among the items that the table shows."""
    stored = list(table.batches(10**6))
    codes = [set(code) for part in stored for code in part.codes.tolist()]
    rows = np.concatenate([np.zeros((0, table.dim)), *(part.embeddings for part in stored)])
    order, vectors = queries(table, 30)
    hits = batch(table)
    found = []
    for query, vector in enumerate(vectors.astype(np.float64)):
        opened = set(order[query, :4].tolist())
        near = np.array([bool(opened & code) for code in codes], bool)
        chosen = rows[near].astype(np.float64)
        if table.metric == "euclidean":
            away = np.square(chosen - vector).sum(axis=1)
        elif table.metric == "inner":
            away = -chosen @ vector
        else:
            lengths = np.linalg.norm(chosen, axis=1) * np.linalg.norm(vector)
            away = 1 - chosen @ vector / lengths
        expected = np.sort(away)[:7]
        count = int(hits.counts[query])
        answered = hits.distances[query, :count]
        if hits.scanned[query] != near.sum() or count != len(expected):
            found.append(f"query {query} scanned {hits.scanned[query]} and found {count}")
        elif not np.allclose(answered, expected, rtol=1e-5, atol=1e-6):
            found.append(f"query {query}: {answered} instead of {expected}")
    return found


def judged(error: Exception) -> str:
    """What is wrong with an error; "" for one of FlowHash's, in one line."""
    if not isinstance(error, (StorageError, InputError)):
        return f"{type(error).__name__}: {error}"
    words = str(error)
    if "\n" in words or not words.isprintable() or len(words) > 1000:
        return f"not one clear line: {words!r:.300}"
    return ""


def outcome(path: Path, chance: random.Random) -> tuple[str, list[str]]:
    """What happened to those who used a table: "right", "refused", "reported", and problems."""
    problems: list[str] = []
    refused = False
    faults = ["an error"]
    try:
        faults = folder_faults(path)
    except Exception as error:
        problems += [judged(error)]
    changing = chance.random() < 0.3
    try:
        with HashTable.open(path, "r+" if changing else "r") as table:
            if not faults:
                problems += wrong_answers(table)
            uses = [*chance.sample(USES, len(USES)), *(CHANGES if changing else [])]
            for use in uses:
                try:
                    use(table)
                except Exception as error:  # noqa: PERF203
                    refused = True
                    problems += [judged(error)]
    except Exception as error:
        refused = True
        problems += [judged(error)]
    problems = [problem for problem in problems if problem]
    if refused and not faults and not changing:
        problems.append("refused, though the check-up is content")
    return "refused" if refused else "reported" if faults else "right", problems


def command(*words: str) -> str:
    """What is wrong with how the real command ends; "" if nothing is."""
    from flowhash.cli.app import _code

    streams = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = _code(words)
    errors = streams[1].getvalue()
    lines = [line for line in errors.splitlines() if line.startswith("flowhash: ")]
    if code not in (0, 1, 2) or "Traceback" in errors or (code == 2 and len(lines) != 1):
        return f"{words[0]} ended with {code}: {errors[-500:]}"
    return ""


def campaign(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Forge tables so many times; how often what happened, and what should not have."""
    warnings.simplefilter("ignore")  # NumPy's, about numbers that are none
    tally: Counter[str] = Counter()
    problems: list[str] = []
    bases = [folder / f"base {number}" for number in range(2 * len(SETTINGS))]
    for number, base in enumerate(bases):  # which also compiles all that is needed
        build(base, number)
        copy = folder / "copy"
        shutil.copytree(base, copy)
        for attempt in (0, 1, 2, 3):
            result, found = outcome(copy, random.Random(attempt))
            assert (result, found) == ("right", []), (number, attempt, result, found)
        shutil.rmtree(copy)
    command("table", "check", str(bases[0]))
    if sys.platform == "linux":
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        copy = folder / f"copy {number}"
        shutil.copytree(chance.choice(bases), copy)
        forge = chance.choice(FORGERIES)
        with contextlib.suppress(UnicodeEncodeError):
            what = f"{seed} {number} {forge.__name__}: {forge(Forger(copy, chance))}"
        print(what.encode("ascii", "replace").decode(), file=sys.stderr, flush=True)  # last words
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        if number % 10 == 0:
            for words in (("table", "check"), ("search",), ("table", "stats")):
                item = [chance.choice(["id:20", "id:Ding 20 é"])] if words == ("search",) else []
                problems += [f"{what}: {one}" for one in [command(*words, str(copy), *item)] if one]
        result, found = outcome(copy, chance)
        faulthandler.cancel_dump_traceback_later()
        tally[result] += 1
        problems += [f"{what}: {one}" for one in found]
        shutil.rmtree(copy)
    return {"tally": tally, "problems": problems}


def run_campaign(count: int, seed: int, folder: Path) -> dict[str, Any]:
    call = f"campaign({count}, {seed}, Path({str(folder)!r}))"
    found: dict[str, Any] = in_a_process("test_forgery", call)
    return found


def test_200_forgeries(tmp_path: Path) -> None:
    found = run_campaign(200, 0, tmp_path)
    assert found["problems"] == []
    assert found["tally"]["refused"] > 100
    assert found["tally"]["reported"] > 5


@pytest.mark.slow
def test_5000_forgeries(tmp_path: Path) -> None:
    found = run_campaign(5000, 1, tmp_path)
    assert found["problems"] == []
    assert sum(found["tally"].values()) == 5000


# Forgeries with a name.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build(tmp_path / "table", 4)
    return tmp_path / "table"


def first(path: Path) -> tuple[Forger, int, dict[str, Any], bytes]:
    forger = Forger(path, random.Random(0))
    number, header, data = forger.segment()
    return forger, number, json.loads(header), data


@pytest.mark.parametrize("name", ["highs", "lows", "norms", "ids", "postings", "codes", "order"])
def test_no_array_lies_behind_the_checksums(path: Path, name: str) -> None:
    """There a search would look up, and note, whether a block is intact that does not exist."""
    forger, number, fields, data = first(path)
    start, stop = fields[name]["data_offsets"]
    place = len(data) + -len(data) % 64
    fields[name]["data_offsets"] = [place, place + stop - start]
    content = data + bytes(-len(data) % 64) + data[start:stop]
    forger.write_fields(number, fields, content)
    with pytest.raises(DamagedFileError, match=rf"segment-.*{name} does not lie behind"):
        HashTable.open(path)
    assert len(folder_faults(path)) == 1


def test_no_two_arrays_share_a_place(path: Path) -> None:
    forger, number, fields, data = first(path)
    fields["lows"]["data_offsets"] = fields["highs"]["data_offsets"]
    forger.write_fields(number, fields, data)
    with pytest.raises(DamagedFileError, match="lows does not lie behind"):
        HashTable.open(path)


def test_offsets_whose_difference_wraps_round(path: Path) -> None:
    forger, number, fields, data = first(path)
    start, _ = fields["offsets"]["data_offsets"]
    content = bytearray(data)
    content[start + 16 : start + 32] = np.array([2**63 - 1, -2], "<i8").tobytes()
    forger.write_data(number, json.dumps(fields).encode(), content)
    with pytest.raises(DamagedFileError, match="bucket offsets make no sense"):
        HashTable.open(path)


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("factor", [0.0, 0.999, 1.001, np.nan])
def test_check_compares_norms(tmp_path: Path, metric: str, dtype: str, factor: float) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "table"
    with HashTable.create(path, buckets=3, dim=40, metric=metric, dtype=dtype) as table:
        scales = 10.0 ** rng.integers(-3, 3, size=(70, 1))
        table.add(rng.integers(3, size=(70, 1)), rng.normal(size=(70, 40)) * scales)
    assert folder_faults(path) == []
    forger, number, fields, data = first(path)
    start, _ = fields["norms"]["data_offsets"]
    content = bytearray(data)
    norm = np.frombuffer(data[start + 40 : start + 44], "<f4") * np.float32(factor)
    content[start + 40 : start + 44] = norm.astype("<f4").tobytes()
    forger.write_data(number, json.dumps(fields).encode(), content)
    (fault,) = folder_faults(path)
    assert "norms are not those of its embeddings" in fault


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"residual": 0.0}, "leave out more than its segment says"),
        ({"largest": 0.5}, "longer than its segment says"),
    ],
)
def test_check_compares_lengths(path: Path, changes: dict[str, float], said: str) -> None:
    forger = Forger(path, random.Random(0))
    body = forger.manifest()
    body["segments"][0].update(changes)
    forger.sign(body)
    assert any(said in fault for fault in folder_faults(path))


def test_check_compares_the_next_id(path: Path) -> None:
    forger = Forger(path, random.Random(0))
    body = forger.manifest()
    body["next_id"] = 59
    forger.sign(body)
    assert folder_faults(path) == ["the next id would be 59, but there is 59 already"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("value", [0.0, np.nan])
def test_embeddings_without_a_direction(tmp_path: Path, dtype: str, value: float) -> None:
    """No ``add`` takes them, and cosine divides by their length."""
    path = tmp_path / "table"
    with HashTable.create(path, buckets=2, dim=3, metric="cosine", dtype=dtype) as table:
        table.add([[0], [0]], [[1, 2, 3], [4, 5, 6]])
    forger, number, fields, data = first(path)
    content = bytearray(data)
    bits = np.full(6, value, dtype).view(np.uint16 if dtype == "float16" else np.uint32)
    planes = {"embeddings": bits, "highs": bits >> 16, "lows": bits & 0xFFFF}
    for name in planes.keys() & fields:
        start, stop = fields[name]["data_offsets"]
        content[start:stop] = planes[name].astype("<u2").tobytes()
    start, stop = fields["norms"]["data_offsets"]
    content[start:stop] = np.ones(2, "<f4").tobytes()
    forger.write_data(number, json.dumps(fields).encode(), content)
    assert folder_faults(path) != []
    with HashTable.open(path, "r+") as table:
        for count in (1, 40):
            with contextlib.suppress(DamagedFileError):  # NaN is not even a candidate
                table.search([[0]] * count, np.ones((count, 3)), 2)
                assert np.isnan(value)
        table.delete([0])
        with pytest.raises(DamagedFileError, match="not written by FlowHash"):
            table.compact()


def test_a_lock_is_never_taken_through_a_link(path: Path, tmp_path: Path) -> None:
    lock = path / "writer.lock"
    for target in (tmp_path / "not there", tmp_path / "there"):
        (tmp_path / "there").write_text("somebody's")
        lock.unlink()
        lock.symlink_to(target)
        with pytest.raises(StorageError, match="is a link, or not a file"):
            HashTable.open(path, "r+")
        HashTable.open(path).close()
    assert not (tmp_path / "not there").exists()
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(StorageError, match="is a link, or not a file"):
        HashTable.open(path, "r+")


if __name__ == "__main__":
    wanted, chosen = (int(one) for one in [*sys.argv[1:], "1"][:2])  # how many, and a seed
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(run_campaign(wanted, chosen, Path(place)), indent=1))
