"""A table carried over fork(): it has one writer, and everybody may search it.

All of it happens in one process of its own, which has no threads but those of the tables: pytest's
process has others, and whoever forks such a process may find locks that nobody gives back.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.errors import LockedTableError, StorageError
from flowhash.table import HashTable
from flowhash.table.storage.table_folder import TableFolder
from tests.table.process import in_a_process

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
BUCKETS, DIM = 16, 8


def items(count: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.integers(BUCKETS, size=(count, 1)), rng.normal(size=(count, DIM))


def create(path: Path | None, count: int = 1000) -> HashTable:
    table = HashTable.create(path, buckets=BUCKETS, dim=DIM)
    table.add(*items(count, 0))
    return table


def in_a_fork(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a forked process, or the error that it raised, in words."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer: Any = work()
        except BaseException:
            answer = traceback.format_exc()
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        answer = json.loads(file.read())
    assert os.waitpid(child, 0)[1] == 0
    return answer


def refusal(change: Callable[[], Any]) -> str:
    """The words with which a change is refused, or "" if it is not."""
    try:
        change()
    except LockedTableError as error:
        return str(error)
    return ""


def adds_in_both(folder: Path) -> dict[str, Any]:
    """The child adds eight items one by one, the parent one more: what of them is stored?"""
    path = folder / "adds in both"
    with create(path) as table:
        few = [items(1, 1 + number) for number in range(8)]
        refused = in_a_fork(lambda: [refusal(lambda one=one: table.add(*one)) for one in few])
        table.add(*items(1, 9))
    with HashTable.open(path) as table:
        return {
            "parent": os.getpid(),
            "refused": refused,
            "acknowledged": 1001 + refused.count(""),
            "stored": len(table),
            "faults": table.check(),
        }


def every_change(folder: Path) -> dict[str, Any]:
    """What a child may not do to a stored table, and what it may do to one in memory."""
    path, other = folder / "every change", folder / "other"
    create(other, 10).close()
    table, memory = create(path), create(None)
    changes: dict[str, Callable[[HashTable], Any]] = {
        "add": lambda one: one.add(*items(3, 1)),
        "delete": lambda one: one.delete([0, 1]),
        "del": lambda one: one.__delitem__(5),
        "compact": lambda one: one.compact(),
        "adopt": lambda one: one.adopt([other]),
        "tidy": HashTable.merge_segments,
        "recode": lambda one: one.recode(lambda vectors: [[3]] * len(vectors), "new"),
    }

    def child() -> dict[str, Any]:
        found: dict[str, Any] = {
            name: refusal(lambda change=change: change(table)) for name, change in changes.items()
        }
        found["writable"] = table.writable
        for name in ("add", "delete", "del", "compact", "recode"):
            changes[name](memory)
        found["memory"] = len(memory.bucket(3))
        return found

    found = in_a_fork(child)
    table.close()
    with HashTable.open(path) as again:
        return {**found, "stored": len(again), "memory of the parent": len(memory)}


def searches(folder: Path) -> dict[str, Any]:
    """Batches that take threads, in the parent and in a child, also while the parent changes it."""
    path = folder / "searches"
    rng = np.random.default_rng(3)
    table = create(path, 4000)
    queries = rng.normal(size=(600, DIM)).astype(np.float32)
    order = np.array([rng.permutation(BUCKETS) for _ in queries], np.int32)

    def answer() -> list[Any]:
        batch = table.search(order, queries, 5, probe=8, threads=4)
        alone = table.search(order[:1], queries[:1], 5, probe=8)
        return [batch.ids.tolist(), alone.ids.tolist(), table[7].embedding.tolist()]

    before = answer()
    same = in_a_fork(answer) == before

    # A thread of the parent holds the table's own lock at the moment of the fork.
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with table._writing:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    def child() -> list[Any]:
        refused = refusal(lambda: table.add(*items(1, 5)))
        newer = table.refresh()
        found = answer()
        table.close()
        return [refused, newer, found == before]

    refused, newer, held_same = in_a_fork(child)
    done.set()
    holder.join()

    # What the parent has added meanwhile, the child sees when it looks. The parent begins when the
    # child says that it is there.
    there, ready = os.pipe(), os.pipe()

    def late() -> list[Any]:
        os.close(ready[1])
        os.write(there[1], b"x")
        os.read(ready[0], 1)
        return [len(table), table.refresh(), len(table)]

    def add_and_tell() -> None:
        if os.read(there[0], 1):
            table.add(*items(2, 6))
            os.write(ready[1], b"x")

    teller = threading.Thread(target=add_and_tell)
    teller.start()
    seen = in_a_fork(late)
    os.close(there[1])  # nobody waits for a child that has failed
    teller.join()
    for handle in (there[0], *ready):
        os.close(handle)
    table.close()
    return {
        "same": same,
        "refused": refused,
        "newer": newer,
        "held same": held_same,
        "seen": seen,
    }


def during_a_commit(folder: Path) -> list[Any]:
    """Forked when an add is stored, but its table does not have it yet: what the child sees."""
    seen: list[Any] = []
    discard = TableFolder.discard

    def forking(self: TableFolder, names: set[str]) -> None:  # which is the end of a commit
        if not seen:
            seen.extend(
                in_a_fork(lambda: [len(table), table.refresh(), len(table), table.refresh()])
            )
        discard(self, names)

    with create(folder / "during a commit") as table:
        TableFolder.discard = forking  # type: ignore[method-assign]
        try:
            table.add(*items(2, 1))
        finally:
            TableFolder.discard = discard  # type: ignore[method-assign]
    return seen


def during_a_recode(folder: Path) -> list[Any]:
    """Forked when an empty table's new encoder is stored, but its table does not know it yet."""
    seen: list[Any] = []
    discard = TableFolder.discard

    def forking(self: TableFolder, names: set[str]) -> None:
        seen.extend(in_a_fork(lambda: [table.encoder, table.refresh(), table.encoder]))
        discard(self, names)

    with HashTable.create(folder / "recode", buckets=4, dim=2, encoder="old") as table:
        TableFolder.discard = forking  # type: ignore[method-assign]
        try:
            table.recode(lambda vectors: [[3]] * len(vectors), "new")
        finally:
            TableFolder.discard = discard  # type: ignore[method-assign]
    return seen


def locks(folder: Path) -> dict[str, Any]:
    """Whose lock it is: the parent's, whatever children do and however long they live."""
    path = folder / "locks"
    table = create(path)

    def opened() -> bool:
        try:
            HashTable.open(path, "r+").close()
        except LockedTableError:
            return False
        return True

    found: dict[str, Any] = {"child while the parent has it": in_a_fork(opened)}
    in_a_fork(table.close)  # a child that closes its copy, and ends
    found["after a child closed it"] = in_a_fork(opened)
    waiting, going = os.pipe()
    child = os.fork()
    if child == 0:  # it lives on, longer than the parent's table
        os.close(going)
        os.read(waiting, 1)
        os._exit(0)
    table.add(*items(1, 1))
    table.close()
    found["after the parent closed it"] = opened()
    with HashTable.open(path, "r+") as again:
        again.add(*items(1, 2))
        found["child while it is open again"] = in_a_fork(opened)
    found["child after that"] = in_a_fork(opened)
    os.close(going)
    os.waitpid(child, 0)
    with HashTable.open(path) as again:
        found["stored"] = len(again)
    return found


_carried: HashTable | None = None


def _try(number: int) -> list[Any]:
    """A task of a pool: search, then add through the table that came over the fork."""
    assert _carried is not None
    codes, vectors = items(1, number)
    hits = _carried.search(codes, vectors.astype(np.float32), 3)
    try:
        ids = _carried.add(codes, vectors, [10**6 + number]).tolist()
    except StorageError as error:
        return [[], str(error), hits.counts.tolist()]
    return [ids, "", hits.counts.tolist()]


def pools(folder: Path, runs: int) -> dict[str, Any]:
    """Pools of processes over an open table, which all add to it while the parent does."""
    global _carried
    lost, refusals, problems = [], 0, []
    for run in range(runs):
        path = folder / f"pool {run}"
        with create(path) as table:
            expected = set(table)
            _carried = table
            with multiprocessing.get_context("fork").Pool(3) as pool:
                results = pool.map_async(_try, range(run * 100, run * 100 + 30))
                for number in range(10):
                    expected |= set(table.add(*items(1, number)).tolist())
                for ids, words, counts in results.get():
                    expected |= set(ids)
                    refusals += words != ""
                    if words and ("a table has one writer" not in words or str(path) not in words):
                        problems.append(words)
                    if counts != [3]:
                        problems.append(f"found {counts}")
            expected |= set(table.add(*items(1, 99)).tolist())
            _carried = None
        try:
            with HashTable.open(path, "r+") as table:
                lost += sorted(expected - set(table))
                problems += table.check()
        except StorageError as error:
            problems.append(str(error))
    return {"lost": lost, "refusals": refusals, "problems": problems}


def all_cases(folder: Path) -> dict[str, Any]:
    return {
        "adds in both": adds_in_both(folder),
        "every change": every_change(folder),
        "searches": searches(folder),
        "during a commit": during_a_commit(folder),
        "during a recode": during_a_recode(folder),
        "locks": locks(folder),
        "pools": pools(folder, 2),
    }


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return in_a_process("test_fork", f"all_cases(Path({str(tmp_path_factory.mktemp('fork'))!r}))")


def test_what_is_acknowledged_is_stored(cases: Any) -> None:
    case = cases["adds in both"]
    assert case["stored"] == case["acknowledged"] == 1001
    assert case["faults"] == []
    for words in case["refused"]:
        assert f"changed by process {case['parent']}" in words
        assert "open it here, after the fork" in words


def test_a_child_changes_only_what_is_in_memory(cases: Any) -> None:
    case = cases["every change"]
    for name in ("add", "delete", "del", "compact", "adopt", "tidy", "recode"):
        assert "a table has one writer" in case[name], name
    assert case["writable"] is False
    assert case["stored"] == case["memory of the parent"] == 1000
    assert case["memory"] == 1000 + 3 - 2 - 1


def test_a_child_searches_as_its_parent_does(cases: Any) -> None:
    case = cases["searches"]
    assert case["same"]
    assert "a table has one writer" in case["refused"]
    assert case["newer"] is False
    assert case["held same"]
    assert case["seen"] == [4000, True, 4002]


def test_a_child_of_a_commit_sees_what_was_stored(cases: Any) -> None:
    assert cases["during a commit"] == [1000, True, 1002, False]


def test_a_child_of_a_recode_sees_what_was_stored(cases: Any) -> None:
    assert cases["during a recode"] == ["old", True, "new"]


def test_the_lock_is_that_of_the_process_that_took_it(cases: Any) -> None:
    assert cases["locks"] == {
        "child while the parent has it": False,
        "after a child closed it": False,
        "after the parent closed it": True,
        "child while it is open again": False,
        "child after that": True,
        "stored": 1002,
    }


def test_a_pool_over_an_open_table(cases: Any) -> None:
    assert cases["pools"] == {"lost": [], "refusals": 60, "problems": []}


@pytest.mark.slow
def test_20_pools_over_an_open_table(tmp_path: Path) -> None:
    found = in_a_process("test_fork", f"pools(Path({str(tmp_path)!r}), 20)")
    assert found == {"lost": [], "refusals": 600, "problems": []}
