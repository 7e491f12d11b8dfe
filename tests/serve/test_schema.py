"""Requests that schemathesis makes up from the OpenAPI document: no fault, answers as promised."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.serve.conftest import Servers
from tests.serve.servers import KEY, Server

schemathesis = pytest.importorskip("schemathesis", reason="it needs Python 3.11")
GenerationMode, checks = schemathesis.GenerationMode, schemathesis.checks
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.ignored_auth,
]
# An id may be any text, and these take no more than that: nothing can be wrong with them.
TAKE_ALL = ("/buckets", "/stats", "/health", "/metrics", "/items/{id}", "/pictures/{id}")


def explored(server: Server, examples: int, headers: dict[str, str] | None = None) -> Counter[int]:
    """Call every operation with good and bad data; how often each status came."""
    schema = schemathesis.openapi.from_url(f"{server.url}openapi.json")
    seen: Counter[int] = Counter()
    for found in schema.get_all_operations():
        operation: Any = found.ok()
        for mode in GenerationMode:
            if mode == GenerationMode.NEGATIVE and operation.path in TAKE_ALL:
                continue

            @settings(
                max_examples=examples,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def call(case: Any) -> None:
                answer = case.call(headers=headers, timeout=120)
                seen[answer.status_code] += 1
                case.validate_response(answer, checks=CHECKS, headers=headers)
                if answer.status_code >= 400:
                    assert answer.json().keys() == {"error"}

            call()
    return seen


def test_a_few_hundred_cases(own_servers: Servers) -> None:
    seen = Counter[int]()
    for server, headers in (
        (own_servers.vectors, None),
        (own_servers.strings, {"X-API-Key": KEY}),
        (own_servers.images, None),
    ):
        seen += explored(server, 6, headers)
    assert seen.total() >= 200
    assert seen[200] >= 30
    assert seen[422] >= 10
    assert not any(status >= 500 for status in seen)


@pytest.mark.slow
def test_two_thousand_cases(own_servers: Servers) -> None:
    seen = Counter[int]()
    for server, headers in (
        (own_servers.vectors, None),
        (own_servers.strings, {"X-API-Key": KEY}),
        (own_servers.images, None),
    ):
        seen += explored(server, 70, headers)
    print(f"{seen.total()} cases: {dict(sorted(seen.items()))}")
    assert seen.total() >= 2000
    assert not any(status >= 500 for status in seen)
