"""Servers and processes that die in the middle, copies that go on, and errors of one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.cli.app import _code
from flowhash.engines import copy, create_engine, engine_exists, open_engine
from flowhash.engines.engine_registry import room_of
from flowhash.errors import InputError, StorageError
from flowhash.table import HashTable
from tests.engines.pairs import bits, engine_contents
from tests.engines.servers import (
    PASSWORD,
    VARIABLE,
    Cut,
    Postgres,
    Server,
    free_port,
    removed,
    running_server,
    sql,
    table_of,
)

ITEMS, BUCKETS, ACTIVE, DIM = 52_000, 40, 2, 6  # more than 10^5 rows, in four pieces


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    """A server of our own that may be killed; it keeps its promises to the disk."""
    if os.environ.get(VARIABLE):
        pytest.skip(f"the server of {VARIABLE} is not ours to kill")
    with running_server(checkpoint_timeout="30s") as running:
        yield running


@pytest.fixture
def server(one_server: Server) -> Server:
    """The same, running, whatever became of it in the test before."""
    one_server.restart(unless_it_runs=True)
    return one_server


def make_source(path: Path | None, items: int = ITEMS, seed: int = 0, **settings: Any) -> HashTable:
    """A table of several segments, only some with payloads, with deletes and replacements."""
    generator = np.random.default_rng(seed)
    settings = {"buckets": BUCKETS, "dim": DIM, "active": ACTIVE, **settings}
    table = HashTable.create(path, **settings)
    names = generator.permutation(items) * 3 - items
    for number, part in enumerate(np.array_split(names, 3)):
        ids: Any = part
        if table.id_kind == "string":
            ids = [f"ü'{one}\\" for one in part]
        codes = np.stack([generator.permutation(table.buckets) for _ in range(97)])
        codes = codes[generator.integers(0, 97, len(part)), : table.active]
        vectors = generator.normal(size=(len(part), table.dim))
        payloads = [{"n": int(one), "text": "a\0ü"} for one in part] if number == 1 else None
        table.add(codes, vectors, ids, payloads)
        table.delete(list(ids)[::50])
        table.add(codes[:7], vectors[-7:], list(ids)[:7])
    return table


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a table with more than 10^5 rows."""
    path = tmp_path_factory.mktemp("source") / "table"
    make_source(path).close()
    return path


def table_contents(table: HashTable) -> dict[Any, Any]:
    """As :func:`engine_contents`, of a table."""
    return engine_contents(table)


def same_everything(path: Path, address: str, database: str) -> None:
    """All items, none twice, nothing else; and the same answers."""
    with HashTable.open(path) as table, open_engine(address) as engine:
        assert engine_contents(engine) == table_contents(table)
        assert len(engine) == len(table)
        assert engine.next_id == table.next_id
        rows = sql(
            database, f'SELECT count(*), count(DISTINCT (bucket, id)) FROM "{table_of(address)}"'
        )
        assert rows == [(len(table) * table.active,) * 2]
        generator = np.random.default_rng(1)
        queries = generator.normal(size=(20, table.dim))
        order = np.argsort(generator.random((20, table.buckets)), axis=1)
        assert bits(engine.search(order, queries, 9)) == bits(table.search(order, queries, 9))


def one_line(error: BaseException) -> str:
    """What an error says; it must be a line without a password."""
    text = str(error)
    assert "\n" not in text
    assert "battery" not in text
    return text


def wait_for(what: Callable[[], bool], over: Callable[[], Any]) -> None:
    """Until it is so; if that which is waited for is over before, the test has missed it."""
    while not what():
        assert not over(), "it was over before it was seen"
        time.sleep(0.002)


def ended(process: subprocess.Popen[bytes]) -> Callable[[], bool]:
    return lambda: process.poll() is not None


class Watcher:
    """A connection that sees what the server is doing."""

    def __init__(self, server: Server) -> None:
        import psycopg

        self._connection = psycopg.connect(server.address(), autocommit=True)

    def close(self) -> None:
        self._connection.close()

    def copying(self) -> bool:
        """Whether rows are arriving at this moment."""
        query = "SELECT 1 FROM pg_stat_progress_copy WHERE tuples_processed > 0"
        return self._connection.execute(query).fetchone() is not None

    def rows_for_good(self, table: str) -> int:
        """How many rows a copy has reached."""
        there = self._connection.execute("SELECT to_regclass('flowhash_tables')").fetchone()
        if there is None or there[0] is None:
            return 0
        query = "SELECT (progress ->> 'rows')::int FROM flowhash_tables WHERE name = %s"
        found = self._connection.execute(query, (table,)).fetchone()
        return 0 if found is None or found[0] is None else int(found[0])


def refused_everywhere(address: str) -> None:
    """An unfinished copy is no table."""
    assert engine_exists(address)
    for mode in ("r", "r+"):
        with pytest.raises(StorageError, match="unfinished copy") as raised:
            open_engine(address, mode)
        one_line(raised.value)
    with pytest.raises(StorageError, match="already"):
        create_engine(address, buckets=BUCKETS, dim=DIM)


@pytest.mark.long
def test_server_killed_between_two_pieces(server: Server, source: Path) -> None:
    address = server.address(table="between")
    reached = []

    def watch(done: int, total: int) -> None:
        reached.append(done)
        if len(reached) == 2:  # the first call tells where it begins
            server.kill()

    with HashTable.open(source) as table, removed(address):
        with pytest.raises(StorageError) as raised:
            copy(table, address, watch=watch)
        one_line(raised.value)
        with pytest.raises(StorageError) as raised:
            copy(table, address)
        assert "server" in one_line(raised.value)
        server.restart()
        refused_everywhere(address)
        done = copy(table, address)
        assert done.before == reached[1] > 0  # what was told to be there for good was
        assert done.items == len(table) > done.before
        same_everything(source, address, server.address())
        again = copy(table, address)  # which finds it complete
        assert again.before == again.items == len(table)


@pytest.mark.long
def test_server_killed_while_rows_arrive(server: Server, source: Path) -> None:
    """Three times, each a piece later; the copy goes on every time."""
    address = server.address(table="arriving")
    with HashTable.open(source) as table, removed(address):
        known = []
        for turn in range(3):
            watcher = Watcher(server)
            with ThreadPoolExecutor(1) as pool:
                attempt = pool.submit(copy, table, address)
                wait_for(watcher.copying, attempt.done)
                server.kill()
                error = attempt.exception()
            watcher.close()
            assert isinstance(error, StorageError), error
            one_line(error)
            server.restart()
            watcher = Watcher(server)
            known.append(watcher.rows_for_good("arriving"))
            watcher.close()
            if turn < 2:  # let it come a piece further before the next accident
                self_stopped(table, address)
        assert known == sorted(known)
        done = copy(table, address)
        assert done.before == known[-1] // ACTIVE
        assert 0 < done.before < done.items
        same_everything(source, address, server.address())


def self_stopped(table: HashTable, address: str) -> None:
    """A copy that is stopped by its own process after one piece."""
    seen = []

    def watch(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(table, address, watch=watch)


@pytest.mark.long
def test_server_killed_while_checksums_are_compared(server: Server, source: Path) -> None:
    address = server.address(table="comparing")
    with HashTable.open(source) as table, removed(address):
        loading = room_of(address).loading(table, address)
        assert sum(len(part) for part in loading.parts()) == loading.total
        checks = loading.checks()
        next(checks)
        server.kill()
        with pytest.raises(StorageError) as raised:
            list(checks)
        one_line(raised.value)
        loading.close()
        server.restart()
        refused_everywhere(address)
        done = copy(table, address)
        assert done.before == done.items
        same_everything(source, address, server.address())


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "flowhash", *map(str, arguments)]


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, **options)


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """What a command says that could not do it: one line, and 2."""
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert "Traceback" not in result.stderr
    assert "battery" not in result.stdout + result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("flowhash: ")]
    assert len(lines) == 1, result.stderr
    assert len([line for line in result.stderr.splitlines() if line.strip()]) == 1, result.stderr
    return lines[0]


@pytest.mark.long
def test_command_killed_and_server_killed(server: Server, source: Path) -> None:
    """The real command: killed itself, then left without its server, then let be."""
    address = server.guarded(table="command")
    with removed(address):
        watcher = Watcher(server)
        process = subprocess.Popen(
            command("copy", source, address, "--quiet"), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        wait_for(lambda: watcher.rows_for_good("command") > 0, ended(process))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        refused_everywhere(address)
        before = watcher.rows_for_good("command")
        assert 0 < before < ITEMS * ACTIVE

        process = subprocess.Popen(
            command("copy", source, address, "--quiet"), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        wait_for(watcher.copying, ended(process))
        server.kill()
        err = process.communicate()[1]
        watcher.close()
        text = refused(subprocess.CompletedProcess([], process.returncode, "", err.decode()))
        assert "goes on" in text or "again" in text
        server.restart()
        refused_everywhere(address)

        result = run("copy", source, address, "--json")
        assert result.returncode == 0, result.stderr
        assert f'"items": {len_of(source)}' in result.stdout
        assert "battery" not in result.stdout + result.stderr
        same_everything(source, address, server.address())
        assert f"({len_of(source):,} of them before)" in run("copy", source, address).stdout


def len_of(path: Path) -> int:
    with HashTable.open(path) as table:
        return len(table)


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_server_killed_in_the_middle_of_an_add(server: Server, ids: str) -> None:
    """All or nothing; and the engine finds its way back by itself."""
    address = server.address(table=f"adding_{ids}")
    names: Any = list(range(30_000))
    if ids == "string":
        names = [f"item {number}" for number in names]
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 5, size=(30_000, 1))
    with removed(address), create_engine(address, buckets=5, dim=3, ids=ids) as engine:
        engine.add(codes[:1000], np.zeros((1000, 3)), names[:1000])
        states = [engine_contents(engine)]
        for turn in range(1, 3):
            watcher = Watcher(server)
            with ThreadPoolExecutor(1) as pool:
                adding = pool.submit(engine.add, codes, np.full((30_000, 3), turn), names)
                wait_for(watcher.copying, adding.done)
                server.kill()
                error = adding.exception()
            watcher.close()
            assert isinstance(error, StorageError), error
            one_line(error)
            with pytest.raises(StorageError) as raised:
                engine.search([[0, 1]], [[0, 0, 0]])
            one_line(raised.value)
            server.restart()
            hits = engine.search([[0, 1, 2, 3, 4]], [[0, 0, 0]], 3, probe=5)
            assert hits.scanned.tolist() == [len(engine)]
            found = engine_contents(engine)
            whole = {bytes(content[1]) for content in found.values()}
            assert len(whole) == 1  # of one turn, all of them
            assert len(found) in (1000, 30_000)
            states.append(found)
        assert engine.add(codes, np.full((30_000, 3), 9), names).tolist() == names
        assert len(engine_contents(engine)) == len(engine) == 30_000
        assert engine.delete(names[:5]) == 5


def test_an_engine_finds_its_server_again(server: Server) -> None:
    address = server.address(table="again")
    with removed(address), create_engine(address, buckets=2, dim=1) as engine:
        engine.add([[0], [1]], [[1], [2]])
        with ThreadPoolExecutor(6) as pool:  # so that the pool has several connections
            list(pool.map(lambda _: engine.search([[0, 1]], [[1]]), range(30)))
        for stop in (server.stop, server.kill):
            stop()
            with pytest.raises(StorageError) as raised:
                engine.search([[0, 1]], [[1]])
            assert "server" in one_line(raised.value)
            server.restart()
            assert engine.search([[0, 1]], [[1]], 1).ids.tolist() == [[0]]
        sql(
            server.address(),
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'flowhash'",
        )
        assert engine.add([[0]], [[1]]).tolist() == [2]


SETTINGS: list[dict[str, Any]] = [
    {}, {"active": 1}, {"active": 3, "dtype": "float16"}, {"ids": "string"},
    {"ids": "string", "active": 1, "dtype": "float16", "metric": "cosine"}, {"buckets": 3},
    {"buckets": 900},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_copy_is_the_table(
    postgres: Postgres, postgres_address: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    encoder = "e" * 64
    make_source(tmp_path / "table", 3000, **settings, encoder=encoder).close()
    seen = []
    with HashTable.open(tmp_path / "table") as table:
        done = copy(table, postgres_address, watch=lambda *pair: seen.append(pair))
        assert (done.items, done.before) == (len(table), 0)
        assert seen[0] == (0, len(table))
        assert seen[-1] == (len(table), len(table))
        with open_engine(postgres_address, encoder=encoder) as engine:
            for name in ("buckets", "dim", "active", "metric", "dtype", "id_kind", "encoder"):
                assert getattr(engine, name) == getattr(table, name)
    same_everything(tmp_path / "table", postgres_address, postgres.database)
    with open_engine(postgres_address, "r+") as engine:  # and it can be changed as any other
        code = list(range(engine.active))
        name = "new" if engine.id_kind == "string" else 10**9
        count = len(engine)
        engine.add([code], np.ones((1, DIM)), [name])
        assert len(engine) == count + 1
        assert name in engine


@pytest.mark.parametrize("active", [1, 2])
def test_a_copy_of_one_bucket_larger_than_a_piece(
    postgres: Postgres, postgres_address: str, tmp_path: Path, active: int
) -> None:
    generator = np.random.default_rng(0)
    with HashTable.create(tmp_path / "table", buckets=4, dim=2, active=active) as table:
        codes = np.array([[1, 3]] * 70_000 + [[0, 2]] * 10)[:, :active]
        table.add(codes, generator.normal(size=(70_010, 2)))
    with HashTable.open(tmp_path / "table") as table:
        copy(table, postgres_address)
    same_everything(tmp_path / "table", postgres_address, postgres.database)


def test_a_copy_of_nothing(postgres_address: str) -> None:
    table = HashTable.create(buckets=3, dim=2)
    table.add([[0]], [[1, 1]])
    table.delete([0])
    assert copy(table, postgres_address).items == 0
    with open_engine(postgres_address, "r+") as engine:
        assert len(engine) == 0
        assert engine.search([[0, 1, 2]], [[1, 1]], 2).counts.tolist() == [0]
        assert engine.add([[2]], [[1, 1]]).tolist() == [1]  # an id is never given twice


def begun(table: HashTable, address: str) -> None:
    """Leave an unfinished copy, with some rows."""
    self_stopped(table, address)
    refused_everywhere(address)


def test_a_source_that_changed_meanwhile(
    postgres: Postgres, postgres_address: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    make_source(path, 3000).close()
    with HashTable.open(path) as table:
        begun(table, postgres_address)
    changes: list[Callable[[HashTable], Any]] = [
        lambda table: table.add([[0, 1]], [[0] * DIM]),
        lambda table: table.delete([10**6, int(next(iter(table)))]),
    ]
    for change in changes:
        with HashTable.open(path, "r+") as table:
            change(table)
        with HashTable.open(path) as table, pytest.raises(InputError, match="--restart") as raised:
            copy(table, postgres_address)
        one_line(raised.value)
        refused_everywhere(postgres_address)
    assert "--restart" in refused(run("copy", path, postgres_address, "--quiet"))
    with HashTable.open(path) as table:
        done = copy(table, postgres_address, restart=True)
        assert (done.before, done.items) == (0, len(table))
    same_everything(path, postgres_address, postgres.database)
    with HashTable.open(path) as table:  # a finished copy is never thrown away
        done = copy(table, postgres_address, restart=True)
        assert done.before == done.items == len(table)
    same_everything(path, postgres_address, postgres.database)
    with HashTable.open(path, "r+") as table:
        changes[0](table)
        with pytest.raises(InputError, match="already"):
            copy(table, postgres_address, restart=True)
    with open_engine(postgres_address) as engine:
        assert len(engine) == done.items


@pytest.mark.parametrize(
    "other",
    [{"dim": DIM + 1}, {"buckets": BUCKETS + 1}, {"dtype": "float16"}, {"encoder": "e" * 64}],
)
def test_another_table_than_the_unfinished_one(
    postgres_address: str, tmp_path: Path, other: dict[str, Any]
) -> None:
    with HashTable.open(make_folder(tmp_path / "one")) as table:
        self_stopped(table, postgres_address)
    make_source(tmp_path / "two", 200, **other).close()
    with HashTable.open(tmp_path / "two") as table:
        with pytest.raises(InputError, match="--restart"):
            copy(table, postgres_address)
        copy(table, postgres_address, restart=True)
        with open_engine(postgres_address) as engine:
            assert engine_contents(engine) == table_contents(table)


def test_the_answer_to_the_last_commit_is_lost(
    postgres: Postgres, postgres_address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The copy is there, and who does the same again hears that it is complete."""
    server = postgres.own()
    make_source(tmp_path / "table", 500).close()
    words = ["copy", str(tmp_path / "table"), postgres_address, "--json", "--quiet"]
    cut = Cut(server.port, b"ready = true")
    place = server.guarded(table=table_of(postgres_address))
    with HashTable.open(tmp_path / "table") as table:
        with pytest.raises(StorageError, match="do the same again") as raised:
            copy(table, place.replace(f":{server.port}/", f":{cut.port}/"))
        one_line(raised.value)
        cut.close()
        assert cut.cuts == 1
        for more in ([], ["--restart"], []):
            capfd.readouterr()
            assert _code(words + more) == 0
            said = json.loads(capfd.readouterr().out)
            assert (said["items"], said["before"]) == (len(table), len(table))
        same_everything(tmp_path / "table", postgres_address, postgres.database)
        # What is there is compared, not only its note.
        name = table_of(postgres_address)
        statement = (
            f"UPDATE {name} SET payload = '{{\"n\":0}}' WHERE {ONE.format(name)} RETURNING id"
        )
        ((item,),) = postgres.sql(statement)
        with pytest.raises(StorageError, match=r"not what was sent .* Drop it and copy again"):
            copy(table, postgres_address)
        # A change, or another table: it is not this copy any more.
        with open_engine(postgres_address, "r+") as engine:
            engine.delete([item])
        with pytest.raises(InputError, match=r"holds a table with .* items already"):
            copy(table, postgres_address)
    with (
        HashTable.open(make_folder(tmp_path / "other")) as other,
        pytest.raises(InputError, match=r"holds a table with .* items already"),
    ):
        copy(other, postgres_address)


OBJECTS: list[str] = [
    "[]", "5", "null", '"text"', "{}", "true", "1e400", "9" * 5000, "[" * 3000 + "]" * 3000,
    '{"a":' * 3000 + "1" + "}" * 3000,
]  # fmt: skip


def settings_texts() -> Iterator[str]:
    """The settings of a table, changed in one place; without one of them; with one too many."""
    good = {"buckets": 4, "dim": 2, "active": 1, "metric": "euclidean", "dtype": "float32",
            "ids": "int64", "encoder": None}  # fmt: skip
    for name in ("buckets", "dim"):
        yield json.dumps({key: value for key, value in good.items() if key != name})
    yield json.dumps({**good, "other": 1})
    yield json.dumps({**good, "a\n\x1b[2J": 1})
    for name in good:
        for wrong in ("x", -1, 1.5, [], {}, True, 10**30):
            if (name, wrong) != ("encoder", "x"):
                yield json.dumps({**good, name: wrong})


def test_a_line_of_the_registry_with_other_json(postgres: Postgres, postgres_address: str) -> None:
    """Whatever it holds is said in one line, whoever meets it."""
    name = table_of(postgres_address)
    engine = create_engine(postgres_address, buckets=4, dim=2)
    table = HashTable.create(buckets=4, dim=2)
    line = postgres.sql(
        "SELECT settings::text, next_id FROM flowhash_tables WHERE name = %s", [name]
    )

    def put(what: str, value: Any) -> None:
        postgres.sql(f"UPDATE flowhash_tables SET {what} WHERE name = %s", [value, name])

    calls: list[Callable[[], Any]] = [
        lambda: open_engine(postgres_address), lambda: engine_exists(postgres_address),
        lambda: copy(table, postgres_address), lambda: engine.search([[0]], [[0, 0]]),
        lambda: engine.add([[0]], [[0, 0]]), engine.notes, engine.stats,
    ]  # fmt: skip
    wrong = [("settings = %s", text) for text in [*OBJECTS, *settings_texts()]]
    wrong += [("ready = false, progress = %s", text) for text in OBJECTS if text != "null"]
    wrong += [("ready = false, progress = %s", '{"rows": "x", "token": "a", "source": "b"}')]
    wrong += [("notes = %s", text) for text in OBJECTS if text not in ("null", "{}")]
    wrong += [("next_id = %s::numeric", "NaN"), ("items = %s", -1)]
    wrong += [("largest = %s::float8", text) for text in ("NaN", "Infinity", "-1")]
    for number, (what, value) in enumerate(wrong):
        put(what, value)
        for call in calls if number % 10 == 0 else [calls[0], calls[3]]:
            with pytest.raises(StorageError, match="flowhash_tables is damaged") as raised:
                call()
            assert len(one_line(raised.value)) < 600
            assert str(raised.value).isprintable()
        put("ready = true, progress = NULL, notes = NULL, items = 0, largest = 0, settings = %s",
            line[0][0])  # fmt: skip
        put("next_id = %s", line[0][1])
    assert engine.search([[0]], [[0, 0]]).scanned.tolist() == [0]  # sound again
    engine.close()


def make_folder(path: Path) -> Path:
    make_source(path, 4000).close()
    return path


def test_two_copies_at_once(postgres: Postgres, postgres_address: str, source: Path) -> None:
    """One of them may give up with a line; what is there in the end is the table, once."""
    outcomes: list[Any] = []

    def attempt(_: int) -> None:
        try:
            with HashTable.open(source) as table:
                outcomes.append(copy(table, postgres_address).items)
        except (InputError, StorageError) as error:
            outcomes.append(one_line(error))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(attempt, range(2)))
    if len_of(source) not in outcomes:  # both gave way: the same command goes on
        attempt(0)
    assert len_of(source) in outcomes, outcomes
    same_everything(source, postgres_address, postgres.database)


DAMAGE = {
    "a number": "UPDATE {} SET embedding = '[9,9,9,9,9,9]' WHERE {}",
    "a payload": "UPDATE {} SET payload = '{{\"n\":0}}' WHERE {}",
    "no payload": "UPDATE {} SET payload = NULL WHERE {}",
    "a bucket": "UPDATE {} SET bucket = 39 WHERE {} AND NOT 39 = ANY(others)",
    "other buckets": "UPDATE {} SET others = '{{38}}' WHERE {}",
    "an id": "UPDATE {} SET id = 123456789 WHERE {}",
    "a row less": "DELETE FROM {} WHERE {}",
    "an item less": "DELETE FROM {0} WHERE id = (SELECT id FROM {0} WHERE {1})",
    "all rows": "DELETE FROM {}",
    "a row more": "INSERT INTO {0} SELECT bucket, 10^15::bigint, embedding, others, payload"
    " FROM {0} WHERE {1}",
    "a row behind": "INSERT INTO {0} SELECT 40, 10^15::bigint, embedding, others, payload"
    " FROM {0} WHERE {1}",
    "a row before": "INSERT INTO {0} SELECT -1, 0, embedding, others, payload FROM {0} WHERE {1}",
}
ONE = (
    "(bucket, id) = (SELECT bucket, id FROM {0} WHERE payload IS NOT NULL AND bucket = 17 LIMIT 1)"
)


@pytest.mark.parametrize("kind", sorted(DAMAGE))
def test_what_was_altered_by_hand_is_noticed(
    postgres: Postgres, postgres_address: str, tmp_path: Path, kind: str
) -> None:
    name = table_of(postgres_address)
    with HashTable.open(make_folder(tmp_path / "table")) as table:
        loading = room_of(postgres_address).loading(table, postgres_address)
        try:
            list(loading.parts())
            statement = DAMAGE[kind]
            changed = sql(
                postgres.database,
                (statement.format(name, ONE.format(name)) + " RETURNING 1"),
            )
            assert changed
            with pytest.raises(StorageError, match="--restart") as raised:
                list(loading.checks())
            one_line(raised.value)
        finally:
            loading.close()
        refused_everywhere(postgres_address)
        with pytest.raises(StorageError, match="--restart"):
            copy(table, postgres_address)
        copy(table, postgres_address, restart=True)
    same_everything(tmp_path / "table", postgres_address, postgres.database)


def test_a_row_twice_is_noticed(postgres: Postgres, postgres_address: str, tmp_path: Path) -> None:
    name = table_of(postgres_address)
    with HashTable.open(make_folder(tmp_path / "table")) as table:
        loading = room_of(postgres_address).loading(table, postgres_address)
        try:
            list(loading.parts())
            sql(postgres.database, f"INSERT INTO {name} SELECT * FROM {name} LIMIT 1")
            with pytest.raises(StorageError) as raised:
                list(loading.checks())
            one_line(raised.value)
        finally:
            loading.close()
        refused_everywhere(postgres_address)


def wrong_places(postgres: Postgres) -> dict[str, tuple[str, str]]:
    """Addresses at which nothing can be, and what must be said of each."""
    server = postgres.own()
    postgres.sql("CREATE EXTENSION IF NOT EXISTS vector")
    nobody = f"postgresql://postgres:{PASSWORD.split()[0]}@127.0.0.1:{free_port()}/flowhash"
    return {
        "wrong password": (server.guarded("battery", table="one"), "password"),
        "no password": (server.guarded("", table="one").replace(":@", "@"), "password"),
        "no such user": (server.guarded().replace("//postgres:", "//nobody:"), "nobody|password"),
        "no such database": (server.guarded(database="no where"), "no where"),
        "no such table": (server.guarded(table="no table"), "no table"),
        "no server": (nobody, "refused|server"),
        "no such host": ("postgresql://nowhere.invalid/flowhash", "nowhere.invalid|name"),
        "no socket": ("postgresql:///flowhash?host=/nowhere", "nowhere|server"),
        "a wrong port": ("postgresql://127.0.0.1:notaport/flowhash", "port"),
        "a wrong option": (server.guarded(sslmode="perhaps"), "sslmode|perhaps"),
    }


KINDS = [
    "wrong password", "no password", "no such user", "no such database", "no such table",
    "no server", "no such host", "no socket", "a wrong port", "a wrong option",
]  # fmt: skip


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No password from elsewhere."""
    for name in ("PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGHOST", "PGPORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("quiet")
def test_places_where_nothing_is(postgres: Postgres, kind: str) -> None:
    import re

    address, words = wrong_places(postgres)[kind]
    table = HashTable.create(buckets=1, dim=1)
    calls: list[Callable[[], Any]] = [lambda: open_engine(address)]
    if kind != "no such table":
        calls += [
            lambda: create_engine(address, buckets=1, dim=1),
            lambda: copy(table, address),
            lambda: engine_exists(address),
        ]
    for call in calls:
        with pytest.raises((StorageError, InputError)) as raised:
            call()
        text = one_line(raised.value)
        assert re.search(words, text), text
        assert "correct" not in text


@pytest.mark.usefixtures("quiet")
def test_the_command_says_it_in_one_line(postgres: Postgres, tmp_path: Path) -> None:
    import re

    make_source(tmp_path / "table", 50).close()
    query = tmp_path / "query.npy"
    np.save(query, np.zeros((1, DIM), np.float32))
    places = wrong_places(postgres)

    def attempt(kind: str) -> None:
        address, words = places[kind]
        if kind == "no such table":
            results = [run("search", address, query), run("table", "stats", address)]
        else:
            results = [run("copy", tmp_path / "table", address, "--quiet")]
        for result in results:
            text = refused(result)
            assert re.search(words, text), text
            assert "correct" not in result.stdout + result.stderr

    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(attempt, ["wrong password", "no such database", "no such table", "no server"])
        )
