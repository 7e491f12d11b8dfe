"""As a script: adapts tables, and is killed in the middle, at a flush to disk.

Forks a child for each line of JSON that it reads, and says how the child ended. A line has a table,
its encoder, the new run, and the number of the flush at which the child kills itself (0 for never):
before odd ones, after even ones.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from flowhash.encoder import Encoder
from flowhash.indexing import adapt_table
from flowhash.table import HashTable
from tests.encoder.encoders import items_of, make
from tests.indexing.dying import dying


def run(place: str, encoder: str, out: str) -> bool:
    """Adapt a table; whether an earlier attempt had fitted the encoder."""
    with HashTable.open(place, "r+") as table:
        return adapt_table(table, Encoder.load(encoder), out, device="cpu").resumed


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:  # compile everything once, before the forks
        encoder = make("mlp")
        encoder.save(f"{folder}/encoder")
        with encoder.create_table(Path(folder, "table")) as table:
            encoder.add(table, items_of("mlp", 40))
            table.delete(np.arange(3))
        run(f"{folder}/table", f"{folder}/encoder", f"{folder}/out")
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            if order["die"]:
                os.fsync = dying(os.fsync, order["die"])
            resumed = run(order["place"], order["encoder"], order["out"])
            os._exit(10 if resumed else 0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
