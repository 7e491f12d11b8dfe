"""The model of docs/scale.md against real tables, and the pages against the stored figures."""

from __future__ import annotations

import importlib
import itertools
import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from flowhash import HashTable
from flowhash.engines import create_engine
from tests.engines.servers import Postgres, removed, table_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    return importlib.import_module("benchmarks.scale.model")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    return importlib.import_module("benchmarks.scale.report")


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
    assert model.rows_met(count, plan).compared == pytest.approx(measured, rel=0.03)


def drawn_codes(random: Any, count: int, weights: Any, active: int) -> Any:
    """Codes whose buckets are drawn by weight, without repetition (Gumbel's trick)."""
    scores = np.log(weights) + random.gumbel(size=(count, len(weights)))
    return np.argsort(-scores, axis=1)[:, :active]


@pytest.mark.parametrize("active", [1, 2])
@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("batch", [20, 100, 1000])
def test_a_batch_reads_each_opened_bucket_once(
    model: Any, active: int, spread: float, batch: int
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
    plan = model.Plan(buckets=buckets, active=active, batch=batch, skew=model.skew_of(loads))
    known = model.rows_met(count, plan, loads)
    assert known.read == pytest.approx(reads, rel=0.03)
    assert known.compared == pytest.approx(compared)
    # The same loads, as those of a table that is still a tenth as large.
    assert model.rows_met(count, plan, loads / 10) == pytest.approx(known)
    # From the skew alone.
    guessed = model.rows_met(count, plan)
    assert guessed.read == pytest.approx(reads, rel=0.05)
    assert guessed.compared == pytest.approx(compared)


def test_a_skew_below_one_is_none_of_the_loads(model: Any) -> None:
    plan = model.Plan(buckets=50, active=2, skew=0.7)
    assert model.rows_met(1000, plan) == model.rows_met(1000, replace(plan, skew=1.0))


def test_an_estimate_written_out(model: Any, machine: Any) -> None:
    plan = model.Plan(dim=8, buckets=10, skew=2.0, batch=5, node=1e4, network=1e3)
    found = model.estimate(1000, plan, machine)
    disk = 1000 * (16 + 16) * (1 + 1 / 256) + 88
    # A million lognormal buckets with a skew of 2: spread² = log 2.
    normal = np.random.default_rng(0).standard_normal(1_000_000)

    def opened(active: int) -> float:
        shares = active / 10 * np.exp(np.sqrt(np.log(2)) * normal - np.log(2) / 2)
        return float(10 * np.mean(1000 * shares * (1 - (1 - np.minimum(shares, 1)) ** 5)))

    assert found.disk == pytest.approx(disk)
    assert found.scanned == pytest.approx(200)
    assert found.opening == pytest.approx(0.5 + disk * 1e-9)
    assert found.latency == pytest.approx(1e-2 + 200 * 16 * 1e-6)
    assert found.cold == pytest.approx(found.latency + 200 * 20 * 1e-5)
    reads = opened(1)
    seconds = reads * 16 * 1e-9 + 5 * 200 * 8 * 1e-7 + 5 * 1e-3
    assert found.rate == pytest.approx(5 / seconds, rel=1e-4)
    assert found.memory == pytest.approx(1e6 + disk * (1 + 1 / 1024))
    assert found.citus_nodes == np.ceil(1000 * model.postgres_bytes(8, 1, "float16") / 8e3)
    assert found.qdrant_nodes == np.ceil(1000 * 1.5 * 4 * 8 / 8e3)
    assert found.encode == 10
    assert found.build == pytest.approx(disk * (1e-8 + 1e-9))
    assert found.copy == pytest.approx(disk / 1e3)
    # With k = 2 everything is scattered, and a query compares the rows of both buckets.
    two = model.estimate(1000, replace(plan, active=2), machine)
    assert two.latency == pytest.approx(1e-2 + 1000 * 4 * 2 / 10 * 16 * 1e-6 * 4)
    reads = opened(2)
    seconds = reads * 16 * 1e-9 + 5 * 800 * 8 * 1e-7 + 5 * 1e-3
    assert two.rate == pytest.approx(5 / (seconds * 3), rel=1e-4)


@pytest.mark.parametrize(("parts", "times"), [(1, 0), (7, 0), (8, 1), (63, 1), (64, 2)])
def test_how_often_items_are_merged(model: Any, parts: int, times: int) -> None:
    """As ``HashTable.add`` does: eight segments of a size become one."""
    assert model.merges(parts * 500_000) == times


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("active", "dim", "payload"), [
    (1, 64, 0), (1, 512, 0), (2, 64, 0), (3, 128, 0), (2, 64, 40),
])  # fmt: skip
def test_rows_of_postgresql(
    model: Any, postgres: Postgres, active: int, dtype: str, dim: int, payload: int
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
    expected = model.postgres_bytes(dim, active, dtype, payload)
    assert size / count == pytest.approx(expected, rel=0.15)


def test_the_skews_are_those_of_trained_codes(model: Any) -> None:
    skews = model.trained_skews(RESULTS)
    rows = json.loads((RESULTS / "cifar100-triplet-refined-classifier.json").read_text())
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


def test_all_that_is_computed_follows_from_what_was_measured(report: Any) -> None:
    """Rates, check and bars in docs/results/scale.json are those of its tables."""
    result = json.loads((RESULTS / "scale.json").read_text())
    known = result["rates_small"]
    made = report.summary(result["tables"], known["opening"], known["encode"])
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


def test_the_large_table_takes_what_it_took(model: Any, report: Any) -> None:
    """With its own rates the model says of the large table what was measured."""
    result = json.loads((RESULTS / "scale.json").read_text())
    large, known = result["tables"]["large"], result["rates_small"]
    rates = report.summary(result["tables"], known["opening"], known["encode"])["rates"]
    plan = model.Plan(buckets=large["buckets"], skew=large["skew"])
    found = model.estimate(large["items"], plan, model.Machine(**rates))
    took = large["build"]["seconds"] + large["compact"]["seconds"]
    assert found.build == pytest.approx(took, rel=0.01)


def test_a_loud_machine_and_a_missed_bar_are_on_the_page(report: Any) -> None:
    result = json.loads((RESULTS / "scale.json").read_text())
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


def test_rates_that_differ_between_tables_are_found(report: Any) -> None:
    tables = json.loads((RESULTS / "scale.json").read_text())["tables"]
    for name in ("small", "wide"):
        tables[name]["build"]["seconds"] = 2.0
        tables[name]["search"] |= {"cold": 2.0, "warm": 1.0}
    fit = importlib.import_module("benchmarks.scale.fit")  # where the report has found it
    assert fit.noisy(tables) == {}
    tables["wide"]["build"]["seconds"] = 3.2
    assert list(fit.noisy(tables)) == ["add"]
    tables["small"]["search"]["cold"] = 1.5
    assert list(fit.noisy(tables)) == ["add", "touch"]


def test_the_command_prints_the_figures_of_a_table(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with HashTable.create(tmp_path / "t", buckets=4, dim=2) as table:
        table.add([[0], [0], [0], [1]], np.zeros((4, 2)))
    words = ["--items", "1e6", "--table", str(tmp_path / "t"), "--batch", "7"]
    monkeypatch.setattr("sys.argv", ["scale_model.py", *words])
    model.main()
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines["buckets"].split() == ["4", "d"]
    assert lines["dtype"].startswith("float32 ")
    assert lines["batch"].startswith("7 queries ")
    assert float(lines["skew"].split()[0]) == 4 * (9 + 1) / 16
    assert lines["scanned"].startswith("625,000 items ")
    # Every figure of the model is there.
    shown = {field.name for kind in (model.Plan, model.Estimate) for field in fields(kind)}
    assert set(lines) == shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--items", "0"), "--items is 0.0; expected a number above 0"),
        (("--items", "nan"), "--items is nan"),
        (("--items", "9", "--dim", "-1"), "--dim is -1"),
        (("--items", "9", "--payload", "-1"), "--payload is -1; expected a number of at least 0"),
        (("--items", "9", "--dtype", "int8"), "expected one of float16, float32"),
        (("--items", "9", "--buckets", "2", "--active", "3"), "--active is 3, of 2 buckets"),
        (("--items", "9", "--table", "nowhere"), "nowhere"),
        (("--items", "9", "--table", "empty"), "empty is empty; give a table that has items"),
    ],
)
def test_the_command_says_what_cannot_be(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any,
    words: tuple[str, ...], expected: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    HashTable.create("empty", buckets=4, dim=2).close()
    monkeypatch.setattr("sys.argv", ["scale_model.py", *words])
    with pytest.raises(SystemExit) as stopped:
        model.main()
    assert stopped.value.code == 2
    assert expected in capsys.readouterr().err
