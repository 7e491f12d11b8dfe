"""Hypothesis profiles (the same examples every time, no deadline, since kernels compile),
commands that say nothing of compiling, and a PostgreSQL that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.engines.servers import Postgres, postgres_place, removed

settings.register_profile(
    "flowhash",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("flowhash")
# Commands that tests start say the same whether or not their kernels are compiled already.
os.environ["FLOWHASH_QUIET"] = "1"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server to make tables on, started when the first test asks for it; skips without one."""
    with postgres_place() as place:
        yield place


@pytest.fixture
def postgres_address(postgres: Postgres) -> Iterator[str]:
    """The address of a table that is not there yet, and is gone after the test."""
    with removed(postgres.address()) as address:
        yield address
