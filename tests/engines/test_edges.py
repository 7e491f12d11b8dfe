"""What a strict reader of the PostgreSQL engine found, so that it stays mended."""

from __future__ import annotations

import threading

import numpy as np
import psycopg
import pytest

from flowhash import HashTable, InputError, StorageError
from flowhash.engines import copy, create_engine, engine_exists, open_engine
from flowhash.engines.engine_registry import room_of
from flowhash.engines.postgres.connection_pool import read_address
from flowhash.engines.postgres.row_stream import RowStream
from flowhash.engines.postgres.table_load import PostgresLoading
from tests.engines.servers import Postgres


def some_table(rows: int, **settings: object) -> HashTable:
    random = np.random.default_rng(rows)
    table = HashTable.create(buckets=8, dim=4, **settings)  # type: ignore[arg-type]
    ids = None if table.id_kind == "int64" else [f"item {row}" for row in range(rows)]
    codes = np.argsort(random.random((rows, 8)), axis=1)[:, : table.active]
    table.add(codes, random.normal(size=(rows, 4)), ids)
    return table


def run_to_the_end(loading: PostgresLoading) -> None:
    for _ in loading.parts():
        pass
    for _ in loading.checks():
        pass


def test_a_copy_that_was_begun_anew_is_not_opened_by_the_first(postgres_address: str) -> None:
    table = some_table(100)
    first = PostgresLoading(table, postgres_address)
    run_to_the_end(first)
    second = PostgresLoading(table, postgres_address, restart=True)
    with pytest.raises(StorageError, match="somebody else"):
        first.finish({})
    run_to_the_end(second)
    with pytest.raises(StorageError, match="somebody else"):
        first.finish({})  # as far as the second, whose table it is
    second.finish({})
    first.close()
    second.close()
    with open_engine(postgres_address) as engine:
        assert len(engine) == sum(len(part) for part in engine.batches()) == 100


def test_a_copy_is_finished_once(postgres_address: str) -> None:
    table = some_table(100)
    first, second = (PostgresLoading(table, postgres_address) for _ in range(2))
    run_to_the_end(first)
    for _ in second.checks():  # it found nothing left to copy when the first was through
        break
    first.finish({"whose": "first"})
    with open_engine(postgres_address, "r+") as engine:
        assert engine.add([[0]], [[0, 0, 0, 0]]).tolist() == [100]
        with pytest.raises(StorageError, match="somebody else"):
            second.finish({})
        assert engine.next_id == 101
        assert engine.notes() == {"whose": "first"}
    first.close()
    second.close()


def test_a_table_made_anew_with_other_settings_is_refused(postgres_address: str) -> None:
    create_engine(postgres_address, buckets=8, dim=4).close()
    with open_engine(postgres_address, "r+") as engine:
        room_of(postgres_address).remove(postgres_address)
        with create_engine(postgres_address, buckets=8, dim=4, active=2) as other:
            other.add([[1, 2]], [[0, 0, 0, 0]])
            for work in (
                lambda: engine.add([[3]], [[0, 0, 0, 0]]),
                lambda: engine.delete([0]),
                lambda: engine.search([[1]], np.zeros((1, 4), np.float32)),
                engine.stats,
                engine.refresh,
            ):
                with pytest.raises(StorageError, match="made anew"):
                    work()
            assert len(other) == 1


def test_a_database_that_is_not_utf8_is_refused(postgres: Postgres) -> None:
    if postgres.server is None:
        pytest.skip("makes a database, and is not asked to on a server of yours")
    place = postgres.server.address("postgres")
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StorageError, match=r"LATIN1.*UTF8"):
            create_engine(postgres.server.address("latin"), buckets=8, dim=4)
    finally:
        with psycopg.connect(place, autocommit=True) as connection:
            connection.execute("DROP DATABASE latin WITH (FORCE)")


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_the_encoding_of_a_client_does_not_matter(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    with create_engine(postgres_address, buckets=2, dim=1, ids="string") as engine:
        engine.add([[0], [1]], [[0.0], [1.0]], ["é", "日本"])
        assert "é" in engine
        assert engine.search([[1]], [[1.0]], 1).ids.tolist() == [["日本"]]
        assert engine.search([[0]], [[1.0]], 1, where=["é"]).ids.tolist() == [["é"]]


ODD = ["C:\\users", "C:\\bsers", "é", "\b00e9", "\\u00e9", "\\", "\\\\", "\x00", '"', "\\-", "\\-u"]


@pytest.mark.parametrize("wanted", ODD)
def test_filters_tell_backslashes_apart(postgres_address: str, wanted: str) -> None:
    with create_engine(postgres_address, buckets=1, dim=1) as engine:
        engine.add(np.zeros((len(ODD), 1), int), np.zeros((len(ODD), 1)), None,
                   [{"p": text, "\\u": 1} for text in ODD])  # fmt: skip
        hits = engine.search([[0]], [[0.0]], 20, where={"p": wanted, "\\u": 1}, payloads=True)
        assert hits.payloads is not None
        assert [payload and payload["p"] for payload in hits.payloads[0]] == [wanted]


def test_rows_that_are_large_are_handled_few_at_a_time() -> None:
    wide = HashTable.create(buckets=1, dim=16_000)
    wide.add([[0]], np.zeros((1, 16_000)))
    assert RowStream(wide).at_once < 300
    heavy = HashTable.create(buckets=1, dim=1)
    heavy.add([[0]], [[0.0]], None, [{"text": "x" * 1_000_000}])
    assert RowStream(heavy).at_once < 20


def test_a_copy_with_large_payloads_is_checked_in_pieces(postgres_address: str) -> None:
    table = HashTable.create(buckets=2, dim=1)
    table.add([[0]] * 40, np.arange(40)[:, None], None, [{"text": "x" * 900_000}] * 40)
    assert RowStream(table).pieces(0, RowStream(table).at_once, False)[0][1] < 40
    copy(table, postgres_address)
    with open_engine(postgres_address) as engine:
        assert len(engine) == 40


def test_an_unfinished_copy_is_not_distributed_later(postgres_address: str) -> None:
    loading = PostgresLoading(some_table(10), postgres_address)
    table = loading._table
    loading.close()
    with pytest.raises(InputError, match="--restart"):
        copy(table, postgres_address, distribute=True)


def test_a_zero_character_is_refused_before_the_copy_begins(postgres_address: str) -> None:
    table = HashTable.create(buckets=1, dim=1, ids="string")
    table.add([[0]], [[0.0]], ["a\0b"])
    with pytest.raises(InputError, match="zero character"):
        copy(table, postgres_address)
    assert not engine_exists(postgres_address)


@pytest.mark.parametrize("password", ["se%cret", "12?secret", "se[cret", "se#cret", "s/ecret"])
def test_no_password_is_shown_of_an_address_that_cannot_be_read(password: str) -> None:
    for ending in ("", "&sslmode=disable"):
        text = f"postgresql://me:{password}@127.0.0.1:1/db?table=x{ending}"
        with pytest.raises((InputError, StorageError)) as caught:
            open_engine(text)
        assert "ecret" not in str(caught.value)
        assert "ss@" not in str(caught.value)
    assert "ecret" not in read_address("postgresql://me:secret@h/db").shown


def test_a_lost_server_is_named_while_a_connection_is_held(postgres: Postgres) -> None:
    """Not "all connections were in use"."""
    if postgres.server is None:
        pytest.skip("stops the server, which is yours")
    address = postgres.address()
    with create_engine(address, buckets=1, dim=1) as engine:
        engine.add([[0]] * 5, np.zeros((5, 1)))
        held = engine.batches(1)
        next(held)
        postgres.server.stop(at_once=True)
        try:
            with pytest.raises(StorageError, match="server runs"):
                engine.search([[0]], [[0.0]])
        finally:
            postgres.server.start()
        with pytest.raises(StorageError):
            list(held)
        assert engine.search([[0]], [[0.0]], 1).counts.tolist() == [1]
    room_of(address).remove(address)


def test_nothing_is_set_for_the_session(postgres_address: str) -> None:
    with create_engine(postgres_address, buckets=1, dim=1) as engine:
        engine.search([[0]], [[0.0]])
        with engine._server.using() as connection:  # type: ignore[attr-defined]
            for name in ("plan_cache_mode", "default_transaction_read_only"):
                row = connection.execute(
                    "SELECT setting = reset_val FROM pg_settings WHERE name = %s", (name,)
                ).fetchone()
                assert row == (True,)


def test_figures_are_of_one_state_in_many_threads(postgres_address: str) -> None:
    with create_engine(postgres_address, buckets=4, dim=1) as engine:
        engine.add([[0]], [[0.0]])
        wrong: list[object] = []

        def look() -> None:
            for _ in range(15):
                found = engine.stats()
                if found.load_max != found.items:
                    wrong.append(found)

        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(15):
            engine.add([[0]], [[0.0]])
        for thread in threads:
            thread.join()
        assert not wrong
