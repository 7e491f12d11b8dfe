"""Every engine answers as a hash table does, bit for bit, and as brute force does."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest

from flowhash.engines import (
    BrowsedEngine,
    Engine,
    RemoteEngine,
    copy,
    engine_faults,
    open_engine,
)
from flowhash.engines.engine_registry import room_of
from flowhash.errors import ChangedNotesError, InputError, OldCalibrationWarning, StorageError
from flowhash.table import HashTable
from tests.engines.pairs import METRICS, Make, Pair, bits, engine_contents
from tests.table.oracles import shortened
from tests.table.test_search import make_codes, whole_numbers
from tests.table.test_table import ADDS, SEARCHES

HUGE = [-(2**63), 2**63 - 1, 2**53 + 1, -1, 0]
TEXTS = [
    "", " ", "a", "A", "ä", "a\u0308", "🙂", "日本語", "O'Brien", 'say "so"', "back\\slash",
    "tab\tline\n", "\r", "\\N", "\\.", "'; DROP TABLE items; --", "$1", "%s", "{}", "NULL",
    "null", "1", "-1", "(a,b)", "x" * 65_535, "é" * 3000,
]  # fmt: skip
ODD: list[dict[str, Any] | None] = [
    None,
    {},
    {"": None},
    {"text": "quotes ' \" and ü 🙂 \n\t\\ \\u0000 %s $1"},
    {"nul": "before\0after", "\0": [True, False, None]},
    {"deep": [{"er": [[], {}, [[[{"a": {"b": {"c": []}}}]]]]}]},
    {"numbers": [0, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 2**70, 10**40]},
    {"reals": [1e-300, 1.5e300, -0.25, 0.1, 1e16, 5e-324, 1.7976931348623157e308, 1.0, -0.0]},
    {"ids": 1, "bucket": 2, "code": 3, "id": 4, "vector": [5], "payload": {"key": 6}, "": 7},
    {"b": 1, "a": 2, "aa": 3},  # in this order
    {"surrogate": "\ud800"},
    {"long": "x" * 900_000},
]


def orders(generator: Any, queries: int, buckets: int) -> Any:
    """The buckets in a random order for each query."""
    return np.argsort(generator.random((queries, buckets)), axis=1).astype(np.int32)


def names_of(numbers: Any, ids: str) -> list[Any]:
    """Ids of either kind."""
    return [f"nümber {number}" if ids == "string" else int(number) for number in numbers]


def filled(
    make: Make, items: int, *, kind: str = "small", seed: int = 0, short: bool = False,
    **settings: Any,
) -> Pair:  # fmt: skip
    """A pair with items of whole numbers, in three adds, with deletes and replacements.

    With ``short`` items are in one to k buckets.
    """
    settings = {"buckets": 8, "dim": 5, **settings}
    generator = np.random.default_rng(seed)
    pair = make(**settings)
    items //= pair.share
    ids = settings.get("ids", "int64")
    numbers = generator.permutation(3 * items)[:items] - items // 4
    for part in np.array_split(numbers, 3):
        codes = make_codes(generator, len(part), pair.table.buckets, pair.table.active)
        codes = shortened(generator, codes) if short else codes
        vectors = whole_numbers(generator, kind, len(part), pair.table.dim)
        payloads = [{"group": int(one % 5)} if one % 3 else None for one in part]
        pair.add(codes, vectors, names_of(part, ids), payloads)
    pair.delete(names_of(numbers[:: max(1, items // 20)], ids))
    again = numbers[1 :: max(1, items // 15)]
    codes = make_codes(generator, len(again), pair.table.buckets, pair.table.active)
    codes = shortened(generator, codes) if short else codes
    pair.add(
        codes, whole_numbers(generator, kind, len(again), pair.table.dim), names_of(again, ids)
    )
    return pair


# Every k with every metric, every other choice with each of them; all of them are a slow test.
CHOSEN = [
    (1, "euclidean", "float32", "int64"), (1, "cosine", "float16", "string"),
    (1, "inner", "float32", "string"), (2, "euclidean", "float16", "string"),
    (2, "cosine", "float32", "int64"), (2, "inner", "float16", "int64"),
    (3, "euclidean", "float32", "string"), (3, "cosine", "float16", "int64"),
    (3, "inner", "float32", "int64"),
]  # fmt: skip
ALL = list(product([1, 2, 3], METRICS, ["float32", "float16"], ["int64", "string"]))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [one for one in ALL if one not in CHOSEN])
def test_answers_with_all_other_settings(make: Make, settings: Any) -> None:
    test_answers_are_those_of_the_table(make, *settings)


@pytest.mark.parametrize(("active", "metric", "dtype", "ids"), CHOSEN)
def test_answers_are_those_of_the_table(
    make: Make, active: int, metric: str, dtype: str, ids: str
) -> None:
    compare_answers(make, active, metric, dtype, ids)


@pytest.mark.parametrize("settings", [CHOSEN[3], CHOSEN[8]])
def test_answers_where_items_have_one_to_k_buckets(make: Make, settings: Any) -> None:
    compare_answers(make, *settings, short=True)


def compare_answers(
    make: Make, active: int, metric: str, dtype: str, ids: str, short: bool = False
) -> None:
    kinds = {"active": active, "metric": metric, "dtype": dtype, "ids": ids}
    pair = filled(make, 240, seed=active, short=short, **kinds)
    pair.same_contents()
    generator = np.random.default_rng(active)
    queries, order = whole_numbers(generator, "small", 13, 5), orders(generator, 13, 8)
    names = list(pair.model)
    pair.search(order, queries)
    pair.search(order, queries, 1)
    pair.search(order, queries, 500)  # more than there are
    pair.search(order, queries, 7, probe=8)
    pair.search(order, queries, 7, probe=1, at_least=90)
    pair.search(order, queries, 7, at_least=10_000)
    pair.search(order[:1], queries[:1], 7)
    pair.search(order, queries, 7, where=names[::3])
    pair.search(order, queries, 7, where=set(names[::7]), probe=5)
    pair.search(order, queries, 7, where=names[::5], at_least=12)
    pair.search(order, queries, 7, where=[*names[:2], *names[:2]], probe=8)
    pair.search(order, queries, 7, where=[])
    if ids == "int64":
        pair.search(order, queries, 7, where=np.arange(300) % 3 == 0, at_least=20)
        pair.search(order, queries, 7, where=np.array(names[::2]))
        pair.search(order, queries, 7, where=np.zeros(0, bool))


def test_an_item_in_one_bucket_of_two(make: Make) -> None:
    pair = make(buckets=4, dim=2, active=2)
    pair.add([[3, 1], [2, -1], [3, -1]], [[0, 0], [1, 1], [2, 2]])
    assert pair.engine[1].code.tolist() == [2]
    assert pair.engine.codes_of([0, 1, 2]) == [[1, 3], [2], [3]]
    assert pair.engine.bucket_loads().tolist() == [0, 1, 1, 2]
    stats, expected = pair.engine.stats(), pair.table.stats()
    assert stats.mean_active == expected.mean_active == 4 / 3
    assert (stats.suf, stats.expected_suf) == (expected.suf, expected.expected_suf)
    if pair.remote:
        assert engine_faults(pair.engine, False) == []
    pair.add([[2, 0], [1, -1]], [[1, 1], [5, 5]], ids=[1, 0])  # a bucket more, and one less
    pair.reopen()
    pair.search([[3, 0, 2, 1]], [[0, 0]], 5, probe=3)
    assert pair.delete([0, 1, 2, 3]) == 3


def test_a_copy_of_items_in_one_to_k_buckets(make_remote: Make) -> None:
    rng = np.random.default_rng(3)
    pair = make_remote(buckets=2, dim=2)
    assert pair.address is not None
    room_of(pair.address).remove(pair.address)
    table = HashTable.create(buckets=8, dim=5, active=3)
    codes = shortened(rng, make_codes(rng, 200, 8, 3))
    table.add(codes, whole_numbers(rng, "small", 200, 5), payloads=[{"n": n} for n in range(200)])
    table.delete(range(0, 200, 9))
    assert copy(table, pair.address).items == len(table)
    pair.engine.close()
    pair.engine = open_engine(pair.address)
    assert engine_contents(pair.engine) == engine_contents(table)
    assert engine_faults(pair.engine, False) == []
    assert copy(table, pair.address).before == len(table)  # which is found complete


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dim", [1, 33, 700])
def test_real_numbers(make: Make, metric: str, dtype: str, dim: int) -> None:
    generator = np.random.default_rng(dim)
    pair = make(buckets=6, dim=dim, active=2, metric=metric, dtype=dtype)
    codes = make_codes(generator, 150, 6, 2)
    vectors = generator.normal(size=(150, dim)).astype(np.float32)
    vectors[::7] = vectors[0]  # and some ties
    pair.add(codes, vectors)
    queries = generator.normal(size=(9, dim)).astype(np.float32)
    queries[4] = vectors[0].astype(dtype)
    exact = dim == 1 and metric != "cosine"  # longer sums round as their order wants
    pair.search(orders(generator, 9, 6), queries, 20, exact=exact)
    pair.search(orders(generator, 9, 6), queries, 3, exact=exact, probe=4)


@pytest.mark.parametrize(
    ("metric", "ids", "kind"),
    [
        ("euclidean", "int64", "same"), ("cosine", "string", "same"), ("inner", "int64", "same"),
        ("euclidean", "string", "tied"), ("cosine", "int64", "tied"), ("inner", "string", "tied"),
    ],
)  # fmt: skip
def test_ties_go_by_the_ids(make: Make, metric: str, ids: str, kind: str) -> None:
    pair = filled(make, 700, kind=kind, ids=ids, metric=metric, active=2, dim=3, buckets=3)
    generator = np.random.default_rng(1)
    queries, order = whole_numbers(generator, kind, 5, 3), orders(generator, 5, 3)
    for top in (1, 16, 100):
        hits = pair.search(order, queries, top)
    if kind == "same":
        assert len(set(hits.distances[0].tolist())) == 1
    pair.search(order, queries, 16, where=list(pair.model)[::2])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("active", [1, 3])
def test_what_float32_cannot_tell_apart(make: Make, metric: str, active: int) -> None:
    """Squares have nine digits and differ in the last: hundreds of rows are one for float32."""
    pair = filled(make, 600, kind="far", metric=metric, active=active, dim=17, buckets=4)
    generator = np.random.default_rng(2)
    queries, order = whole_numbers(generator, "far", 4, 17), orders(generator, 4, 4)
    for top in (1, 16, 90):
        pair.search(order, queries, top)
    pair.search(order, queries, 3, probe=1, at_least=300)


def test_offsets_with_fractions(make: Make) -> None:
    """Neighbours around 10,000: their differences are exact in float64, and lost in float32."""
    generator = np.random.default_rng(0)
    pair = make(buckets=2, dim=24)
    pair.add(
        generator.integers(0, 2, size=(400, 1)),
        (1e4 + generator.normal(0, 0.01, size=(400, 24))).astype(np.float32),
    )
    queries = (1e4 + generator.normal(0, 0.01, size=(6, 24))).astype(np.float32)
    pair.search([[1, 0]] * 6, queries, 5, exact=False)


@pytest.mark.parametrize("exponent", [-149, -100, -63, -10, 50, 57])
@pytest.mark.parametrize("metric", METRICS)
def test_very_large_and_very_small_numbers(make: Make, exponent: int, metric: str) -> None:
    """Powers of two keep whole numbers exact; their squares are far beyond float32, or vanish."""
    generator = np.random.default_rng(3)
    factor = np.float32(2.0**exponent)
    pair = make(buckets=2, dim=5, metric=metric)
    vectors = whole_numbers(generator, "small", 300, 5) * factor
    codes = generator.integers(0, 2, size=(300, 1))
    queries = whole_numbers(generator, "small", 5, 5) * factor
    if metric == "cosine" and exponent < -60:
        with pytest.raises(InputError) as expected:
            pair.table.add(codes, vectors)
        with pytest.raises(InputError) as raised:
            pair.engine.add(codes, vectors)
        assert str(raised.value) == str(expected.value)
        return
    pair.add(codes, vectors)
    pair.same_contents()
    pair.search([[0, 1], [1, 0]] * 2 + [[0, 1]], queries, 12)
    pair.search([[0, 1]] * 5, whole_numbers(generator, "small", 5, 5), 12, probe=2)


def test_a_mixture_of_sizes(make: Make) -> None:
    """One long row must not blur the order of the small ones."""
    generator = np.random.default_rng(4)
    for metric in ("euclidean", "inner"):
        pair = make(buckets=1, dim=2, metric=metric)
        vectors = whole_numbers(generator, "small", 200, 2) * np.float32(2.0**-30)
        vectors[7] = [2.0**55, -(2.0**55)]
        pair.add([[0]] * 200, vectors)
        pair.search([[0]] * 3, [[0, 0], [2.0**-30, 0], [1, 1]], 30, exact=False)


@pytest.mark.parametrize("ids", ["int64", "string"])
@pytest.mark.parametrize("active", [1, 3])
def test_nothing_to_find_and_nothing_asked(make: Make, ids: str, active: int) -> None:
    pair = make(buckets=5, dim=2, active=active, ids=ids)
    order = [[4, 0, 1, 2, 3]] * 2
    some = names_of([3, 9], ids)
    for _ in range(2):
        pair.search(order, [[1, 2], [3, 4]], 3)
        pair.search(order, [[1, 2], [3, 4]], 3, probe=5, at_least=2, where=some)
        for nothing in (np.empty((0, 5), np.int32), []):
            hits = pair.engine.search(nothing, np.empty((0, 2)), 4, payloads=True)
            expected = pair.table.search(nothing, np.empty((0, 2)), 4, payloads=True)
            assert bits(hits) == bits(expected)
            assert hits.payloads == expected.payloads == []
        pair.add(np.empty((0, active), int), np.empty((0, 2)), [])
        assert pair.delete(some) == 0
        assert pair.delete([]) == 0
        pair.same_contents()
        pair.add([range(active)], [[1, 1]], some[:1])
        assert pair.delete(some) == 1  # and empty again


def test_many_buckets_few_items(make: Make) -> None:
    pair = make(buckets=5000, dim=3, active=2)
    generator = np.random.default_rng(5)
    codes = np.stack([generator.permutation(5000)[:2] for _ in range(40)])
    pair.add(codes, whole_numbers(generator, "small", 40, 3))
    queries = whole_numbers(generator, "small", 12, 3)
    order = orders(generator, 12, 5000)
    order[:4, :2] = codes[:4]
    for line in range(4):  # each bucket once
        rest = [one for one in range(5000) if one not in codes[line]]
        order[line] = [*codes[line], *rest]
    hits = pair.search(order, queries, 3)
    assert hits.counts[:4].min() > 0
    assert hits.counts[4:].sum() < 4
    pair.search(order, queries, 3, probe=100)
    pair.search(order[:4], queries[:4], 3, at_least=5)
    np.testing.assert_array_equal(pair.engine.bucket_loads(), pair.table.bucket_loads())


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_replacements_deletes_and_the_same_id_twice(make: Make, ids: str) -> None:
    pair = make(buckets=4, dim=2, active=2, ids=ids)
    a, b, c, d = names_of(HUGE[:4], ids)
    order, queries = [[0, 1, 2, 3], [3, 2, 1, 0]], [[0, 0], [5, 5]]
    pair.add(
        [[0, 1], [1, 2], [0, 1]], [[1, 1], [2, 2], [3, 3]], [a, b, a], [{"n": 1}, None, {"n": 3}]
    )
    assert pair.search(order, queries, 5, probe=4).scanned.tolist() == [2, 2]
    pair.add([[2, 3]], [[4, 4]], [a])  # another code, no payload any more
    pair.search(order, queries, 5)
    pair.add([[2, 3], [2, 3], [0, 3]], [[0, 1], [1, 0], [9, 9]], [c, d, c], [{"n": 4}, {}, None])
    pair.search(order, queries, 5, probe=3)
    pair.same_contents()
    assert pair.delete([a, a, c]) == 2
    pair.search(order, queries, 5, probe=4)
    pair.add([[1, 3]], [[7, 7]], [a], [{"back": True}])
    assert pair.delete(d) == 1  # one alone
    pair.search(order, queries, 5, probe=4)
    pair.reopen()
    pair.search(order, queries, 5, probe=4)
    pair.same_contents()


def test_ids_that_are_huge_or_negative(make: Make) -> None:
    pair = make(buckets=2, dim=1)
    pair.add(
        [[0]] * 4, [[1], [1], [1], [1]], [-(2**63), -1, 0, 2**53 + 1], [{"n": n} for n in range(4)]
    )
    assert pair.engine.next_id == 2**53 + 2
    pair.add([[0]] * 2, [[1], [1]])
    pair.search([[0, 1]], [[1]], 9)
    pair.search([[0, 1]], [[1]], 9, where=[-(2**63), 2**53 + 2])
    pair.search([[0, 1]], [[1]], 9, where=np.ones(5, bool))
    pair.add([[1]], [[1]], [2**63 - 1])
    for each in (pair.table, pair.engine):
        with pytest.raises(InputError, match="no number is left"):
            each.add([[0]], [[1]])
    assert pair.delete([2**63 - 1]) == 1
    assert pair.engine.next_id == pair.table.next_id  # ids are never given twice
    for item in pair.model:
        assert item in pair.engine
        assert pair.engine[item].id == item
    pair.same_contents()


def test_ids_that_are_odd_texts(make: Make) -> None:
    pair = make(buckets=2, dim=1, ids="string")
    count = len(TEXTS)
    vectors = np.arange(count)[:, None] // 3
    pair.add([[0]] * count, vectors, TEXTS, [{"text": text[:50]} for text in TEXTS])
    pair.search([[0, 1]] * 3, [[0], [4], [9]], count)
    pair.search([[0, 1]], [[0]], 9, where=TEXTS[::2])
    for text in TEXTS:
        assert text in pair.engine
        assert pair.engine[text].id == text
        assert pair.engine[text].payload == {"text": text[:50]}
    pair.same_contents()
    assert pair.delete(TEXTS[5:]) == count - 5
    pair.same_contents()
    assert "" in pair.engine
    assert "\0" not in pair.engine
    assert pair.engine.codes_of(["", "\0", "a"]) == [[0], None, [0]]
    assert TEXTS[9] not in pair.engine
    assert 7 not in pair.engine


def test_an_id_with_a_nul(make: Make) -> None:
    """A table takes it; an engine that cannot must say so and add nothing."""
    pair = make(buckets=1, dim=1, ids="string")
    ids = ["good", "nul \0 in it"]
    refused = None
    try:
        pair.engine.add([[0]] * 2, [[1], [2]], ids)
    except InputError as error:
        refused = str(error)
    if refused is not None:
        assert "nul" in refused.lower()
        assert len(pair.engine) == 0
        assert ids[1] not in pair.engine
        assert pair.engine.delete(ids) == 0
        assert pair.engine.search([[0]], [[1]], where=ids).counts.tolist() == [0]
    else:
        assert set(ids) == {name for batch in pair.engine.batches() for name in batch.ids}
        assert pair.engine[ids[1]].id == ids[1]


def test_payloads_come_back(make: Make) -> None:
    pair = make(buckets=1, dim=1)
    count = len(ODD)
    pair.add([[0]] * count, [[1]] * count, None, ODD)
    found = pair.search([[0]], [[1]], count).payloads
    assert repr(found) == repr([ODD])  # 1 is not 1.0 nor True, and keys stay in order
    for item, payload in enumerate(ODD):
        assert repr(pair.engine[item].payload) == repr(payload)
    pair.same_contents()
    assert pair.engine.search([[0]], [[1]], count).payloads is None


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_conditions_on_payloads(make_remote: Make, ids: str) -> None:
    pair = make_remote(buckets=3, dim=2, active=2, ids=ids)
    generator = np.random.default_rng(8)
    values: list[Any] = ["red", "blue", 'O\'Brien "x"', "日本", 1, 2, -7, True, False, None, 2**53]
    payloads: list[Any] = []
    for index in range(180):
        payload = {"colour": values[index % len(values)], "size": index % 4, "deep": {"size": 1}}
        payload |= {"half": index % 3 + 0.5, "odd.key[0] '": "x" if index % 2 else "y"}
        payloads.append(None if index % 17 == 0 else payload)
    codes = make_codes(generator, 180, 3, 2)
    pair.add(codes, whole_numbers(generator, "small", 180, 2), names_of(range(180), ids), payloads)
    queries, order = whole_numbers(generator, "small", 4, 2), orders(generator, 4, 3)
    for where in (
        {"colour": "red"}, {"colour": ["red", "blue"]}, {"colour": "O'Brien \"x\""}, {"size": 3},
        {"size": [0, 3]}, {"colour": "日本", "size": [0, 1, 2]}, {"size": 99}, {"nowhere": 1},
        {"colour": "RED"}, {"colour": 2**53}, {"colour": [-7, "red"]}, {"colour": []},
        {"colour": None}, {"colour": [None, "red"]}, {"half": 0.5}, {"half": [0.5, 1.5, "red"]},
        {"a' = 'a": 1}, {"%s": 1}, {"odd.key[0] '": "x"}, {"colour": ("red", "blue")},
    ):  # fmt: skip
        pair.search(order, queries, 9, where=where)
        pair.search(order, queries, 9, where=where, probe=1, at_least=15)


def test_conditions_tell_numbers_from_truth(make_remote: Make) -> None:
    """In Python 1 == True; in JSON they are two things."""
    pair = make_remote(buckets=1, dim=1)
    pair.add([[0]] * 4, [[1]] * 4, None, [{"a": 1}, {"a": True}, {"a": "1"}, {"a": "true"}])
    for value, expected in ((1, [0]), (True, [1]), ("1", [2]), ("true", [3])):
        assert pair.engine.search([[0]], [[1]], 4, where={"a": value}).ids[0, 0] == expected[0]
        assert pair.engine.search([[0]], [[1]], 4, where={"a": value}).counts.tolist() == [1]


def test_conditions_beside_odd_payloads(make_remote: Make) -> None:
    """Values that an engine cannot compare must not keep others from being found."""
    odd: list[Any] = ["x\0y", "\ud800", 10**40, 1e-300, 2**64, ["x"], {"x": "x"}, "x", None, "X"]
    pair = make_remote(buckets=1, dim=1)
    count = len(odd)
    pair.add([[0]] * count, [[1]] * count, None, [{"a": value, "b": "\0"} for value in odd])
    hits = pair.engine.search([[0]], [[1]], 4, where={"a": "X"})
    assert hits.ids.tolist() == [[9, -1, -1, -1]]
    assert pair.engine.search([[0]], [[1]], 4, where={"a": "x"}).ids[0, 0] == 7
    assert hits.scanned.tolist() == [1]


@pytest.mark.parametrize("where", [{1: 2}, {"a": object()}, {"a": [float("nan")]}, {}])
def test_conditions_that_cannot_be(make_remote: Make, where: Any) -> None:
    pair = make_remote(buckets=1, dim=1)
    pair.add([[0]], [[1]], None, [{"a": 1}])
    with pytest.raises(InputError, match="where"):
        pair.engine.search([[0]], [[1]], where=where)


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_where_takes_what_holds_ids(make: Make, ids: str) -> None:
    pair = make(buckets=1, dim=1, ids=ids)
    one, two, three = names_of([10, 20, 30], ids)
    pair.add([[0]] * 3, [[1], [2], [3]], [one, two, three])
    forms: list[Any] = [
        [one, three], (one, three), {one, three}, frozenset([one, three]),
        np.array([one, three]), np.array([one, three], object), {one: 1, three: 2}.keys(),
    ]  # fmt: skip
    if ids == "string":
        forms.pop(4)
    else:
        forms.pop(5)
        mask = np.zeros(31, bool)
        mask[[10, 30]] = True
        forms += [mask, mask.tolist(), range(10, 31, 20)]
    forms.append(name for name in (one, three))
    for where in forms:
        hits = pair.engine.search([[0]], [[0]], 4, where=where)
        assert hits.ids.tolist() == [[one, three, *[None if ids == "string" else -1] * 2]]
        assert hits.scanned.tolist() == [2]
    assert pair.engine.search([[0]], [[0]], 1, where=two).ids.tolist() == [[two]]


def prepared(make: Make, **settings: Any) -> Pair:
    """A pair with a few items, as those that refuse things expect it."""
    pair = make(buckets=5, dim=2, active=2, **settings)
    pair.add([[0, 1], [3, 4]], [[0, 0], [1, 0]], [10, 30])
    return pair


def refusal(function: Any, *arguments: Any, **options: Any) -> tuple[type, str]:
    """The error that a call raises: its type and what it says."""
    with pytest.raises((InputError, StorageError)) as raised:
        function(*arguments, **options)
    return type(raised.value), str(raised.value)


def test_refused_adds_say_the_same_and_change_nothing(make: Make) -> None:
    pair = prepared(make)
    for name, (changed, _) in ADDS.items():
        arguments = {"codes": [[0, 1], [2, 3]], "embeddings": [[1, 2], [3, 4]]} | changed
        expected = refusal(pair.table.add, **arguments)
        assert refusal(pair.engine.add, **arguments) == expected, name
    pair.same_contents()
    assert pair.add([[0, 1]], [[0, 0]]) == [31]  # nor was an id used up


def test_refused_searches_say_the_same(make: Make) -> None:
    pair = prepared(make)
    for name, (changed, _) in SEARCHES.items():
        arguments = {"ordered_buckets": [[0, 1], [1, 0]], "queries": [[0, 0], [1, 1]]} | changed
        expected = refusal(pair.table.search, **arguments)
        raised = refusal(pair.engine.search, **arguments)
        assert raised[0] is expected[0], name
        if pair.remote and name.startswith("where"):  # conditions on payloads are one way more
            assert "where" in raised[1], name
            assert "payloads are not searched" not in raised[1], name
        elif name != "where object":  # which shows an address in memory
            assert raised == expected, name


def test_a_where_that_is_none_of_the_kinds_is_told_all_of_them(make: Make) -> None:
    pair = prepared(make)
    for wrong in ("text", 1.5, ["a"], object()):
        said = refusal(pair.engine.search, [[0, 1]], [[0, 0]], where=wrong)[1]
        assert "set of ids" in said
        assert "mask" in said
        assert ("a dict of payload fields" in said) == pair.remote
        assert ("payloads are not searched" in said) != pair.remote


def test_a_bucket_out_of_range_is_shown_as_it_came(make: Make) -> None:
    pair = prepared(make)
    for kind in (None, np.int16, np.int32, np.int64, np.uint64):
        for wrong, shown in ((99, "99"), (-7, "-7"), (5, "5"), (10**12, "2147483647 or more"),
                             (-(10**12), "-2147483648 or less")):  # fmt: skip
            if kind is not None and not np.iinfo(kind).min <= wrong <= np.iinfo(kind).max:
                continue
            order = [[0, wrong]] if kind is None else np.array([[0, wrong]], kind)
            said = refusal(pair.engine.search, order, [[0, 0]])[1]
            assert f"opens [0, {shown}]" in said
            assert "from 0 to 4" in said


def test_refused_by_metric_dtype_and_kind_of_ids(make: Make) -> None:
    pair = make(buckets=1, dim=2, metric="cosine", dtype="float16", ids="string")
    adds: list[Any] = [
        ([[0]] * 2, [[1, 0], [0, 0]], ["a", "b"]), ([[0]], [[1e-9, 0]], ["a"]),
        ([[0]], [[1, 70_000]], ["a"]), ([[0]], [[1, 1]], [1]), ([[0]], [[1, 1]], None),
        ([[0]], [[1, 1]], ["\ud800"]), ([[0]], [[1, 1]], ["x" * 65_536]),
    ]  # fmt: skip
    for arguments in adds:
        assert refusal(pair.engine.add, *arguments) == refusal(pair.table.add, *arguments)
    pair.add([[0]], [[65_504, 1]], ["a"])
    for query in ([[0, 0]], [[np.nan, 1]]):
        arguments = ([[0]], query)
        assert refusal(pair.engine.search, *arguments) == refusal(pair.table.search, *arguments)
    for where in ([1], [None], np.array([True]), 1.5):
        assert refusal(pair.engine.search, [[0]], [[1, 1]], where=where)[0] is InputError
    for wrong in ([1], 1.5, None):
        assert refusal(pair.engine.delete, wrong) == refusal(pair.table.delete, wrong)
    pair.same_contents()


def test_settings_that_cannot_be(make: Make) -> None:
    for changed in (
        {"buckets": 0}, {"dim": 0}, {"active": 6}, {"active": 0}, {"metric": "manhattan"},
        {"dtype": "float64"}, {"ids": "uuid"}, {"buckets": 2.5}, {"dim": True},
    ):  # fmt: skip
        with pytest.raises(InputError):
            make(**({"buckets": 5, "dim": 2} | changed))


def test_other_encoders_are_refused(make: Make) -> None:
    fingerprint, other = "a" * 64, "b" * 64
    pair = make(buckets=2, dim=1, encoder=fingerprint)
    assert pair.engine.encoder == fingerprint
    pair.engine.add([[0]], [[1]], encoder=fingerprint)
    pair.table.add([[0]], [[1]], encoder=fingerprint)
    expected = refusal(pair.table.add, [[0]], [[1]], encoder=other)
    assert refusal(pair.engine.add, [[0]], [[1]], encoder=other) == expected
    expected = refusal(pair.table.search, [[0]], [[1]], encoder=other)
    assert refusal(pair.engine.search, [[0]], [[1]], encoder=other) == expected
    assert len(pair.engine) == 1


def test_reads_like_a_collection(make: Make) -> None:
    pair = filled(make, 60, active=2)
    for item, stored in pair.model.items():
        assert item in pair.engine
        found = pair.engine[item]
        assert (found.id, found.payload) == (item, stored.payload)
        assert found.code.tolist() == sorted(stored.code)
        assert found.code.dtype == np.int32
        assert found.embedding.dtype == np.float32
        assert found.embedding.tolist() == stored.embedding.tolist()
    for missing in (10**6, -(10**6), 2**63, "text", None, 1.5):
        assert missing not in pair.engine
        with pytest.raises(KeyError):
            pair.engine[missing]
    for name in ("buckets", "dim", "active", "metric", "dtype", "id_kind", "encoder", "next_id"):
        assert getattr(pair.engine, name) == getattr(pair.table, name)
    assert pair.engine.writable


def test_stats_are_those_of_the_table(make: Make) -> None:
    for active in (1, 3):
        pair = filled(make, 200, active=active)
        stats, expected = pair.engine.stats(), pair.table.stats()
        for name in (
            "items", "buckets", "active", "dim", "load_p50", "load_p99", "load_max", "empty", "suf",
            "expected_suf", "expected_variance", "bytes_per_embedding",
        ):  # fmt: skip
            assert getattr(stats, name) == pytest.approx(getattr(expected, name)), name
    empty = make(buckets=4, dim=1)
    assert (empty.engine.stats().items, empty.engine.stats().empty) == (0, 4)
    assert np.isnan(empty.engine.stats().suf)


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_what_a_server_browses(make: Make, ids: str) -> None:
    pair = filled(make, 150, active=2, ids=ids)
    engine, table = pair.engine, pair.table
    assert isinstance(engine, Engine)
    assert isinstance(engine, BrowsedEngine)
    assert isinstance(engine, RemoteEngine) == pair.remote
    np.testing.assert_array_equal(engine.bucket_loads(), table.bucket_loads())
    names = [*list(pair.model)[:7], *names_of([10**6], ids)]
    assert engine.codes_of(names) == table.codes_of(names)
    total, sample = engine.sample(12, 3)
    assert total == len(pair.model)
    assert [item.id for item in sample] == [item.id for item in engine.sample(12, 3)[1]]
    assert len({item.id for item in sample}) == 12
    assert {item.id for item in engine.sample(10**4, 0)[1]} == set(pair.model)
    for bucket in range(8):
        inside = {name for name, item in pair.model.items() if bucket in item.code}
        assert {item.id for item in engine.bucket_items(bucket, 10**4, 0)} == inside
        few = engine.bucket_items(bucket, 3, 1)
        assert len({item.id for item in few}) == min(3, len(inside))
        for item in few:
            assert item.payload == pair.model[item.id].payload
        count, payloads = engine.bucket_payloads(bucket, 3, 1)
        assert (count, len(payloads)) == (len(inside), min(3, len(inside)))


def test_a_closed_engine_says_so(make: Make) -> None:
    pair = prepared(make)
    pair.engine.close()
    pair.engine.close()
    calls: list[Any] = [
        lambda: pair.engine.search([[0, 1]], [[0, 0]]), lambda: pair.engine.add([[0, 1]], [[0, 0]]),
        lambda: pair.engine.delete([10]), lambda: pair.engine[10], lambda: pair.engine.stats(),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StorageError, match="closed"):
            call()


def test_a_reader_changes_nothing(make_remote: Make) -> None:
    pair = prepared(make_remote)
    pair.reopen("r")
    assert not pair.engine.writable
    with pytest.raises(StorageError, match="r\\+"):
        pair.engine.add([[0, 1]], [[0, 0]])
    with pytest.raises(StorageError, match="r\\+"):
        pair.engine.delete([10])
    pair.search([[0, 1, 2, 3, 4]], [[0, 0]], 4)


def test_notes_come_with_items(make: Make) -> None:
    """With all of them or with none; what is expected of a note is looked at first."""
    pair = prepared(make)
    engine, count = pair.engine, len(pair.engine)
    engine.add([[0, 1]], [[1, 2]], [50], notes={"one": {"done": 1}, "two": [2]})
    assert engine.notes() == {"one": {"done": 1}, "two": [2]}
    for known in ({"one": None}, {"one": {"done": 2}}, {"three": 3}, {"two": [2], "one": 1}):
        with pytest.raises(ChangedNotesError, match="was changed by somebody else"):
            engine.add([[0, 1]], [[1, 2]], [51], notes={"one": 5}, expected_notes=known)
    assert 51 not in engine
    for wrong in (float("nan"), object(), "x" * 70_000, {}):
        with pytest.raises(InputError, match="note"):
            engine.add(
                [[0, 1]], [[1, 2]], [51], notes={5 if wrong == {} else "one": wrong, "two": 3}
            )
    with pytest.raises(InputError):
        engine.add([[0, 1]], [[1, float("inf")]], [51], notes={"one": 5})
    assert (len(engine), engine.notes()) == (count + 1, {"one": {"done": 1}, "two": [2]})
    known = {"one": {"done": 1}, "four": None}
    engine.add([[0, 1]], [[1, 2]], [51], notes={"one": 1, "two": None}, expected_notes=known)
    assert (len(engine), engine.notes()) == (count + 2, {"one": 1})
    engine.delete([50])
    engine.add(np.zeros((0, 2), int), np.zeros((0, 2)), notes={"none": 0})
    with pytest.raises(ChangedNotesError):
        engine.add(np.zeros((0, 2), int), np.zeros((0, 2)), expected_notes={"none": 1})
    pair.reopen("r")
    assert pair.engine.notes() == {"one": 1, "none": 0}
    assert (51 in pair.engine, 50 in pair.engine) == (True, False)


def test_notes_are_kept(make: Make) -> None:
    pair = prepared(make)
    value = {"folder": "a/b", "list": [1, None, "ü'\""], "nul": "\0"}
    assert pair.engine.notes() == {}
    pair.engine.note("encoder", value)
    pair.engine.note("other", 3)
    pair.reopen("r")
    assert pair.engine.notes() == {"encoder": value, "other": 3}
    pair.reopen()
    pair.engine.note("encoder", None)
    assert pair.engine.notes() == {"other": 3}


def test_a_large_batch_of_queries(make: Make) -> None:
    pair = filled(make, 300, active=2, buckets=16)
    generator = np.random.default_rng(6)
    count = 700 // pair.share**2
    queries, order = whole_numbers(generator, "small", count, 5), orders(generator, count, 16)
    pair.search(order, queries, 5)
    pair.search(order, queries, 5, at_least=40, where=list(pair.model)[::2])


@pytest.mark.parametrize("active", [1, 2])
def test_recall_opens_the_same_buckets(make: Make, active: int) -> None:
    pair = filled(make, 240, active=active)
    generator = np.random.default_rng(3)
    queries = whole_numbers(generator, "small", 60, pair.table.dim)
    activations = generator.normal(size=(60, pair.table.buckets)).astype(np.float32)
    probe = generator.integers(1, 5, 60)
    order = orders(generator, 60, pair.table.buckets)
    made = [each.calibrate(activations, queries, tops=(5,)) for each in (pair.table, pair.engine)]
    assert made[0] == made[1]
    assert pair.table.notes() == pair.engine.notes()
    for how in ({"probe": probe}, {"probe": probe, "at_least": 30}):
        expected = pair.table.search(order, queries, 4, **how)
        assert bits(pair.engine.search(order, queries, 4, **how)) == bits(expected)
    for given_ in ((), (activations, queries)):
        own, theirs = (each.health(*given_) for each in (pair.table, pair.engine))
        for name in ("items", "load_mean", "load_variation", "empty", "to_split", "drift"):
            assert getattr(theirs, name) == getattr(own, name)
        assert (theirs.calibrated, theirs.changed) == (len(pair.table), 0)
    for how in ({"recall": 0.8}, {"recall": 0.8, "at_least": 30}, {"recall": 1}):
        expected = pair.table.search(activations, queries, 4, **how)
        assert bits(pair.engine.search(activations, queries, 4, **how)) == bits(expected)


def test_an_engine_calls_its_calibration_old_too(make: Make) -> None:
    pair = filled(make, 240)
    generator = np.random.default_rng(3)
    queries = whole_numbers(generator, "small", 60, pair.table.dim)
    activations = generator.normal(size=(60, pair.table.buckets)).astype(np.float32)
    pair.engine.calibrate(activations, queries, tops=(5,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.engine.search(activations, queries, 4, recall=0.8)
    if (pair.address or "").startswith("postgres"):  # what another object deletes is noticed, too
        with open_engine(str(pair.address), "r+") as other:
            other.delete(list(pair.model)[:60])
    else:
        pair.engine.delete(list(pair.model)[:60])
    words = f"60 items were added or deleted .* with {len(pair.table)};"
    with pytest.warns(OldCalibrationWarning, match=words):
        pair.engine.search(activations, queries, 4, recall=0.8)
    report = pair.engine.health()
    assert (report.changed, report.old) == (60, True)


def test_items_are_drawn_alike_in_however_many_buckets_they_are(make: Make) -> None:
    pair = make(buckets=8, dim=2, active=2)
    generator = np.random.default_rng(4)
    codes = np.sort(generator.permuted(np.tile(np.arange(8), (200, 1)), axis=1)[:, :2], axis=1)
    codes[:100, 1] = -1
    pair.add(codes, whole_numbers(generator, "small", 200, 2), np.arange(200))
    drawn = []
    for seed in range(40):
        total, items = pair.engine.sample(30, seed)
        assert (total, len(items), len({item.id for item in items})) == (200, 30, 30)
        drawn += [len(item.code) for item in items]
    # 1,200 draws: 0.06 is four times the standard error, and by rows it would be about 0.65.
    assert abs(np.mean(np.array(drawn) == 2) - 0.5) < 0.06
    assert sorted(item.id for item in pair.engine.sample(500, 1)[1]) == list(range(200))
