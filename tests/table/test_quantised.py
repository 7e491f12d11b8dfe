"""The quantised plane and the scan that reads it first: bounds that hold, exact answers."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flowhash.errors import DamagedFileError
from flowhash.table import HashTable
from flowhash.table.distance_metrics import METRICS, scale_queries
from flowhash.table.integrity import folder_faults
from flowhash.table.search import searcher
from flowhash.table.search.quantised_scan import (
    least_affinity,
    looseness,
    multiply_steps,
    quantise_query,
    suits_bits,
    to_upper,
)
from flowhash.table.search.rerank import query_length
from flowhash.table.search.step_products import (
    INSTRUCTIONS,
    PADDED,
    PLAIN,
    ROWS_TOGETHER,
    lanes_and_instruction,
    lay_out,
    products_of,
)
from flowhash.table.segments.arrays import Arrays, PlaneLayout
from flowhash.table.segments.quantised_plane import empty_quantised, quantise, upper_half
from tests.format.make_v1 import answers
from tests.table.oracles import brute_force, differences, put
from tests.table.test_damage import header_of
from tests.table.test_forgery import first
from tests.table.test_search import VALUES, Case, make_case

DIMS = [32, 33, 50, 64, 96, 100, 127, 128, 131, 160, 300]
STORED = Path(__file__).resolve().parents[1] / "format"


def planes_of(vectors: Any) -> tuple[Any, Any]:
    """Upper halves, rounded, and lower halves."""
    bits = vectors.view(np.uint32)
    return ((bits + np.uint32(0x8000)) >> 16).astype(np.uint16), (bits & 0xFFFF).astype(np.uint16)


def as_segment(vectors: Any, metric: str) -> Arrays:
    """One bucket of these rows, quantised."""
    squares = np.square(vectors.astype(np.float64)).sum(axis=1)
    norms = 1 / np.sqrt(squares) if metric == "cosine" else squares
    quantised, quanta = empty_quantised(*vectors.shape)
    planes = planes_of(vectors)
    quantise(*planes, quantised, quanta)
    ids, offsets = np.arange(len(vectors)), np.array([0, len(vectors)])
    return Arrays(
        *planes, norms.astype(np.float32), ids, offsets, quantised=quantised, quanta=quanta
    )


@st.composite
def rows_of_many_scales(draw: Any) -> Any:
    """Rows whose numbers, and whose lengths, are of very different sizes; some are zero."""
    generator = np.random.default_rng(draw(st.integers(0, 2**16)))
    dim, spread = draw(st.sampled_from(DIMS)), draw(st.sampled_from([0.0, 1.0, 8.0]))
    vectors = generator.normal(size=(13, dim)) * 10 ** (spread * generator.normal(size=(13, dim)))
    scales = draw(st.sampled_from([0, 3, 15])) * generator.normal(size=(13, 1))
    vectors = np.clip(vectors * 10**scales, -1e17, 1e17).astype(np.float32)
    vectors[generator.random(vectors.shape) < draw(st.sampled_from([0.0, 0.5, 0.99]))] = 0
    return vectors


@settings(max_examples=300)
@given(rows_of_many_scales())
def test_steps_leave_out_no_more_than_the_plane_says(vectors: Any) -> None:
    quantised, quanta = empty_quantised(*vectors.shape)
    quantise(*planes_of(vectors), quantised, quanta)
    step, left_out = (quanta.astype(np.uint32) << np.uint32(16)).view(np.float32).T
    exact = vectors.astype(np.longdouble)
    rests = np.sqrt(np.square(exact - quantised * step[:, None].astype(np.longdouble)).sum(axis=1))
    assert (rests <= left_out).all()
    assert np.isfinite(left_out).all()
    # And not much more than a half of a step for each number.
    assert (left_out <= 0.51 * step * np.sqrt(vectors.shape[1]) + 2e-24).all()


@given(st.floats(0, 1e30) | st.sampled_from([0.0, 1e-40, 5e-324, 1.0, 1.0078125, 65536.0, 1e38]))
def test_an_upper_half_is_the_least_that_is_not_below(value: float) -> None:
    half = upper_half(value)
    around = np.array([half - 1, half], np.int64)[-1 if half == 0 else 0 :]
    floats = (around << 16).astype(np.uint32).view(np.float32).astype(np.float64)
    assert floats[-1] >= value
    assert half == 0 or floats[0] < value


@pytest.mark.parametrize("lanes", [*INSTRUCTIONS, PLAIN, None])
def test_products_are_those_of_whole_numbers(lanes: int | None) -> None:
    """With each instruction that this processor has, and without any, as on other processors."""

    def choose(codegen: Any) -> tuple[int, str]:
        found = lanes_and_instruction(codegen)
        return (
            found if lanes is None else (lanes, INSTRUCTIONS.get(lanes, ("",))[0] if named else "")
        )

    named = lanes != PLAIN
    longest = lanes_and_instruction(numba.core.registry.cpu_target.target_context.codegen())[0]
    if lanes is not None and lanes > longest:
        pytest.skip("this processor has no such instruction")
    for plain in (False, True) if lanes == PLAIN else (False,):
        named = not plain
        lanes_of, multiply = products_of(choose)

        @numba.njit
        def work(rows: Any, query: Any) -> Any:
            products = np.zeros(6, np.float32)
            multiply(rows, (0, 3, 1, 2), query, products, 1)  # noqa: B023
            return lanes_of(), products  # noqa: B023

        generator = np.random.default_rng(0)
        for dim in (32, 33, 63, 64, 96, 100, 511):
            rows = generator.integers(-127, 128, (4, dim)).astype(np.int8)
            query = generator.integers(-32767, 32768, dim).astype(np.int16)
            rows[0], query[:] = np.where(dim % 2, 127, rows[0]), np.where(dim % 2, 32767, query)
            padded = np.full(dim + PADDED, 99, np.int16)
            width = work(rows, padded)[0]
            full = dim // width * width
            padded[:full] = query[:full]
            if full < dim:
                padded[full : full + width] = np.where(
                    np.arange(dim - width, dim) < full, 0, query[dim - width :]
                )
            exact = rows.astype(np.int64) @ query.astype(np.int64)
            wanted = exact[[0, 3, 1, 2]].astype(np.float32)
            assert work(rows, padded)[1].tolist() == [0, *wanted.tolist(), 0]


@settings(max_examples=300)
@given(rows_of_many_scales(), st.sampled_from(sorted(METRICS)), st.data())
def test_no_row_is_nearer_than_its_bound(vectors: Any, metric: str, data: Any) -> None:
    """A row as near as the last that is kept, or nearer, reaches what is worth measuring."""
    vectors = vectors[np.linalg.norm(vectors.astype(np.float64), axis=1) > 1e-14]
    if len(vectors) < 3:
        return
    query = vectors[-1:].copy()
    way = data.draw(st.sampled_from(["near", "other", "opposite", "zero"]))
    if way == "near":
        vectors[:3] = query * np.float32(1.0000001)
    elif way == "opposite":
        query = -query
    elif way == "zero" and metric != "cosine":
        query *= 0
    vectors, dim = vectors[:-1], vectors.shape[1]
    segment, kind = as_segment(vectors, metric), METRICS[metric]
    scaled, whole = np.empty_like(query), np.empty(dim, np.int16)
    assert scale_queries(kind, query, scaled) == -1
    length = query_length(scaled, 0)
    step, rest = quantise_query(scaled, whole)
    assert np.abs(whole.astype(np.int64)).sum() * 127 < 2**31
    padded = np.zeros(dim + PADDED, np.int16)
    lay_out(whole, dim, padded)
    size, upper = len(vectors), np.empty(len(vectors) + ROWS_TOGETHER, np.float32)
    places = np.arange(size, dtype=np.int32)
    base = data.draw(st.sampled_from([0, -1]))
    multiply_steps(segment, base, places, size, size, padded, upper)
    to_upper(kind, segment, base, places, size, step, length + rest, upper)
    largest = np.linalg.norm(vectors.astype(np.float64), axis=1).max() * 1.0001
    bound = looseness(kind, dim, length, rest, largest)
    asked, rows = query.astype(np.longdouble), vectors.astype(np.longdouble)
    exact = {
        "euclidean": lambda: np.square(asked - rows).sum(axis=1),
        "inner": lambda: -(rows * asked).sum(axis=1),
        "cosine": lambda: 1 - (rows * asked).sum(axis=1)
        / np.sqrt(np.square(rows).sum(axis=1) * np.square(asked).sum()),
    }[metric]().astype(np.float64)  # fmt: skip
    for row in range(size):
        floor = np.float32(least_affinity(kind, length, bound, 1, 1, exact[row : row + 1, None]))
        assert upper[row] >= floor
    assert least_affinity(kind, length, bound, 2, 1, exact[:1, None]) == -np.inf


@st.composite
def long_cases(draw: Any) -> Case:
    active = draw(st.integers(1, 3))
    return make_case(
        draw(st.integers(0, 2**16)),
        draw(st.one_of(st.integers(0, 40), st.integers(200, 900))),
        draw(st.integers(0, 12)),
        buckets=draw(st.integers(active, active + 4)),
        active=active,
        dim=draw(st.sampled_from(DIMS)),
        metric=draw(st.sampled_from(sorted(METRICS))),
        kind=draw(st.sampled_from(sorted(VALUES))),
        segments=draw(st.integers(1, 3)),
        deleted=draw(st.sampled_from([0.0, 0.0, 0.2, 0.9])),
        names=draw(st.sampled_from([False, False, True])),
    )


@settings(max_examples=150)
@given(long_cases(), st.data())
def test_equals_brute_force(case: Case, data: Any) -> None:
    columns = case.order.shape[1]
    where = data.draw(st.sampled_from([None, sorted(case.model, key=str)[::3]]))
    case.check(
        data.draw(st.sampled_from([1, 2, 10, 100, 300])),
        data.draw(st.one_of(st.none(), st.integers(1, columns))),
        where,
        threads=data.draw(st.sampled_from([None, 1, 3])),
    )


@pytest.mark.parametrize("active", [1, 2, 3])
@pytest.mark.parametrize("deleted", [0.0, 0.3])
def test_more_rows_than_are_looked_at_together(active: int, deleted: float) -> None:
    case = make_case(
        3, 9000, 4, buckets=4, active=active, dim=33, kind="small", deleted=deleted, segments=2
    )
    for top in (1, 30, 100):
        case.check(top, 4)
        part = Case(case.table, case.model, case.order[1:2], case.queries[1:2])
        part.check(top, 4)
        part.check(top, 3, sorted(case.model)[::2])


@pytest.mark.parametrize("active", [2, 3])
@pytest.mark.parametrize("metric", ["euclidean", "inner"])
def test_where_a_query_meets_few_rows_codes_tell_which(active: int, metric: str) -> None:
    """Neighbouring buckets share rows, and a bit for every row would take longer to clear."""
    generator = np.random.default_rng(active)
    items, buckets = 9000, 900
    codes = (generator.integers(buckets, size=(items, 1)) + np.arange(active)) % buckets
    vectors = generator.integers(-8, 9, size=(items, 33)).astype(np.float32)
    neighbours = np.array([1, 0, 2])
    order = ((generator.integers(buckets, size=(5, 1)) + neighbours) % buckets).astype(np.int32)
    asked = generator.integers(-8, 9, size=(5, 33)).astype(np.float32)
    model: Any = {}
    with HashTable.create(buckets=buckets, dim=33, active=active, metric=metric) as table:
        table.add(codes, vectors)
        put(model, "float32", codes, vectors, range(items))
        segment = table._open_state().parts[0].segment.arrays
        loads = table.bucket_loads()
        for lines in (slice(1), slice(5)):
            opened = np.full(5, 3, np.int32)
            assert not suits_bits(segment, order, opened, 0, items)
            hits = table.search(order[lines], asked[lines], 40, probe=3)
            answer = brute_force(model, order[lines], asked[lines], 40, metric=metric, probe=3)
            assert differences(hits, answer) == []
            assert (hits.scanned < loads[order[lines]].sum(axis=1)).all()


@pytest.mark.parametrize("metric", sorted(METRICS))
@pytest.mark.parametrize("kind", ["clusters", "twins", "scales"])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_threads_and_real_numbers(
    monkeypatch: pytest.MonkeyPatch, metric: str, kind: str, count: int
) -> None:
    """Rows that lie close together, and of all lengths; one query or more, in several threads."""
    monkeypatch.setattr(searcher, "STEPS_PER_THREAD", 1 << 14)
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(6, 120))
    codes = rng.integers(6, size=(3000, 1))
    vectors = centres[codes[:, 0]] + 0.1 * rng.normal(size=(3000, 120))
    if kind == "twins":  # neighbours in float32
        vectors[::2] = vectors[1] * (1 + 1e-7 * rng.integers(-2, 3, size=(1500, 1)))
    if kind == "scales":
        vectors *= 10 ** rng.normal(size=(3000, 1)) * 100
    queries = vectors[rng.integers(3000, size=count)] + 0.01
    order = np.argsort(rng.random((count, 6)), axis=1)
    with HashTable.create(buckets=6, dim=120, metric=metric) as table:
        table.add(codes, vectors)
        model: Any = {}
        put(model, "float32", codes, vectors.astype(np.float32), range(3000))
        for threads in (1, 2, 4):
            hits = table.search(order, queries.astype(np.float32), 20, probe=5, threads=threads)
            answer = brute_force(
                model, order, queries.astype(np.float32), 20, metric=metric, probe=5
            )
            # Sums of real numbers differ in their last bits, so that ties may.
            assert np.allclose(hits.distances, answer.distances, rtol=1e-6, atol=1e-9)
            assert np.array_equal(hits.scanned, answer.scanned)
            if kind != "twins":
                assert differences(hits, answer, exact=False) == []


def test_it_is_what_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plane that says wrong things makes wrong answers: it is not there for nothing."""
    case = make_case(1, 300, 5, dim=128, buckets=4)
    case.check(5)
    (part,) = case.table._state.parts
    part.segment.arrays.quantised[:] = 0
    part.segment.arrays.quanta[:] = 0
    with pytest.raises(AssertionError):
        case.check(5)
    monkeypatch.setattr(searcher, "QUERIES_AT_LEAST", 0)  # such batches read the other planes
    monkeypatch.setattr(searcher, "QUERIES_PER_NUMBER", 0)
    case.check(5)


def build(path: Path, count: int = 400, dim: int = 128) -> Any:
    rng = np.random.default_rng(0)
    with HashTable.create(path, buckets=4, dim=dim) as table:
        table.add(rng.integers(4, size=(count, 1)), rng.normal(size=(count, dim)))
    return rng.normal(size=(3, dim)).astype(np.float32)


def version(path: Path) -> int:
    return int(json.loads((path / "manifest.json").read_text())["version"])


@pytest.mark.parametrize("name", ["quantised", "quanta"])
def test_a_damaged_plane_is_named_and_never_searched(tmp_path: Path, name: str) -> None:
    path = tmp_path / "table"
    queries = build(path)
    (file,) = path.glob("segment-*")
    start, header = header_of(file)
    begin, end = header[name]["data_offsets"]
    data = bytearray(file.read_bytes())
    data[start + (begin + end) // 2] ^= 4
    file.write_bytes(data)
    with HashTable.open(path) as table:
        for lines in (slice(1), slice(3)):
            with pytest.raises(DamagedFileError, match=rf"{name}.* do not match their checksum"):
                table.search(np.tile(np.arange(4), (3, 1))[lines], queries[lines], 3, probe=4)
    (fault,) = folder_faults(path)
    assert name in fault


@pytest.mark.parametrize(("name", "value"), [("quantised", 99), ("quanta", 0)])
def test_check_compares_the_plane(tmp_path: Path, name: str, value: int) -> None:
    path = tmp_path / "table"
    build(path)
    assert folder_faults(path) == []
    forger, number, fields, data = first(path)
    start, _ = fields[name]["data_offsets"]
    content = bytearray(data)
    content[start + 2 : start + 4] = bytes([value, value])
    forger.write_data(number, json.dumps(fields).encode(), content)
    (fault,) = folder_faults(path)
    assert "its quantised plane leaves out more" in fault


@pytest.mark.parametrize("dim", [32, 96])
def test_the_plane_takes_a_quarter_at_the_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dim: int
) -> None:
    build(tmp_path / "with", 4000, dim)
    monkeypatch.setattr(PlaneLayout, "is_quantised", lambda *given: False)
    build(tmp_path / "without", 4000, dim)
    sizes = [sum(file.stat().st_size for file in (tmp_path / name).iterdir())
             for name in ("with", "without")]  # fmt: skip
    assert 1.15 < sizes[0] / sizes[1] <= 1.25
    assert [version(tmp_path / name) for name in ("with", "without")] == [4, 1]


def test_an_older_table_gets_the_plane_when_it_is_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table"
    with monkeypatch.context() as older:
        older.setattr(PlaneLayout, "is_quantised", lambda *given: False)
        queries = build(path)
    order = np.tile(np.arange(4), (3, 1))
    rng = np.random.default_rng(1)
    with HashTable.open(path, "r+") as table:
        before = table.search(order, queries, 9, probe=4)
        assert version(path) == 1
        table.add([[1]], rng.normal(size=(1, 128)) + 100)  # of the new version, beside the old
        mixed = table.search(order, queries, 9, probe=4)
        table.delete([400])
        table.compact()
        after = table.search(order, queries, 9, probe=4)
        assert all(part.segment.is_quantised for part in table._state.parts)
    assert version(path) == 4
    for other in (mixed, after):
        assert np.array_equal(before.ids, other.ids)
        assert np.array_equal(before.distances, other.distances)


def test_compact_gives_the_plane_to_a_table_of_one_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table"
    with monkeypatch.context() as older:
        older.setattr(PlaneLayout, "is_quantised", lambda *given: False)
        build(path)
    with HashTable.open(path, "r+") as table:
        table.compact()
    assert version(path) == 4
    assert folder_faults(path) == []


def test_the_stored_table_has_the_plane(tmp_path: Path) -> None:
    shutil.copytree(STORED / "v4-quantised" / "table", tmp_path / "table")
    expected = json.loads((STORED / "v4-quantised" / "expected.json").read_text())
    with HashTable.open(tmp_path / "table") as table:
        assert all(part.segment.is_quantised for part in table._state.parts)
        assert answers(table) == expected


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0])
def test_a_row_that_is_not_finite_is_named(tmp_path: Path, bits: int, queries: int) -> None:
    """No writer stores it; with right checksums it must end in words, not in a search for ever.

    A batch multiplies whole numbers, among which such rows are just far away, but for infinity.
    """
    path, vectors = tmp_path / "table", np.abs(np.random.default_rng(0).normal(size=(300, 64)))
    with HashTable.create(path, buckets=1, dim=64, metric="inner") as table:
        table.add(np.zeros((300, 1), np.int32), vectors)
        nearest = table.search([[0]], vectors[:1], 1).ids[0, 0]
        row = int(np.flatnonzero(table._open_state().parts[0].segment.arrays.ids == nearest)[0])
    forger, number, fields, data = first(path)
    content = bytearray(data)
    for name, value in (("highs", bits), ("lows", 0)):
        place = fields[name]["data_offsets"][0] + row * 128
        content[place : place + 2] = value.to_bytes(2, "little")
    forger.write_data(number, json.dumps(fields).encode(), content)
    is_far = bits != 0x7F80 and queries > 1
    refused = contextlib.nullcontext() if is_far else pytest.raises(DamagedFileError)
    with HashTable.open(path) as table, refused:
        table.search(np.zeros((queries, 1), int), vectors[:queries], 1)
