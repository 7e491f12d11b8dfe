"""Search against brute force: every option, metric, shape and way through the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from flowhash.errors import InputError
from flowhash.table import HashTable
from tests.table.oracles import Model, brute_force, differences, put

METRICS = ["euclidean", "cosine", "inner"]
# Whole numbers, so that sums in float64 are exact, and ties are ties in any order of summing.
VALUES = {
    "tied": (-1, 2, 0),
    "small": (-8, 9, 0),
    "same": (1, 2, 0),
    "offset": (-3, 4, 1000),  # float32 sums of squares cannot tell these apart, nor upper halves
    "far": (-3, 4, 10_000),  # float32 only: float16 would round
}


@dataclass(eq=False)
class Case:
    """A table, what must be in it, and queries."""

    table: HashTable
    model: Model
    order: Any
    queries: Any

    def check(self, top: int, probe: int | None = None, where: Any = None, **options: Any) -> Any:
        """Search and compare with brute force; the hits."""
        hits = self.table.search(
            self.order, self.queries, top, probe=probe, where=where, payloads=True, **options
        )
        allowed = where
        if isinstance(where, np.ndarray) and where.dtype == bool:
            allowed = set(np.flatnonzero(where).tolist())
        answer = brute_force(
            self.model, self.order, self.queries, top,
            metric=self.table.metric,
            probe=self.table.active if probe is None else probe,
            at_least=options.get("at_least"),
            where=allowed,
        )  # fmt: skip
        assert differences(hits, answer) == []
        return hits


def whole_numbers(generator: Any, kind: str, count: int, dim: int) -> Any:
    """Embeddings of whole numbers, none of them zero, which cosine refuses."""
    low, high, offset = VALUES[kind]
    values = generator.integers(low, high, size=(count, dim)).astype(np.float32) + offset
    values[~values.any(axis=1)] = 1
    return values


def make_codes(generator: Any, count: int, buckets: int, active: int) -> Any:
    """Random codes; the later buckets are rarer, and some stay empty."""
    weights = 0.7 ** np.arange(buckets)
    keys = generator.random((count, buckets)) ** (1 / weights)
    return np.argsort(-keys, axis=1)[:, :active]


def make_case(
    seed: int, items: int, queries: int, *, buckets: int = 8, active: int = 1, dim: int = 5,
    metric: str = "euclidean", dtype: str = "float32", kind: str = "small", segments: int = 1,
    deleted: float = 0.0, names: bool = False, columns: int | None = None,
) -> Case:  # fmt: skip
    """A table made in several adds, with some items deleted, and its model."""
    generator = np.random.default_rng(seed)
    table = HashTable.create(
        buckets=buckets, dim=dim, active=active, metric=metric, dtype=dtype,
        ids="string" if names else "int64",
    )  # fmt: skip
    model: Model = {}
    numbers = generator.permutation(3 * items)[:items] - items // 4
    ids = [f"item {number}" for number in numbers] if names else numbers.tolist()
    codes = make_codes(generator, items, buckets, active)
    embeddings = whole_numbers(generator, kind, items, dim)
    payloads = [{"number": int(number)} if number % 3 else None for number in numbers]
    edges = np.sort(generator.integers(0, items + 1, size=segments - 1)).tolist()
    for start, stop in zip([0, *edges], [*edges, items], strict=True):
        batch = (codes[start:stop], embeddings[start:stop], ids[start:stop], payloads[start:stop])
        table.add(*batch)
        put(model, dtype, *batch)
    gone = [item for item in ids if generator.random() < deleted]
    table.delete(gone)
    for item in gone:
        del model[item]
    asked = whole_numbers(generator, kind, queries, dim)
    order = np.argsort(generator.random((queries, buckets)), axis=1)[:, :columns]
    return Case(table, model, order.astype(np.int32), asked)


@st.composite
def cases(draw: Any) -> Case:
    active = draw(st.integers(1, 4))
    dtype = draw(st.sampled_from(["float32", "float16"]))
    kinds = sorted(VALUES) if dtype == "float32" else sorted(set(VALUES) - {"far"})
    return make_case(
        draw(st.integers(0, 2**16)),
        draw(st.one_of(st.integers(0, 12), st.integers(0, 250))),
        draw(st.integers(0, 40)),
        buckets=draw(st.integers(active, active + 10)),
        active=active,
        dim=draw(st.sampled_from([1, 3, 5, 8, 17, 64, 100])),
        metric=draw(st.sampled_from(METRICS)),
        dtype=dtype,
        kind=draw(st.sampled_from(kinds)),
        segments=draw(st.integers(1, 5)),
        deleted=draw(st.sampled_from([0.0, 0.0, 0.2, 0.8, 1.0])),
        names=draw(st.sampled_from([False, False, False, True])),
    )


def draw_where(data: Any, case: Case) -> Any:
    """None, or ids as a list, a set, an array or a mask; some of them are not in the table."""
    form = data.draw(st.sampled_from(["none", "none", "list", "set", "array", "mask"]))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    share = data.draw(st.sampled_from([0.0, 0.1, 0.9, 1.0]))
    chosen = [item for item in case.model if generator.random() < share]
    if case.table.id_kind == "string":
        chosen.append("not there")
        return {"none": None, "set": set(chosen)}.get(form, chosen)
    if form == "mask":
        mask = np.zeros(generator.integers(0, 300), bool)
        inside = [item for item in chosen if 0 <= item < len(mask)]
        mask[inside] = True
        return mask
    chosen += [10**6, -(10**6)]
    if form == "array":
        return np.array(chosen)
    return {"none": None, "set": set(chosen), "list": chosen}[form]


@settings(max_examples=250)
@given(cases(), st.data())
def test_equals_brute_force(case: Case, data: Any) -> None:
    columns = case.order.shape[1]
    probe = data.draw(st.one_of(st.none(), st.integers(1, columns)))
    most = len(case.model) + 3
    case.check(
        data.draw(st.sampled_from([1, 2, 3, 16, 70, 300])),
        probe,
        draw_where(data, case),
        at_least=data.draw(st.one_of(st.none(), st.none(), st.integers(1, most))),
        threads=data.draw(st.sampled_from([None, 1, 2, 5])),
    )


@settings(max_examples=250)
@given(cases(), st.integers(1, 4), st.sampled_from([1, 2, 5, 16, 100]))
def test_single_queries_equal_brute_force(case: Case, probe: int, top: int) -> None:
    probe = min(probe, case.order.shape[1])
    alone = Case(case.table, case.model, case.order[:1], case.queries[:1])
    for _ in range(3):  # what earlier searches taught must not change the answer
        alone.check(top, probe)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 999),
    probe=st.integers(17, 300),
    active=st.integers(1, 3),
    dim=st.sampled_from([1, 3, 17, 64]),
    metric=st.sampled_from(METRICS),
    dtype=st.sampled_from(["float32", "float16"]),
    kind=st.sampled_from(["tied", "small", "same", "offset"]),
    deleted=st.sampled_from([0.0, 0.3]),
    top=st.sampled_from([1, 16, 80]),
    threads=st.sampled_from([None, 1, 2]),
)
def test_single_queries_that_open_many_buckets_equal_brute_force(
    seed: int, probe: int, top: int, threads: int | None, **shape: Any
) -> None:
    case = make_case(seed, 700, 1, buckets=300, **shape)
    case.check(top, probe, threads=threads)
    for wrong in (-1, 300, int(case.order[0, 0])):  # out of range, or twice
        order = case.order.copy()
        order[0, probe - 1] = wrong
        with pytest.raises(InputError, match="different buckets from 0 to 299"):
            case.table.search(order, case.queries, top, probe=probe, threads=threads)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 999),
    queries=st.integers(100, 500),
    active=st.integers(1, 3),
    buckets=st.integers(3, 40),
    dim=st.sampled_from([1, 3, 17, 64]),
    metric=st.sampled_from(METRICS),
    dtype=st.sampled_from(["float32", "float16"]),
    kind=st.sampled_from(["tied", "small", "same", "offset"]),
    segments=st.integers(1, 4),
    deleted=st.sampled_from([0.0, 0.3]),
    top=st.sampled_from([1, 7, 16, 80]),
    at_least=st.sampled_from([None, None, 5, 400]),
    probe=st.integers(1, 3),
)
def test_batches_equal_brute_force(
    seed: int, queries: int, top: int, at_least: int | None, probe: int, **shape: Any
) -> None:
    case = make_case(seed, 600, queries, **shape)
    case.check(top, probe, at_least=at_least)


@pytest.mark.slow
@settings(max_examples=3000)
@given(cases(), st.data())
def test_equals_brute_force_at_length(case: Case, data: Any) -> None:
    test_equals_brute_force.hypothesis.inner_test(case, data)  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [1, 5, 17, 40, 128])
@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize(
    ("buckets", "active", "probe"), [(40, 1, 1), (3, 1, 1), (8, 2, 1), (8, 2, 3)]
)
@pytest.mark.parametrize(("metric", "kind"), [("euclidean", "small"), ("cosine", "offset")])
def test_any_number_of_queries_and_segments(
    count: int, segments: int, buckets: int, active: int, probe: int, metric: str, kind: str
) -> None:
    """Few and many queries of a bucket, in one or several segments, some of them empty there."""
    case = make_case(
        count, 400, count, buckets=buckets, active=active, dim=17, metric=metric, kind=kind,
        segments=segments, deleted=0.1,
    )  # fmt: skip
    for top in (1, 7, 300):
        case.check(top, probe)
    case.check(5, probe, where=list(case.model)[::3])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("active", [1, 2])
@pytest.mark.parametrize("dim", [1, 64])
@pytest.mark.parametrize("queries", [1, 12])
def test_buckets_larger_than_a_chunk(metric: str, active: int, dim: int, queries: int) -> None:
    case = make_case(
        dim, 9000, queries, buckets=2, active=active, dim=dim, metric=metric, kind="tied",
        deleted=0.05,
    )  # fmt: skip
    assert len(case.table.bucket(0)) > 4096
    case.check(16, 1)
    case.check(1, 2)
    case.check(3000, 1)
    case.check(16, 2, where=np.arange(9000) % 2 == 0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["same", "tied"])
@pytest.mark.parametrize("top", [1, 16, 100])
def test_thousands_of_ties_go_to_the_lowest_ids(metric: str, kind: str, top: int) -> None:
    case = make_case(
        3, 3000, 40, buckets=4, active=2, dim=3, metric=metric, kind=kind, segments=3, deleted=0.1
    )
    hits = case.check(top, 4)
    if kind == "same":
        assert hits.ids[0].tolist() == sorted(case.model)[:top]
    Case(case.table, case.model, case.order[:1], case.queries[:1]).check(top, 4)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("active", [1, 3])
@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("queries", [1, 3, 60])
def test_what_float32_cannot_tell_apart(
    metric: str, active: int, segments: int, queries: int
) -> None:
    """10,000 and a little: the squares have nine digits, and the differences are in the last."""
    case = make_case(
        4, 700, queries, buckets=6, active=active, dim=17, metric=metric, kind="far",
        segments=segments, deleted=0.05,
    )  # fmt: skip
    for top in (1, 16, 90):
        case.check(top)
        case.check(top, 6, where=[item for item in case.model if item % 2])
        case.check(top, 1, at_least=300)


def test_offsets_with_fractions() -> None:
    """Differences of neighbours in float32 are exact in float64, and so are their squares."""
    generator = np.random.default_rng(0)
    embeddings = (1e4 + generator.normal(0, 0.01, size=(3000, 24))).astype(np.float32)
    codes = generator.integers(0, 4, size=(3000, 1))
    queries = (1e4 + generator.normal(0, 0.01, size=(200, 24))).astype(np.float32)
    order = np.tile([[2, 0, 1, 3]], (200, 1))
    table = HashTable.create(buckets=4, dim=24)
    model: Model = {}
    put(model, "float32", codes, embeddings, table.add(codes, embeddings).tolist())
    Case(table, model, order, queries).check(10, 2)
    for query in range(20):
        alone = Case(table, model, order[query : query + 1], queries[query : query + 1])
        alone.check(10, 2)


@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1e-3, 1e15])
@pytest.mark.parametrize("metric", ["euclidean", "inner"])
@pytest.mark.parametrize("queries", [1, 100])
def test_scales(scale: float, metric: str, queries: int) -> None:
    """Numbers whose squares float32 loses altogether, and such that almost overflow."""
    factor = np.float32(2.0 ** round(np.log2(scale)))  # a power of two keeps whole numbers exact
    case = make_case(5, 400, queries, buckets=3, dim=5, metric=metric)
    table = HashTable.create(buckets=3, dim=5, metric=metric)
    codes = [sorted(item.code) for item in case.model.values()]
    embeddings = [item.embedding * factor for item in case.model.values()]
    table.add(codes, embeddings, list(case.model))
    model: Model = {}
    put(model, "float32", codes, embeddings, list(case.model))
    Case(table, model, case.order, case.queries * factor).check(10, 2)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dim", [3, 32])
def test_real_numbers(metric: str, dtype: str, dim: int) -> None:
    generator = np.random.default_rng(dim)
    embeddings = generator.normal(size=(2000, dim)).astype(np.float32)
    codes = make_codes(generator, 2000, 12, 2)
    queries = generator.normal(size=(300, dim)).astype(np.float32)
    order = np.argsort(generator.random((300, 12)), axis=1)
    table = HashTable.create(buckets=12, dim=dim, active=2, metric=metric, dtype=dtype)
    model: Model = {}
    put(model, dtype, codes, embeddings, table.add(codes, embeddings).tolist())
    answer = brute_force(model, order, queries, 20, metric=metric, probe=2)
    assert differences(table.search(order, queries, 20), answer, exact=False) == []
    for query in range(0, 300, 10):
        lines = slice(query, query + 1)
        single = brute_force(model, order[lines], queries[lines], 20, metric=metric, probe=2)
        hits = table.search(order[lines], queries[lines], 20)
        assert differences(hits, single, exact=False) == []


def same_bits(one: Any, two: Any) -> bool:
    """Whether two searches gave the same, bit for bit."""
    return (
        np.array_equal(one.ids, two.ids)
        and one.distances.tobytes() == two.distances.tobytes()
        and np.array_equal(one.counts, two.counts)
        and np.array_equal(one.scanned, two.scanned)
    )


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("active", [1, 2])
def test_batch_threads_and_segments_change_no_bit(metric: str, dtype: str, active: int) -> None:
    generator = np.random.default_rng(7)
    embeddings = generator.normal(size=(6000, 48)).astype(np.float32)
    embeddings[::7] = embeddings[0]  # and some ties
    codes = make_codes(generator, 6000, 8, active)
    queries = generator.normal(size=(400, 48)).astype(np.float32)
    queries[::9] += 100
    order = np.argsort(generator.random((400, 8)), axis=1).astype(np.int32)
    settings_of_table = {"buckets": 8, "dim": 48, "active": active, "metric": metric}
    tables = []
    for segments in (1, 3):
        table = HashTable.create(dtype=dtype, **settings_of_table)  # type: ignore[arg-type]
        for rows in np.array_split(np.arange(6000), segments):
            table.add(codes[rows], embeddings[rows], rows)
        table.delete(range(0, 6000, 50))
        assert table.stats().segments == segments
        tables.append(table)
    expected = tables[0].search(order, queries, 12, threads=1)
    for table in tables:
        for threads in (1, 2, 5, None):
            assert same_bits(table.search(order, queries, 12, threads=threads), expected)
        for query in range(0, 400, 13):
            alone = table.search(order[query : query + 1], queries[query : query + 1], 12)
            assert alone.distances.tobytes() == expected.distances[query].tobytes()
            assert alone.ids[0].tolist() == expected.ids[query].tolist()
            assert alone.scanned[0] == expected.scanned[query]
        for start in range(0, 60, 6):
            lines = slice(start, start + 6)
            few = table.search(order[lines], queries[lines], 12)
            assert few.distances.tobytes() == expected.distances[lines].tobytes()
            assert few.ids.tolist() == expected.ids[lines].tolist()
    for table in tables:
        table.compact()
        assert same_bits(table.search(order, queries, 12), expected)


@pytest.mark.parametrize("names", [False, True])
def test_nothing_to_find_and_nothing_asked(names: bool) -> None:
    empty = make_case(0, 0, 5, names=names)
    for queries in (0, 1, 5):
        case = Case(empty.table, empty.model, empty.order[:queries], empty.queries[:queries])
        hits = case.check(3)
        assert hits.ids.shape == hits.distances.shape == (queries, 3)
        assert len(hits) == queries
        case.check(3, at_least=4)
        case.check(3, where=["a"] if names else [1])
    full = make_case(0, 20, 5, names=names, segments=2)
    none = Case(full.table, full.model, full.order[:0], full.queries[:0])
    assert none.check(3, at_least=2).ids.shape == (0, 3)
    assert full.table.search([], np.empty((0, 5)), 3).distances.shape == (0, 3)
    full.check(3, where=[])
    full.check(3, where=set())
    if not names:
        full.check(3, where=np.zeros(0, bool))


def test_shapes_and_types_of_hits() -> None:
    hits = make_case(1, 30, 4).check(5)
    assert hits.ids.dtype == hits.counts.dtype == hits.scanned.dtype == np.int64
    assert hits.distances.dtype == np.float32
    named = make_case(1, 30, 4, names=True).check(50)
    assert named.ids.dtype == object
    assert {type(item) for item in named.ids.ravel()} == {str, type(None)}
    case = make_case(1, 30, 4)
    assert case.table.search(case.order, case.queries, 5).payloads is None


def test_at_least_opens_just_enough_buckets() -> None:
    table = HashTable.create(buckets=5, dim=1, active=2)
    table.add([[0, 1], [0, 1], [1, 2], [2, 3]], [[1], [2], [3], [4]])
    order = [[0, 1, 4, 2, 3]]
    for at_least, scanned in ((1, 2), (2, 2), (3, 3), (4, 4), (5, 4), (99, 4)):
        hits = table.search(order, [[0]], 9, probe=1, at_least=at_least)
        assert hits.scanned.tolist() == [scanned]
        assert hits.ids[0, :scanned].tolist() == list(range(scanned))
    assert table.search(order, [[0]], 9, probe=3, at_least=1).scanned.tolist() == [3]
    some = table.search(order, [[0]], probe=1, at_least=2, where=[0, 3])
    assert (some.scanned.tolist(), some.opened.tolist()) == ([2], [4])
    short = table.search([[0, 1]], [[0]], probe=1, at_least=4)  # the given order ends first
    assert short.scanned.tolist() == [3]
    table.delete([0, 1])
    assert table.search(order, [[0]], probe=1, at_least=1).ids[0, 0] == 2


def test_other_types_and_views_of_queries() -> None:
    case = make_case(2, 300, 60, active=2, dim=6)
    expected = case.check(9)
    table, order, queries = case.table, case.order, case.queries
    wide = np.zeros((120, 12))
    wide[::2, ::2] = queries
    long = np.zeros((120, 16), np.int64)
    long[::2, ::2] = order
    frozen_order, frozen_queries = order.copy(), queries.copy()
    frozen_order.flags.writeable = frozen_queries.flags.writeable = False
    pairs = [
        (order.tolist(), queries.tolist()),
        (order.astype(np.int64), queries.astype(np.float64)),
        (order.astype(np.uint64), queries.astype(np.int64)),
        (order.astype(np.uint8), queries.astype(np.int8)),
        (order.astype(np.int16), queries.astype(np.float16)),
        (order.astype(">i4"), queries.astype(">f4")),
        (np.asfortranarray(order), np.asfortranarray(queries)),
        (long[::2, ::2], wide[::2, ::2]),
        (frozen_order, frozen_queries),
    ]
    for other_order, other_queries in pairs:
        assert same_bits(table.search(other_order, other_queries, 9), expected)
        alone = table.search(other_order[:1], other_queries[:1], 9)
        assert alone.ids.tolist() == expected.ids[:1].tolist()
    for numbers in (np.int64, np.int32, np.uint8, np.uint64):
        hits = table.search(
            order, queries, numbers(9), probe=numbers(2), at_least=numbers(1), threads=numbers(2)
        )
        assert same_bits(hits, expected)


def test_other_types_and_views_of_items() -> None:
    case = make_case(2, 300, 60, active=2, dim=6)
    expected = case.check(9)
    ids = list(case.model)
    codes = np.array([sorted(item.code, reverse=True) for item in case.model.values()])
    embeddings = np.array([item.embedding for item in case.model.values()])
    frozen = [codes.astype(np.int32), embeddings.astype(np.float32), np.array(ids)]
    for array in frozen:
        array.flags.writeable = False
    wide = np.zeros((600, 12), np.float32)
    wide[::2, ::2] = embeddings
    versions = [
        (codes.tolist(), embeddings.tolist(), ids),
        (codes.astype(np.uint8), embeddings.astype(np.int64), np.array(ids, np.int16)),
        (codes.astype(np.uint64), embeddings.astype(np.float16), tuple(ids)),
        (np.asfortranarray(codes), np.asfortranarray(embeddings), np.array(ids).astype(">i8")),
        (codes, wide[::2, ::2], iter(ids)),
        tuple(frozen),
    ]
    for version in versions:
        table = HashTable.create(buckets=8, dim=6, active=2)
        table.add(*version)
        assert same_bits(table.search(case.order, case.queries, 9), expected)


def test_answers_do_not_follow_the_arrays_they_came_from() -> None:
    codes, embeddings = np.zeros((3, 1), np.int32), np.ones((3, 2), np.float32)
    ids = np.array([5, 6, 7])
    table = HashTable.create(buckets=1, dim=2)
    table.add(codes, embeddings, ids)
    embeddings[:] = 9
    ids[:] = 1
    hits = table.search([[0]], [[1, 1]], 3)
    assert hits.ids.tolist() == [[5, 6, 7]]
    assert hits.distances.tolist() == [[0, 0, 0]]
    hits.ids[:] = 0
    hits.distances[:] = 0
    table[5].embedding[:] = 3
    table.buckets_of(5)[:] = 3
    assert table.search([[0]], [[1, 1]], 3).ids.tolist() == [[5, 6, 7]]
    assert table[5].embedding.tolist() == [1, 1]
    assert table.buckets_of(5).tolist() == [0]


@pytest.mark.parametrize("threads", [1, 2])
def test_equals_faiss_on_the_same_lists(threads: int) -> None:
    faiss: Any = pytest.importorskip("faiss")
    generator = np.random.default_rng(11)
    count, dim, buckets, probe, top = 20_000, 32, 64, 4, 10
    centres = generator.normal(size=(buckets, dim)).astype(np.float32)
    embeddings = generator.normal(size=(count, dim)).astype(np.float32)
    embeddings += centres[generator.integers(0, buckets, count)]
    queries = embeddings[:500] + generator.normal(0, 0.3, size=(500, dim)).astype(np.float32)
    quantizer = faiss.IndexFlatL2(dim)
    quantizer.add(centres)
    index = faiss.IndexIVFFlat(quantizer, dim, buckets, faiss.METRIC_L2)
    index.is_trained = True
    _, assigned = quantizer.search(embeddings, 1)
    assigned = np.ascontiguousarray(assigned, np.int64)
    ids = np.arange(count) * 3
    pointer = faiss.swig_ptr
    index.add_core(count, pointer(embeddings), pointer(ids), pointer(assigned), None)
    index.nprobe = probe
    coarse, order = quantizer.search(queries, probe)
    distances, labels = index.search_preassigned(queries, top, order, coarse)

    table = HashTable.create(buckets=buckets, dim=dim)
    table.add(assigned, embeddings, ids)
    hits = table.search(order, queries, top, probe=probe, threads=threads)
    np.testing.assert_allclose(hits.distances, distances, rtol=1e-4)
    different = hits.ids != labels  # FAISS ranks in float32: neighbours may have swapped places
    assert different.mean() < 1e-3
    assert np.isin(hits.ids, labels).mean() > 0.999
    sizes = np.bincount(assigned[:, 0], minlength=buckets)
    assert hits.scanned.tolist() == sizes[order].sum(axis=1).tolist()
