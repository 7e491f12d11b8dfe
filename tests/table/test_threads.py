"""Searches in eight threads while one adds and deletes: each sees one state, whole.

The writer announces a state before it starts to make it and confirms it afterwards. What a search
returns must be right for a state between the last one confirmed before it started and the last
one announced before it ended.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from flowhash.table import HashTable
from tests.table.oracles import Model, brute_force, contents, differences, model_contents, put

THREADS = 8
BUCKETS, ACTIVE, DIM = 6, 2, 4
NAMES = 150
CALLS = 12  # of the searchers together, for each change


class Seen(NamedTuple):
    """What one call returned, the states it may have seen, and what it was asked."""

    first: int
    last: int
    arguments: dict[str, Any]
    result: Any


class Run:
    """One writer and its searchers.

    Attributes:
        states: all states so far, the last of them perhaps still in the making.
        confirmed: the number of the last state that is made.
        seen: what searchers have seen.
        allowed: how many calls the searchers may start.
        ended: how many have ended since the writer last looked.
    """

    def __init__(self, table: HashTable, operations: int) -> None:
        self.table = table
        self.operations = operations
        self.states: list[Model] = [{}]
        self.confirmed = 0
        self.seen: list[Seen] = []
        self.errors: list[BaseException] = []
        self.allowed = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.finished = threading.Event()

    def write(self) -> None:
        """Change the table; searches start beside each change, and keep up with the writer."""
        generator = np.random.default_rng(0)
        try:
            for number in range(self.operations):
                for _ in range(CALLS if number else 0):
                    self.ended.acquire()
                if self.errors:
                    return
                self.allowed.release(CALLS)
                self.change(generator, number)
                self.confirmed += 1
        except BaseException as error:
            self.errors.append(error)
        finally:
            self.finished.set()
            self.allowed.release(THREADS)

    def change(self, generator: Any, number: int) -> None:
        state = dict(self.states[-1])
        if number % 10 == 4:
            codes = np.argsort(generator.random(BUCKETS))[:ACTIVE]
            for item, stored in state.items():
                state[item] = replace(stored, code=frozenset(codes.tolist()))
            self.states.append(state)
            self.table.recode(lambda vectors: np.tile(codes, (len(vectors), 1)), str(number))
        elif number % 10 == 9:
            self.states.append(state)
            self.table.compact()
        elif number % 3 == 2:
            gone = generator.choice(NAMES, size=int(generator.integers(1, 40)), replace=False)
            for item in gone.tolist():
                state.pop(item, None)
            self.states.append(state)
            self.table.delete(gone)
        else:
            ids = generator.choice(NAMES, size=int(generator.integers(1, 60)), replace=False)
            codes = np.argsort(generator.random((len(ids), BUCKETS)), axis=1)[:, :ACTIVE]
            embeddings = generator.integers(-5, 6, size=(len(ids), DIM))
            payloads = [{"made by": number}] * len(ids)
            put(state, "float32", codes, embeddings, ids.tolist(), payloads)
            self.states.append(state)
            self.table.add(codes, embeddings, ids, payloads)

    def search(self, seed: int, reader: HashTable | None) -> None:
        """Search until the writer has finished; with a reader of its own, refresh it before."""
        generator = np.random.default_rng(seed)
        table = self.table if reader is None else reader
        try:
            while self.allowed.acquire() and not self.finished.is_set():
                arguments = ask(generator)
                first = self.confirmed
                if reader is not None:
                    reader.refresh()
                result = table.search(**arguments) if arguments else sorted(table)
                self.seen.append(Seen(first, len(self.states) - 1, arguments, result))
                self.ended.release()
        except BaseException as error:
            self.errors.append(error)
            self.ended.release(CALLS * self.operations)  # the writer waits for nobody now


def ask(generator: Any) -> dict[str, Any]:
    """The arguments of a search; none to list all ids."""
    kind = int(generator.integers(0, 10))
    if kind == 0:
        return {}
    queries = int(generator.choice([1, 1, 2, 30]))
    return {
        "ordered_buckets": np.argsort(generator.random((queries, BUCKETS)), axis=1),
        "queries": generator.integers(-5, 6, size=(queries, DIM)).astype(np.float32),
        "top": int(generator.choice([1, 10, 80])),
        "probe": int(generator.integers(1, BUCKETS + 1)),
        "at_least": 50 if kind == 1 else None,
        "where": list(range(0, NAMES, 2)) if kind == 2 else None,
        "threads": 2 if kind == 3 else 1,
        "payloads": True,
    }


def is_right(seen: Seen, state: Model) -> bool:
    """Whether a call may have seen this state."""
    if not seen.arguments:
        return bool(seen.result == sorted(state))
    arguments = {
        name: value
        for name, value in seen.arguments.items()
        if name not in ("ordered_buckets", "queries", "top", "threads", "payloads")
    }
    answer = brute_force(
        state, seen.arguments["ordered_buckets"], seen.arguments["queries"],
        seen.arguments["top"], metric="euclidean", **arguments,
    )  # fmt: skip
    return not differences(seen.result, answer)


def run(path: Path | None, operations: int) -> None:
    table = HashTable.create(path, buckets=BUCKETS, dim=DIM, active=ACTIVE)
    work = Run(table, operations)
    readers: list[HashTable | None] = [None] * THREADS
    if path is not None:  # half of them search through objects of their own
        readers[::2] = [HashTable.open(path) for _ in readers[::2]]
    threads = [
        threading.Thread(target=work.search, args=(seed, reader), daemon=True)
        for seed, reader in enumerate(readers)
    ]
    writer = threading.Thread(target=work.write, daemon=True)
    for thread in (*threads, writer):
        thread.start()
    for thread in (writer, *threads):
        thread.join()
    if work.errors:
        raise work.errors[0]
    assert work.confirmed == operations
    assert len(work.seen) >= CALLS * (operations - 1)
    for seen in work.seen:
        assert any(is_right(seen, state) for state in work.states[seen.first : seen.last + 1])
    assert contents(table) == model_contents(work.states[-1])
    assert table.check() == []
    for open_table in (table, *readers):
        if open_table is not None:
            open_table.close()
    if path is not None:
        with HashTable.open(path) as again:
            assert contents(again) == model_contents(work.states[-1])


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_every_search_sees_one_state(place: str, tmp_path: Path) -> None:
    run(None if place == "memory" else tmp_path, 60)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_every_search_sees_one_state_at_length(place: str, tmp_path: Path) -> None:
    run(None if place == "memory" else tmp_path, 1000)
