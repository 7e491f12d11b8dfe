"""Every engine beside a hash table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.pairs import REMOTE, Make, make_pairs


@pytest.fixture(params=["table", *REMOTE])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes pairs of a table and each engine; another table is the control."""
    yield from make_pairs(request.param, request, tmp_path)


@pytest.fixture(params=REMOTE)
def make_remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes pairs of a table and each engine that another process runs."""
    yield from make_pairs(request.param, request, tmp_path)
