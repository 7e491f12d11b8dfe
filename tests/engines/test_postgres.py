"""What is PostgreSQL's own: names, transactions, rights, plans, connections."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from flowhash.engines import copy, create_engine, engine_exists, open_engine
from flowhash.engines.engine_registry import room_of
from flowhash.engines.postgres import bucket_search as searching
from flowhash.engines.postgres.connection_pool import snapshot
from flowhash.errors import ForbiddenError, InputError, StorageError
from flowhash.table import HashTable
from tests.engines.pairs import Make, Pair, bits, engine_contents, make_pairs
from tests.engines.servers import PASSWORD, Postgres, Server, removed, sql, table_of
from tests.engines.test_parity import orders
from tests.table.test_search import make_codes, whole_numbers

pytestmark = pytest.mark.usefixtures("postgres")


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Make]:
    yield from make_pairs("postgres", request, tmp_path)


@pytest.fixture
def database(postgres: Postgres, request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """An empty database on our own server, whose settings a test may change."""
    server = postgres.own()
    name = f"scratch {request.node.name}"[:60]
    quoted = '"' + name.replace('"', '""') + '"'
    sql(server.address("postgres"), f"CREATE DATABASE {quoted}")
    yield Postgres(server.address(name), server)
    sql(server.address("postgres"), f"DROP DATABASE {quoted} WITH (FORCE)")


def relations(place: Postgres) -> set[tuple[Any, ...]]:
    """Everything that is stored, but for what PostgreSQL and FlowHash keep for all tables."""
    rows = place.sql(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname !~ '^(pg_|information_schema)' AND c.relname !~ '^flowhash_tables'"
    )
    return set(rows)


def filled(pair: Pair, count: int = 60) -> Pair:
    generator = np.random.default_rng(count)
    codes = make_codes(generator, count, pair.table.buckets, pair.table.active)
    pair.add(codes, whole_numbers(generator, "small", count, pair.table.dim))
    return pair


@pytest.mark.parametrize(
    "name",
    [
        "Capital Letters and spaces", 'quo"ted', "O'Brien",
        "semi;colon", "ünïcödé", "{}", "$1",
        'x"; DROP TABLE flowhash_tables; --', "a" * 55, "select", "back\\slash",
    ],
)  # fmt: skip
def test_any_name_is_a_name(postgres: Postgres, name: str) -> None:
    before = relations(postgres)
    with removed(postgres.address(name)) as address:
        assert not engine_exists(address)
        with create_engine(address, buckets=4, dim=2, active=2) as engine:
            assert engine.add([[0, 1], [1, 2]], [[1, 2], [3, 4]]).tolist() == [0, 1]
        assert postgres.sql("SELECT count(*) FROM pg_class WHERE relname = %s", (name,)) == [(1,)]
        assert engine_exists(address)
        with open_engine(address, "r+") as engine:
            hits = engine.search([[1, 0]], [[3, 4]], 2)
            assert (hits.ids.tolist(), hits.distances.tolist()) == ([[1, 0]], [[0, 8]])
            assert engine.delete([0]) == 1
            assert engine.stats().items == 1
            engine.note("word", name)
            assert engine.notes() == {"word": name}
    assert not engine_exists(address)
    assert relations(postgres) == before


def test_names_are_not_cut_short(postgres: Postgres) -> None:
    """PostgreSQL would cut a long name, and two tables would be one."""
    with pytest.raises(InputError, match="at most 55 bytes"):
        create_engine(postgres.address("a" * 56), buckets=1, dim=1)
    with pytest.raises(InputError, match="at most 55 bytes"):
        create_engine(postgres.address("ü" * 28), buckets=1, dim=1)
    for wrong in ("", ".", "schema.", ".name", "nul\0", "100%s", "%.name"):
        with pytest.raises(InputError, match="names no table"):
            open_engine(postgres.address(wrong))
    with (
        removed(postgres.address("b" * 54 + "1")) as one,
        removed(postgres.address("b" * 54 + "2")) as two,
    ):
        create_engine(one, buckets=1, dim=1).close()
        create_engine(two, buckets=1, dim=2).close()
        with open_engine(one) as first, open_engine(two) as second:
            assert (first.dim, second.dim) == (1, 2)


def test_a_table_in_a_schema(postgres: Postgres) -> None:
    schema = f"Odd \"schema' {id(postgres)}"
    quoted = '"' + schema.replace('"', '""') + '"'
    postgres.sql(f"CREATE SCHEMA {quoted}")
    try:
        address = postgres.address(f"{schema}.Table One")
        assert not engine_exists(address)
        with create_engine(address, buckets=2, dim=1) as engine:
            engine.add([[0], [1]], [[1], [2]], payloads=[{"a": 1}, None])
        with open_engine(address) as engine:
            assert engine.search([[0, 1]], [[1]], 3, probe=2, payloads=True).payloads == [
                [{"a": 1}, None]
            ]
        assert not engine_exists(postgres.address("Table One"))
        room_of(address).remove(address)
        left = postgres.sql(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s"
            " AND tablename <> 'flowhash_tables'",
            (schema,),
        )
        assert left == []
    finally:
        postgres.sql(f"DROP SCHEMA {quoted} CASCADE")


def test_a_schema_that_is_not_there(postgres: Postgres) -> None:
    address = postgres.address("nowhere.table")
    assert not engine_exists(address)
    for call in (create_engine, open_engine):
        options = {"buckets": 1, "dim": 1} if call is create_engine else {}
        with pytest.raises(StorageError) as raised:
            call(address, **options)  # type: ignore[operator]
        assert "nowhere" in str(raised.value)
        assert "\n" not in str(raised.value)


def test_the_same_name_twice(postgres_address: str) -> None:
    with create_engine(postgres_address, buckets=2, dim=1) as engine:
        engine.add([[0]], [[1]])
        with pytest.raises(StorageError, match="already"):
            create_engine(postgres_address, buckets=3, dim=5)
        assert len(open_engine(postgres_address)) == 1


def test_many_that_create_at_once(postgres: Postgres, database: Postgres) -> None:
    """Without extension and registry all make both; of each table, one is the first."""

    def attempt(number: int) -> str:
        try:
            create_engine(database.address(f"t{number % 3}"), buckets=2, dim=1).close()
        except StorageError as error:
            return str(error)
        return "made"

    with ThreadPoolExecutor(9) as pool:
        outcomes = list(pool.map(attempt, range(9)))
    assert outcomes.count("made") == 3
    assert all("already" in outcome for outcome in outcomes if outcome != "made"), outcomes


@pytest.mark.parametrize("kind", ["TABLE", "VIEW", "SEQUENCE"])
def test_what_is_not_ours_is_left_alone(
    postgres: Postgres, postgres_address: str, kind: str
) -> None:
    name = table_of(postgres_address)
    content = {"TABLE": "AS SELECT 7 AS a", "VIEW": "AS SELECT 7 AS a", "SEQUENCE": ""}[kind]
    postgres.sql(f"CREATE {kind} {name} {content}")
    table = HashTable.create(buckets=1, dim=1)
    table.add([[0]], [[1]])
    try:
        assert not engine_exists(postgres_address)
        for mode in ("r", "r+"):
            with pytest.raises(StorageError, match="no FlowHash table"):
                open_engine(postgres_address, mode)
        with pytest.raises(StorageError, match="already"):
            create_engine(postgres_address, buckets=1, dim=1)
        for restart in (False, True):
            with pytest.raises((StorageError, InputError)) as raised:
                copy(table, postgres_address, restart=restart)
            assert "\n" not in str(raised.value)
        room_of(postgres_address).remove(postgres_address)
        if kind != "SEQUENCE":
            assert postgres.sql(f"SELECT a FROM {name}") == [(7,)]
        else:
            assert postgres.sql(f"SELECT last_value FROM {name}") == [(1,)]
    finally:
        postgres.sql(f"DROP {kind} {name}")


def test_the_registry_is_no_table(database: Postgres) -> None:
    address = database.address("flowhash_tables")
    for _ in range(2):  # before the registry is there, and after
        with pytest.raises((StorageError, InputError)) as raised:
            create_engine(address, buckets=1, dim=1)
        assert "\n" not in str(raised.value)
        with pytest.raises((StorageError, InputError)):
            open_engine(address)
        create_engine(database.address("other"), buckets=1, dim=1).close()
        assert engine_exists(database.address("other"))
        room_of(address).remove(database.address("other"))


def test_a_registry_that_is_not_ours(database: Postgres) -> None:
    database.sql("CREATE TABLE flowhash_tables (name text, whatever integer)")
    for call in (
        lambda: create_engine(database.address("one"), buckets=1, dim=1),
        lambda: open_engine(database.address("one")),
    ):
        with pytest.raises(StorageError) as raised:
            call()
        assert "\n" not in str(raised.value)


def test_a_newer_layout(postgres: Postgres, postgres_address: str) -> None:
    create_engine(postgres_address, buckets=1, dim=1).close()
    change = "UPDATE flowhash_tables SET version = %s WHERE name = %s"
    postgres.sql(change, (99, table_of(postgres_address)))
    with pytest.raises(StorageError, match=r"version 99 .* newer") as raised:
        open_engine(postgres_address)
    assert "\n" not in str(raised.value)
    table = HashTable.create(buckets=1, dim=1)
    for restart in (False, True):
        with pytest.raises(StorageError, match="version 99"):
            copy(table, postgres_address, restart=restart)
    postgres.sql(change, (1, table_of(postgres_address)))
    open_engine(postgres_address).close()


def test_items_in_fewer_than_k_buckets_change_the_layout(
    postgres: Postgres, postgres_address: str
) -> None:
    look = "SELECT version FROM flowhash_tables WHERE name = %s"
    with create_engine(postgres_address, buckets=4, dim=1, active=2) as engine:
        engine.add([[0, 1]], [[1]])
        assert postgres.sql(look, (table_of(postgres_address),)) == [(1,)]
        engine.add([[3, -1]], [[1]])
        assert postgres.sql(look, (table_of(postgres_address),)) == [(2,)]


def test_another_encoder(postgres_address: str) -> None:
    mine, other = "a" * 64, "b" * 64
    create_engine(postgres_address, buckets=1, dim=1, encoder=mine).close()
    open_engine(postgres_address, encoder=mine).close()
    with pytest.raises(InputError, match="encoder") as raised:
        open_engine(postgres_address, encoder=other)
    assert "\n" not in str(raised.value)


def test_wrong_modes(postgres_address: str) -> None:
    create_engine(postgres_address, buckets=1, dim=1).close()
    with pytest.raises(InputError, match="mode is 'w'"):
        open_engine(postgres_address, "w")


def test_more_numbers_than_pgvector_holds(postgres_address: str) -> None:
    with pytest.raises(InputError, match="16000"):
        create_engine(postgres_address, buckets=1, dim=16_001)
    assert not engine_exists(postgres_address)


def test_without_the_extension_and_without_the_right_to_it(database: Postgres) -> None:
    role = f"guest_{id(database)}"
    database.sql(f"CREATE ROLE {role} LOGIN; GRANT CREATE ON SCHEMA public TO {role}")
    try:
        address = database.address("one").replace("//postgres@", f"//{role}@")
        with pytest.raises(StorageError, match="CREATE EXTENSION vector") as raised:
            create_engine(address, buckets=1, dim=1)
        assert "\n" not in str(raised.value)
        with pytest.raises(StorageError, match="CREATE EXTENSION vector") as raised:
            open_engine(address)
        assert "install" not in str(raised.value)  # it is on the server
        assert relations(database) == set()
    finally:
        database.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_without_pgvector_on_the_server(database: Postgres, tmp_path: Any) -> None:
    """A server whose folder of extensions is empty."""
    name = database.sql("SELECT current_database()")[0][0]
    database.sql(f"ALTER DATABASE \"{name}\" SET extension_control_path = '/nowhere'")
    with pytest.raises(StorageError, match="pgvector") as raised:
        create_engine(database.address("one"), buckets=1, dim=1)
    assert "\n" not in str(raised.value)
    assert "install" in str(raised.value)
    with pytest.raises(StorageError, match="install pgvector") as raised:
        open_engine(database.address("one"))
    assert "\n" not in str(raised.value)
    assert relations(database) == set()


def test_pgvector_in_another_schema(database: Postgres) -> None:
    database.sql("CREATE SCHEMA extensions; CREATE EXTENSION vector SCHEMA extensions")
    for dtype in ("float32", "float16"):
        address = database.address(f"one_{dtype}")
        with create_engine(address, buckets=2, dim=2, dtype=dtype) as engine:
            engine.add([[0], [0]], [[1, 2], [3, 4]])
            assert engine.search([[0, 1]], [[3, 3]], 2).ids.tolist() == [[1, 0]]
            assert engine[1].embedding.tolist() == [3, 4]


def test_somebody_who_may_only_read(database: Postgres) -> None:
    address = database.address("one")
    with create_engine(address, buckets=2, dim=1) as engine:
        engine.add([[0], [1]], [[1], [2]])
    role = f"reader_{id(database)}"
    database.sql(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    try:
        theirs = address.replace("//postgres@", f"//{role}@")
        with open_engine(theirs) as reader:
            assert reader.search([[0, 1]], [[0]], 2, probe=2).ids.tolist() == [[0, 1]]
            assert len(list(reader.batches())) == 1
        with open_engine(theirs, "r+") as writer:
            assert not writer.writable
            with pytest.raises(ForbiddenError, match="permission denied") as raised:
                writer.add([[0]], [[5]])
            assert "\n" not in str(raised.value)
            for right in ("INSERT", "DELETE", "UPDATE"):  # each of them is needed
                database.sql(f"GRANT ALL ON one, flowhash_tables TO {role}")
                database.sql(f"REVOKE {right} ON one, flowhash_tables FROM {role}")
                writer.refresh()
                assert not writer.writable
            database.sql(f"GRANT ALL ON one, flowhash_tables TO {role}")
            writer.refresh()
            assert writer.writable
            assert writer.add([[0]], [[5]]).tolist() == [2]
            assert writer.delete([2]) == 1
        with open_engine(address) as engine:
            assert len(engine) == 2
    finally:
        database.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_server_that_takes_no_changes(database: Postgres) -> None:
    """As a standby does: it says so, and is not taken for one that can be written to."""
    address = database.address("one")
    create_engine(address, buckets=1, dim=1).close()
    name = database.sql("SELECT current_database()")[0][0]
    database.sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with open_engine(address, "r+") as writer:
        assert not writer.writable
        with pytest.raises(ForbiddenError, match="read-only") as raised:
            writer.add([[0]], [[5]])
        assert "mode=" not in str(raised.value)
        assert len(writer) == 0


def test_a_reader_cannot_change_anything_at_all(postgres_address: str) -> None:
    create_engine(postgres_address, buckets=1, dim=1).close()
    reader = open_engine(postgres_address)
    with reader:
        with reader._server.using() as connection, snapshot(connection):
            assert connection.execute("SHOW transaction_read_only").fetchone() == ("on",)
        with pytest.raises(StorageError):
            reader.note("a", 1)
        assert reader.notes() == {}


def test_the_password_is_never_shown(postgres: Postgres) -> None:
    server = postgres.own()
    with removed(server.guarded(table="guarded")) as address:
        with create_engine(address, buckets=1, dim=1) as engine:
            engine.add([[0]], [[1]])
            for text in (engine.address, repr(engine), str(engine)):
                assert PASSWORD not in text
                assert "battery" not in text
            assert "127.0.0.1" in engine.address
        with pytest.raises(StorageError) as raised:
            create_engine(address, buckets=1, dim=1)
        assert "battery" not in str(raised.value)


def test_counted_ids_of_many_writers_are_different(postgres_address: str) -> None:
    create_engine(postgres_address, buckets=4, dim=1, active=2).close()
    start = threading.Barrier(4)

    def write(writer: int) -> list[tuple[int, float]]:
        given = []
        with open_engine(postgres_address, "r+") as engine:
            start.wait()
            for turn in range(12):
                marks = [[writer * 1000.0 + turn]] * 5
                ids = engine.add([[writer, (writer + 1) % 4]] * 5, marks).tolist()
                assert ids == list(range(ids[0], ids[0] + 5))
                given += [(one, marks[0][0]) for one in ids]
        return given

    with ThreadPoolExecutor(4) as pool:
        given = [pair for part in pool.map(write, range(4)) for pair in part]
    assert sorted(one for one, _ in given) == list(range(240))
    with open_engine(postgres_address) as engine:
        assert len(engine) == 240
        assert engine.next_id == 240
        found = engine_contents(engine)
        for one, mark in given:
            assert np.frombuffer(found[one][1], np.float32).tolist() == [mark]
        assert engine.bucket_loads().tolist() == [120] * 4


WRITER = """
import sys
from flowhash.engines import open_engine
with open_engine(sys.argv[1], "r+") as engine:
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(10):
        print(*engine.add([[0]] * 3, [[1]] * 3).tolist(), flush=True)
"""


def test_two_processes_write(postgres_address: str) -> None:
    create_engine(postgres_address, buckets=1, dim=1).close()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, postgres_address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    words = " ".join(writer.communicate()[0] for writer in writers)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert sorted(int(word) for word in words.split()) == list(range(60))
    with open_engine(postgres_address) as engine:
        assert sorted(engine_contents(engine)) == list(range(60))


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_writers_of_the_same_ids(postgres_address: str, ids: str) -> None:
    """The last one wins, with all of its batch; no row of an earlier one is left."""
    create_engine(postgres_address, buckets=8, dim=1, active=2, ids=ids).close()
    names = [f"item {number}" if ids == "string" else number for number in range(40)]
    start = threading.Barrier(4)

    def write(writer: int) -> None:
        generator = np.random.default_rng(writer)
        with open_engine(postgres_address, "r+") as engine:
            start.wait()
            for turn in range(8):
                mark = writer * 100 + turn
                codes = [[writer * 2, writer * 2 + 1]] * 40
                order = generator.permutation(40)  # rows locked in any order would deadlock
                chosen = [names[one] for one in order]
                engine.add(codes, [[mark]] * 40, chosen, [{"mark": mark}] * 40)
                if turn % 3 == 2:
                    engine.delete(chosen[:20])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    with open_engine(postgres_address) as engine:
        found = engine_contents(engine)
        assert len(found) == len(engine) == engine.stats().items
        marks = {content[2]["mark"] for content in found.values()}
        assert len(marks) == 1
        mark = marks.pop()
        assert mark % 100 == 7
        for code, vector, _ in found.values():
            assert code == [mark // 100 * 2, mark // 100 * 2 + 1]
            assert np.frombuffer(vector, np.float32).tolist() == [mark]
        assert sum(engine.bucket_loads()) == 80


def test_a_reader_sees_one_state_whole(postgres_address: str) -> None:
    """All 90 items are replaced in each turn: codes, numbers and payloads change together."""
    count, turns, queries = 90, 40, 30  # so many that the writer commits during every search
    writer = create_engine(postgres_address, buckets=6, dim=1, active=2)

    def put(turn: int) -> None:
        codes = [[(one + turn) % 6, (one + turn + 1 + turn % 3) % 6] for one in range(count)]
        writer.add(codes, [[turn]] * count, range(count), [{"turn": turn}] * count)

    put(0)
    done = threading.Event()
    seen: set[int] = set()

    def read(seed: int) -> int:
        generator, searches = np.random.default_rng(seed), 0
        with open_engine(postgres_address) as reader:
            while not done.is_set() or not searches:
                order, asked = orders(generator, queries, 6), [[0]] * queries
                hits = reader.search(order, asked, count + 5, probe=6, payloads=True)
                assert hits.counts.tolist() == hits.scanned.tolist() == [count] * queries
                states = {one["turn"] for line in hits.payloads or [] for one in line if one}
                assert len(states) == 1, states  # of all queries of one search, too
                turn = states.pop()
                assert (hits.distances[:, :count] == np.float32(turn) ** 2).all()
                assert (np.sort(hits.ids[:, :count]) == np.arange(count)).all()
                seen.add(turn)
                for batch in reader.batches(1000):
                    assert len(batch) == count
                    assert len({one["turn"] for one in batch.payloads if one}) == 1
                searches += 1
        return searches

    with writer, ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, seed) for seed in range(2)]
        try:
            for turn in range(1, turns):
                put(turn)
        finally:
            done.set()
        assert all(reader.result() > 0 for reader in readers)
    assert len(seen) > 2


def test_what_a_search_counts_belongs_to_its_state(postgres_address: str) -> None:
    """Another process has changed the table since the counts were kept."""
    with create_engine(postgres_address, buckets=3, dim=1, active=2) as writer:
        writer.add([[0, 1]] * 4, [[1]] * 4)
        with open_engine(postgres_address) as reader:
            for extra in range(3):
                hits = reader.search([[0, 1, 2]], [[1]], 20)
                assert hits.counts.tolist() == hits.scanned.tolist() == [4 + extra]
                assert len(reader) == 4 + extra
                writer.add([[1, 2]], [[1]])
            assert reader.refresh()
            assert len(reader) == 7
            assert not reader.refresh()


def test_a_table_made_anew_under_a_reader(postgres_address: str) -> None:
    with create_engine(postgres_address, buckets=2, dim=1) as first:
        first.add([[0], [1]], [[1], [2]])
    with open_engine(postgres_address) as reader:
        assert reader.search([[0, 1]], [[1]], 5).scanned.tolist() == [1]
        room_of(postgres_address).remove(postgres_address)
        with pytest.raises(StorageError):
            reader.search([[0, 1]], [[1]], 5)
        with create_engine(postgres_address, buckets=2, dim=1) as second:
            second.add([[0]] * 3, [[1]] * 3)
        try:
            hits = reader.search([[0, 1]], [[1]], 5)
        except StorageError:
            return  # to refuse is fine, to mix two tables is not
        assert hits.counts.tolist() == hits.scanned.tolist() == [3]


def test_an_add_that_fails_in_the_middle(postgres: Postgres, make: Make) -> None:
    """The server refuses the last row of a COPY, after others were replaced."""
    pair = filled(make(buckets=4, dim=5, active=2))
    assert pair.address is not None
    name = table_of(pair.address)
    postgres.sql(f"ALTER TABLE {name} ADD CONSTRAINT refuse CHECK (id <> 1000)")
    before = engine_contents(pair.engine)
    for ids in ([0, 1, 1000], [1000, 61, 2], list(range(998, 1400))):
        generator = np.random.default_rng(1)
        codes = make_codes(generator, len(ids), 4, 2)
        vectors = whole_numbers(generator, "small", len(ids), 5)
        with pytest.raises(StorageError, match="refuse") as raised:
            pair.engine.add(codes, vectors, ids)
        assert "\n" not in str(raised.value)
        assert engine_contents(pair.engine) == before
        assert (len(pair.engine), pair.engine.next_id) == (60, 60)
    postgres.sql(f"ALTER TABLE {name} DROP CONSTRAINT refuse")
    pair.add([[0, 1]] * 3, np.ones((3, 5)), [0, 1, 1000])
    pair.search([[0, 1, 2, 3]], np.ones((1, 5)), 70)
    pair.same_contents()


def test_ids_longer_than_an_index_can_hold(make: Make) -> None:
    pair = make(buckets=1, dim=1, ids="string")
    generator = np.random.default_rng(0)
    longest = "".join(map(chr, generator.integers(33, 126, size=2600)))  # what does not compress
    pair.add([[0]], [[1]], [longest])
    assert pair.engine[longest].id == longest
    for count in (3000, 60_000):
        text = "".join(map(chr, generator.integers(33, 126, size=count)))
        with pytest.raises(InputError, match=r"2,600 bytes") as raised:
            pair.engine.add([[0], [0]], [[1], [2]], ["short", text])
        assert "\n" not in str(raised.value)
        assert "server runs" not in str(raised.value)
    pair.same_contents()


def test_a_batch_of_several_groups_of_rows(make: Make) -> None:
    pair = make(buckets=5, dim=2, active=2)
    generator = np.random.default_rng(0)
    codes = make_codes(generator, 40_000, 5, 2)
    vectors = generator.integers(-50, 50, size=(40_000, 2)).astype(np.float32)
    pair.add(codes, vectors, None, [{"n": n} if n % 1000 == 0 else None for n in range(40_000)])
    pair.search(orders(generator, 3, 5), vectors[:3], 20)
    np.testing.assert_array_equal(pair.engine.bucket_loads(), pair.table.bucket_loads())
    assert pair.delete(list(range(0, 40_000, 2))) == 20_000
    pair.same_contents()


@pytest.mark.parametrize("at_once", [1, 2, 5, 128])
@pytest.mark.parametrize("active", [1, 3])
def test_a_batch_of_several_parts(
    make: Make, monkeypatch: pytest.MonkeyPatch, at_once: int, active: int
) -> None:
    """One part is ranked while the next is asked for; ties make lists be asked for twice."""
    monkeypatch.setattr("flowhash.engines.postgres.bucket_search.STATEMENTS_AT_ONCE", at_once)
    pair = make(buckets=12, dim=1, active=active)
    generator = np.random.default_rng(at_once)
    # Half of the buckets stay empty: parts that ask for nothing stand between the others.
    codes = np.argsort(generator.random((400, 6)), axis=1)[:, :active]
    pair.add(codes, generator.integers(-2, 3, size=(400, 1)).astype(np.float32))
    queries = generator.integers(-2, 3, size=(40, 1)).astype(np.float32)
    order = orders(generator, 40, 12)
    order[5:20] = np.sort(order[5:20], axis=1)[:, ::-1]  # their first buckets are empty
    for options in ({}, {"probe": 4}, {"at_least": 300}, {"top": 1}):
        pair.search(order, queries, **options)
        pair.search(order[:1], queries[:1], **options)
    pair.search(order, queries, where=list(range(0, 400, 7)))


def test_an_error_while_answers_are_measured(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens while the driver sends the next part; the connection must be good afterwards."""
    monkeypatch.setattr("flowhash.engines.postgres.bucket_search.STATEMENTS_AT_ONCE", 3)
    pair = filled(make(buckets=8, dim=4, active=2))
    generator = np.random.default_rng(3)
    order, queries = orders(generator, 20, 8), whole_numbers(generator, "small", 20, 4)
    measured = searching.exact_distances
    for error in (RuntimeError, KeyboardInterrupt, MemoryError):
        calls = iter([None, error("in the middle")])

        def failing(*given: Any, calls: Any = calls) -> Any:
            problem = next(calls, None)
            if problem is not None:
                raise problem
            return measured(*given)

        with monkeypatch.context() as patched:
            patched.setattr(searching, "exact_distances", failing)
            with pytest.raises(error, match="in the middle"):
                pair.engine.search(order, queries)
        pair.search(order, queries)


def test_embeddings_are_let_go_when_they_are_measured(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = searching.all_of
    held = []

    def noted(pieces: Any) -> Any:
        held.extend(piece.candidates.embeddings for piece in pieces)
        return joined(pieces)

    monkeypatch.setattr(searching, "all_of", noted)
    filled(make(buckets=4, dim=3)).search([[0]], np.ones((1, 3), np.float32))
    assert held
    assert all(array.base is None and array.size == 0 for array in held)


def test_many_threads_search_one_engine(make: Make) -> None:
    pair = filled(make(buckets=8, dim=4, active=2), 300)
    generator = np.random.default_rng(2)
    cases = [
        (orders(generator, 3, 8), whole_numbers(generator, "small", 3, 4), top)
        for top in (1, 5, 40)
        for _ in range(8)
    ]
    expected = [bits(pair.table.search(*case)) for case in cases]

    def work(seed: int) -> None:
        for place in np.random.default_rng(seed).permutation(len(cases)):
            assert bits(pair.engine.search(*cases[place])) == expected[place]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    address = pair.address
    assert address is not None
    used = sql(
        address.split("table=")[0].rstrip("?&"),
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'flowhash'",
    )
    assert 1 <= used[0][0] <= 16  # a pool, and not a connection for every search


def test_an_index_that_is_not_exact_changes_nothing(make: Make, postgres: Postgres) -> None:
    """With an HNSW index that looks at one row, an operator would find what is not nearest."""
    server = postgres.own()
    pair = make(buckets=2, dim=8)
    generator = np.random.default_rng(3)
    vectors = generator.normal(size=(1500, 8)).astype(np.float32)
    pair.add(np.zeros((1500, 1), int), vectors)
    assert pair.address is not None
    name = table_of(pair.address)
    postgres.sql(
        f"CREATE INDEX by_hand ON {name} USING hnsw (embedding vector_l2_ops)"
        " WITH (m = 2, ef_construction = 4)"
    )
    database = postgres.sql("SELECT current_database()")[0][0]
    leading = {"hnsw.ef_search": 1, "enable_seqscan": "off", "enable_sort": "off"}
    for setting, value in leading.items():
        postgres.sql(f"ALTER DATABASE {database} SET {setting} = {value}")
    try:
        query = "[" + ",".join(str(one) for one in vectors[7]) + "]"
        ordered = f"SELECT id FROM {name} WHERE bucket = 0 ORDER BY embedding <-> '{query}' LIMIT 9"
        plan = sql(server.address(), f"EXPLAIN {ordered}")
        assert "by_hand" in str(plan), "the index would not have been used anyway"
        pair.reopen()
        pair.search([[0, 1]] * 20, vectors[:20] + np.float32(0.5), 9, exact=False)
        pair.search([[0, 1]] * 20, vectors[:20], 9, exact=False, where=list(range(0, 1500, 3)))
    finally:
        for setting in leading:
            postgres.sql(f"ALTER DATABASE {database} RESET {setting}")


@pytest.mark.parametrize(
    ("dim", "dtype", "storage"),
    [
        (3, "float32", "p"), (512, "float32", "p"), (1700, "float32", "p"), (3000, "float16", "p"),
        (2100, "float32", "e"), (5000, "float16", "e"),
    ],
)  # fmt: skip
def test_embeddings_lie_in_the_row(
    make: Make, postgres: Postgres, dim: int, dtype: str, storage: str
) -> None:
    pair = make(buckets=2, dim=dim, dtype=dtype)
    assert pair.address is not None
    found = postgres.sql(
        "SELECT attstorage::text FROM pg_attribute a WHERE attname = 'embedding'"
        " AND attrelid = %s::regclass",
        (table_of(pair.address),),
    )
    assert found == [(storage,)]
    generator = np.random.default_rng(dim)
    vectors = generator.integers(-3, 4, size=(30, dim))
    ids = list(range(30))
    pair.add([[0], [1]] * 15, vectors, ids, [{"text": "x" * 3000}, None] * 15)
    pair.search([[0, 1], [1, 0]], vectors[:2], 7)
    pair.same_contents()


def log_of(server: Server, start: int) -> str:
    return server.log.read_bytes()[start:].decode()


def test_statements_are_prepared_and_rows_copied(database: Postgres) -> None:
    server = database.own()
    name = database.sql("SELECT current_database()")[0][0]
    database.sql(f"ALTER DATABASE \"{name}\" SET log_statement = 'all'")
    engine = create_engine(database.address("pets"), buckets=4, dim=2, active=2)
    with engine:
        start = server.log.stat().st_size
        engine.add([[0, 1], [1, 2]] * 50, np.arange(200).reshape(100, 2))
        added = log_of(server, start)
        assert "COPY" in added
        assert "INSERT INTO" not in added
        start = server.log.stat().st_size
        for _ in range(2):
            engine.search([[0, 1, 2, 3]] * 20, np.ones((20, 2)), 3)
        searched = log_of(server, start)
    rows = [line for line in searched.splitlines() if "embedding" in line and "execute" in line]
    assert len(rows) == 80  # two buckets of twenty queries, twice
    statements = {line.split("execute ")[1].split(":")[0] for line in rows}
    assert len(statements) == 1
    assert "<unnamed>" not in statements


def test_nothing_is_left_of_what_was_refused(postgres: Postgres) -> None:
    """Without Citus, for example."""
    before = relations(postgres)
    for changed in ({"metric": "manhattan"}, {"dim": 0}, {"active": 9}):
        with pytest.raises(InputError):
            create_engine(postgres.address("refused"), **({"buckets": 3, "dim": 2} | changed))  # type: ignore[arg-type]
    assert relations(postgres) == before
    assert not engine_exists(postgres.address("refused"))


def test_an_engine_leaves_no_connection_behind(database: Postgres) -> None:
    engine = create_engine(database.address("one"), buckets=1, dim=1)
    engine.add([[0]], [[1]])
    engine.search([[0]], [[1]])
    batches = engine.batches(1)
    next(batches)
    batches.close()  # a walk that somebody gave up
    engine.search([[0]], [[1]])
    engine.close()
    with pytest.raises((StorageError, InputError)):
        open_engine(database.address("two"))
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'flowhash'"
    )
    for _ in range(200):  # the server needs a moment to see that they are gone
        if database.sql(count) == [(0,)]:
            break
        threading.Event().wait(0.05)
    assert database.sql(count) == [(0,)]
