"""How big, how fast, how many machines: a table of n items, on paper.

    python benchmarks/scale_model.py --items 1e9 --buckets 65536 [--active 2] [--dim 64]
    python benchmarks/scale_model.py --items 1e9 --table my.table     # with your table's own skew

The formulas stand in docs/scale.md. Rates come from docs/results/scale.json, which
``benchmarks/scale.py`` measures; run that on your own machine first for its figures. Bytes come
from docs/format.md, the skew of trained codes from docs/results/cifar100-*.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash import HashTable
from flowhash.table.stats import expected_share
from scale_bytes import CHECKED, SIZES, item_bytes, postgres_bytes, qdrant_bytes
from scale_loads import Met, expected_rows, met_rows, skew_of, trained_skews

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
PART = 500_000  # items of one add
FAN = 8  # segments of like size that are merged into one
SPARE = 0.8  # the share of a node's memory that items may take


@dataclass(frozen=True)
class Machine:
    """Measured rates; seconds and bytes.

    Attributes:
        read: seconds to read and unpack one byte of a bucket, once for all its queries of a batch.
        compare: seconds to compare one number with one query's, in a batch.
        query: seconds of a query in a batch, whatever it scans.
        call: seconds of a search of one query, whatever it scans.
        call_read: seconds a byte that it scans.
        scattered: by how much a batch takes longer with k > 1, whose rows lie apart.
        call_scattered: the same for a search of one query.
        touch: seconds a byte to fetch it from the disk and check it, the first time.
        opening: seconds to open a table, however small.
        opening_byte: seconds a byte of its files.
        add: seconds a byte to add items.
        merge: seconds a byte to merge segments.
        merge_item: bytes of memory that an item takes while it is merged, beside the mapped files.
        process: bytes of a process that searches, beside what it maps.
        encode: items a second, or None.
    """

    read: float
    compare: float
    query: float
    call: float
    call_read: float
    scattered: float
    call_scattered: float
    touch: float
    opening: float
    opening_byte: float
    add: float
    merge: float
    merge_item: float
    process: float
    encode: float | None = None


@dataclass(frozen=True)
class Estimate:
    """What a table will take; bytes and seconds.

    Attributes:
        items: how many.
        buckets: d.
        active: k.
        disk: of the files.
        building_disk: at the most, while everything is merged.
        memory: of the one machine that maps the files, so that nothing is read from the disk twice.
        merging_memory: while everything is merged; most of it is mapped files, which the system
            may drop.
        scanned: items that a query is compared with.
        opening: of a table, in a process that has FlowHash loaded.
        latency: of one query, one thread, warm.
        cold: the same, if nothing of it was in memory.
        rate: queries a second of a batch, warm.
        encode: seconds to encode all items; None if the rate is not known.
        build: seconds to add and merge them all.
        copy: seconds to carry the files to another machine.
        postgres: bytes of rows and indexes, on its disk.
        citus_nodes: machines whose memory holds its rows and indexes.
        qdrant: bytes of memory, by its own rule.
        qdrant_nodes: machines that have so much.
    """

    items: float
    buckets: int
    active: int
    disk: float
    building_disk: float
    memory: float
    merging_memory: float
    scanned: float
    opening: float
    latency: float
    cold: float
    rate: float
    encode: float | None
    build: float
    copy: float
    postgres: float
    citus_nodes: int
    qdrant: float
    qdrant_nodes: int


@dataclass(frozen=True)
class Plan:
    """What is asked for, beside the number of items.

    Attributes:
        dim: numbers of an embedding.
        buckets: d.
        active: k.
        skew: by how much a query scans more than it would if codes spread evenly.
        dtype: of the stored embeddings.
        payload: bytes of an item's JSON; 0 for none.
        batch: queries that are asked together.
        node: bytes of memory of one machine.
        network: bytes a second between machines; not measured.
    """

    dim: int = 64
    buckets: int = 4096
    active: int = 1
    skew: float = 1.0
    dtype: str = "float16"
    payload: int = 0
    batch: int = 10_000
    node: float = 64e9
    network: float = 1.25e9


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


def main() -> None:
    """Print the figures for given options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=float, required=True)
    fields = {field.name: type(field.default) for field in dataclasses.fields(Plan)}
    for name, kind in fields.items():
        parser.add_argument(f"--{name}", type=kind, default=None)
    parser.add_argument("--table", help="take dim, buckets, active, dtype and loads from this one")
    options = vars(parser.parse_args())
    asked = {name: options[name] for name in fields if options[name] is not None}
    given: dict[str, Any] = {}
    loads = None
    if options["table"]:
        with HashTable.open(options["table"]) as table:
            given = {name: getattr(table, name) for name in ("dim", "buckets", "active", "dtype")}
            given["skew"] = table_skew(table)
            # Another d, k or skew is another table, whose loads nobody knows.
            if not asked.keys() & {"buckets", "active", "skew"}:
                loads = table.bucket_loads()
    given |= asked
    skews = trained_skews(RESULTS)
    given.setdefault("skew", skews.get(given.get("active", 1), max(skews.values())))
    plan = Plan(**given)
    found = estimate(options["items"], plan, load_machine(), loads)
    for name, value in (dataclasses.asdict(plan) | dataclasses.asdict(found)).items():
        print(f"{name:16} {value if not isinstance(value, float) else f'{value:,.6g}'}")


if __name__ == "__main__":
    main()
