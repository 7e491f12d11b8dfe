"""The formulas of docs/scale.md against real tables, and the pages against the stored figures."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.measurement import RESULTS, ROOT
from benchmarks.scale import report
from benchmarks.scale.run import SKEW, skew
from flowhash import HashTable
from flowhash.engines import create_engine
from tests.documents.blocks import blocks_of
from tests.engines.servers import Postgres, removed, table_of

SIZES = {"float16": 2, "float32": 4}


@pytest.fixture(scope="module")
def formulas() -> Any:
    """The functions that readers of the page run."""
    names: dict[str, Any] = {}
    for block in blocks_of("docs/scale.md"):
        if block.language == "python":
            exec(block.text, names)
    return SimpleNamespace(**names)


@pytest.fixture
def result() -> Any:
    return json.loads((RESULTS / "scale.json").read_text())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("active", "payload"), [(1, 0), (2, 0), (3, 0), (1, 20), (2, 20)])
def test_bytes_are_those_of_a_table(
    formulas: Any, tmp_path: Path, dtype: str, active: int, payload: int
) -> None:
    count, dim, buckets = 4000, 24, 16
    random = np.random.default_rng(0)
    codes = np.argsort(random.random((count, buckets)), axis=1)[:, :active]
    texts = [{"text": "x" * (payload - 11)}] * count if payload else None
    with HashTable.create(tmp_path, buckets=buckets, dim=dim, active=active, dtype=dtype) as table:
        table.add(codes, random.normal(size=(count, dim)), payloads=texts)
        stats = table.stats()
    expected = formulas.item_bytes(dim, active, SIZES[dtype], payload)
    assert stats.bytes_per_item == pytest.approx(expected, rel=0.003)


@pytest.mark.parametrize(("buckets", "active"), [(7, 1), (6, 2), (9, 3), (4, 2)])
def test_the_share_counts_pairs_of_codes(formulas: Any, buckets: int, active: int) -> None:
    codes = [set(code) for code in itertools.combinations(range(buckets), active)]
    sharing = [bool(one & other) for one, other in itertools.product(codes, codes)]
    assert formulas.scanned_items(1, buckets, active, 1) == pytest.approx(np.mean(sharing))


def test_scanned_is_what_a_skewed_table_scans(formulas: Any) -> None:
    random = np.random.default_rng(1)
    buckets, count = 32, 20_000
    shares = random.lognormal(0, 1, buckets)
    codes = random.choice(buckets, count, p=shares / shares.sum())
    table = HashTable.create(buckets=buckets, dim=4)
    table.add(codes[:, None], random.normal(size=(count, 4)))
    loads = table.bucket_loads()
    assert skew(loads) == pytest.approx(formulas.skew_of(loads))
    assert skew(loads) > 1.5
    queries = codes[:5000, None]
    measured = table.search(queries, random.normal(size=(5000, 4)), 1).scanned.mean()
    expected = formulas.scanned_items(count, buckets, 1, skew(loads))
    assert expected == pytest.approx(measured, rel=0.03)
    assert formulas.batch_rows(count, loads, 10)[1] == pytest.approx(measured, rel=0.03)


def drawn_codes(random: Any, count: int, weights: Any, active: int) -> Any:
    """Codes whose buckets are drawn by weight, without repetition (Gumbel's trick)."""
    scores = np.log(weights) + random.gumbel(size=(count, len(weights)))
    return np.argsort(-scores, axis=1)[:, :active]


@pytest.mark.parametrize("active", [1, 2])
@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("batch", [20, 100, 1000])
def test_a_batch_reads_each_opened_bucket_once(
    formulas: Any, active: int, spread: float, batch: int
) -> None:
    """Even and skewed loads, against batches that are drawn and counted."""
    random = np.random.default_rng(2)
    buckets, count = 300, 10_000
    # Quantiles of the normal distribution, so that chance does not change the skew of the few.
    normal = NormalDist().inv_cdf
    weights = np.exp([spread * normal((place + 0.5) / buckets) for place in range(buckets)])
    codes = drawn_codes(random, count, weights, active)
    loads = np.bincount(codes.ravel(), minlength=buckets)
    many = 40_000 // batch + 40  # small batches differ more
    drawn = [np.unique(codes[random.choice(count, batch)]) for _ in range(many)]
    reads = np.mean([loads[opened].sum() for opened in drawn])
    compared = loads[codes].sum(axis=1).mean()
    known = formulas.batch_rows(count, loads, batch)
    assert known[0] == pytest.approx(reads, rel=0.03)
    assert known[1] == pytest.approx(compared)
    # From the skew alone.
    guessed = formulas.lognormal_loads(count, buckets, active, skew(loads))
    read, met = formulas.batch_rows(count, guessed[0], batch, guessed[1])
    assert read == pytest.approx(reads, rel=0.05)
    assert met == pytest.approx(compared)


def test_a_skew_below_one_is_none_of_the_loads(formulas: Any) -> None:
    found, even = (formulas.lognormal_loads(1000, 50, 2, value)[0] for value in (0.7, 1.0))
    assert np.array_equal(found, even)


def test_seconds_written_out(formulas: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rates that tell the terms of each formula apart."""
    for name, value in {
        "read": 1e-9, "compare": 1e-7, "query": 1e-3, "call": 1e-2, "call_read": 1e-6,
        "scattered": 3.0, "call_scattered": 4.0, "touch": 1e-5, "opening": 0.5,
        "opening_byte": 1e-9, "add": 1e-8, "merge": 1e-9,
    }.items():  # fmt: skip
        monkeypatch.setitem(formulas.RATES, name, value)
    disk = 1000 * formulas.item_bytes(8) + 88
    assert disk == pytest.approx(1000 * (16 + 16) * (1 + 1 / 256) + 88)
    # A million lognormal buckets with a skew of 2: spread² = log 2.
    normal = np.random.default_rng(0).standard_normal(1_000_000)
    for active, slower in ((1, 1), (2, 3)):
        shares = active / 10 * np.exp(np.sqrt(np.log(2)) * normal - np.log(2) / 2)
        reads = float(10 * np.mean(1000 * shares * (1 - (1 - np.minimum(shares, 1)) ** 5)))
        loads, buckets = formulas.lognormal_loads(1000, 10, active, 2.0)
        read, compared = formulas.batch_rows(1000, loads, 5, buckets)
        assert compared == pytest.approx(200 * active**2)
        expected = (reads * 16 * 1e-9 + 5 * compared * 8 * 1e-7 + 5 * 1e-3) * slower
        assert formulas.batch_seconds(read, compared, 5, 8, active) == pytest.approx(
            expected, rel=1e-4
        )
    assert formulas.query_seconds(200, 8) == pytest.approx(1e-2 + 200 * 16 * 1e-6)
    assert formulas.query_seconds(800, 8, 2) == pytest.approx(1e-2 + 800 * 16 * 1e-6 * 4)
    cold = formulas.query_seconds(200, 8, cold=True) - formulas.query_seconds(200, 8)
    assert cold == pytest.approx(200 * 20 * 1e-5)
    assert formulas.opening_seconds(disk) == pytest.approx(0.5 + disk * 1e-9)
    assert formulas.build_seconds(1000, disk) == pytest.approx(disk * (1e-8 + 1e-9))


@pytest.mark.parametrize(("parts", "times"), [(1, 0), (7, 0), (8, 1), (63, 1), (64, 2)])
def test_how_often_items_are_merged(formulas: Any, parts: int, times: int) -> None:
    """As ``HashTable.add`` does: eight segments of a size become one."""
    assert formulas.merges(parts * 500_000) == times


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("active", "dim", "payload"), [
    (1, 64, 0), (1, 512, 0), (2, 64, 0), (3, 128, 0), (2, 64, 40),
])  # fmt: skip
def test_rows_of_postgresql(
    formulas: Any, postgres: Postgres, active: int, dtype: str, dim: int, payload: int
) -> None:
    """Against what a real server says of rows and indexes; skips where there is none."""
    count, buckets = 20_000, 64  # a server makes room ahead, which shows in smaller tables
    random = np.random.default_rng(0)
    codes = drawn_codes(random, count, np.ones(buckets), active)
    texts = [{"text": "x" * (payload - 11)}] * count if payload else None
    with removed(postgres.address()) as address:
        settings = {"buckets": buckets, "dim": dim, "active": active, "dtype": dtype}
        with create_engine(address, **settings) as engine:
            engine.add(codes, random.normal(size=(count, dim)), payloads=texts)
        table = table_of(address)
        ((size,),) = postgres.sql("SELECT pg_total_relation_size(%s::regclass)", [table])
    expected = formulas.postgres_bytes(dim, active, SIZES[dtype], payload)
    assert size / count == pytest.approx(expected, rel=0.15)


def test_the_skews_are_those_of_trained_codes(formulas: Any) -> None:
    rows = [
        row
        for loss in ("triplet", "npairs")
        for row in json.loads((RESULTS / f"cifar100-{loss}-refined-classifier.json").read_text())
        if (row["method"], row["table"]) == ("flowhash", "train")
    ]
    for active, value in formulas.SKEW.items():
        found = [row["expected"] / row["suf"] for row in rows if row["k"] == active]
        assert value == pytest.approx(max(found), abs=0.005)
    assert formulas.SKEW[1] == SKEW


def test_the_pages_say_what_was_measured(formulas: Any, result: Any) -> None:
    """Neither page can drift from docs/results/scale.json."""
    assert (RESULTS / "scale.md").read_text() == report.page(result)
    rates = {name: float(f"{value:.3g}") for name, value in result["rates"].items()}
    assert rates == formulas.RATES
    lines = (ROOT / "docs" / "scale.md").read_text().splitlines()
    assert formulas.lines == [line for line in lines if line.startswith("| 1") and "M |" in line]


def test_all_that_is_computed_follows_from_what_was_measured(result: Any) -> None:
    """Rates and bars in docs/results/scale.json are those of its tables."""
    made = report.summary(result["tables"], result["rates"]["opening"])
    for name, value in json.loads(json.dumps(made)).items():
        assert_alike(result[name], value, name)


def assert_alike(stored: Any, value: Any, name: str) -> None:
    """The same but for the last digits: sums of floats differ between processors."""
    if isinstance(value, dict):
        assert stored.keys() == value.keys(), name
        for key in value:
            assert_alike(stored[key], value[key], f"{name}.{key}")
    elif isinstance(value, list):
        assert len(stored) == len(value), name
        for number, (one, other) in enumerate(zip(stored, value, strict=True)):
            assert_alike(one, other, f"{name}[{number}]")
    elif isinstance(value, float):
        assert stored == pytest.approx(value, rel=1e-6), name
    else:
        assert stored == value, name


def test_the_large_table_takes_what_it_took(formulas: Any, result: Any) -> None:
    """What the page says of its first row and the measurement."""
    large = result["tables"]["large"]
    items, buckets = large["items"], large["buckets"]
    files = items * formulas.item_bytes(64) + 8 * (buckets + 1)
    loads = formulas.lognormal_loads(items, buckets, 1, formulas.SKEW[1])
    read, compared = formulas.batch_rows(items, loads[0], 10_000, loads[1])
    batch = large["batches"][1]
    took = large["build"]["seconds"] + large["compact"]["seconds"]
    for said, measured in (
        (files, large["compact"]["bytes"]),
        (formulas.scanned_items(items, buckets, 1, formulas.SKEW[1]), batch["scanned"]),
        (formulas.opening_seconds(files), large["search"]["open"]),
        (formulas.build_seconds(items, files), took),
    ):
        assert said == pytest.approx(measured, rel=0.03)
    said = formulas.batch_seconds(read, compared, 10_000, 64)
    assert batch["seconds"] / said == pytest.approx(1.04, abs=0.005)
    assert large["alone"] / formulas.query_seconds(compared, 64) == pytest.approx(0.88, abs=0.005)


def test_a_loud_machine_and_a_missed_bar_are_on_the_page(result: Any) -> None:
    quiet = report.page(result | {"noisy": {}, "load": 0.04})
    assert "!!! warning" not in quiet
    assert "Load average when it began: 0.0." in quiet
    assert "!!! warning" in report.page(result | {"noisy": {"add": [1e-9, 4e-9]}})
    bars = {
        "open": 0.01, "open_cold": 0.21, "same_buckets": {"10000": 0.5, "100000": 2.0},
        "same_load": {"10000": 0.49, "100000": 0.8},
    }  # fmt: skip
    lines = report.page(result | {"bars": bars}).splitlines()
    missed = [line.split("|")[2].strip() for line in lines if line.endswith("| **missed** |")]
    assert missed == ["210.0 ms", "0.49×"]
    assert sum(line.endswith("| reached |") for line in lines) == 4


def test_rates_that_differ_between_tables_are_found(result: Any) -> None:
    tables = result["tables"]
    for name in ("small", "wide"):
        tables[name]["build"]["seconds"] = 2.0
        tables[name]["search"] |= {"cold": 2.0, "warm": 1.0}
    assert report.noisy(tables) == {}
    tables["wide"]["build"]["seconds"] = 3.2
    assert list(report.noisy(tables)) == ["add"]
    tables["small"]["search"]["cold"] = 1.5
    assert list(report.noisy(tables)) == ["add", "touch"]
