"""Figures for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

from flowhash import __version__
from flowhash.serve.errors import REFUSALS

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts what a server does; each server has its own registry.

    Args:
        items: says how many items the table has.
        unread: says how many bytes of large answers their clients have not read yet.
    """

    def __init__(self, items: Callable[[], float], unread: Callable[[], float] = int) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "flowhash_requests", "Requests by route, method and status.",
            ("route", "method", "status"), registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "flowhash_request_seconds", "Time from a request's head to the end of its answer.",
            ("route",), buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._rows = Histogram(
            "flowhash_search_batch_rows", "Queries that were searched together.",
            buckets=ROWS, registry=registry,
        )  # fmt: skip
        self._scanned = Counter(
            "flowhash_scanned_items", "Items that were compared with a query.", registry=registry
        )
        self._refused = Counter(
            "flowhash_refused", "Requests that got 503 because there was too much to do.",
            ("reason",), registry=registry,
        )  # fmt: skip
        for reason in REFUSALS:
            self._refused.labels(reason)  # those that have not been seen are 0
        self.running = 0  # requests
        self.held = 0  # bytes of their bodies
        self.connections: Sized = ()  # that are open, where the server is ours
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("flowhash_items", "Items in the table.", items),
            ("flowhash_requests_running", "Requests in work.", lambda: self.running),
            ("flowhash_body_bytes_held", "Bytes of bodies in work.", lambda: self.held),
            ("flowhash_answer_bytes_held", "Bytes of large answers not yet read.", unread),
            ("flowhash_connections", "Open connections.", lambda: len(self.connections)),
        )
        for name, text, value in gauges:
            Gauge(name, text, registry=registry).set_function(value)
        Info("flowhash", "The server.", registry=registry).info({"version": __version__})
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self._answered: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one answer. Routes are templates, never paths, of which there is no end."""
        key = (route, method, status)
        kept = self._answered.get(key)
        if kept is None:
            kept = (self._requests.labels(route, method, status), self._seconds.labels(route))
            self._answered[key] = kept
        kept[0].inc()
        kept[1].observe(seconds)

    def refused(self, reason: str) -> None:
        """Count one that was sent away; see ``REFUSALS``."""
        self._refused.labels(reason).inc()

    def watch(self, waits: Mapping[str, Callable[[], float]]) -> None:
        """Show the seconds that one that comes now would wait, by the name of the line."""
        shown = Gauge(
            "flowhash_expected_wait_seconds", "Until what comes now would have its turn.",
            ("line",), registry=self._registry,
        )  # fmt: skip
        for name, wait in waits.items():
            shown.labels(name).set_function(wait)

    def searched(self, rows: int, scanned: int) -> None:
        """Count one batch of queries."""
        self._rows.observe(rows)
        self._scanned.inc(scanned)

    def text(self) -> bytes:
        """What Prometheus reads."""
        return generate_latest(self._registry)
