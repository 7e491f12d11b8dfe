"""What the model of docs/scale.md takes and gives."""

from __future__ import annotations

from dataclasses import dataclass


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
