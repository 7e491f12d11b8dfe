"""The model of docs/scale.md against real tables, and the pages against the stored figures."""

from __future__ import annotations

import importlib
import itertools
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash import HashTable
from flowhash.table.stats import expected_share

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("scale_model")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("scale_report")


@pytest.fixture
def machine(model: Any) -> Any:
    """Rates that tell the terms of each formula apart."""
    return model.Machine(
        read=1e-9, compare=1e-7, query=1e-3, call=1e-2, call_read=1e-6, scattered=3.0,
        call_scattered=4.0, touch=1e-5,
        opening=0.5, opening_byte=1e-9, add=1e-8, merge=1e-9, merge_item=7.0, process=1e6,
        encode=100.0,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("active", "payload"), [(1, 0), (2, 0), (3, 0), (1, 20), (2, 20)])
def test_bytes_are_those_of_a_table(
    model: Any, tmp_path: Path, dtype: str, active: int, payload: int
) -> None:
    count, dim, buckets = 4000, 24, 16
    random = np.random.default_rng(0)
    codes = np.argsort(random.random((count, buckets)), axis=1)[:, :active]
    texts = [{"text": "x" * (payload - 11)}] * count if payload else None
    with HashTable.create(tmp_path, buckets=buckets, dim=dim, active=active, dtype=dtype) as table:
        table.add(codes, random.normal(size=(count, dim)), payloads=texts)
        stats = table.stats()
    expected = model.item_bytes(dim, active, dtype, payload)
    assert stats.bytes_per_item == pytest.approx(expected, rel=0.003)


@pytest.mark.parametrize(("buckets", "active"), [(7, 1), (6, 2), (9, 3), (4, 2)])
def test_the_share_counts_pairs_of_codes(model: Any, buckets: int, active: int) -> None:
    codes = [set(code) for code in itertools.combinations(range(buckets), active)]
    sharing = [bool(one & other) for one, other in itertools.product(codes, codes)]
    assert model.expected_share(buckets, active) == pytest.approx(np.mean(sharing))
    assert model.expected_share(buckets, active) == pytest.approx(expected_share(buckets, active))


def test_scanned_is_what_a_skewed_table_scans(model: Any, machine: Any) -> None:
    random = np.random.default_rng(1)
    buckets, count = 32, 20_000
    shares = random.lognormal(0, 1, buckets)
    codes = random.choice(buckets, count, p=shares / shares.sum())
    table = HashTable.create(buckets=buckets, dim=4)
    table.add(codes[:, None], random.normal(size=(count, 4)))
    loads = table.bucket_loads()
    skew = model.skew_of(loads)
    assert skew > 1.5
    queries = codes[:5000, None]
    measured = table.search(queries, random.normal(size=(5000, 4)), 1).scanned.mean()
    plan = model.Plan(dim=4, buckets=buckets, skew=skew)
    assert model.estimate(count, plan, machine).scanned == pytest.approx(measured, rel=0.03)
    assert model.compared_rows(count, plan) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("active", [1, 2])
def test_a_batch_reads_each_opened_bucket_once(model: Any, active: int) -> None:
    random = np.random.default_rng(2)
    buckets, count, batch = 200, 50_000, 150
    codes = np.argsort(random.random((count, buckets)), axis=1)[:, :active]
    loads = np.bincount(codes.ravel(), minlength=buckets)
    reads = [loads[np.unique(codes[random.choice(count, batch)])].sum() for _ in range(20)]
    plan = model.Plan(buckets=buckets, active=active, batch=batch)
    assert model.opened_rows(count, plan) == pytest.approx(np.mean(reads), rel=0.03)
    compared = loads[codes].sum(axis=1).mean()
    assert model.compared_rows(count, plan) == pytest.approx(compared, rel=0.03)


def test_an_estimate_written_out(model: Any, machine: Any) -> None:
    plan = model.Plan(dim=8, buckets=10, skew=2.0, batch=5, node=1e5, network=1e3)
    found = model.estimate(1000, plan, machine)
    disk = 1000 * (16 + 16) * (1 + 1 / 256) + 88
    assert found.disk == pytest.approx(disk)
    assert found.scanned == pytest.approx(200)
    assert found.opening == pytest.approx(0.5 + disk * 1e-9)
    assert found.latency == pytest.approx(1e-2 + 200 * 16 * 1e-6)
    assert found.cold == pytest.approx(found.latency + 200 * 20 * 1e-5)
    reads = 1000 * (1 - np.exp(-5 * 2 / 10))
    seconds = reads * 16 * 1e-9 + 5 * 200 * 8 * 1e-7 + 5 * 1e-3
    assert found.rate == pytest.approx(5 / seconds)
    assert found.nodes == np.ceil((1e6 + disk * (1 + 1 / 1024)) / 8e4)
    assert found.encode == 10
    assert found.build == pytest.approx(disk * (1e-8 + 1e-9))
    assert found.copy == pytest.approx(disk / 1e3)
    # With k = 2 everything is scattered, and a query compares the rows of both buckets.
    two = model.estimate(1000, replace(plan, active=2), machine)
    assert two.latency == pytest.approx(1e-2 + 1000 * 4 * 2 / 10 * 16 * 1e-6 * 4)
    reads = 1000 * 2 * (1 - np.exp(-5 * 2 * 2 / 10))
    seconds = reads * 16 * 1e-9 + 5 * 800 * 8 * 1e-7 + 5 * 1e-3
    assert two.rate == pytest.approx(5 / (seconds * 3))


@pytest.mark.parametrize(("parts", "times"), [(1, 0), (7, 0), (8, 1), (63, 1), (64, 2)])
def test_how_often_items_are_merged(model: Any, parts: int, times: int) -> None:
    """As ``HashTable.add`` does: eight segments of a size become one."""
    assert model.merges(parts * 500_000) == times


@pytest.mark.parametrize(("active", "dtype", "dim", "measured"), [
    (1, "float32", 64, 378.5), (1, "float32", 512, 2793.9), (2, "float32", 64, 798.3),
    (2, "float32", 512, 5754.1), (1, "float16", 64, 254.0), (1, "float16", 512, 1243.5),
    (2, "float16", 64, 546.0), (3, "float16", 64, 796.3), (3, "float16", 512, 3667.6),
])  # fmt: skip
def test_rows_of_postgresql(model: Any, active: int, dtype: str, dim: int, measured: float) -> None:
    """Against pg_total_relation_size of 20,000 items in PostgreSQL 18, divided by the items."""
    assert model.postgres_bytes(dim, active, dtype) == pytest.approx(measured, rel=0.08)


def test_the_skews_are_those_of_trained_codes(model: Any) -> None:
    skews = model.trained_skews()
    rows = json.loads((RESULTS / "cifar100-triplet.json").read_text())
    (row,) = (r for r in rows if (r["method"], r["table"], r["k"]) == ("flowhash", "train", 1))
    assert skews[1] == pytest.approx(256 / row["suf"])
    assert sorted(skews) == [1, 2, 3, 4]


def test_the_pages_say_what_was_measured(model: Any, report: Any) -> None:
    """Neither page can drift from docs/results/scale.json."""
    result = json.loads((RESULTS / "scale.json").read_text())
    assert (RESULTS / "scale.md").read_text() == report.page(result)
    guide = (ROOT / "docs" / "scale.md").read_text()
    found = re.search(f"{report.START}.*?{report.END}", guide, re.S)
    assert found is not None
    assert found[0] == report.block(result)
    assert asdict(model.load_machine()) == result["rates"]


def test_the_command_prints_the_figures_of_a_table(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with HashTable.create(tmp_path / "t", buckets=4, dim=2) as table:
        table.add([[0], [0], [0], [1]], np.zeros((4, 2)))
    words = ["--items", "1e6", "--table", str(tmp_path / "t"), "--batch", "7"]
    monkeypatch.setattr("sys.argv", ["scale_model.py", *words])
    model.main()
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert (lines["buckets"], lines["dtype"], lines["batch"]) == ("4", "float32", "7")
    assert float(lines["skew"]) == 4 * (9 + 1) / 16
    assert float(lines["scanned"].replace(",", "")) == pytest.approx(1e6 * 10 / 16)
