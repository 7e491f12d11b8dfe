"""Trainings in these tests are so small that a second thread only makes them wait for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    try:
        import torch
    except ImportError:  # the samplers are tested without it
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _trained(folder: Path, what: str) -> tuple[Path, list[dict[str, Any]]]:
    from tests.learn.launcher import two_processes

    assert two_processes(folder, what) == 0
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="session")
def both(tmp_path_factory: Any) -> tuple[Path, list[dict[str, Any]]]:
    """What two processes made of the case of vectors, and what each of them says."""
    return _trained(tmp_path_factory.mktemp("two"), "vectors")


@pytest.fixture(scope="session")
def both_others(tmp_path_factory: Any) -> tuple[Path, list[dict[str, Any]]]:
    """The same of the other cases."""
    return _trained(tmp_path_factory.mktemp("two-others"), "others")
