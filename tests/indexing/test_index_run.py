"""Rows are stored once, wherever a run is killed, and however many run at once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.data import open_collection
from flowhash.engines import open_any
from flowhash.errors import DamagedFileError
from flowhash.indexing import IndexRun, TableNotes
from flowhash.table import HashTable
from tests.engines.servers import Postgres, removed
from tests.indexing.dying import SIZES, CountedEncoder, rows_file, run

SCRIPT = Path(__file__).with_name("dying.py")


class Dying:
    """The process whose children index, and are killed."""

    def __init__(self) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip

    def index(self, place: str, rows: Path, size: int, log: Path, die: int = 0) -> int:
        order = {"place": place, "rows": str(rows), "size": size, "log": str(log), "die": die}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
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


def stored(place: str) -> tuple[list[int], list[int]]:
    """The ids, and the rows that are stored, as their embeddings tell; both sorted."""
    with open_any(place) as table:
        parts = list(table.batches())
    ids = [item for part in parts for item in part.ids.tolist()]
    return sorted(ids), sorted(int(row) for part in parts for row in part.embeddings[:, 0])


def noted(place: str) -> list[int]:
    """How far the sources are."""
    with open_any(place) as table:
        return [record["done"] for record in TableNotes(table).sources().values()]


def encoded(log: Path) -> Counter[int]:
    """How often each row was encoded."""
    return Counter(map(int, log.read_text().split())) if log.exists() else Counter()


def killed_everywhere(
    dying: Dying, folder: Path, places: Iterator[str], count: int, size: int, step: int = 1
) -> int:
    """Kill a run at every moment there is; what is left, and what the same command makes of it."""
    rows = rows_file(folder, count)
    moment = 1
    for place in places:
        log = folder / f"log{moment}"
        code = dying.index(place, rows, size, log, moment)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        lost = sum(encoded(log).values())
        try:
            ids, found = stored(place)
        except OSError:  # killed before there was a table
            found = []
        else:
            assert found == ids == list(range(len(found)))
            assert len(found) % size == 0 or len(found) == count
            assert noted(place) == ([len(found)] if found else [])
        assert lost - len(found) in (0, min(size, count - len(found)))
        assert dying.index(place, rows, size, log) == 0
        assert stored(place) == (list(range(count)), list(range(count)))
        assert noted(place) == [count]
        times = encoded(log)
        assert times.keys() == set(range(count))
        # Only what was encoded and not stored is encoded again, and only once.
        assert {row for row, often in times.items() if often > 1} == set(range(len(found), lost))
        assert max(times.values()) <= 2
        moment += step
    assert stored(place) == (list(range(count)), list(range(count)))
    return moment


def test_killed_at_every_flush(dying: Dying, tmp_path: Path) -> None:
    """With merges of segments in between: eight of a size become one."""
    places = (str(tmp_path / f"table{number}") for number in range(1000))
    assert killed_everywhere(dying, tmp_path, places, count=27, size=3) > 27


def test_killed_at_many_words_to_postgres(dying: Dying, tmp_path: Path, postgres: Postgres) -> None:
    """At every third, half of them before it and half after it."""
    with contextlib.ExitStack() as made:
        places = (
            made.enter_context(removed(postgres.address(f"killed_{number}")))
            for number in range(1000)
        )
        assert killed_everywhere(dying, tmp_path, places, count=7, size=3, step=3) > 20


def test_two_processes_store_rows_once(tmp_path: Path, postgres_address: str) -> None:
    """They begin at once, before there is a table, and each skips what the other has stored."""
    count = 400
    rows = rows_file(tmp_path, count)
    code = (
        "import sys; from pathlib import Path; from tests.indexing.dying import run;"
        "print('ready', flush=True); sys.stdin.readline();"
        "print(run(sys.argv[1], Path(sys.argv[2]), 5, Path(sys.argv[3])), flush=True)"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, postgres_address, str(rows), str(tmp_path / f"log{one}")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ),
        )
        for one in range(2)
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:  # on your marks
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    added = [int(one) for one in said]
    assert sum(added) == count
    assert stored(postgres_address) == (list(range(count)), list(range(count)))
    assert noted(postgres_address) == [count]
    # Both were at work at the same time, or this tells nothing.
    both = encoded(tmp_path / "log0") & encoded(tmp_path / "log1")
    assert sum(both.values()) > 0


def indexing(table: Any, rows: Path, log: Path, again: bool = False) -> IndexRun:
    encoder: Any = CountedEncoder(log)
    return IndexRun(table, encoder, open_collection(rows), [str(rows)], True, again)


def test_what_another_run_stored_meanwhile_is_skipped(tmp_path: Path) -> None:
    rows, log = rows_file(tmp_path, 20), tmp_path / "log"
    with HashTable.create(tmp_path / "table", **SIZES) as table:
        first, second = indexing(table, rows, log), indexing(table, rows, log)
        parts, others = first._parts(3, "cpu"), second._parts(4, "cpu")
        for mine in (parts, others, parts, parts, others, others):
            next(mine)
        assert first.run(3, "cpu") + second.run(4, "cpu") == 20
        assert sorted(table) == list(range(20))
        found = sorted(int(row) for part in table.batches() for row in part.embeddings[:, 0])
        assert found == list(range(20))
        assert indexing(table, rows, log).finished
        assert indexing(table, rows, log, again=True).run(7, "cpu") == 20
        assert len(table) == 40


def of_an_earlier_version(folder: Path, done: int, **more: Any) -> tuple[Path, Path]:
    """A table with some rows and the file that earlier versions kept beside it."""
    rows = rows_file(folder, 20)
    with HashTable.create(folder / "table", **SIZES) as table:
        note = indexing(table, rows, folder / "log").note
        values = np.load(rows)[:done]
        table.add(values[:, :1].astype(int) % 4, values, encoder="counted")
    record = {"done": done, "first": 0, "finished": done == 20, "batch": 5, "ids": [[0, done - 1]]}
    path = folder / "table" / f"{note}.json"
    path.write_text(json.dumps({**record, **more}))
    return rows, path


@pytest.mark.parametrize("done", [7, 20])
def test_the_file_of_an_earlier_version_is_taken_over(tmp_path: Path, done: int) -> None:
    rows, path = of_an_earlier_version(tmp_path, done)
    place, log = str(tmp_path / "table"), tmp_path / "log"
    assert noted(place) == [done]
    assert run(place, rows, 6, log) == 20 - done
    assert sorted(encoded(log)) == list(range(done, 20))
    assert stored(place)[1] == list(range(20))
    assert noted(place) == [20]
    assert path.exists() == (done == 20)  # where nothing was committed, nothing was taken over
    assert run(place, rows, 6, log) == 0
    path.write_text("{")  # the table's own note is the truth by now
    if done == 7:
        assert run(place, rows, 6, log) == 0


def test_a_damaged_file_of_an_earlier_version_is_named(tmp_path: Path) -> None:
    rows, path = of_an_earlier_version(tmp_path, 7, crc32=5)
    place, log = str(tmp_path / "table"), tmp_path / "log"
    for _ in range(2):
        with pytest.raises(DamagedFileError, match=r"index-.*\.json is damaged .*again=True"):
            run(place, rows, 6, log)
        path.write_text("7")
    assert len(stored(place)[0]) == 7
    assert run(place, rows, 6, log, again=True) == 20
    assert len(stored(place)[0]) == 27
    assert not path.exists()


def test_a_damaged_note_is_named(tmp_path: Path) -> None:
    rows, log = rows_file(tmp_path, 20), tmp_path / "log"
    place = str(tmp_path / "table")
    run(place, rows, 6, log)
    with HashTable.open(place, "r+") as table:
        (name,) = table.notes()
        for wrong in (5, {}, {"done": -1}, {"done": 21}, {"done": "x"}, {"done": 7, "crc32": 1}):
            table.note(name, wrong)
            with pytest.raises(DamagedFileError, match=rf"table: the note {name} is damaged"):
                indexing(table, rows, log)
            assert not indexing(table, rows, log, again=True).done
        assert indexing(table, rows, log, again=True).run(6, "cpu") == 20
        assert indexing(table, rows, log).finished
