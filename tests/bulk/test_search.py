"""Bulk search and bulk neighbours in one process, against brute force."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from flowhash.bulk import (
    LocalRunner,
    neighbours,
    read_answers,
    search,
    work_folder as work_module,
)
from flowhash.bulk.parquet_files import matrix
from flowhash.errors import DamagedFileError, InputError, StorageError
from flowhash.table import HashTable
from flowhash.table.segments.segment import LiveSegment
from tests.bulk.builders import (
    BUCKETS,
    DIM,
    Items,
    content_of,
    make_table,
    random_order,
    wrong_answers,
)
from tests.table.oracles import Model, brute_force, differences, shortened


def queries_of(count: int, width: int, seed: int = 5) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return random_order(random, count, width), random.normal(size=(count, DIM)).astype(np.float32)


@settings(max_examples=40)
@given(
    count=st.integers(1, 60), asked=st.integers(1, 40), active=st.integers(1, 3),
    ids=st.sampled_from(["int64", "string"]), dtype=st.sampled_from(["float32", "float16"]),
    metric=st.sampled_from(["euclidean", "cosine", "inner"]), top=st.integers(1, 12),
    extra=st.integers(0, 3), rows=st.integers(5, 50), seed=st.integers(0, 100),
)  # fmt: skip
def test_answers_are_those_of_brute_force(
    tmp_path_factory: pytest.TempPathFactory, count: int, asked: int, active: int, ids: str,
    dtype: str, metric: str, top: int, extra: int, rows: int, seed: int,
) -> None:  # fmt: skip
    tmp_path = tmp_path_factory.mktemp("search")
    items = Items(count, active, ids, seed)
    make_table(tmp_path / "table", items, [count // 2], dtype=dtype, metric=metric)
    order, queries = queries_of(asked, active + extra, seed)
    np.savez(tmp_path / "queries.npz", buckets=order, embeddings=queries)
    probe = active + extra
    search(
        tmp_path / "table", tmp_path / "queries.npz", tmp_path / "out", LocalRunner(), top=top,
        probe=probe, rows=rows,
    )  # fmt: skip
    model = items.model(dtype)
    assert not wrong_answers(tmp_path / "out", model, order, queries, top, probe, metric)


@settings(max_examples=40)
@given(
    count=st.integers(1, 60), active=st.integers(1, 3), ids=st.sampled_from(["int64", "string"]),
    metric=st.sampled_from(["euclidean", "cosine", "inner"]), top=st.integers(1, 12),
    rows=st.integers(5, 50), same=st.booleans(), short=st.booleans(), seed=st.integers(0, 100),
)  # fmt: skip
def test_neighbours_are_those_of_brute_force(
    tmp_path_factory: pytest.TempPathFactory, count: int, active: int, ids: str, metric: str,
    top: int, rows: int, same: bool, short: bool, seed: int,
) -> None:  # fmt: skip
    tmp_path = tmp_path_factory.mktemp("join")
    items = Items(count, active, ids, seed)
    if same:  # many items at distance zero: one is not always the first of its own hits
        items.embeddings[:] = items.embeddings[np.arange(count) % 2]
    if short:
        items.codes = shortened(np.random.default_rng(seed), items.codes)
    make_table(tmp_path / "table", items, [count // 3, count // 2], metric=metric)
    with HashTable.open(tmp_path / "table", "r+") as table:
        table.delete(items.ids[::7][1:])
    model: Model = items.model()
    for gone in items.ids[::7][1:]:
        del model[gone]
    neighbours(tmp_path / "table", tmp_path / "out", LocalRunner(), top=top, rows=rows)
    found = read_answers(tmp_path / "out")
    assert found.queries is not None
    assert sorted(found.queries.tolist()) == sorted(model)
    for place, name in enumerate(found.queries.tolist()):
        others = {other: item for other, item in model.items() if other != name}
        order = np.array([sorted(model[name].code)])
        answer = brute_force(
            others, order, model[name].embedding[None], top, metric=metric, probe=active
        )
        hits = found.hits
        line = type(hits)(*(
            getattr(hits, field)[place : place + 1]
            for field in ("ids", "distances", "counts", "scanned", "opened")
        ))  # fmt: skip
        if others:
            assert not differences(line, answer)
        else:
            assert line.counts.tolist() == [0]


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_encoded_files_are_queries_and_keep_their_ids(tmp_path: Path, ids: str) -> None:
    items, asked = Items(50, 2), Items(31, 2, ids, seed=1)
    make_table(tmp_path / "table", items, [])
    asked.write(tmp_path / "queries", [5, 5, 20])  # one of the files is empty
    done = search(
        tmp_path / "table", tmp_path / "queries", tmp_path / "out", LocalRunner(), top=4, rows=8
    )
    assert (done.plan.rows, len(done.plan.sizes)) == (31, 4)
    order = asked.codes
    assert not wrong_answers(
        tmp_path / "out", items.model(), order, asked.embeddings, 4, 2, "euclidean"
    )
    found = read_answers(tmp_path / "out")
    assert found.queries is not None
    assert found.queries.tolist() == asked.ids
    # Any reader of parquet sees the same, in the order of the rows once it has sorted them.
    lines = sorted(content_of(tmp_path / "out"), key=lambda line: line["row"])
    assert [line["query"] for line in lines] == asked.ids
    assert [len(line["ids"]) for line in lines] == found.hits.counts.tolist()
    frame = polars.read_parquet(tmp_path / "out" / "*.parquet").sort("row")
    assert frame["scanned"].to_list() == found.hits.scanned.tolist()


def test_a_part_has_few_buckets(tmp_path: Path) -> None:
    make_table(tmp_path / "table", Items(50), [])
    order, queries = queries_of(90, 1)
    np.savez(tmp_path / "queries.npz", buckets=order, embeddings=queries)
    search(tmp_path / "table", tmp_path / "queries.npz", tmp_path / "out", LocalRunner(), rows=10)
    seen = 0
    for path in sorted((tmp_path / "out").glob("*.parquet")):
        rows = pq.read_table(path)["row"].to_numpy()
        assert (np.diff(rows) > 0).all()
        seen += len(np.unique(order[rows, 0]))
    assert seen <= BUCKETS + 9 - 1  # each bucket once, and once more at the edge of a part


def prepared(tmp_path: Path) -> tuple[Path, Path, Path]:
    make_table(tmp_path / "table", Items(40), [])
    order, queries = queries_of(30, 1)
    np.savez(tmp_path / "queries.npz", buckets=order, embeddings=queries)
    return tmp_path / "table", tmp_path / "queries.npz", tmp_path / "out"


class Stopping(LocalRunner):
    """Is interrupted after some parts."""

    def __init__(self, parts: int) -> None:
        self.parts, self.done = parts, 0

    def run(self, job: Any, parts: Any) -> Any:
        for done in super().run(job, parts):
            if self.done == self.parts:
                raise KeyboardInterrupt
            self.done += 1
            yield done


class Abandoned(LocalRunner):
    """Has workers that were given up: one dead, one at work for longer than the job.

    Attributes:
        late: what the living one does after the end.
    """

    def __init__(self) -> None:
        self.late = contextlib.ExitStack()
        self.place: Any = None

    def run(self, job: Any, parts: Any) -> Any:
        self.place = job.out
        path = job.out.folder / "part-000001.parquet"
        job.out.unfinished(path).write_bytes(b"of a worker that was killed before it was named")
        self.living = self.late.enter_context(job.out.new_file(path))
        self.living.write_bytes(b"half of a part")
        yield from super().run(job, parts)


def test_workers_that_were_given_up_leave_nothing(tmp_path: Path) -> None:
    table, queries, out = prepared(tmp_path)
    runner = Abandoned()
    search(table, queries, out, runner, rows=10)
    whole = {path.name: path.read_bytes() for path in out.iterdir()}
    assert sorted(whole) == ["_lock", "_plan.json", *(f"part-00000{n}.parquet" for n in range(3))]
    with pytest.raises(StorageError, match=r"No such file|was begun anew, ended or removed"):
        runner.late.close()  # its part is written now, and would be named
    # One that has not begun to write.
    path = out / "part-000001.parquet"
    with (
        pytest.raises(StorageError, match=r"No such file|was begun anew, ended or removed"),
        runner.place.new_file(path) as unfinished,
    ):
        unfinished.write_bytes(b"whole")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
    # What a driver leaves that was killed is removed by the next one, also of finished work.
    (out / ".parts-000000000000").mkdir()
    (out / ".parts-000000000000" / "part-000001.parquet.abc").write_bytes(b"half")
    search(table, queries, out, LocalRunner(), rows=10)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == whole


def test_plans_that_are_none(tmp_path: Path) -> None:
    """Whatever a plan holds, or is, ends in one line that names it."""
    table, queries, out = prepared(tmp_path)
    search(table, queries, out, LocalRunner(), rows=10)
    path = out / "_plan.json"
    plan = json.loads(path.read_bytes())
    other: dict[str, list[Any]] = {
        "sizes": ["x", 5, [-1], [10**30], [1e308], [True], None], "settings": [5, [], None, {}],
        "inputs": [5, [1]], "command": [[], 5], "token": [5, None], "finished": ["x", 1],
        "version": ["x", None], "more": [1], "a\n\x1b[2J": [1],
    }  # fmt: skip
    texts = ["5", "null", "[]", "{}", "[" * 60_000, '{"a":' * 60_000, '{"version": 1' + "0" * 5000]
    texts += [json.dumps({**plan, name: value}) for name in other for value in other[name]]
    texts += [json.dumps({**plan, "settings": {**plan["settings"], "top": "x"}})]
    for text in texts:
        path.write_text(text)
        for use in (lambda: search(table, queries, out, LocalRunner()), lambda: read_answers(out)):
            with pytest.raises(DamagedFileError, match=r"_plan\.json is damaged") as raised:
                use()
            assert len(str(raised.value)) < 600
            assert str(raised.value).isprintable()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DamagedFileError, match="it is no file"):
        search(table, queries, out, LocalRunner())
    path.unlink()
    path.write_text(json.dumps(plan))
    (out / "_lock").unlink()
    os.mkfifo(out / "_lock")
    with pytest.raises(StorageError, match="_lock is no file"):
        search(table, queries, out, LocalRunner())
    part = out / "part-000001.parquet"
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(DamagedFileError, match=r"part-000001\.parquet is no file"):
        read_answers(out)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, StorageError])
def test_nothing_is_left_by_work_that_stops(tmp_path: Path, stop: type[BaseException]) -> None:
    table, queries, out = prepared(tmp_path)

    class Stopped(Abandoned):
        def run(self, job: Any, parts: Any) -> Any:
            for done in super().run(job, parts):
                yield done
                raise stop("enough")

    with pytest.raises(stop):
        search(table, queries, out, Stopped(), rows=10)
    names = {path.name for path in out.iterdir()}
    assert names == {"_lock", "_plan.json", "_queries", "part-000000.parquet"}


def test_the_same_command_goes_on(tmp_path: Path) -> None:
    table, queries, out = prepared(tmp_path)
    with pytest.raises(KeyboardInterrupt, match="20 of 30 rows are done"):
        search(table, queries, out, Stopping(2), rows=10)
    with pytest.raises(StorageError, match="not finished"):
        read_answers(out)
    (out / "part-000001.parquet").unlink(missing_ok=True)
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    (out / ".part-000002.parquet.abc").write_bytes(b"left by a worker that was killed")
    work = search(table, queries, out, LocalRunner(), rows=10)
    assert work.before == 10 * len(times)
    assert times.items() <= {p.name: p.stat().st_mtime_ns for p in out.glob("*.parquet")}.items()
    assert not list(out.glob(".part*"))
    # Once more: nothing is left to do.
    assert search(table, queries, out, LocalRunner(), rows=10).before == 30
    expected = tmp_path / "expected"
    search(table, queries, expected, LocalRunner())
    for name in ("ids", "distances", "counts", "scanned"):
        one, other = (getattr(read_answers(place).hits, name) for place in (out, expected))
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"top": 3}, "other settings .top: 10 there, 3 now"),
        ({"rows": 7}, "cut into other parts"),
        ({"table": "changed"}, "other inputs .table"),
        ({"queries": "changed"}, "other inputs .queries"),
    ],
)
def test_a_folder_with_other_work_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    table, queries, out = prepared(tmp_path)
    search(table, queries, out, LocalRunner(), rows=10)
    options = {"rows": 10, **{name: change[name] for name in change if name in ("top", "rows")}}
    if "table" in change:
        with HashTable.open(table, "r+") as opened:
            opened.delete([3])
    if "queries" in change:
        order, vectors = queries_of(30, 1, seed=9)
        np.savez(queries, buckets=order, embeddings=vectors)
    with pytest.raises(InputError, match=words):
        search(table, queries, out, LocalRunner(), **options)
    work = search(table, queries, out, LocalRunner(), **options, restart=True)
    assert work.before == 0
    assert len(read_answers(out).hits) == 30


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    table, queries, out = prepared(tmp_path)
    out.mkdir()
    (out / "letter.txt").write_text("mine")
    for restart in (False, True):
        with pytest.raises(InputError, match="holds other things"):
            search(table, queries, out, LocalRunner(), restart=restart)
    assert (out / "letter.txt").read_text() == "mine"
    (out / "letter.txt").unlink()
    neighbours(table, out, LocalRunner())
    with pytest.raises(InputError, match="the work of `flowhash bulk neighbours`"):
        search(table, queries, out, LocalRunner())


@pytest.mark.parametrize("restart", [False, True])
def test_killed_while_old_work_is_removed(
    tmp_path: Path, restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, queries, out = prepared(tmp_path)
    search(table, queries, out, LocalRunner(), rows=10)

    def die(path: Path) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(work_module, "_remove", die)
        with pytest.raises(SystemExit):
            search(table, queries, out, LocalRunner(), top=3, restart=True)
    assert len(list(out.glob("*.parquet"))) == 3
    work = search(table, queries, out, LocalRunner(), top=3, restart=restart)
    assert work.before == 0
    assert read_answers(out).hits.ids.shape == (30, 3)
    assert {path.name for path in out.iterdir()} == {
        "_lock", "_plan.json", "part-000000.parquet",
    }  # fmt: skip


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    table, queries, out = prepared(tmp_path)
    out.write_text("mine")
    for restart in (False, True):
        with pytest.raises(InputError, match="is a file; give a new or empty folder"):
            search(table, queries, out, LocalRunner(), restart=restart)
    assert out.read_text() == "mine"


def test_a_worker_that_outlives_its_driver(tmp_path: Path) -> None:
    table, queries, out = prepared(tmp_path)
    jobs: list[Any] = []

    class Late(LocalRunner):
        def run(self, job: Any, parts: Any) -> Any:
            jobs.append(job)
            if len(jobs) == 1:
                raise KeyboardInterrupt
            with pytest.raises(StorageError, match="was begun anew, ended or removed"):
                jobs[0].do(jobs[0].open(), 0, None)
            assert not list(out.rglob("part-*"))
            yield from super().run(job, parts)

    runner = Late()
    with pytest.raises(KeyboardInterrupt):
        search(table, queries, out, runner, rows=10)
    search(table, queries, out, runner, rows=15, restart=True)
    assert len(read_answers(out).hits) == 30


@pytest.mark.parametrize("ids", [[2**60 + 1, None, 5], ["a", None, "c"]])
def test_queries_without_some_ids(tmp_path: Path, ids: list[Any]) -> None:
    table, _, out = prepared(tmp_path)
    path = Items(3).write(tmp_path / "asked", []) / "part-000000.parquet"
    whole = pq.read_table(path)
    pq.write_table(whole.set_column(0, "id", pa.array(ids)), path)
    with pytest.raises(InputError, match="1 queries have no id"):
        search(table, path, out, LocalRunner())


def test_one_long_id_is_kept_alone(tmp_path: Path) -> None:
    table, _, out = prepared(tmp_path)
    asked = Items(50, ids="string")
    asked.ids[3:6] = ["ä" * 20_000, "", "nul \0 at the end \0"]
    asked.write(tmp_path / "asked", [5, 5])
    sizes: list[int] = []

    class Looking(LocalRunner):
        def run(self, job: Any, parts: Any) -> Any:
            yield from super().run(job, parts)
            sizes.append(sum(file.stat().st_size for file in out.glob("_queries/*.npz")))

    search(table, tmp_path / "asked", out, Looking(), rows=20)
    assert 40_000 < sizes[0] < 60_000  # and not for each of them
    found = read_answers(out).queries
    assert found is not None
    assert found.tolist() == asked.ids


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), deleted=st.sets(st.integers(0, 35)),
    first=st.integers(0, 40), count=st.integers(0, 20),
)  # fmt: skip
def test_items_by_their_place(sizes: list[int], deleted: set[int], first: int, count: int) -> None:
    items = Items(sum(sizes), 2)
    with HashTable.create(buckets=BUCKETS, dim=DIM, active=2) as table:
        items.add_to(table, np.cumsum(sizes)[:-1].tolist())
        table.delete([number for number in deleted if number < len(items.ids)])
        everything = [name for piece in table.stored_between(0, 99) for name in piece.ids.tolist()]
        assert sorted(everything) == sorted(set(items.ids) - deleted)
        found = [
            (name, vector)
            for piece in table.stored_between(first, first + count)
            for name, vector in zip(piece.ids.tolist(), piece.embeddings, strict=True)
        ]
    assert [name for name, _ in found] == everything[first : first + count]
    assert all(np.array_equal(vector, items.embeddings[name]) for name, vector in found)


def test_segments_outside_the_range_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with HashTable.create(buckets=BUCKETS, dim=DIM) as table:
        Items(40).add_to(table, [10])  # segments of 10 and 30
        table.delete([3])
        whole: list[int] = []
        real = LiveSegment.live_rows

        def looked(part: LiveSegment) -> Any:
            whole.append(part.live)
            return real(part)

        monkeypatch.setattr(LiveSegment, "live_rows", looked)
        for first in range(0, 39, 13):
            list(table.stored_between(first, first + 13))
        assert whole == [9]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"buckets": np.zeros((0, 1), int), "embeddings": np.zeros((0, DIM))}, "no queries"),
        ({"buckets": np.zeros((2, 1), int), "embeddings": np.zeros((2, DIM + 1))}, "has dim=6"),
        ({"buckets": np.zeros((2, 1), int), "embeddings": np.zeros((3, DIM))}, "expected numbers"),
        ({"buckets": np.zeros(2, int), "embeddings": np.zeros((2, DIM))}, "expected whole"),
        ({"embeddings": np.zeros((2, DIM))}, "expected the arrays buckets and embeddings"),
        ({"buckets": np.full((2, 1), 99), "embeddings": np.zeros((2, DIM))}, "different buckets"),
    ],
)
def test_queries_that_do_not_fit(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    table, queries, out = prepared(tmp_path)
    np.savez(queries, **arrays)
    with pytest.raises(InputError, match=words):
        search(table, queries, out, LocalRunner())
    assert not out.exists() or "buckets" in words  # what is in the arrays is seen by the kernels


def test_encoded_queries_that_do_not_fit(tmp_path: Path) -> None:
    table, _, out = prepared(tmp_path)
    with HashTable.create(tmp_path / "other", buckets=BUCKETS, dim=DIM, encoder="xyz") as other:
        Items(3).add_to(other, [])
    queries = Items(5).write(tmp_path / "queries", [2])
    with pytest.raises(InputError, match="made with encoder 'xyz', not 'abc'"):
        search(tmp_path / "other", queries, out, LocalRunner())
    Items(5).write(tmp_path / "queries", [2], {"encoder": "abc", "buckets": 77})
    with pytest.raises(InputError, match="77 buckets"):
        search(table, queries, out, LocalRunner())
    with pytest.raises(InputError, match=r"probe is 2, .* encode the queries with probe=2"):
        search(
            table, Items(5).write(tmp_path / "again", []), tmp_path / "o2", LocalRunner(), probe=2
        )
    with pytest.raises(InputError, match=f"probe is 1000, and the table has {BUCKETS} buckets"):
        search(table, tmp_path / "again", tmp_path / "o2", LocalRunner(), probe=1000)
    with pytest.raises(InputError, match="does not exist"):
        search(table, tmp_path / "nothing", tmp_path / "o3", LocalRunner())
    assert not (tmp_path / "o3").exists()


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    table, queries, out = prepared(tmp_path)
    search(table, queries, out, LocalRunner(), rows=10)
    path = out / "part-000001.parquet"
    whole = bytearray(path.read_bytes())
    whole[40] ^= 1  # in the first page
    path.write_bytes(whole)
    with pytest.raises(DamagedFileError, match=r"part-000001\.parquet cannot be read"):
        read_answers(out)
    path.write_bytes(whole[:100])
    with pytest.raises(DamagedFileError, match=r"part-000001\.parquet"):
        read_answers(out)
    path.unlink()
    search(table, queries, out, LocalRunner(), rows=10)
    assert len(read_answers(out).hits) == 30


def test_a_table_that_changes_meanwhile(tmp_path: Path) -> None:
    table, queries, out = prepared(tmp_path)

    class Changing(LocalRunner):
        def run(self, job: Any, parts: Any) -> Any:
            with HashTable.open(table, "r+") as opened:
                opened.delete([1])
            yield from super().run(job, parts)

    with pytest.raises(StorageError, match="was changed while it was searched"):
        search(table, queries, out, Changing())


def calibrated_table(folder: Path, count: int = 600) -> tuple[Any, Any]:
    """A table in the folder whose recall is calibrated; activations and embeddings of queries."""
    random = np.random.default_rng(0)
    middles = random.normal(size=(BUCKETS, DIM))

    def drawn(number: int) -> tuple[Any, Any]:
        near = middles[random.integers(0, BUCKETS, number)]
        vectors = (near + 0.6 * random.normal(size=(number, DIM))).astype(np.float32)
        outputs = 2 * (vectors @ middles.T - np.square(middles).sum(axis=1) / 2)
        return outputs.astype(np.float32), vectors

    with HashTable.create(folder / "table", buckets=BUCKETS, dim=DIM) as table:
        activations, vectors = drawn(count)
        table.add(activations.argmax(axis=1)[:, None], vectors)
        table.calibrate(*drawn(300), tops=(5,))
    return drawn(100)


def test_a_recall_opens_what_the_table_opens_for_it(tmp_path: Path) -> None:
    activations, queries = calibrated_table(tmp_path)
    np.savez(tmp_path / "queries.npz", activations=activations, embeddings=queries)
    files = tmp_path / "encoded"
    files.mkdir()
    pq.write_table(
        pa.table({"activations": matrix(activations), "embedding": matrix(queries)}),
        files / "part-000000.parquet",
    )
    with HashTable.open(tmp_path / "table") as table:
        expected = table.search(activations, queries, 5, recall=0.95)
    assert len(set(expected.opened.tolist())) > 1
    for place in (tmp_path / "queries.npz", files):
        out = tmp_path / f"of {place.name}"
        search(tmp_path / "table", place, out, LocalRunner(), top=5, recall=0.95, rows=30)
        hits = read_answers(out).hits
        for name in ("ids", "distances", "counts", "scanned", "opened"):
            np.testing.assert_array_equal(getattr(hits, name), getattr(expected, name))
        assert hits.recall == 0.95
    with pytest.raises(InputError, match=r"recall: 0\.95 there, 0\.9 now"):
        search(tmp_path / "table", place, out, LocalRunner(), top=5, recall=0.9, rows=30)


def test_a_recall_that_cannot_be_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    activations, queries = calibrated_table(tmp_path)
    good, out = tmp_path / "queries.npz", tmp_path / "out"
    np.savez(good, activations=activations, embeddings=queries)
    order = tmp_path / "order.npz"
    np.savez(order, buckets=np.zeros((100, 1), np.int32), embeddings=queries)
    narrow = tmp_path / "narrow.npz"
    np.savez(narrow, activations=activations[:, :4], embeddings=queries)
    make_table(tmp_path / "never", Items(50), [])
    asked = Items(9, 1).write(tmp_path / "encoded", [])
    for table, place, words, options in (
        ("never", good, "never calibrated", {"recall": 0.9}),
        ("table", good, "together with probe", {"recall": 0.9, "probe": 2}),
        ("table", good, "above 0, up to 1", {"recall": 1.5}),
        ("table", good, "up to 5 neighbours", {"recall": 0.9, "top": 6}),
        ("table", order, "arrays activations and", {"recall": 0.9}),
        ("table", asked, "no activations", {"recall": 0.9}),
        ("table", narrow, "4 activations each", {"recall": 0.9}),
        ("table", good, "arrays buckets and", {}),
    ):
        with pytest.raises(InputError, match=words):
            search(tmp_path / table, place, out, LocalRunner(), **{"top": 5, **options})
        assert not out.exists()
