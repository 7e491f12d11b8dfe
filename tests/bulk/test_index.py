"""Bulk index in one process: the same table as adding one file after another, whatever happens."""

from __future__ import annotations

import collections
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from flowhash.bulk import (
    Interrupted,
    LocalRunner,
    TableChoices,
    Work,
    build_table as building,
    build_table as indexing,
    index,
)
from flowhash.bulk.parquet_files import read_columns
from flowhash.cli.output import in_words
from flowhash.errors import DamagedFileError, InputError, LockedTableError, StorageError
from flowhash.table import HashTable
from flowhash.table.changes import _repeated
from flowhash.table.integrity import folder_faults
from flowhash.table.storage.table_folder import TableFolder
from tests.bulk.builders import BUCKETS, DIM, Items, make_table
from tests.table.oracles import contents, model_contents

DYING = Path(__file__).with_name("dying.py")


@settings(max_examples=30)
@given(
    count=st.integers(1, 60), before=st.integers(0, 30), active=st.integers(1, 3),
    ids=st.sampled_from(["int64", "string"]), among=st.one_of(st.none(), st.integers(1, 80)),
    cuts=st.lists(st.integers(0, 60), max_size=6), rows=st.integers(1, 70),
    compact=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
def test_the_table_is_that_of_adding_file_after_file(
    tmp_path_factory: pytest.TempPathFactory, count: int, before: int, active: int, ids: str,
    among: int | None, cuts: list[int], rows: int, compact: bool, seed: int,
) -> None:  # fmt: skip
    tmp_path = tmp_path_factory.mktemp("index")
    items = Items(count, active, ids, seed, among)
    edges = sorted(min(cut, count) for cut in cuts)
    for name in ("table", "expected") if before else ():
        make_table(tmp_path / name, Items(before, active, ids, seed + 1, 40), [], encoder="abc")
    found, work = index(
        items.write(tmp_path / "encoded", edges), tmp_path / "table", LocalRunner(), rows=rows,
        compact=compact,
    )  # fmt: skip
    assert work.plan.rows == count
    if not before:
        make_table(tmp_path / "expected", items, edges, encoder="abc")
    else:
        with HashTable.open(tmp_path / "expected", "r+") as expected:
            items.add_to(expected, edges)
    assert folder_faults(tmp_path / "table") == []
    with (
        HashTable.open(tmp_path / "table") as table,
        HashTable.open(tmp_path / "expected") as expected,
    ):
        assert contents(table) == contents(expected)
        assert (len(table), table.next_id) == (found, expected.next_id)
        assert table.encoder == "abc"
        assert not compact or table.stats().segments == 1
        hits = [
            each.search(items.codes, items.embeddings, 5, payloads=True)
            for each in (table, expected)
        ]
        for name in ("ids", "distances", "counts", "scanned"):
            assert np.array_equal(*(getattr(one, name) for one in hits))
        assert hits[0].payloads == hits[1].payloads
    assert not list((tmp_path / "table" / "_bulk").glob("*part-*"))


class Dying:
    """The script that dies on purpose."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(DYING)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def index(
        self, encoded: Path, table: Path, rows: int, die: int = 0, restart: bool = False
    ) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"encoded": str(encoded), "table": str(table), "rows": rows, "die": die}
        order["restart"] = restart
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def dying() -> Iterator[Dying]:
    script = Dying()
    yield script
    assert script.process.stdin is not None
    script.process.stdin.close()
    assert script.process.wait() == 0


@pytest.mark.parametrize(
    "step", [pytest.param(3, marks=pytest.mark.long), pytest.param(1, marks=pytest.mark.slow)]
)
def test_killed_at_every_flush(tmp_path: Path, dying: Dying, step: int) -> None:
    """Clean each time, with everything or nothing of it; the same command brings it to its end.

    At every third flush, half of them before it and half after it; as a slow test, at every one.
    """
    items = Items(24, 2, among=20)
    encoded = items.write(tmp_path / "encoded", [12])
    second = Items(7, 2, seed=5)
    others = second.write(tmp_path / "second", [3])
    old = Items(9, 2, seed=4)
    fresh = make_table(tmp_path / "fresh", old, [4], encoder="abc")
    model = old.model()
    before = model_contents(model)
    after = model_contents({**model, **items.model()})
    assert before != after
    kills, states, ends = 1 - step, set(), set()
    while True:
        kills += step
        table = Path(shutil.copytree(fresh, tmp_path / f"table{kills}"))
        code = dying.index(encoded, table, 12, kills)
        assert folder_faults(table) == []
        with HashTable.open(table) as opened:
            found = contents(opened)
        assert found in (before, after)
        states.add(found == after)
        if code == 0:
            assert found == after
            break
        assert code == 9
        # Another folder follows: it is refused, or all of it gets in, and the rest stays.
        now = {**model, **items.model()} if found == after else model
        with_others = model_contents({**now, **second.model()})
        for restart in (False, True):
            place = Path(shutil.copytree(table, tmp_path / f"other{kills}{restart}"))
            code = dying.index(others, place, 12, restart=restart)
            assert code == 0 or (code == 2 and not restart)
            with HashTable.open(place) as opened:
                assert contents(opened) == (with_others if code == 0 else found)
            ends.add((code, restart))
        assert dying.index(encoded, table, 12) == 0
        assert folder_faults(table) == []
        with HashTable.open(table, "r+") as opened:
            assert contents(opened) == after
        assert not [p for p in table.glob("_bulk/*") if p.name not in ("_plan.json", "_lock")]
    assert kills > 15
    assert states == {True, False}
    assert ends == {(0, False), (2, False), (0, True)}


def killed_before_the_end(encoded: Path, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Index, and die when the items are in the table but the plan is not yet finished."""

    def die(work: Work) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Work, "finish", die)
        with pytest.raises(SystemExit):
            index(encoded, table, LocalRunner())


@pytest.mark.parametrize("compact", [False, True])
def test_what_others_deleted_meanwhile_stays_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compact: bool
) -> None:
    encoded, table = Items(20).write(tmp_path / "encoded", []), tmp_path / "table"
    killed_before_the_end(encoded, table, monkeypatch)
    with HashTable.open(table, "r+") as opened:
        assert len(opened) == 20
        opened.delete(range(5))
        if compact:
            opened.compact()
    assert index(encoded, table, LocalRunner())[0] == 15
    with HashTable.open(table) as opened:
        assert opened.notes() == {}  # nothing is left to find out
    assert index(encoded, table, LocalRunner(), restart=True)[0] == 20


def test_an_interrupt_of_an_earlier_version_is_not_guessed_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its note lay beside the segments, and does not say whether they are the table's."""
    encoded, table = Items(20).write(tmp_path / "encoded", []), tmp_path / "table"
    killed_before_the_end(encoded, table, monkeypatch)
    with HashTable.open(table, "r+") as opened:
        opened.note("bulk index", None)
        opened.delete(range(5))
    token = json.loads((table / "_bulk" / "_plan.json").read_text())["token"]
    (table / "_bulk" / "_adopting.json").write_text(json.dumps({"token": token, "files": []}))
    words = r"an earlier FlowHash was interrupted .* restart=True"
    with pytest.raises(StorageError, match=words) as error:
        index(encoded, table, LocalRunner())
    assert in_words(error.value).endswith("--restart")
    assert HashTable.open(table).stats().items == 15
    assert index(encoded, table, LocalRunner(), restart=True)[0] == 20
    assert not (table / "_bulk" / "_adopting.json").exists()


def test_a_change_that_fails_may_be_followed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, table = Items(20).write(tmp_path / "encoded", []), tmp_path / "table"

    def fail(folder: TableFolder, state: Any, notes: Any) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(TableFolder, "commit", fail)
        with pytest.raises(StorageError, match="disk is full"):
            index(encoded, table, LocalRunner())
    with HashTable.open(table, "r+") as opened:
        Items(1, seed=3).add_to(opened, [])
        opened.compact()
    assert index(encoded, table, LocalRunner())[0] == 20


def test_a_worker_that_outlives_its_driver(tmp_path: Path) -> None:
    """Its part belongs to work that was begun anew meanwhile, and is not taken for a new one."""
    encoded, table = Items(20).write(tmp_path / "encoded", [10]), tmp_path / "table"
    jobs: list[Any] = []

    class Late(LocalRunner):
        def run(self, job: Any, parts: Any) -> Any:
            jobs.append(job)
            if len(jobs) == 1:
                raise KeyboardInterrupt
            scratch = jobs[0].out.folder / jobs[0].out.scratch
            for scratch_is_there in (False, True):
                if scratch_is_there:  # as if it had not been taken away yet
                    scratch.mkdir()
                with pytest.raises(StorageError, match="was begun anew"):
                    jobs[0].do(None, 0, None)
            scratch.rmdir()
            left = [path.name for path in (table / "_bulk").rglob("*part*")]
            assert left == [job.out.scratch]
            yield from super().run(job, parts)

    runner = Late()
    with pytest.raises(KeyboardInterrupt):
        index(encoded, table, runner, rows=10)
    Items(20, seed=8).write(encoded, [10])
    assert index(encoded, table, runner, rows=10, restart=True)[0] == 20
    with HashTable.open(table) as opened:
        assert contents(opened) == model_contents(Items(20, seed=8).model())


def test_control_c_when_everything_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, table = Items(20).write(tmp_path / "encoded", [10]), tmp_path / "table"

    def stop(opened: HashTable) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HashTable, "compact", stop)
        with pytest.raises(Interrupted, match="the table has all items"):
            index(encoded, table, LocalRunner(), rows=10, compact=True)
    assert index(encoded, table, LocalRunner(), rows=10, compact=True)[0] == 20
    assert HashTable.open(table).stats().segments == 1


def test_large_payloads_make_smaller_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = Items(40)
    items.payloads = [{"picture": "x" * 1000}] * 40
    encoded = items.write(tmp_path / "encoded", [10, 20, 30])
    assert index(encoded, tmp_path / "one", LocalRunner())[1].plan.sizes == [40]
    monkeypatch.setattr(indexing, "FILE_BYTES", 25_000)
    assert index(encoded, tmp_path / "two", LocalRunner())[1].plan.sizes == [20, 20]
    monkeypatch.setattr(indexing, "FILE_BYTES", 5_000)  # a file is not cut
    assert index(encoded, tmp_path / "four", LocalRunner())[1].plan.sizes == [10] * 4
    assert index(encoded, tmp_path / "told", LocalRunner(), rows=30)[1].plan.sizes == [30, 10]


@given(
    st.lists(st.sets(st.integers(-30, 30), max_size=12).map(sorted), max_size=6),
    st.integers(0, 9),
)
def test_keys_of_several_parts(keys: list[list[int]], seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays = [random.permutation(np.array(some, np.int64)) for some in keys]
    counts = collections.Counter(key for some in keys for key in some)
    assert _repeated(arrays).tolist() == sorted(key for key, count in counts.items() if count > 1)


def test_parts_of_other_numbers_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "sort", None)
    assert not len(_repeated([np.arange(9, 20), np.arange(9), np.arange(20, 30)]))


def test_what_was_indexed_is_not_indexed_again(tmp_path: Path) -> None:
    encoded = Items(20).write(tmp_path / "encoded", [10])
    table = tmp_path / "table"
    index(encoded, table, LocalRunner(), rows=5)
    with HashTable.open(table, "r+") as opened:
        opened.delete([3])
    found, work = index(encoded, table, LocalRunner(), rows=5)
    assert (found, work.before) == (19, 20)
    # Another folder may follow; and this one again, if it is told so.
    other = Items(5, seed=2).write(tmp_path / "other", [])
    assert index(other, table, LocalRunner())[0] == 20
    assert index(other, table, LocalRunner(), restart=True)[0] == 20


def test_a_worker_that_was_given_up_leaves_nothing(tmp_path: Path) -> None:
    """One was killed in the middle of a part, one begins its part when the table has all items."""
    items = Items(20)
    encoded = items.write(tmp_path / "encoded", [10])
    seen: list[Any] = []

    class Abandoned(LocalRunner):
        def run(self, job: Any, parts: Any) -> Any:
            left = job.out.unfinished(job.out.folder / "part-000000")
            left.mkdir()
            (left / "manifest.json").write_text("{")
            seen.append(job)
            yield from super().run(job, parts)

    index(encoded, tmp_path / "table", Abandoned(), rows=10)
    there = sorted(path.relative_to(tmp_path) for path in (tmp_path / "table").rglob("*"))
    with pytest.raises(StorageError, match="was begun anew, ended or removed"):
        seen[0].do(None, 0, 1)
    after = sorted(path.relative_to(tmp_path) for path in (tmp_path / "table").rglob("*"))
    assert after == there
    assert [path.name for path in there if path.parent.name == "_bulk"] == ["_lock", "_plan.json"]
    with HashTable.open(tmp_path / "table") as table:
        assert contents(table) == model_contents(items.model())


def test_a_worker_whose_place_is_taken_away_while_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part is given to another worker meanwhile, and the work ends."""
    items = Items(20)
    encoded = items.write(tmp_path / "encoded", [10])
    table = tmp_path / "table"
    jobs: list[Any] = []

    class Noting(LocalRunner):
        def run(self, job: Any, parts: Any) -> Any:
            jobs.append(job)
            yield from super().run(job, parts)

    index(encoded, table, Noting(), rows=10)
    there = sorted(table.rglob("*"))
    (job,) = jobs
    scratch = job.out.folder / job.out.scratch

    def read_slowly(*arguments: Any) -> Any:
        shutil.rmtree(scratch)
        return read_columns(*arguments)

    monkeypatch.setattr(building, "read_columns", read_slowly)
    scratch.mkdir()
    with pytest.raises(StorageError, match="No such file"):
        job.do(None, 0, 1)
    assert sorted(table.rglob("*")) == there


def test_unfinished_work_keeps_its_place(tmp_path: Path) -> None:
    encoded = Items(20).write(tmp_path / "encoded", [10])

    class Stopping(LocalRunner):
        def run(self, job: Any, parts: Any) -> Any:
            yield next(iter(super().run(job, parts)))
            raise KeyboardInterrupt

    table = tmp_path / "table"
    with pytest.raises(KeyboardInterrupt, match="10 of 20 rows are done"):
        index(encoded, table, Stopping(), rows=10)
    other = Items(5, seed=2).write(tmp_path / "other", [])
    with pytest.raises(InputError, match="other inputs"):
        index(other, table, LocalRunner())
    found, work = index(encoded, table, LocalRunner(), rows=10)
    assert (found, work.before) == (20, 10)


@pytest.mark.parametrize(
    ("settings_of_table", "words"),
    [
        ({"buckets": BUCKETS + 1, "dim": DIM}, "has buckets=10, but buckets=9"),
        ({"buckets": BUCKETS, "dim": DIM + 1}, "has dim=7, but dim=6"),
        ({"buckets": BUCKETS, "dim": DIM, "ids": "string"}, "has id_kind=string"),
        ({"buckets": BUCKETS, "dim": DIM, "encoder": "xyz"}, "made with encoder 'xyz', not 'abc'"),
    ],
)
def test_a_table_that_does_not_fit(
    tmp_path: Path, settings_of_table: dict[str, Any], words: str
) -> None:
    encoded = Items(5).write(tmp_path / "encoded", [])
    HashTable.create(tmp_path / "table", **settings_of_table).close()
    with pytest.raises(InputError, match=words):
        index(encoded, tmp_path / "table", LocalRunner())
    with HashTable.open(tmp_path / "table", "r+") as table:  # the lock was given back
        assert len(table) == 0


def test_a_table_with_room_for_second_buckets_takes_items_of_one(tmp_path: Path) -> None:
    encoded = Items(5).write(tmp_path / "encoded", [])
    HashTable.create(tmp_path / "table", buckets=BUCKETS, dim=DIM, active=2, encoder="abc").close()
    index(encoded, tmp_path / "table", LocalRunner())
    with HashTable.open(tmp_path / "table") as table:
        assert len(table) == 5
        assert table.stats().mean_active == 1
        assert table.check() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.drop_columns(["embedding"]), "no column embedding, only id, code"),
        (
            lambda table: table.set_column(2, "embedding", pa.array([[0.5]] * 5)),
            r"the column embedding has type list<.*expected lists of a fixed size",
        ),
        (
            lambda table: table.set_column(1, "code", pa.array(range(5))),
            "the column code has type int64; expected lists of a fixed size",
        ),
    ],
)
def test_a_file_that_is_written_anew_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, words: str
) -> None:
    encoded = Items(5).write(tmp_path / "encoded", [])
    [file] = encoded.glob("*.parquet")

    def read_late(*arguments: Any) -> Any:
        pq.write_table(change(pq.read_table(file)), file)
        return read_columns(*arguments)

    monkeypatch.setattr(building, "read_columns", read_late)
    with pytest.raises(InputError, match=rf"{re.escape(str(file))}.*{words}"):
        index(encoded, tmp_path / "table", LocalRunner())


def test_files_of_others(tmp_path: Path) -> None:
    items = Items(9)
    columns = {
        "id": pa.array(items.ids, pa.int32()),
        "code": pa.array(items.codes.tolist(), pa.list_(pa.int64(), 1)),
        "embedding": pa.array(items.embeddings.tolist(), pa.list_(pa.float64(), DIM)),
    }
    path = tmp_path / "own.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(InputError, match=r"give TableChoices\(buckets=...\)") as error:
        index(path, tmp_path / "table", LocalRunner())
    assert in_words(error.value).endswith("give --buckets BUCKETS")
    index(
        path,
        tmp_path / "table",
        LocalRunner(),
        TableChoices(metric="cosine", dtype="float16", buckets=BUCKETS),
    )
    with HashTable.open(tmp_path / "table") as table:
        assert (table.metric, table.dtype, len(table), table.encoder) == (
            "cosine", "float16", 9, None,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": ["a", None]}, "rows have no id"),
        ({"id": [1.5, 2.5]}, "expected whole numbers or strings"),
        ({"code": [[0], [99]]}, "different buckets"),
        ({"payload": ["{}", "{"]}, "payload is not JSON"),
        ({"embedding": [[1.0] * DIM, [float("nan")] * DIM]}, "must be finite"),
        ({"embedding": None}, "no column embedding"),
    ],
)
def test_rows_that_cannot_be(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    columns: dict[str, Any] = {
        "id": [0, 1], "code": [[0], [1]], "embedding": [[1.0] * DIM] * 2, "payload": [None, "{}"],
    }  # fmt: skip
    kinds = {"code": pa.list_(pa.int32(), 1), "embedding": pa.list_(pa.float32(), DIM)}
    columns = {name: value for name, value in {**columns, **change}.items() if value is not None}
    arrays = {name: pa.array(value, kinds.get(name)) for name, value in columns.items()}
    pq.write_table(pa.table(arrays), tmp_path / "own.parquet")
    with pytest.raises(InputError, match=words):
        index(tmp_path / "own.parquet", tmp_path / "table", LocalRunner(), TableChoices(buckets=4))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    encoded = Items(20).write(tmp_path / "encoded", [10])
    path = encoded / "part-000001.parquet"
    whole = bytearray(path.read_bytes())
    whole[30] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DamagedFileError, match=r"part-000001\.parquet cannot be read"):
        index(encoded, tmp_path / "table", LocalRunner())
    path.write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"part-000001\.parquet"):
        index(encoded, tmp_path / "table", LocalRunner())
    path.unlink()
    (encoded / "part-000000.parquet").unlink()
    with pytest.raises(InputError, match="no parquet files"):
        index(encoded, tmp_path / "table", LocalRunner())


def test_files_that_do_not_fit_each_other(tmp_path: Path) -> None:
    encoded = Items(20, 2).write(tmp_path / "encoded", [10])
    Items(5, 1).write(tmp_path / "other", [])
    (tmp_path / "other" / "part-000000.parquet").rename(encoded / "part-000007.parquet")
    with pytest.raises(InputError, match=r"part-000007\.parquet does not fit"):
        index(encoded, tmp_path / "table", LocalRunner())


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    encoded = Items(20).write(tmp_path / "encoded", [10])
    table = make_table(tmp_path / "table", Items(3), [], encoder="abc")
    with HashTable.open(table, "r+"), pytest.raises(LockedTableError):
        index(encoded, table, LocalRunner())


def test_adopting_takes_nothing_from_a_table_that_differs(tmp_path: Path) -> None:
    one = make_table(tmp_path / "one", Items(5), [])
    other = make_table(tmp_path / "other", Items(5), [], metric="cosine")
    with HashTable.open(one, "r+") as table:
        with pytest.raises(InputError, match="other settings"):
            table.adopt([other])
        with pytest.raises(StorageError):
            table.adopt([tmp_path / "nothing"])
        assert len(table) == 5
    assert folder_faults(one) == []
    memory = HashTable.create(buckets=BUCKETS, dim=DIM)
    with pytest.raises(InputError, match="in memory"):
        memory.adopt([one])


def test_adopting_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    index(Items(20).write(tmp_path / "encoded", [10]), tmp_path / "table", LocalRunner(), rows=5)
    assert folder_faults(tmp_path / "table") == []
    with HashTable.open(tmp_path / "table") as table:
        assert contents(table) == model_contents(Items(20).model())
