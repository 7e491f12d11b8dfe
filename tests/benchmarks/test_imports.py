"""Every benchmark loads: names that it takes from FlowHash's rooms are still there."""

from __future__ import annotations

import importlib

import pytest

from benchmarks.measurement import ROOT

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted(ROOT.glob("benchmarks/*/*.py"))
    if path.name != "__init__.py"
]


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_loads(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("benchmarks", "flowhash"):
            raise
        pytest.skip(f"{error.name} is not installed")
