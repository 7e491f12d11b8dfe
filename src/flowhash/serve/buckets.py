"""Buckets as people look at them: how full, how pure, who is in them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from flowhash.serve.faces import face, label_of
from flowhash.serve.problems import ProblemError
from flowhash.table import HashTable
from flowhash.table.browse import bucket_loads, bucket_rows, drawn, item_at

COUNTED = 5000  # items of a bucket whose classes are counted at the most


def all_buckets(table: HashTable) -> dict[str, Any]:
    """How full every bucket is."""
    return {
        "buckets": table.buckets,
        "active": table.active,
        "loads": bucket_loads(table).tolist(),
    }


def one_bucket(table: HashTable, bucket: int, count: int, seed: int) -> dict[str, Any]:
    """One bucket: load, purity (the share of its largest class), classes, a sample of its items.

    Raises:
        ProblemError: 404 where there is no such bucket.
    """
    if not 0 <= bucket < table.buckets:
        raise ProblemError(404, f"there is no bucket {bucket}; expected 0 to {table.buckets - 1}")
    rows = bucket_rows(table, bucket)
    looked = drawn(rows, COUNTED, 0)
    labels = Counter(
        label for segment, row in looked if (label := label_of(segment.payload_at(row))) is not None
    )
    classes = sorted(labels.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "bucket": bucket,
        "load": sum(len(part) for _, part in rows),
        "purity": classes[0][1] / labels.total() if classes else None,
        "counted": len(looked),
        "classes": [{"label": label, "items": items} for label, items in classes],
        "items": [face(item_at(segment, row)) for segment, row in drawn(rows, count, seed)],
    }
