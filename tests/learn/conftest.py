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


@pytest.fixture(scope="session")
def both(tmp_path_factory: Any) -> tuple[Path, list[dict[str, Any]]]:
    """What two processes made of all cases, and what each of them says."""
    from tests.learn.launcher import two_processes

    folder = tmp_path_factory.mktemp("two")
    assert two_processes(folder, "compare") == 0
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
