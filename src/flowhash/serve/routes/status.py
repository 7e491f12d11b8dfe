"""How server and table are: figures, health, metrics."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from flowhash import __version__
from flowhash.serve.errors import RequestError
from flowhash.serve.metrics import CONTENT_TYPE
from flowhash.serve.schemas.openapi import Operation
from flowhash.serve.schemas.responses import (
    EncoderFigures,
    Figures,
    Health,
    RecallFigures,
    json_response,
)
from flowhash.serve.service import Service, service_of
from flowhash.table import changes_since, noted_calibration

METRICS_EXAMPLE = "# TYPE flowhash_items gauge\nflowhash_items 10000.0\n"


async def get_stats(request: Request) -> Response:
    """Get figures of the table, what the encoder takes, and the limits."""
    service = service_of(request)
    return await service.read(lambda: json_response(_figures(service)))


def _figures(service: Service) -> Figures:
    """What ``flowhash table stats --json`` has, what the encoder takes, what the server allows."""
    table, options, writable = service.table, service.options, service.guard.writable
    takes = None
    if service.query_encoder is not None:
        encoder = service.query_encoder.encoder
        size = encoder.preprocessing.size
        takes = EncoderFigures(
            kind=encoder.preprocessing.kind,
            size=None if size is None else list(size),
            inputs=service.query_encoder.inputs,
            class_names=list(encoder.class_names),
            stored=encoder.takes_embeddings,
        )
    notes, stats = table.notes(), service.stats()
    known, recall = noted_calibration(notes), None
    if known is not None:
        recall = RecallFigures.of(known, changes_since(known, notes, stats.items))
    return Figures(
        **asdict(stats),
        metric=table.metric,
        dtype=table.dtype,
        ids=table.id_kind,
        encoder=table.encoder,
        takes=takes,
        recall=recall,
        writable=writable,
        needs_key=writable and options.api_key is not None,
        version=__version__,
        limits=options.limits,
    )


async def get_health(request: Request) -> Response:
    """Ask whether the server works; 503 while it closes, or if its table failed.

    Damage that requests have met counts: 503 where searches are refused for it, the status
    "damaged" where hits come without their payload.
    """
    service = service_of(request)
    if service.closing:
        raise RequestError(503, "the server is closing", "closing")
    if service.broken:
        reason = f"the server's log has the reason under {service.number}"
        raise RequestError(503, f"the table cannot be read; {reason}", "storage")
    count = service.count()
    if count is None:
        raise RequestError(503, "the table was closed; start the server again", "storage")
    places, items = await service.damaged()
    if places:
        raise RequestError(
            503,
            f"{places} places in the table's files are known to be damaged, and searches that "
            "need them are refused; restore the table from a copy and start the server again. "
            "The server's log and `flowhash table check` name them",
            "damaged",
        )
    return json_response(Health("damaged" if items else "ok", count, items))


async def get_metrics(request: Request) -> Response:
    """Get figures for Prometheus."""
    text = service_of(request).metrics.text()
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


OPERATIONS = (
    Operation("GET", "/stats", get_stats, Figures, (504,)),
    Operation("GET", "/health", get_health, Health),
    Operation(
        "GET",
        "/metrics",
        get_metrics,
        others={
            200: {
                "description": "Prometheus' text format.",
                "content": {
                    "text/plain": {"schema": {"type": "string"}, "example": METRICS_EXAMPLE}
                },
            }
        },
    ),
)
