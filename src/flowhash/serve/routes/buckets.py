"""Buckets as people look at them: how full, how pure, who is in them."""

from __future__ import annotations

from collections import Counter

from starlette.requests import Request
from starlette.responses import Response

from flowhash.serve.errors import RequestError
from flowhash.serve.request_body import parameters
from flowhash.serve.schemas.openapi import Operation
from flowhash.serve.schemas.requests import BucketParameters
from flowhash.serve.schemas.responses import (
    BucketAnswer,
    ClassCount,
    Loads,
    StoredItem,
    json_response,
    label_of,
)
from flowhash.serve.service import Service, service_of

COUNTED = 5000  # items of a bucket whose classes are counted at the most


async def list_buckets(request: Request) -> Response:
    """Get how many items every bucket holds."""
    service = service_of(request)
    table = service.table
    return await service.read(
        lambda: json_response(Loads(table.buckets, table.active, table.bucket_loads().tolist()))
    )


async def get_bucket(request: Request) -> Response:
    """Look into one bucket: its load, its classes, some of its items."""
    service, asked = service_of(request), parameters(BucketParameters, request)
    return await service.read(lambda: json_response(_bucket(service, asked)), alone=True)


def _bucket(service: Service, asked: BucketParameters) -> BucketAnswer:
    """One bucket: load, purity (the share of its largest class), classes, a sample of its items.

    What is damaged is noted and left out: ``counted`` says of how many items the classes are.
    """
    table, bucket = service.table, asked.bucket
    if not 0 <= bucket < table.buckets:
        raise RequestError(404, f"there is no bucket {bucket}; expected 0 to {table.buckets - 1}")
    counted = min(COUNTED, service.readable())
    load, looked = table.bucket_payloads(bucket, counted, 0, *service.noting)
    service.check_count(min(asked.count, load))
    items = table.bucket_items(bucket, asked.count, asked.seed, *service.noting)
    labels = Counter(label for payload in looked if (label := label_of(payload)) is not None)
    classes = sorted(labels.items(), key=lambda pair: (-pair[1], pair[0]))
    return BucketAnswer(
        bucket=bucket,
        load=load,
        purity=classes[0][1] / labels.total() if classes else None,
        counted=len(looked),
        classes=[ClassCount(label, count) for label, count in classes],
        items=[StoredItem.read(item) for item in items],
    )


OPERATIONS = (
    Operation("GET", "/buckets", list_buckets, Loads, (504,)),
    Operation(
        "GET",
        "/buckets/{bucket}",
        get_bucket,
        BucketAnswer,
        (404, 422, 504),
        parameters=BucketParameters,
    ),
)
