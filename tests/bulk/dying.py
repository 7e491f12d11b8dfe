"""As a script: indexes, and dies in the middle. Forks a child for each try, and says how it ended.

Reads a line of JSON a try: the folder of encoded items, the table, and at which flush to disk the
child dies (0 for never), and whether to begin anew.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet  # noqa: F401 (once, before the forks)

from flowhash.bulk import LocalRunner, index
from flowhash.errors import InputError
from flowhash.table import HashTable


def die_at(number: int) -> None:
    """End this process at the n-th flush to disk, half of them before it happens."""
    flush, left = os.fsync, [number]

    def dying(handle: int) -> None:
        left[0] -= 1
        if left[0] == 0 and number % 2:
            os._exit(9)
        flush(handle)
        if left[0] == 0:
            os._exit(9)

    os.fsync = dying


def warm() -> None:
    """Load what is compiled once, before the forks; nothing that starts threads."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("one", "other"):
            with HashTable.create(f"{folder}/{name}", buckets=3, dim=2, active=2) as table:
                for _ in range(2):
                    table.add([[0, 1], [2, 1]], np.ones((2, 2), np.float32), [1, 0])
        with HashTable.open(f"{folder}/one", "r+") as table:
            table.adopt([Path(folder, "other")] * 2)
            table.compact()


def main() -> None:
    warm()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            if order["die"]:
                die_at(order["die"])
            try:
                index(
                    Path(order["encoded"]), Path(order["table"]), LocalRunner(),
                    rows=order["rows"], restart=order["restart"],
                )  # fmt: skip
            except InputError:
                os._exit(2)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
