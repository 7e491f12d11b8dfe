"""Examples for the OpenAPI document."""

from __future__ import annotations

from typing import Any

_FACE = {"label": "apple", "name": "apples/17.png", "picture": "/pictures/17", "payload": {}}
_ITEM = {"id": 17, **_FACE, "buckets": [3]}
_HIT = {"id": 17, "distance": 0.12, **_FACE, "buckets": [3]}

SEARCHES: dict[str, Any] = {
    "vector": {"summary": "a vector", "value": {"vector": [0.1, -0.2, 0.3], "top": 10}},
    "vectors": {
        "summary": "several vectors",
        "value": {"vectors": [[0.1, -0.2, 0.3], [0.0, 0.5, 0.1]], "top": 10, "payloads": False},
    },
    "id": {"summary": "a stored item", "value": {"id": 17, "top": 10, "compare": True}},
    "embedding": {
        "summary": "an embedding and its buckets, without an encoder",
        "value": {"embedding": [0.6, 0.8], "buckets": [3, 17], "probe": 2, "at_least": 50},
    },
}
ITEMS: dict[str, Any] = {
    "vector": {
        "summary": "a vector, which the encoder encodes",
        "value": {
            "items": [{"vector": [0.1, -0.2, 0.3], "label": "apple", "payload": {"shop": 3}}]
        },
    },
    "embedding": {
        "summary": "an embedding and its buckets",
        "value": {"items": [{"embedding": [0.6, 0.8], "code": [3], "id": 17, "name": "row 17"}]},
    },
}
METRICS = "# TYPE flowhash_items gauge\nflowhash_items 10000.0\n"
NAMES = {
    ("post", "/search"): "search",
    ("get", "/items"): "sample_items",
    ("post", "/items"): "add_items",
    ("get", "/items/{id}"): "get_item",
    ("delete", "/items/{id}"): "delete_item",
    ("get", "/pictures/{id}"): "get_picture",
    ("get", "/buckets"): "list_buckets",
    ("get", "/buckets/{bucket}"): "get_bucket",
    ("get", "/stats"): "get_stats",
    ("get", "/health"): "get_health",
    ("get", "/metrics"): "get_metrics",
}
_FOUND = {
    "items": 10000,
    "milliseconds": 0.42,
    "answers": [{"hits": [_HIT], "opened": [3, 17], "scanned": 97, "query_picture": None}],
    "exhaustive": {
        "milliseconds": 2.1,
        "scanned": 10000,
        "answers": [{"ids": [17], "distances": [0.12]}],
    },
    "damaged": [],
}
_STATS = {
    "metric": "euclidean", "dtype": "float32", "ids": "int64", "encoder": "1f0c…", "items": 10000,
    "deleted": 0, "segments": 1, "buckets": 256, "active": 1, "dim": 64, "load_p50": 97.0,
    "load_p99": 120.0, "load_max": 131, "empty": 156, "suf": 99.9, "expected_suf": 256.0,
    "expected_variance": 38.9, "bytes": 2800000, "bytes_per_item": 280.0,
    "bytes_per_embedding": 256,
    "takes": {"kind": "vectors", "size": None, "inputs": 3, "class_names": ["apple", "bear"]},
    "writable": True, "needs_key": False, "version": "0.1.0",
    "limits": {
        "max_body": 10485760, "max_answer": 16777216, "max_batch": 256, "max_top": 1000,
        "max_pixels": 25000000, "timeout": 10.0,
    },
}  # fmt: skip
ANSWERS: dict[tuple[str, str], Any] = {
    ("post", "/search"): _FOUND,
    ("get", "/items"): {"total": 10000, "items": [_ITEM]},
    ("post", "/items"): {"ids": [10000], "buckets": [[3]], "total": 10001},
    ("get", "/items/{id}"): _ITEM,
    ("delete", "/items/{id}"): {"deleted": 1, "total": 9999},
    ("get", "/buckets"): {"buckets": 4, "active": 1, "loads": [97, 0, 103, 99]},
    ("get", "/buckets/{bucket}"): {
        "bucket": 3,
        "load": 97,
        "purity": 0.93,
        "counted": 97,
        "classes": [{"label": "apple", "items": 90}, {"label": "pear", "items": 7}],
        "items": [_ITEM],
    },
    ("get", "/stats"): _STATS,
    ("get", "/health"): {"status": "ok", "items": 10000, "damaged": 0},
}


def failure(code: str) -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"code": code, "message": "what came; what was expected; what to do"}}
