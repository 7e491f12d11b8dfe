"""What is Qdrant's own: points, settings of a collection, copies that stop, errors in one line."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("qdrant_client", reason="the tests of Qdrant need flowhash[qdrant]")

from qdrant_client import QdrantClient, models

from flowhash.engines import (
    RemoteEngine,
    copy,
    create_engine,
    engine_exists,
    open_engine,
    qdrant as room,
)
from flowhash.engines.exact_answers import SPARE
from flowhash.engines.qdrant import (
    candidate_search as searching,
    client_connection as connecting,
    collection_marker as marker,
    points,
    qdrant_table as browsing,
    qdrant_table as changing,
    qdrant_table as view,
    table_upload as copies,
)
from flowhash.engines.qdrant.client_connection import read_address
from flowhash.engines.qdrant.point_filter import ALL
from flowhash.errors import ForbiddenError, InputError, LockedTableError, StorageError
from flowhash.table import HashTable
from flowhash.table.table_settings import TableSettings
from tests.engines.qdrant_server import StandIn, stand_in

VARIABLE = "FLOWHASH_TEST_QDRANT"
numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with stand_in() as running:
        yield running


@pytest.fixture(autouse=True)
def without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get(VARIABLE):
        monkeypatch.delenv("QDRANT_API_KEY", raising=False)


@pytest.fixture(params=["local", "stand-in", "server"])
def address(request: pytest.FixtureRequest, tmp_path: Path, server: StandIn) -> Iterator[str]:
    """Where nothing is yet: a folder, the stand-in, a real server if there is one."""
    name = f"test_{os.getpid()}_{next(numbers)}"
    if request.param == "local":
        place = f"qdrant+local://{tmp_path / 'db'}?collection={name}"
    elif request.param == "stand-in":
        place = server.address(name)
    else:
        real = os.environ.get(VARIABLE)
        if not real:
            pytest.skip(f"no Qdrant server: set {VARIABLE} to its address, qdrant://HOST:6333")
        place = f"{real.rstrip('/')}/{name}"
    yield place
    with contextlib.suppress(StorageError):
        room.remove(place)


@contextlib.contextmanager
def raw(address: str) -> Iterator[tuple[QdrantClient, str]]:
    """The collection behind FlowHash's back."""
    store = connecting.Store(read_address(address))
    try:
        yield store.client, store.address.collection
    finally:
        store.close()


def filled(count: int = 60, first: int = -20, **given: Any) -> HashTable:
    """A table in memory with items whose neighbours are close."""
    table = HashTable.create(**{"buckets": 6, "dim": 4, "active": 2, **given})
    generator = np.random.default_rng(count)
    ids: Any = np.arange(count) * 7 + first
    if table.id_kind == "string":
        ids = [f"item {number}" for number in ids]
    payloads = [None if row % 3 else {"row": row, "x": [1.5, row]} for row in range(count)]
    table.add(codes_of(generator, count, table), vectors_of(generator, count, table), ids, payloads)
    return table


def codes_of(generator: np.random.Generator, count: int, table: Any) -> Any:
    return generator.permuted(np.tile(np.arange(table.buckets), (count, 1)), axis=1)[
        :, : table.active
    ]


def vectors_of(generator: np.random.Generator, count: int, table: Any) -> Any:
    return generator.normal(size=(count, table.dim)).astype(np.float32)


def same_hits(engine: Any, table: HashTable, top: int = 5, count: int = 9, **options: Any) -> None:
    generator = np.random.default_rng(count)
    order = np.array([generator.permutation(table.buckets) for _ in range(count)])
    queries = vectors_of(generator, count, table)
    hits = engine.search(order, queries, top, payloads=True, buckets=True, **options)
    expected = table.search(order, queries, top, payloads=True, buckets=True, **options)
    assert hits.ids.tolist() == expected.ids.tolist()
    assert hits.distances.tobytes() == expected.distances.tobytes()
    assert hits.counts.tolist() == expected.counts.tolist()
    assert hits.scanned.tolist() == expected.scanned.tolist()
    assert hits.payloads == expected.payloads
    np.testing.assert_array_equal(hits.buckets, expected.buckets, strict=True)


# Points


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True))
def test_numbers_have_points_of_their_own(ids: list[int]) -> None:
    mapped = [points.point_id(item) for item in ids]
    assert len(set(mapped)) == len(ids)
    assert all(isinstance(point, int) and 0 <= point < 2**64 for point in mapped)
    kept = TableSettings(4, 1)
    assert [points.item_id(kept, models.Record(id=point, payload=None)) for point in mapped] == ids


@given(st.lists(st.text(), unique=True))
def test_strings_have_points_of_their_own(names: list[str]) -> None:
    with contextlib.suppress(UnicodeEncodeError):
        names = [name for name in names if name.encode()]
        assert len({points.point_id(name) for name in names} | {marker.MARKER}) == len(names) + 1


def test_a_point_of_another_string_is_not_taken(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should two strings ever have one point, the second is refused and the first stays."""
    with create_engine(address, buckets=2, dim=1, ids="string") as engine:
        engine.add([[0]], [[1]], ["one"])
        point = points.point_id("one")
        for module in (points, changing):
            monkeypatch.setattr(module, "point_id", lambda item: point)
        monkeypatch.setattr("flowhash.engines.qdrant.qdrant_table.point_id", lambda item: point)
        with pytest.raises(StorageError, match="the point of another id"):
            engine.add([[1]], [[2]], ["two"])
        with pytest.raises(StorageError, match="have one point"):
            engine.add([[1], [1]], [[2], [3]], ["one", "two"])
        assert "two" not in engine
        assert engine["one"].embedding.tolist() == [1]
        assert engine.delete(["two"]) == 0


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_what_a_point_is(address: str, ids: str) -> None:
    item: Any = -5 if ids == "int64" else "é"
    with create_engine(address, buckets=9, dim=2, active=2, ids=ids) as engine:
        engine.add([[7, 3]], [[0.1, 2]], [item], [{"b": 1, "a": [2], "c": None}])
    with raw(address) as (client, name):
        (point,) = client.retrieve(name, [points.point_id(item)], with_vectors=True)
    assert point.id == (2**64 - 5 if ids == "int64" else points.point_id("é"))
    assert point.vector == {"embedding": [float(np.float32(0.1)), 2.0]}
    assert point.payload == {
        "code": [3, 7],
        "payload": {"b": 1, "c": None},
        "text": '{"b":1,"a":[2],"c":null}',
        **({"id": "é"} if ids == "string" else {}),
    }


def test_points_can_be_sent_by_grpc() -> None:
    """The conversion that gRPC needs takes every kind of point, filter and query."""
    from qdrant_client.conversions.conversion import RestToGrpc

    for ids in ("int64", "string"):
        table = filled(12, metric="cosine", ids=ids)
        for stored in table.batches():
            for point in points.points_of(table._settings, stored):
                sent = RestToGrpc.convert_point_struct(point)
                assert set(sent.vectors.vectors.vectors) == {"embedding", "direction"}
    big = models.PointStruct(id=points.point_id(-1), vector={}, payload=marker.fields_of(next_id=1))
    assert RestToGrpc.convert_point_struct(big).id.num == 2**64 - 1
    RestToGrpc.convert_filter(ALL.filter([3, 1]))


# The collection


def test_collections_are_made_for_exact_search(server: StandIn) -> None:
    """No graph, an index on the code for looking up, exact search: as the server gets them."""
    address = server.address(f"made_{next(numbers)}")
    server.asked.clear()
    with create_engine(address, buckets=4, dim=3) as engine:
        engine.add([[1]], [[1, 2, 3]])
        engine.search([[1, 2]], [[1, 2, 3]])
    name = read_address(address).collection
    (made,) = [
        body for method, path, body in server.asked
        if method == "PUT" and path == f"/collections/{name}"
    ]  # fmt: skip
    assert made["hnsw_config"] == {"m": 0}
    assert made["vectors"]["embedding"]["hnsw_config"] == {"m": 0}
    assert made["vectors"]["embedding"]["distance"] == "Euclid"
    (index,) = server.bodies("/index")
    assert index["field_name"] == "code"
    assert index["field_schema"] == {"type": "integer", "lookup": True, "range": False}
    (batch,) = server.bodies("/query/batch")
    (search,) = batch["searches"]
    assert search["params"] == {"exact": True}
    assert search["filter"] == {"must": [{"key": "code", "match": {"any": [1]}}]}
    writes = [path for method, path, _ in server.asked if path.endswith("/points/payload")]
    assert len(writes) == 2  # a change has a beginning and an end


def test_collections_on_a_server_have_no_graph_and_an_index(address: str) -> None:
    with create_engine(address, buckets=4, dim=3, metric="cosine") as engine:
        with raw(address) as (client, name):
            info = client.get_collection(name)
        assert engine.dim == 3
    vectors = info.config.params.vectors
    assert isinstance(vectors, dict)
    for one in vectors.values():
        assert one.distance == models.Distance.DOT
        assert one.hnsw_config is not None
        assert one.hnsw_config.m == 0
    if os.environ.get(VARIABLE) and address.startswith(os.environ[VARIABLE]):
        assert info.config.hnsw_config.m == 0
        assert info.payload_schema["code"].data_type == models.PayloadSchemaType.INTEGER


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_embeddings_come_back_to_the_bit(address: str, metric: str, dtype: str) -> None:
    table = HashTable.create(buckets=3, dim=5, metric=metric, dtype=dtype)
    generator = np.random.default_rng(4)
    vectors = generator.normal(size=(40, 5)) * 10.0 ** generator.integers(-3, 4, size=(40, 1))
    codes = generator.integers(0, 3, size=(40, 1))
    table.add(codes, vectors)
    settings = {"buckets": 3, "dim": 5, "metric": metric, "dtype": dtype}
    with create_engine(address, **settings) as engine:
        engine.add(codes, vectors)
        for item in range(40):
            assert engine[item].embedding.tobytes() == table[item].embedding.tobytes()
        same_hits(engine, table, probe=2)


def test_lists_that_float32_cannot_cut_are_asked_for_again(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose distances differ by less than float32 sees, in an order that misleads."""
    address = server.address(f"close_{next(numbers)}")
    for metric in ("euclidean", "inner", "cosine"):
        table = HashTable.create(buckets=1, dim=2, metric=metric)
        steps = np.arange(200)[::-1]
        vectors = np.stack([np.full(200, 1024.0), 1.0 + steps * 2.0**-22], axis=1)
        queries = np.array([[1.0, 1.0 + 2.0**-20], [1024, 0]], np.float32)
        table.add(np.zeros((200, 1), int), vectors)
        with create_engine(address, buckets=1, dim=2, metric=metric) as engine:
            engine.add(np.zeros((200, 1), int), vectors)
            server.asked.clear()
            hits = engine.search([[0], [0]], queries, 3)
            assert len(server.bodies("/query/batch")) > 1
        expected = table.search([[0], [0]], queries, 3)
        assert hits.ids.tolist() == expected.ids.tolist()
        assert hits.distances.tolist() == expected.distances.tolist()
        room.remove(address)


def test_requests_are_bounded(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "REQUESTS", 4)
    monkeypatch.setattr(searching, "NUMBERS", 50)
    monkeypatch.setattr(searching, "VALUES", 40)
    table = filled(60)
    address = server.address(f"bounded_{next(numbers)}")
    copy(table, address)
    with open_engine(address) as engine:
        server.asked.clear()
        same_hits(engine, table, top=2, count=11)
        sizes = [len(batch["searches"]) for batch in server.bodies("/query/batch")]
        assert max(sizes) == 50 // (4 * (2 + SPARE))  # numbers of a query's candidates, dim 4
        assert sum(sizes) >= 11
        same_hits(engine, table, top=60, count=3)
        server.asked.clear()
        monkeypatch.setattr(searching, "NUMBERS", 1 << 20)
        same_hits(engine, table, count=11, where=np.arange(-20, 60).tolist())
        assert {len(batch["searches"]) for batch in server.bodies("/query/batch")} == {1}
        with pytest.raises(InputError, match=r"where allows 100001 ids; .* at most 100000"):
            engine.search([[0, 1]], [[1, 1, 1, 1]], where=np.arange(100_001))


def test_a_batch_counts_every_union_once_and_remembers(server: StandIn) -> None:
    address = server.address(f"counted_{next(numbers)}")
    for active, path in ((1, "/facet"), (2, "/points/count")):
        table = filled(40, active=active)
        copy(table, address)
        with open_engine(address, "r+") as engine:
            server.asked.clear()
            for _ in range(3):
                same_hits(engine, table, count=30)
            first = len(server.bodies(path))
            assert first == 1 if active == 1 else 1 <= first <= 15  # pairs of six buckets
            engine.delete([-20])
            table.delete([-20])
            same_hits(engine, table, count=30)
            assert len(server.bodies(path)) > first
        room.remove(address)


# Changes


def test_an_add_that_fails_is_completed_by_the_same_add(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "POINTS", 8)  # of a request
    address = server.address(f"failing_{next(numbers)}")
    table = HashTable.create(buckets=3, dim=2)
    codes, vectors = np.arange(20)[:, None] % 3, np.ones((20, 2), np.float32)
    vectors[:, 0] = np.arange(20)
    with create_engine(address, buckets=3, dim=2) as engine:
        server.failures = 1
        with pytest.raises(StorageError, match="disk is gone"):
            engine.add(codes, vectors)
        server.failures = None
        with raw(address) as (client, name):
            assert client.count(name).count == 8 + 1
        assert engine.next_id == 0  # nobody was told of these items
        assert engine.add(codes[:3], vectors[:3]).tolist() == [0, 1, 2]
        assert len(engine) == 3
        table.add(codes[:3], vectors[:3])
        same_hits(engine, table, count=2)
        server.failures = 1
        names = np.arange(100, 120)
        with pytest.raises(StorageError, match="disk is gone"):
            engine.add(codes, vectors, names)
        server.failures = None
        engine.add(codes, vectors, names)
        table.add(codes, vectors, names)
        assert len(engine) == 23
        assert engine.next_id == 120
        same_hits(engine, table, count=2)
    server.failures = None


def test_readers_keep_no_counts_of_a_change_that_did_not_end(server: StandIn) -> None:
    address = server.address(f"half_{next(numbers)}")
    with create_engine(address, buckets=1, dim=1) as writer, open_engine(address) as reader:
        writer.add([[0]], [[1]], [5])
        assert reader.search([[0]], [[1]]).scanned.tolist() == [1]
        server.failures = 1
        with raw(address) as (client, name):
            marker.set_facts(connecting.Store(read_address(address)), writing="other 0")
            writer_point = models.PointStruct(
                id=6, vector={"embedding": [2.0]}, payload={"code": [0]}
            )
            client.upsert(name, [writer_point])  # by a writer that died before it could say so
        server.failures = None
        assert reader.search([[0]], [[1]]).scanned.tolist() == [2]
        assert len(reader) == 2


def test_a_second_writer_takes_back_what_a_dead_one_left(server: StandIn) -> None:
    address = server.address(f"left_{next(numbers)}")
    with create_engine(address, buckets=1, dim=1) as one, open_engine(address, "r+") as two:
        one.add([[0]], [[1]])
        server.failures = 0
        with pytest.raises(StorageError, match="disk is gone"):
            one.add([[0], [0]], [[2], [3]])
        server.failures = None
        with raw(address) as (client, name):
            left = models.PointStruct(id=2, vector={"embedding": [3.0]}, payload={"code": [0]})
            client.upsert(name, [left])  # as if a part had been stored
        assert two.add([[0]], [[4]]).tolist() == [1]
        assert 2 not in two
        assert one.add([[0]], [[5]]).tolist() == [2]
        assert len(one) == 3
    room.remove(address)


@pytest.mark.parametrize("how", ["add", "delete"])
@pytest.mark.parametrize("ended", [False, True])
def test_two_writers_do_not_change_a_table_at_once(
    server: StandIn, monkeypatch: pytest.MonkeyPatch, how: str, ended: bool
) -> None:
    """The first is refused once a second has begun, be that one through or not."""
    monkeypatch.setattr(view, "POINTS", 2)  # of a request
    address = server.address(f"twice_{next(numbers)}")
    writes = {name: getattr(changing, name) for name in ("put_points", "take_points")}
    with create_engine(address, buckets=1, dim=1) as one, open_engine(address, "r+") as two:
        one.add([[0]], [[1]])

        def written_by_both(use: Any, *given: Any) -> None:
            use(*given)
            for name, write in writes.items():
                monkeypatch.setattr(changing, name, write)
            server.failures = None if ended else 0
            with contextlib.nullcontext() if ended else pytest.raises(StorageError, match="gone"):
                two.add([[0]], [[4]], [7])
            server.failures = None

        for name, write in writes.items():
            monkeypatch.setattr(changing, name, functools.partial(written_by_both, write))
        changes = {
            "add": lambda: one.add([[0]] * 3, [[2], [3], [5]]),
            "delete": lambda: one.delete([0]),
        }
        with pytest.raises(LockedTableError, match="is being changed by somebody else"):
            changes[how]()
        assert two.add([[0]], [[6]], [7]).tolist() == [7]
        # What the first had written of an add was taken back; what it had deleted is gone.
        names = [0, 7] if how == "add" else [7]
        assert sorted(item.id for item in one.sample(9, 0)[1]) == names
        assert len(one) == len(names)
        assert one.add([[0]], [[5]]).tolist() == [8]
    room.remove(address)


def test_a_writer_that_looked_before_another_ended_takes_nothing_back(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read what the other had not finished; by now somebody was told of those items."""
    with create_engine(address, buckets=1, dim=1) as one, open_engine(address, "r+") as two:
        put = changing.put_points

        def while_two_looks(*given: Any) -> None:
            put(*given)
            looked.append(two._now())

        looked: list[Any] = []
        monkeypatch.setattr(changing, "put_points", while_two_looks)
        assert one.add([[0]] * 2, [[1], [2]]).tolist() == [0, 1]
        monkeypatch.setattr(changing, "put_points", put)
        assert looked[0].pending == (0, 2)
        with monkeypatch.context() as patch:
            patch.setattr(two, "_now", lambda: looked[0])
            with pytest.raises(LockedTableError, match="is being changed by somebody else"):
                two.add([[0]], [[3]])
        assert sorted(item.id for item in one.sample(9, 0)[1]) == [0, 1]
        assert two.add([[0]], [[3]]).tolist() == [2]
        assert len(two) == 3


def test_a_count_that_fails_after_a_change_is_made_again(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_engine(address, buckets=1, dim=1) as engine:
        engine.add([[0]], [[1]])

        def fails() -> int:
            raise StorageError("gone")

        with monkeypatch.context() as patch:
            patch.setattr(engine, "_counted", fails)
            with pytest.raises(StorageError, match="gone"):
                engine.add([[0]] * 2, [[2], [3]])
        assert engine.refresh()
        assert len(engine) == engine.stats().items == 3


def test_a_replica_that_lags_behind_stops_nobody(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know yet that this change has begun: nobody writes, it says."""
    read = changing.read_marker
    with create_engine(address, buckets=1, dim=1) as engine:
        monkeypatch.setattr(
            changing, "read_marker", lambda store: replace(read(store), writing="", pending=None)
        )
        assert engine.add([[0]], [[1]]).tolist() == [0]


def test_a_writer_of_an_earlier_version_that_died_is_followed(address: str) -> None:
    """Its mark has a time behind the name; ours has one too, which it can read."""
    with create_engine(address, buckets=1, dim=1) as engine:
        marker.set_facts(engine._store, writing="abc 1700000000.5", pending=(0, 2))
        assert engine.add([[0]], [[1]]).tolist() == [0]
        name, _, began = engine._token.partition(" ")
        assert name
        assert float(began) == 0


def test_a_change_counts_on_from_what_it_read_itself(address: str) -> None:
    """Threads that search overwrite the facts of the table, also with older ones."""
    with create_engine(address, buckets=1, dim=1) as writer, open_engine(address) as reader:
        writer.add([[0]], [[1]])
        assert reader.search([[0]], [[1]]).scanned.tolist() == [1]
        old = writer._facts
        for change in (lambda: writer.add([[0]], [[2]]), lambda: writer.delete([0])):
            before = writer._now().change
            put, take = changing.put_points, changing.take_points

            def late(*given: Any, use: Any) -> Any:
                writer._facts = replace(old, change=old.change - 7)
                return use(*given)

            with pytest.MonkeyPatch.context() as patch:
                for name, use in (("put_points", put), ("take_points", take)):
                    patch.setattr(changing, name, functools.partial(late, use=use))
                change()
            assert writer._now().change == before + 1
            assert reader.search([[0]], [[1]]).scanned.tolist() == [len(writer)]


@pytest.mark.parametrize("copied", [False, True])
def test_a_collection_made_anew_under_a_reader(address: str, copied: bool) -> None:
    """It must not be taken for the earlier one, however many changes both have seen."""

    def make(codes: list[list[int]]) -> None:
        if copied:
            with HashTable.create(buckets=2, dim=1) as one:
                one.add(codes, [[1]] * len(codes))
                copy(one, address)
        else:
            with create_engine(address, buckets=2, dim=1) as engine:
                engine.add(codes, [[1]] * len(codes))

    make([[1]])
    with open_engine(address) as reader:
        assert reader.search([[0, 1]], [[1]], 5).scanned.tolist() == [0]
        room.remove(address)
        with pytest.raises(StorageError):
            reader.search([[0, 1]], [[1]], 5)
        make([[0]] * 3)
        hits = reader.search([[0, 1]], [[1]], 5)
        assert hits.counts.tolist() == hits.scanned.tolist() == [3]
        assert len(reader) == 3


def test_two_readers_and_a_writer_of_one_folder(tmp_path: Path) -> None:
    """Local mode takes one process; in it, as many as you like."""
    address = f"qdrant+local://{tmp_path}/db?collection=a"
    with create_engine(address, buckets=1, dim=1) as writer, open_engine(address) as reader:
        writer.add([[0]], [[1]])
        assert len(reader) == 0
        assert reader.refresh()
        assert len(reader) == 1
        assert not reader.refresh()
        marker.set_facts(writer._store, writing="other 0")
        assert reader.refresh()  # nobody knows what is there while it is changed
        marker.set_facts(writer._store, writing="")
        with pytest.raises(StorageError, match="searched only"):
            reader.add([[0]], [[1]])
        script = f"from flowhash.engines import open_engine; open_engine({address!r})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert "local mode takes one at a time" in done.stderr
    assert issubclass(LockedTableError, StorageError)
    with open_engine(address) as again:
        assert len(again) == 1


def test_notes_stay(address: str) -> None:
    with create_engine(address, buckets=1, dim=1) as engine:
        engine.note("encoder", {"path": "a", "float": 0.1})
        engine.note("gone", 1)
        engine.note("gone", None)
        engine.add([[0]], [[1]])
        with pytest.raises(InputError, match="cannot be written as JSON"):
            engine.note("bad", object())
    with open_engine(address) as engine:
        assert engine.notes() == {"encoder": {"path": "a", "float": 0.1}}
        with pytest.raises(StorageError, match="searched only"):
            engine.note("a", 1)


# Looking


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_samples_of_large_tables_are_bounded(
    server: StandIn, monkeypatch: pytest.MonkeyPatch, ids: str
) -> None:
    monkeypatch.setattr(browsing, "LISTED", 20)
    table = filled(300, first=-1000, ids=ids)
    address = server.address(f"sampled_{next(numbers)}")
    copy(table, address)
    known = {item.id for item in table.sample(300, 0)[1]}
    with open_engine(address) as engine:
        server.asked.clear()
        total, items = engine.sample(10, 3)
        read = sum(body["limit"] for body in server.bodies("/scroll"))
        assert total == 300
        assert read <= 16 * 3 * 2
        names = [item.id for item in items]
        assert len(set(names)) == 10
        assert set(names) <= known
        assert [item.id for item in engine.sample(10, 3)[1]] == names
        assert [item.id for item in engine.sample(10, 4)[1]] != names
        assert all(item.embedding.tobytes() == table[item.id].embedding.tobytes() for item in items)
        inside = engine.bucket_items(2, 15, 0)
        assert len(inside) == 15
        assert all(2 in item.code for item in inside)
        load, texts = engine.bucket_payloads(2, 30, 0)
        assert load == table.bucket_loads()[2]
        assert len(texts) == 30
        assert len(engine.sample(1000, 0)[1]) == 300
        seen: set[Any] = set()
        for seed in range(60):
            seen |= {item.id for item in engine.sample(40, seed)[1]}
        assert len(seen) > 290  # negative ids and the last ones, too
    room.remove(address)


@pytest.mark.parametrize("active", [1, 2])
def test_figures_are_those_of_the_table(
    address: str, monkeypatch: pytest.MonkeyPatch, active: int
) -> None:
    table = filled(80, active=active)
    copy(table, address)
    with open_engine(address) as engine:
        figures, expected = engine.stats(), table.stats()
        for name in ("items", "load_p50", "load_p99", "load_max", "empty", "expected_suf"):
            assert getattr(figures, name) == getattr(expected, name), name
        assert figures.suf == pytest.approx(expected.suf)
        assert figures.bytes > 0
        assert engine.stats() is figures  # until something changes
    monkeypatch.setattr(browsing, "STATS_SAMPLE", 10)
    with open_engine(address) as engine:
        assert engine.stats().suf == pytest.approx(expected.suf)


# Copies


class StoppedError(Exception):
    """What stops a copy in the middle."""


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_copy_goes_on_where_it_stopped(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, metric: str
) -> None:
    monkeypatch.setattr(copies, "ITEMS", 16)
    table = HashTable.create(tmp_path / "table", buckets=6, dim=4, active=2, metric=metric)
    source = filled(90, metric=metric)
    for stored in source.batches():
        table.add(stored.codes, stored.embeddings, stored.ids, stored.payloads)
    written = []
    put = copies.put_points

    def put_and_stop(*given: Any) -> None:
        if len(written) == 3:
            raise StoppedError
        put(*given)
        written.append(given[-1])

    monkeypatch.setattr(copies, "put_points", put_and_stop)
    with pytest.raises(StoppedError):
        copy(table, address)
    assert engine_exists(address)
    for use in (open_engine, lambda place: open_engine(place, "r+")):
        with pytest.raises(StorageError, match="is an unfinished copy; run the same flowhash copy"):
            use(address)
    monkeypatch.setattr(
        copies, "put_points", lambda *given: (put(*given), written.append(given[-1]))
    )
    done = copy(table, address)
    assert (done.items, done.before) == (90, 48)
    assert sum(len(stored) for stored in written) == 90  # nothing twice
    with open_engine(address, "r+") as engine:
        assert len(engine) == 90
        assert engine.next_id == table.next_id
        same_hits(engine, table)
        assert engine.add([[0, 1]], [[1, 1, 1, 1]]).tolist() == [table.next_id]
    with pytest.raises(InputError, match="holds a table already"):
        copy(table, address)
    with pytest.raises(InputError, match="holds a table already"):
        copy(table, address, restart=True)  # which is for unfinished copies only


def test_a_copy_of_another_table_begins_anew_only_if_told(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = filled(30), filled(31)
    one = room.loading(first, address)
    monkeypatch.setattr(copies, "ITEMS", 8)
    next(one.parts())
    one.close()
    with pytest.raises(InputError, match="unfinished copy of another table"):
        copy(second, address)
    assert copy(second, address, restart=True).before == 0
    with open_engine(address) as engine:
        same_hits(engine, second)


@pytest.mark.parametrize("what", ["vector", "direction", "code", "text", "missing", "more"])
def test_a_copy_that_was_altered_is_found_out(address: str, what: str) -> None:
    table = filled(30, metric="cosine")
    attempt = room.loading(table, address)
    try:
        assert sum(len(part) for part in attempt.parts()) == 30
        assert sum(len(part) for part in attempt.checks()) == 30
        with raw(address) as (client, name):
            if what in ("vector", "direction"):
                vector = "embedding" if what == "vector" else what
                (point,) = client.retrieve(name, [1], with_vectors=True)
                assert isinstance(point.vector, dict)
                changed: Any = point.vector[vector]
                changed[2] = float(np.nextafter(np.float32(changed[2]), np.float32(9)))
                vectors: Any = {**point.vector, vector: changed}
                client.upsert(
                    name, [models.PointStruct(id=1, vector=vectors, payload=point.payload)]
                )
            elif what == "missing":
                client.delete(name, [1])
            elif what == "more":
                client.upsert(name, [models.PointStruct(id=98, vector={}, payload={})])
            else:
                changes: dict[str, Any] = {"code": [4, 5], "text": "{}"}
                client.set_payload(name, {what: changes[what]}, points=[1])
        expected = "31 items|29 items" if what in ("missing", "more") else "item 1 is not what was"
        with pytest.raises(StorageError, match=expected):
            list(attempt.checks())
    finally:
        attempt.close()
    with pytest.raises(StorageError, match="unfinished copy"):
        open_engine(address)


@pytest.mark.parametrize(("bits", "found_out"), [(1, False), (20, True)])
def test_a_server_may_lose_the_last_bit_of_a_fraction_for_filters(
    address: str, bits: int, found_out: bool
) -> None:
    table = HashTable.create(buckets=1, dim=1)
    payload = {"x": 0.1, "small": -3e-300, "n": 7, "name": "é", "yes": True, "none": None}
    table.add([[0]], [[1]], payloads=[payload])
    attempt = room.loading(table, address)
    try:
        list(attempt.parts())
        with raw(address) as (client, name):
            lost = {**payload, "x": 0.1 + bits * np.spacing(0.1)}
            assert lost["x"] != payload["x"]
            client.set_payload(name, {"payload": lost}, points=[0])
        if found_out:
            with pytest.raises(StorageError, match="item 0 is not what was sent"):
                list(attempt.checks())
        else:
            assert sum(len(part) for part in attempt.checks()) == 1
    finally:
        attempt.close()


@pytest.mark.parametrize("change", [{"n": 8}, {"name": "e"}, {"yes": False}, {"more": 1}])
def test_fields_for_filters_are_compared(address: str, change: dict[str, Any]) -> None:
    table = HashTable.create(buckets=1, dim=1)
    table.add([[0]], [[1]], payloads=[{"x": 0.1, "n": 7, "name": "é", "yes": True}])
    attempt = room.loading(table, address)
    try:
        list(attempt.parts())
        with raw(address) as (client, name):
            fields = client.retrieve(name, [0])[0].payload["payload"]
            client.set_payload(name, {"payload": {**fields, **change}}, points=[0])
        with pytest.raises(StorageError, match="item 0 is not what was sent"):
            list(attempt.checks())
    finally:
        attempt.close()


# Refusals, one line each


def line_of(use: Any, *given: Any, **options: Any) -> str:
    with pytest.raises((StorageError, InputError)) as caught:
        use(*given, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_ours_is_left_alone(address: str) -> None:
    with raw(address) as (client, name):
        client.create_collection(name, models.VectorParams(size=2, distance=models.Distance.COSINE))
        try:
            for use in (open_engine, room.remove, lambda place: copy(filled(), place)):
                said = line_of(use, address)
                assert "was not made by FlowHash" in said
                # A copy that was stopped between the collection and its marker leaves the same.
                assert "the rest of a copy" in said
                assert "by hand" in said
            said = line_of(create_engine, address, buckets=2, dim=2)
            assert "there is a collection already" in said
            assert client.collection_exists(name)
        finally:
            client.delete_collection(name)


def test_what_is_not_there(address: str, tmp_path: Path) -> None:
    assert not engine_exists(address)
    assert "there is no such collection" in line_of(open_engine, address)
    room.remove(address)
    nowhere = f"qdrant+local://{tmp_path}/nowhere"
    assert "there is no such collection" in line_of(open_engine, nowhere)
    assert not (tmp_path / "nowhere").exists()


def test_other_encoder_dimension_and_version(address: str) -> None:
    with create_engine(address, buckets=2, dim=2, encoder="first") as engine:
        assert "embeddings has shape (1, 3)" in line_of(engine.add, [[0]], [[1, 2, 3]])
        assert "made with encoder 'first'" in line_of(engine.add, [[0]], [[1, 2]], encoder="b")
        assert "queries has shape (1, 1)" in line_of(engine.search, [[0]], [[1]])
    said = line_of(open_engine, address, encoder="second")
    assert "was made with encoder 'first', not 'second'" in said
    with raw(address) as (client, name):
        client.set_payload(name, {"flowhash": 3}, points=[marker.MARKER])
        said = line_of(open_engine, address)
        client.set_payload(name, {"flowhash": 1, "settings": "{}"}, points=[marker.MARKER])
        assert "is damaged" in line_of(open_engine, address)
        client.delete_collection(name)
    assert "has version 3 of the layout, and this FlowHash knows 1 and 2" in said
    assert "dim is 65537" in line_of(create_engine, address, buckets=2, dim=65_537)
    assert "--distribute is for PostgreSQL" in line_of(
        create_engine, address, buckets=2, dim=2, distribute=True
    )


def test_a_marker_with_other_fields(address: str) -> None:
    """Whatever it holds is said in one line, whoever meets it."""
    engine = create_engine(address, buckets=4, dim=2)
    texts = ["[]", "5", '"text"', "true", "{", "9" * 5000, "[" * 60_000, '{"a":' * 60_000]
    wrong: dict[str, list[Any]] = {
        "settings": [*texts, "null", "{}", "", 5, None, [], {}, json.dumps({"buckets": 4}),
                     *(json.dumps({"buckets": value, "dim": 2}) for value in ("x", 10**30, 1.5)),
                     '{"buckets": 1e400, "dim": 2}', '{"buckets": 4, "dim": 2, "other": 1}',
                     json.dumps({"buckets": 4, "dim": 2, "a\n\x1b[2J": 1})],
        "next_id": ["x", "1e400", None, [], "9" * 5000],
        "largest": ["nan", "inf", "-1", "x", None, []],
        "change": ["x", None, {}],
        "pending": [*texts, "[1]", '["x", 1]', 5],
        "loading": [*texts, "{}", '{"size": 0, "batches": 1, "items": 1}',
                    '{"size": 2, "batches": "x", "items": 1}', 5],
        "notes": [*texts, 5, []],
        "copied": [*texts, 5],
    }  # fmt: skip
    with raw(address) as (client, name):
        whole = dict(client.retrieve(name, [marker.MARKER])[0].payload or {})
        for field, values in wrong.items():
            for value in values:
                client.set_payload(name, {field: value}, points=[marker.MARKER])
                for use in (lambda: open_engine(address), engine.notes):
                    said = line_of(use)
                    assert "is damaged" in said, (field, value)
                    assert len(said) < 600
                    assert said.isprintable()
            client.set_payload(name, whole, points=[marker.MARKER])
        said = line_of(copy, filled(buckets=4, dim=2), address)
    assert "holds a table already" in said
    engine.close()


def test_a_copy_that_is_complete(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after its last step got no answer: who does the same again hears so."""
    table = filled(30)

    def lost(store: Any, **facts: Any) -> None:
        marker.set_facts(store, **facts)
        if "copied" in facts:
            raise StorageError("no answer")

    monkeypatch.setattr(copies, "set_facts", lost)
    with pytest.raises(StorageError, match="no answer"):
        copy(table, address)
    for restart in (False, True):
        done = copy(table, address, restart=restart)
        assert (done.items, done.before) == (30, 30)
    with open_engine(address, "r+") as engine:
        same_hits(engine, table)
        engine.delete([engine.sample(1, 0)[1][0].id])
    with pytest.raises(InputError, match="holds a table already"):
        copy(table, address)


def test_a_closed_table_says_so(address: str) -> None:
    engine = create_engine(address, buckets=2, dim=2)
    assert isinstance(engine, RemoteEngine)
    engine.close()
    engine.close()
    for use in (lambda: len(engine), lambda: engine.search([[0]], [[1, 1]]), engine.stats):
        assert "is closed; open it again" in line_of(use)
    assert not engine.writable
    assert "closed" in repr(engine)


def test_a_key_that_may_only_read(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    address = server.address("to_read")
    with create_engine(address, buckets=1, dim=1) as engine:
        engine.add([[0]], [[1]])
    monkeypatch.setattr(server, "read_only", True)
    with open_engine(address, "r+") as engine:
        assert engine.search([[0]], [[1]], 1).ids.tolist() == [[0]]
        for use in (lambda: engine.add([[0]], [[2]]), lambda: engine.delete([0])):
            with pytest.raises(ForbiddenError, match="QDRANT_API_KEY"):
                use()
        assert len(engine) == 1


def test_a_server_that_wants_another_key(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    address = server.address("guarded")
    create_engine(address, buckets=1, dim=1).close()
    monkeypatch.setattr(server, "key", "right")
    secret = address.replace("://", "://:wr%2Fong@")
    said = line_of(open_engine, secret)
    assert "the server refused the key" in said
    assert "QDRANT_API_KEY" in said
    assert "wr/ong" not in said
    assert "wr%2Fong" not in said
    assert "refused the key" in line_of(open_engine, address)
    monkeypatch.setenv("QDRANT_API_KEY", "right")
    with open_engine(address) as engine:
        assert len(engine) == 0
        assert "right" not in engine.address


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    said = line_of(open_engine, f"qdrant://:secret@127.0.0.1:{port}/a")
    assert "refused" in said
    assert "see that the server runs" in said
    assert "secret" not in said


def test_a_server_that_speaks_no_grpc_is_asked_by_http(server: StandIn) -> None:
    address = server.address("spoken").replace("grpc_port=1", f"grpc_port={server.port}")
    with create_engine(address, buckets=1, dim=1) as engine:
        assert engine.add([[0]], [[1]]).tolist() == [0]
    room.remove(address)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qdrant://host/a/b", "names the collection 'a/b'"),
        ("qdrant:///a", "has no host"),
        ("qdrant://s3cret@host/a", "put a colon before the key"),
        ("qdrant://host/a?api_key=s3cret", "has the option 'api_key'"),
        ("qdrant://host:port/a", "cannot be read"),
        ("qdrant://host/a?grpc_port=s3cret", "expected a whole number"),
        ("qdrant+local://relative/folder", "no absolute folder"),
        ("qdrant+local:///folder?collection=", "names the collection ''"),
    ],
)
def test_addresses_that_cannot_be(text: str, expected: str) -> None:
    said = line_of(read_address, text)
    assert expected in said
    assert "s3cret" not in said.split("(")[0] or "grpc_port" in said


def test_addresses() -> None:
    found = read_address("qdrant+https://:k%40y@host/a%20b")
    assert (found.host, found.port, found.grpc_port) == ("host", 6333, 6334)
    assert (found.https, found.key, found.collection) == (True, "k@y", "a b")
    assert "k@y" not in found.shown
    assert "k%40y" not in found.shown
    assert read_address("qdrant://host:7000").collection == "flowhash"
    assert read_address("qdrant://host:7000").grpc_port == 7001
    local = read_address("qdrant+local:///a/b%20c?collection=d")
    assert (local.folder, local.collection) == (Path("/a/b c"), "d")


def test_the_extra_is_named() -> None:
    script = (
        "import sys; sys.modules['qdrant_client'] = None\n"
        "from flowhash.engines import open_engine\n"
        "open_engine('qdrant://host/a')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install 'flowhash[qdrant]'" in done.stderr.splitlines()[-1]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_opening_until_enough_are_found(server: StandIn, data: st.DataObject) -> None:
    """As the table opens buckets, with few counts: the bounds must not skip a bucket."""
    active = data.draw(st.integers(1, 3))
    table = HashTable.create(buckets=12, dim=1, active=active)
    count = data.draw(st.integers(0, 60))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    table.add(codes_of(generator, count, table), np.ones((count, 1), np.float32))
    address = server.address(f"opened_{next(numbers)}")
    copy(table, address)
    width = data.draw(st.integers(1, 12))
    order = np.array([generator.permutation(12)[:width] for _ in range(20)], np.int32)
    probe = data.draw(st.integers(1, width))
    at_least = data.draw(st.integers(1, 60))
    with open_engine(address) as engine:
        queries = np.ones((20, 1), np.float32)
        hits = engine.search(order, queries, 3, probe=probe, at_least=at_least)
        expected = table.search(order, queries, 3, probe=probe, at_least=at_least)
        assert hits.opened.tolist() == expected.opened.tolist()
        assert hits.scanned.tolist() == expected.scanned.tolist()
        assert hits.ids.tolist() == expected.ids.tolist()
    room.remove(address)
