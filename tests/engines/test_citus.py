"""A table spread over the nodes of Citus; only what needs no Citus runs everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowhash.engines import copy, create_engine, engine_exists, open_engine
from flowhash.errors import StorageError
from flowhash.table import HashTable
from tests.engines.pairs import Pair, engine_contents
from tests.engines.servers import VARIABLE, Postgres, removed, table_of
from tests.engines.test_faults import make_source
from tests.engines.test_parity import orders
from tests.table.test_search import make_codes, whole_numbers


def has_citus(postgres: Postgres) -> bool:
    return bool(postgres.sql("SELECT 1 FROM pg_extension WHERE extname = 'citus'"))


@pytest.fixture
def citus(postgres: Postgres) -> Postgres:
    """A server with Citus, which only the user can have."""
    if not has_citus(postgres):
        pytest.skip(f"no Citus here: set {VARIABLE} to the address of a coordinator")
    return postgres


def test_without_citus_nothing_is_distributed(
    postgres: Postgres, postgres_address: str, tmp_path: Path
) -> None:
    if has_citus(postgres):
        pytest.skip("this server has Citus")
    count = "SELECT count(*) FROM pg_class WHERE relname !~ '^flowhash_tables'"
    create_engine(postgres_address, buckets=1, dim=1).close()  # which makes what all share
    with removed(postgres.address("other")) as address:
        before = postgres.sql(count)
        with pytest.raises(StorageError, match="Citus") as raised:
            create_engine(address, buckets=4, dim=2, distribute=True)
        assert "\n" not in str(raised.value)
        table = make_source(tmp_path / "table", 50)
        with table, pytest.raises(StorageError, match="Citus"):
            copy(table, address, distribute=True)
        assert postgres.sql(count) == before
        assert not engine_exists(address)
        create_engine(address, buckets=4, dim=2).close()  # the name is free


@pytest.mark.parametrize("active", [1, 2, 3])
@pytest.mark.parametrize("ids", ["int64", "string"])
def test_parity_on_many_nodes(
    citus: Postgres, postgres_address: str, active: int, ids: str
) -> None:
    settings = {"buckets": 40, "dim": 5, "active": active, "ids": ids}
    engine = create_engine(postgres_address, **settings, distribute=True)  # type: ignore[arg-type]
    pair = Pair(engine, HashTable.create(**settings), postgres_address)  # type: ignore[arg-type]
    generator = np.random.default_rng(active)
    names = [f"item {number}" if ids == "string" else number for number in range(400)]
    with engine:
        for part in (slice(0, 250), slice(250, 400), slice(20, 60)):  # the last replaces
            count = len(names[part])
            codes = make_codes(generator, count, 40, active)
            vectors = whole_numbers(generator, "small", count, 5)
            payloads = [{"group": number % 3} for number in range(count)]
            pair.add(codes, vectors, names[part], payloads)
        pair.delete(names[100:140])
        pair.same_contents()
        queries, order = whole_numbers(generator, "small", 30, 5), orders(generator, 30, 40)
        pair.search(order, queries, 9)
        pair.search(order, queries, 9, probe=12)
        pair.search(order, queries, 9, at_least=80, where=names[::3])
        pair.search(order, queries, 9, where={"group": [1, 2]})
        assert engine.stats().items == len(pair.model)
        assert engine.stats().bytes > 0


def test_distributed_by_bucket(citus: Postgres, postgres_address: str) -> None:
    create_engine(postgres_address, buckets=40, dim=2, active=2, distribute=True).close()
    name = table_of(postgres_address)
    found = citus.sql(
        "SELECT partmethod::text, column_to_column_name(logicalrelid, partkey)"
        " FROM pg_dist_partition WHERE logicalrelid = %s::regclass",
        (name,),
    )
    assert found == [("h", "bucket")]
    shards = citus.sql(
        "SELECT count(*) FROM pg_dist_shard WHERE logicalrelid = %s::regclass", (name,)
    )
    assert shards[0][0] > 1


def test_one_bucket_is_asked_of_one_node(citus: Postgres, postgres_address: str) -> None:
    with create_engine(postgres_address, buckets=40, dim=2, active=2, distribute=True) as engine:
        engine.add([[3, 5]] * 20, np.arange(40).reshape(20, 2))
    name = table_of(postgres_address)
    plan = citus.sql(
        f"EXPLAIN SELECT id, embedding, vector_l2_squared_distance(embedding, '[1,2]') AS distance"
        f" FROM {name} WHERE bucket = 3 ORDER BY distance LIMIT 9"
    )
    text = "\n".join(str(line[0]) for line in plan)
    assert "Task Count: 1" in text, text


def test_a_copy_on_many_nodes(citus: Postgres, postgres_address: str, tmp_path: Path) -> None:
    make_source(tmp_path / "table", 5000).close()
    with HashTable.open(tmp_path / "table") as table:
        copy(table, postgres_address, distribute=True)
        with open_engine(postgres_address) as engine:
            assert engine_contents(engine) == engine_contents(table)
