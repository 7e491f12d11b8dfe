"""Buckets as people look at them: how full, how pure, who is in them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from flowhash.engines import BrowsedEngine
from flowhash.serve.damage import Damage
from flowhash.serve.errors import ProblemError
from flowhash.serve.samples import check_count, readable
from flowhash.serve.schemas.responses import face, label_of
from flowhash.table import HashTable

COUNTED = 5000  # items of a bucket whose classes are counted at the most


def all_buckets(table: BrowsedEngine) -> dict[str, Any]:
    """How full every bucket is."""
    return {
        "buckets": table.buckets,
        "active": table.active,
        "loads": table.bucket_loads().tolist(),
    }


def one_bucket(
    table: BrowsedEngine, bucket: int, count: int, seed: int, largest: int, damage: Damage
) -> dict[str, Any]:
    """One bucket: load, purity (the share of its largest class), classes, a sample of its items.

    What is damaged is noted and left out: ``counted`` says of how many items the classes are.

    Raises:
        ProblemError: 404 where there is no such bucket, 413 where its items have more than
            ``largest`` bytes.
    """
    if not 0 <= bucket < table.buckets:
        raise ProblemError(404, f"there is no bucket {bucket}; expected 0 to {table.buckets - 1}")
    counted = min(COUNTED, readable(table, largest))
    if isinstance(table, HashTable):
        load, looked = table.bucket_payloads(bucket, counted, 0, damage.met)
        check_count(table, min(count, load), largest)
        items = table.bucket_items(bucket, count, seed, damage.met)
    else:
        load, looked = table.bucket_payloads(bucket, counted, 0)
        check_count(table, min(count, load), largest)
        items = table.bucket_items(bucket, count, seed)
    labels = Counter(label for payload in looked if (label := label_of(payload)) is not None)
    classes = sorted(labels.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "bucket": bucket,
        "load": load,
        "purity": classes[0][1] / labels.total() if classes else None,
        "counted": len(looked),
        "classes": [{"label": label, "items": items} for label, items in classes],
        "items": [face(item) for item in items],
    }
