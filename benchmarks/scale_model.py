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

from scale_bytes import CHECKED, SIZES, item_bytes, postgres_bytes, qdrant_bytes

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
PART = 500_000  # items of one add
FAN = 8  # segments of like size that are merged into one
SPARE = 0.8  # the share of a node's memory that the table may take


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
        memory: so that nothing is read from the disk twice.
        merging_memory: while everything is merged; most of it is mapped files, which the system
            may drop.
        scanned: items that a query is compared with.
        opening: of a table, in a process that has FlowHash loaded.
        latency: of one query, one thread, warm.
        cold: the same, if nothing of it was in memory.
        rate: queries a second of a batch, warm.
        nodes: machines whose memory holds it.
        encode: seconds to encode all items; None if the rate is not known.
        build: seconds to add and merge them all.
        copy: seconds to carry the files to another machine.
        postgres: bytes of rows and indexes, on its disk.
        qdrant: bytes of memory, by its own rule.
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
    nodes: int
    encode: float | None
    build: float
    copy: float
    postgres: float
    qdrant: float


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


def expected_share(buckets: int, active: int) -> float:
    """The probability that two even codes share a bucket: 1 - C(d-k, k) / C(d, k)."""
    return 1.0 - math.comb(buckets - active, active) / math.comb(buckets, active)


def skew_of(loads: NDArray[np.int64]) -> float:
    """The skew of k = 1 from the loads of buckets [d]: d Σ load² / n²; 1 if all are equal."""
    total = float(loads.sum())
    return len(loads) * float((loads.astype(float) ** 2).sum()) / total**2


def trained_skews(results: Path = RESULTS) -> dict[int, float]:
    """For each k the larger skew of the two losses: trained CIFAR-100 codes, the train table."""
    found: dict[int, float] = {}
    for loss in ("triplet", "npairs"):
        for row in json.loads((results / f"cifar100-{loss}.json").read_text()):
            if row["method"] == "flowhash" and row["table"] == "train":
                skew = row["expected"] / row["suf"]
                found[row["k"]] = max(found.get(row["k"], 0.0), skew)
    return found


def opened_rows(items: float, plan: Plan) -> float:
    """Rows that a batch reads: each opened bucket once, k buckets a query."""
    chance = plan.active * max(1.0, plan.skew) / plan.buckets
    return items * plan.active * -math.expm1(-plan.batch * chance)


def compared_rows(items: float, plan: Plan) -> float:
    """Rows that a query is compared with; one that lies in two of its buckets counts twice."""
    if plan.active == 1:
        return items * plan.skew / plan.buckets
    return items * plan.active**2 * max(1.0, plan.skew) / plan.buckets


def batch_seconds(machine: Machine, reads: float, compared: float, plan: Plan) -> float:
    """A batch that reads so many rows and compares so many with each query, warm."""
    size = plan.dim * SIZES[plan.dtype]
    seconds = reads * size * machine.read + plan.batch * machine.query
    seconds += plan.batch * compared * plan.dim * machine.compare
    return seconds * (machine.scattered if plan.active > 1 else 1.0)


def merges(items: float, part: int = PART) -> int:
    """How often an item is written again by merges of like segments while it is added."""
    return max(0, math.floor(math.log(max(1.0, items / part), FAN)))


def estimate(items: float, plan: Plan, machine: Machine) -> Estimate:
    """All figures of a table of so many items."""
    size = item_bytes(plan.dim, plan.active, plan.dtype, plan.payload)
    disk = items * size + 8 * (plan.buckets + 1)
    compared = compared_rows(items, plan)
    row = plan.dim * SIZES[plan.dtype]
    factor = machine.call_scattered if plan.active > 1 else 1.0
    latency = machine.call + compared * row * machine.call_read * factor
    memory = machine.process + disk * (1 + 1 / CHECKED)
    return Estimate(
        items=items,
        buckets=plan.buckets,
        active=plan.active,
        disk=disk,
        building_disk=2 * disk,
        memory=memory,
        merging_memory=machine.process + disk + items * machine.merge_item,
        scanned=items * expected_share(plan.buckets, plan.active) * plan.skew,
        opening=machine.opening + disk * machine.opening_byte,
        latency=latency,
        cold=latency + compared * (row + 4) * machine.touch,
        rate=plan.batch / batch_seconds(machine, opened_rows(items, plan), compared, plan),
        nodes=math.ceil(memory / (SPARE * plan.node)),
        encode=None if not machine.encode else items / machine.encode,
        build=disk * (machine.add + (merges(items) + 1) * machine.merge),
        copy=disk / plan.network,
        postgres=items * postgres_bytes(plan.dim, plan.active, plan.dtype, plan.payload),
        qdrant=items * qdrant_bytes(plan.dim, plan.payload),
    )


def load_machine(path: Path = RESULTS / "scale.json") -> Machine:
    """The rates that were measured last, on the largest table."""
    return Machine(**json.loads(path.read_text())["rates"])


def table_skew(path: str) -> tuple[float, Any]:
    """The skew of a stored table, and the table."""
    from flowhash import HashTable

    table = HashTable.open(path)
    if table.active == 1:
        return skew_of(table.bucket_loads()), table
    stats = table.stats()
    return stats.expected_suf / stats.suf, table


def main() -> None:
    """Print the figures for given options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=float, required=True)
    for field in dataclasses.fields(Plan):
        kind = type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=None)
    parser.add_argument("--table", help="take dim, buckets, active, dtype and skew from this table")
    options = vars(parser.parse_args())
    given: dict[str, Any] = {}
    if options["table"]:
        given["skew"], table = table_skew(options["table"])
        given |= {name: getattr(table, name) for name in ("dim", "buckets", "active", "dtype")}
    names = [field.name for field in dataclasses.fields(Plan)]
    given |= {name: options[name] for name in names if options[name] is not None}
    skews = trained_skews()
    given.setdefault("skew", skews.get(given.get("active", 1), max(skews.values())))
    plan = Plan(**given)
    for name, value in (dataclasses.asdict(plan) | dataclasses.asdict(
        estimate(options["items"], plan, load_machine())
    )).items():  # fmt: skip
        print(f"{name:16} {value if not isinstance(value, float) else f'{value:,.6g}'}")


if __name__ == "__main__":
    main()
