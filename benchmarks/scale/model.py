"""How big, how fast, how many machines: a table of n items, on paper.

    python -m benchmarks.scale.model --items 1e9 --buckets 65536 [--active 2] [--dim 64]
    python -m benchmarks.scale.model --items 1e9 --table my.table     # with your table's own skew

The formulas stand in docs/scale.md. Rates come from docs/results/scale.json, which
``benchmarks/scale/run.py`` measures; run that on your own machine first for its figures. Bytes come
from docs/format.md, the skew of trained codes from docs/results/cifar100-*.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.scale.bytes import CHECKED, SIZES, item_bytes, postgres_bytes, qdrant_bytes
from benchmarks.scale.figures import Estimate, Machine, Plan
from benchmarks.scale.loads import Met, expected_rows, met_rows, skew_of, trained_skews
from benchmarks.scale.words import told
from flowhash import HashTable
from flowhash.errors import InputError, StorageError
from flowhash.table.statistics import expected_share

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PART = 500_000  # items of one add
FAN = 8  # segments of like size that are merged into one
SPARE = 0.8  # the share of a node's memory that items may take


def batch_seconds(machine: Machine, met: Met, plan: Plan) -> float:
    """A batch that reads so many rows and compares so many with each query, warm."""
    size = plan.dim * SIZES[plan.dtype]
    seconds = met.read * size * machine.read + plan.batch * machine.query
    seconds += plan.batch * met.compared * plan.dim * machine.compare
    return seconds * (machine.scattered if plan.active > 1 else 1.0)


def merges(items: float, part: int = PART) -> int:
    """How often an item is written again by merges of like segments while it is added."""
    return max(0, math.floor(math.log(max(1.0, items / part), FAN)))


def rows_met(items: float, plan: Plan, loads: NDArray[np.int64] | None = None) -> Met:
    """What queries meet; with the loads of a table [d] as if it had grown evenly."""
    if loads is None:
        return expected_rows(items, plan.buckets, plan.active, plan.skew, plan.batch)
    return met_rows(items, loads * (items * plan.active / loads.sum()), plan.batch)


def estimate(
    items: float, plan: Plan, machine: Machine, loads: NDArray[np.int64] | None = None
) -> Estimate:
    """All figures of a table of so many items, with the loads of a smaller one if known."""
    size = item_bytes(plan.dim, plan.active, plan.dtype, plan.payload)
    disk = items * size + 8 * (plan.buckets + 1)
    met = rows_met(items, plan, loads)
    row = plan.dim * SIZES[plan.dtype]
    factor = machine.call_scattered if plan.active > 1 else 1.0
    latency = machine.call + met.compared * row * machine.call_read * factor
    postgres = items * postgres_bytes(plan.dim, plan.active, plan.dtype, plan.payload)
    qdrant = items * qdrant_bytes(plan.dim, plan.payload)
    return Estimate(
        items=items,
        buckets=plan.buckets,
        active=plan.active,
        disk=disk,
        building_disk=2 * disk,
        memory=machine.process + disk * (1 + 1 / CHECKED),
        merging_memory=machine.process + disk + items * machine.merge_item,
        scanned=items * expected_share(plan.buckets, plan.active) * plan.skew,
        opening=machine.opening + disk * machine.opening_byte,
        latency=latency,
        cold=latency + met.compared * (row + 4) * machine.touch,
        rate=plan.batch / batch_seconds(machine, met, plan),
        encode=None if not machine.encode else items / machine.encode,
        build=disk * (machine.add + (merges(items) + 1) * machine.merge),
        copy=disk / plan.network,
        postgres=postgres,
        citus_nodes=math.ceil(postgres / (SPARE * plan.node)),
        qdrant=qdrant,
        qdrant_nodes=math.ceil(qdrant / (SPARE * plan.node)),
    )


def load_machine(path: Path = RESULTS / "scale.json") -> Machine:
    """The rates that were measured last, on the largest table."""
    return Machine(**json.loads(path.read_text())["rates"])


def table_skew(table: HashTable) -> float:
    """The skew of a table."""
    if table.active == 1:
        return skew_of(table.bucket_loads())
    stats = table.stats()
    return stats.expected_suf / stats.suf


def from_table(place: str, asked: set[str]) -> tuple[dict[str, Any], NDArray[np.int64] | None]:
    """What a table says of a plan, and its loads, unless what is asked for makes it another."""
    with HashTable.open(place) as table:
        if not len(table):
            raise InputError(f"{place} is empty; give a table that has items")
        given = {name: getattr(table, name) for name in ("dim", "buckets", "active", "dtype")}
        given["skew"] = table_skew(table)
        # Another d, k or skew is another table, whose loads nobody knows.
        known = not asked & {"buckets", "active", "skew"}
        return given, table.bucket_loads() if known else None


def check(items: float, plan: Plan) -> None:
    """See that the numbers can be those of a table.

    Raises:
        InputError: they cannot.
    """
    least = {"payload": 0}
    given = {"items": items} | dataclasses.asdict(plan)
    for name, value in given.items():
        if name != "dtype" and not least.get(name, 1e-9) <= value < math.inf:
            words = "of at least 0" if name in least else "above 0"
            raise InputError(f"--{name} is {value}; expected a number {words}")
    if plan.dtype not in SIZES:
        raise InputError(f"--dtype is {plan.dtype!r}; expected one of {', '.join(SIZES)}")
    if plan.active > plan.buckets:
        raise InputError(f"--active is {plan.active}, of {plan.buckets} buckets; expected fewer")


def main() -> None:
    """Print the figures for given options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=float, required=True)
    for field in dataclasses.fields(Plan):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=None)
    parser.add_argument("--table", help="take dim, buckets, active, dtype and loads from this one")
    options = vars(parser.parse_args())
    items, place = options.pop("items"), options.pop("table")
    asked = {name: value for name, value in options.items() if value is not None}
    try:
        given, loads = ({}, None) if place is None else from_table(place, set(asked))
        given |= asked
        skews = trained_skews(RESULTS)
        given.setdefault("skew", skews.get(given.get("active", 1), max(skews.values())))
        plan = Plan(**given)
        check(items, plan)
    except (InputError, StorageError) as error:
        parser.error(str(error))
    found = estimate(items, plan, load_machine(), loads)
    print(*told(dataclasses.asdict(plan) | dataclasses.asdict(found)), sep="\n")


if __name__ == "__main__":
    main()
