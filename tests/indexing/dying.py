"""As a script: indexes rows with a counted encoder, and is killed in the middle.

Forks a child for each line of JSON that it reads, and says how the child ended. A line has the
place of a table, how many rows there are, how many are stored at once, a file for what is encoded,
and at which moment the child kills itself (0 for never). Moments are flushes to disk, or what is
sent to PostgreSQL; of the odd ones the kill comes before, of the even ones after.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from flowhash.data import open_collection
from flowhash.encoder import Encoded
from flowhash.engines import create_engine, is_address
from flowhash.indexing import IndexRun, TableChoices, open_table
from flowhash.table import HashTable

BUCKETS, DIM = 4, 3
SIZES: dict[str, Any] = {"buckets": BUCKETS, "dim": DIM, "active": 1, "encoder": "counted"}


class CountedEncoder:
    """Passes vectors through, and writes which rows came: their first number."""

    buckets, dim, active, fingerprint = BUCKETS, DIM, 1, "counted"
    class_names = ("counted",)

    def __init__(self, log: Path) -> None:
        self.log = log

    def create_table(self, place: str | Path, **options: Any) -> Any:
        if isinstance(place, str):
            return create_engine(place, **SIZES, **options)
        return HashTable.create(place, **SIZES, **options)

    def encode(self, items: Any, batch_size: int, device: str) -> Encoded:
        vectors = np.asarray(items, np.float32)
        with self.log.open("a") as file:
            file.write("".join(f"{row:.0f}\n" for row in vectors[:, 0]))
        activations = np.eye(BUCKETS, dtype=np.float32)[vectors[:, 0].astype(int) % BUCKETS]
        return Encoded(vectors, activations, 1, self.fingerprint)


def rows_file(folder: Path, count: int) -> Path:
    """Rows that know their numbers."""
    path = folder / "rows.npy"
    values = np.zeros((count, DIM), np.float32)
    values[:, 0] = np.arange(count)
    np.save(path, values)
    return path


def run(place: str, rows: Path, size: int, log: Path, again: bool = False) -> int:
    """Index the rows; how many were added."""
    encoder: Any = CountedEncoder(log)
    collection = open_collection(rows)
    where = place if is_address(place) else Path(place)
    with open_table(where, encoder, collection, TableChoices()) as table:
        work = IndexRun(table, encoder, collection, [str(rows)], True, again)
        return work.run(size, "cpu")


def dying(original: Callable[..., Any], number: int) -> Callable[..., Any]:
    """What kills this process at its n-th call."""
    left = [number]

    def call(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and number % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = original(*given, **named)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return call


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:  # compile everything once, before the forks
        rows = rows_file(Path(folder), 70)
        run(f"{folder}/table", rows, 2, Path(folder, "log"))
        run(f"{folder}/table", rows, 2, Path(folder, "log"), again=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            if order["die"] and is_address(order["place"]):
                psycopg.Connection.wait = dying(psycopg.Connection.wait, order["die"])  # type: ignore[method-assign]
            elif order["die"]:
                os.fsync = dying(os.fsync, order["die"])
            run(order["place"], Path(order["rows"]), order["size"], Path(order["log"]))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
