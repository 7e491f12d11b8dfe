"""A writer to be killed, and the model that says what its table must contain.

Operations follow from a seed and a number alone, so whoever knows how many were done knows the
table. As a script it compiles everything once and then forks a worker for every line that it is
sent; the worker writes to a table, and a line to stdout after each operation.
"""

from __future__ import annotations

import json
import linecache
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from flowhash.table import HashTable

BUCKETS, DIM = 12, 5
KNOWN_IDS = 40  # ids are drawn from so many, so that most adds replace something


@dataclass(frozen=True)
class Kind:
    """What a table is like."""

    active: int = 1
    dtype: str = "float32"
    ids: str = "int64"

    def create(self, path: Path | None) -> HashTable:
        return HashTable.create(
            path, buckets=BUCKETS, dim=DIM, active=self.active, dtype=self.dtype, ids=self.ids
        )


KINDS = {"listed": Kind(active=2), "halves": Kind(dtype="float16", ids="string")}


@dataclass(frozen=True)
class Operation:
    """One change: an add (without ids the table counts), a deletion, a compaction, or new codes."""

    name: str
    ids: list[Any] | None = None
    codes: Any = None
    embeddings: Any = None
    payloads: list[Any] | None = None
    encoder: str | None = None  # of new codes

    def run(self, table: HashTable) -> None:
        if self.name == "add":
            table.add(self.codes, self.embeddings, self.ids, self.payloads)
        elif self.name == "delete":
            table.delete(self.ids)
        elif self.name == "recode":
            table.recode(lambda vectors: self.codes_of(vectors, table.active), self.encoder)
        else:
            table.compact()

    def codes_of(self, embeddings: Any, active: int) -> Any:
        """New codes: the bits of an embedding and the encoder's name say the first bucket."""
        bits = np.ascontiguousarray(embeddings, np.float32).view(np.uint32).astype(np.uint64)
        first = (bits.sum(axis=1) + np.uint64(len(self.encoder or ""))) % np.uint64(BUCKETS)
        return (first.astype(np.int32)[:, None] + 5 * np.arange(active, dtype=np.int32)) % BUCKETS


def added(kind: Kind, rng: np.random.Generator, ids: list[Any] | None, count: int) -> Operation:
    """An add of random items, some of them with payloads."""
    codes = np.array([rng.permutation(BUCKETS)[: kind.active] for _ in range(count)])
    payloads = [
        {"note": int(rng.integers(1 << 30)), "text": "ß" * int(rng.integers(4))}
        if rng.random() < 0.6
        else None
        for _ in range(count)
    ]
    embeddings = rng.normal(size=(count, DIM)).astype(np.float32)
    return Operation("add", ids, codes, embeddings, payloads)


def recoding(number: int) -> Operation:
    """New codes for all items, other ones than those of the number before."""
    return Operation("recode", encoder="x" * (number % BUCKETS))


def operation(kind: Kind, seed: int, number: int) -> Operation:
    """The operation with this number."""
    rng = np.random.default_rng([seed, number])
    choice = rng.random()
    count = int(rng.integers(1, 9))
    ids = [
        int(one) if kind.ids == "int64" else f"item {one}"
        for one in rng.integers(KNOWN_IDS, size=count)
    ]
    if choice < 0.08:
        return Operation("compact")
    if choice < 0.15:
        return recoding(number)
    if choice < 0.38:
        return Operation("delete", ids)
    if choice < 0.48 and kind.ids == "int64":
        return added(kind, rng, None, count)
    return added(kind, rng, ids, count)


@dataclass
class Model:
    """What a table must contain: a dictionary, the next id to assign, and whose codes it has."""

    kind: Kind
    items: dict[Any, tuple[list[int], Any, Any]] = field(default_factory=dict)
    next_id: int = 0
    encoder: str | None = None

    def after(self, change: Operation) -> Model:
        items, next_id, encoder = dict(self.items), self.next_id, self.encoder
        if change.name == "delete":
            for item in change.ids or []:
                items.pop(item, None)
        elif change.name == "recode":
            encoder = change.encoder
            for item, (_, embedding, payload) in items.items():
                (code,) = change.codes_of(embedding[None], self.kind.active).tolist()
                items[item] = (sorted(code), embedding, payload)
        elif change.name == "add":
            ids = change.ids
            if ids is None:
                ids = list(range(next_id, next_id + len(change.codes)))
            stored = change.embeddings.astype(self.kind.dtype).astype(np.float32)
            rows = zip(ids, change.codes, stored, change.payloads or [], strict=True)
            for item, code, embedding, payload in rows:
                items[item] = (sorted(code.tolist()), embedding, payload)
            if self.kind.ids == "int64":
                next_id = max(next_id, max(ids) + 1)
        return Model(self.kind, items, next_id, encoder)

    def differences(self, table: HashTable) -> list[str]:
        """Where a table's content is not this; everything is read."""
        ids = list(table)
        if len(ids) != len(table) or sorted(ids) != sorted(self.items):
            return [f"ids are {sorted(ids)}, expected {sorted(self.items)}"]
        found = []
        if table.encoder != self.encoder:
            found.append(f"its encoder is {table.encoder!r}, expected {self.encoder!r}")
        for item, (code, embedding, payload) in self.items.items():
            stored = table[item]
            if stored.id != item or stored.code.tolist() != code or stored.payload != payload:
                found.append(f"{item!r} is {stored}, expected {code} {payload}")
            elif not np.array_equal(stored.embedding, embedding):
                found.append(f"{item!r} has embedding {stored.embedding}, expected {embedding}")
        for bucket in range(BUCKETS):
            expected = sorted(item for item, (code, _, _) in self.items.items() if bucket in code)
            if sorted(table.bucket(bucket).tolist()) != expected:
                found.append(f"bucket {bucket} has {table.bucket(bucket)}, expected {expected}")
        return found

    def wrong_answers(self, table: HashTable, seed: int = 0, count: int = 6) -> list[str]:
        """Where searches do not equal brute force: a batch, and each query alone."""
        rng = np.random.default_rng(seed)
        queries = rng.normal(size=(count, DIM)).astype(np.float32)
        order = np.array([rng.permutation(BUCKETS) for _ in range(count)], np.int32)
        found = []
        batch = table.search(order, queries, top=5, probe=4, payloads=True)
        alone = [
            table.search(
                order[query : query + 1], queries[query : query + 1], 5, probe=4, payloads=True
            )
            for query in range(count)
        ]
        for query in range(count):
            opened = set(order[query, :4].tolist())
            away = sorted(
                (float(np.sum((queries[query].astype(float) - embedding) ** 2)), item)
                for item, (code, embedding, _) in self.items.items()
                if opened & set(code)
            )
            expected = [item for _, item in away[:5]]
            for hits, line in ((batch, query), (alone[query], 0)):
                size = int(hits.counts[line])
                same = (
                    hits.ids[line, :size].tolist() == expected
                    and hits.scanned[line] == len(away)
                    and np.allclose(hits.distances[line, :size], [far for far, _ in away[:5]])
                    and (hits.payloads or [])[line] == [self.items[item][2] for item in expected]
                )
                if not same:
                    found.append(f"query {query} found {hits.ids[line]}, expected {expected}")
        return found


def strays(path: Path) -> set[str]:
    """Files in a table's folder that do not belong there."""
    manifest = json.loads((path / "manifest.json").read_text())
    named = {"manifest.json", "writer.lock"}
    for segment in manifest["segments"]:
        named.add(segment["file"])
        if segment["deleted"]:
            named.add(segment["deleted"]["file"])
    return {entry.name for entry in path.iterdir()} - named


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # one write: lines of two processes do not mix


WRITING = ("storage/table_folder.py", "flowhash/durable_files.py", "storage/segment_file.py")


def kill_at(number: int) -> Callable[[FrameType, str, Any], Any]:
    """A tracer that kills its process before the given one of the lines that change files."""
    left = number

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        file = frame.f_code.co_filename
        if not file.endswith(WRITING):
            return None
        line = linecache.getline(file, frame.f_lineno)
        matters = not file.endswith("segment_file.py") or ".write(" in line
        if event == "line" and matters:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def work(order: dict[str, Any]) -> None:
    """Do operations on a table until killed, or until they are done."""
    kind = KINDS[order["kind"]]
    with HashTable.open(order["path"], "r+") as table:
        say("open")
        number = order["first"]
        while number != order.get("last"):
            change = operation(kind, order["seed"], number)
            if order.get("recode"):
                change = recoding(number)
            if "line" in order:
                sys.settrace(kill_at(order["line"]))
            change.run(table)
            sys.settrace(None)
            say(f"done {number}")
            number += 1


def main() -> None:
    for kind in KINDS.values():  # compile, so that workers start at once
        with tempfile.TemporaryDirectory() as folder, kind.create(Path(folder)) as table:
            for number in range(30):
                operation(kind, 0, number).run(table)
            table.compact()
    say("ready")
    for line in sys.stdin:
        worker = os.fork()
        if worker == 0:
            try:
                work(json.loads(line))
            except BaseException as error:
                say(f"failed {error!r}")
            finally:
                os._exit(0)
        say(f"worker {worker}")
        os.waitpid(worker, 0)
        say("ended")


if __name__ == "__main__":
    main()
