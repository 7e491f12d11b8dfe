"""Random sequences of every operation, against a dictionary and brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flowhash.errors import InputError
from flowhash.table import HashTable
from tests.table.oracles import (
    Model,
    brute_force,
    contents,
    differences,
    model_contents,
    put,
)

DIM = 3
NUMBERS = [*range(-4, 24), -(2**63), 10**12]
PAYLOADS = [None, None, {}, {"text": "ä"}, {"number": 7, "list": [1, None]}]
seeds = st.integers(0, 2**16)
numbers = st.sampled_from(NUMBERS)
folders = itertools.count()


class Machine(RuleBasedStateMachine):
    """A table, a second reader of its folder, and what both must contain.

    Attributes:
        ids: "int64" or "string".
        folder: where to make folders for tables; None for tables in memory.
    """

    def __init__(self, ids: str, folder: Path | None) -> None:
        super().__init__()
        self.ids = ids
        self.path = None if folder is None else folder / str(next(folders))
        self.model: Model = {}
        self.next_id = 0
        self.table: HashTable | None = None
        self.reader: HashTable | None = None
        self.seen: Model = {}
        self.encoder: str | None = None
        self.seen_encoder: str | None = None

    @initialize(
        buckets=st.integers(1, 9),
        active=st.integers(1, 3),
        metric=st.sampled_from(["euclidean", "cosine", "inner"]),
        dtype=st.sampled_from(["float32", "float16"]),
    )
    def create(self, buckets: int, active: int, metric: str, dtype: str) -> None:
        self.buckets, self.active = buckets, min(active, buckets)
        self.metric, self.dtype = metric, dtype
        self.table = HashTable.create(
            self.path, buckets=buckets, dim=DIM, active=self.active, metric=metric, dtype=dtype,
            ids=self.ids,
        )  # fmt: skip
        if self.path is not None:
            self.reader = HashTable.open(self.path)

    def teardown(self) -> None:
        for table in (self.table, self.reader):
            if table is not None:
                table.close()

    def name(self, number: int) -> Any:
        """An id of the table's kind."""
        return f"nümber {number}" if self.ids == "string" else number

    def whole_numbers(self, generator: Any, count: int) -> Any:
        values = generator.integers(-3, 4, size=(count, DIM)).astype(np.float32)
        values[~values.any(axis=1)] = 1
        return values

    def items(self, seed: int, count: int) -> Any:
        generator = np.random.default_rng(seed)
        codes = np.argsort(generator.random((count, self.buckets)), axis=1)[:, : self.active]
        payloads = [PAYLOADS[index] for index in generator.integers(0, len(PAYLOADS), count)]
        return codes, self.whole_numbers(generator, count), payloads

    def store(self, seed: int, ids: list[Any], given: bool, with_payloads: bool) -> None:
        codes, embeddings, payloads = self.items(seed, len(ids))
        payloads = payloads if with_payloads else None
        back = self.table.add(codes, embeddings, ids if given else None, payloads)
        assert back.tolist() == ids
        put(self.model, self.dtype, codes, embeddings, ids, payloads)
        if self.ids == "int64" and ids:
            self.next_id = max(self.next_id, max(ids) + 1)

    @rule(seed=seeds, chosen=st.lists(numbers, max_size=12), with_payloads=st.booleans())
    def add_given(self, seed: int, chosen: list[int], with_payloads: bool) -> None:
        self.store(seed, [self.name(number) for number in chosen], True, with_payloads)

    @precondition(lambda self: self.ids == "int64")
    @rule(seed=seeds, count=st.integers(0, 12), with_payloads=st.booleans())
    def add_assigned(self, seed: int, count: int, with_payloads: bool) -> None:
        ids = list(range(self.next_id, self.next_id + count))
        self.store(seed, ids, False, with_payloads)

    @rule(seed=seeds, chosen=st.lists(numbers, min_size=1, max_size=4), place=st.integers(0, 3))
    def add_refused(self, seed: int, chosen: list[int], place: int) -> None:
        codes, embeddings, payloads = self.items(seed, len(chosen))
        embeddings[place % len(chosen)] = np.nan
        ids = [self.name(number) for number in {*chosen}]
        if len(ids) == len(chosen):
            with pytest.raises(InputError, match="finite"):
                self.table.add(codes, embeddings, ids, payloads)

    @rule(chosen=st.lists(numbers, max_size=8), as_set=st.booleans())
    def delete(self, chosen: list[int], as_set: bool) -> None:
        names = [self.name(number) for number in chosen]
        present = {name for name in names if name in self.model}
        assert self.table.delete(set(names) if as_set else names) == len(present)
        for name in present:
            del self.model[name]

    @rule(share=st.sampled_from([0.3, 0.8, 1.0]), seed=seeds)
    def delete_many(self, share: float, seed: int) -> None:
        generator = np.random.default_rng(seed)
        names = [name for name in self.model if generator.random() < share]
        assert self.table.delete(names) == len(names)
        for name in names:
            del self.model[name]

    @rule(number=numbers)
    def delete_one(self, number: int) -> None:
        name = self.name(number)
        if name in self.model:
            del self.table[name]
            del self.model[name]
        else:
            with pytest.raises(KeyError):
                del self.table[name]

    @rule()
    def compact(self) -> None:
        self.table.compact()
        stats = self.table.stats()
        assert (stats.segments, stats.deleted) == (1 if self.model else 0, 0)

    @rule(seed=seeds, encoder=st.sampled_from([None, "one", "two"]))
    def recode(self, seed: int, encoder: str | None) -> None:
        buckets = np.random.default_rng(seed).permutation(self.buckets)

        def codes_of(embeddings: Any) -> Any:
            assert embeddings.dtype == np.float32
            assert len(embeddings)
            sums = np.abs(embeddings.sum(axis=1)).astype(np.int32)  # whole numbers: exact
            return buckets[(sums[:, None] + np.arange(self.active)) % self.buckets]

        self.table.recode(codes_of, encoder)
        for name, item in self.model.items():
            (code,) = codes_of(item.embedding[None].astype(np.float32)).tolist()
            self.model[name] = replace(item, code=frozenset(code))
        self.encoder = encoder
        assert self.table.next_id == self.next_id
        stats = self.table.stats()
        assert (stats.segments, stats.deleted) == (1 if self.model else 0, 0)

    @precondition(lambda self: self.path is not None)
    @rule()
    def reopen(self) -> None:
        self.table.close()
        self.table = HashTable.open(self.path, "r+")
        assert contents(self.table) == model_contents(self.model)

    @precondition(lambda self: self.path is not None)
    @rule()
    def refresh(self) -> None:
        assert contents(self.reader) == model_contents(self.seen)
        assert self.reader.encoder == self.seen_encoder
        changed = self.reader.refresh()
        assert changed or model_contents(self.seen) == model_contents(self.model)
        self.seen, self.seen_encoder = dict(self.model), self.encoder
        assert self.reader.encoder == self.encoder
        assert contents(self.reader) == model_contents(self.seen)
        assert not self.reader.refresh()

    @rule(
        seed=seeds,
        queries=st.sampled_from([0, 1, 1, 2, 7, 40]),
        top=st.sampled_from([1, 3, 16, 100]),
        probe=st.one_of(st.none(), st.integers(1, 9)),
        at_least=st.one_of(st.none(), st.integers(1, 30)),
        where=st.one_of(st.none(), st.none(), st.lists(numbers)),
        form=st.sampled_from(["list", "set", "mask"]),
        old=st.booleans(),
    )
    def search(
        self, seed: int, queries: int, top: int, probe: int | None, at_least: int | None,
        where: list[int] | None, form: str, old: bool,
    ) -> None:  # fmt: skip
        generator = np.random.default_rng(seed)
        order = np.argsort(generator.random((queries, self.buckets)), axis=1)
        asked = self.whole_numbers(generator, queries)
        table, model = self.table, self.model
        if old and self.reader is not None:
            table, model = self.reader, self.seen
        probe = None if probe is None else min(probe, self.buckets)
        allowed: Any = None if where is None else {self.name(number) for number in where}
        given: Any = allowed
        if where is not None and form == "list":
            given = [self.name(number) for number in where]
        elif where is not None and form == "mask" and self.ids == "int64":
            given = np.zeros(20, bool)
            given[[number for number in where if 0 <= number < 20]] = True
            allowed = set(np.flatnonzero(given).tolist())
        hits = table.search(
            order, asked, top, probe=probe, at_least=at_least, where=given, payloads=True
        )
        answer = brute_force(
            model, order, asked, top, metric=self.metric, probe=probe or self.active,
            at_least=at_least, where=allowed,
        )  # fmt: skip
        assert differences(hits, answer) == []

    @rule()
    def look_at_everything(self) -> None:
        assert contents(self.table) == model_contents(self.model)
        assert self.table.check() == []
        for bucket in range(self.buckets):
            inside = [name for name, item in self.model.items() if bucket in item.code]
            assert sorted(self.table.bucket(bucket).tolist()) == sorted(inside)

    @rule(number=numbers)
    def look_at_one(self, number: int) -> None:
        name = self.name(number)
        assert (name in self.table) == (name in self.model)
        if name not in self.model:
            with pytest.raises(KeyError):
                self.table[name]
            with pytest.raises(KeyError):
                self.table.buckets_of(name)
            return
        stored, item = self.model[name], self.table[name]
        assert item.id == name
        assert item.payload == stored.payload
        assert item.embedding.tolist() == stored.embedding.tolist()
        assert item.code.tolist() == sorted(stored.code)
        assert self.table.buckets_of(name).tolist() == sorted(stored.code)

    @invariant()
    def knows_how_many(self) -> None:
        if self.table is not None:
            assert len(self.table) == self.table.stats().items == len(self.model)
            assert self.table.encoder == self.encoder


def run(ids: str, folder: Path | None, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        lambda: Machine(ids, folder),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("ids", ["int64", "string"])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_any_sequence_of_operations(ids: str, place: str, tmp_path: Path) -> None:
    run(ids, None if place == "memory" else tmp_path, 60, 30)


@pytest.mark.slow
@pytest.mark.parametrize("ids", ["int64", "string"])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_any_long_sequence_of_operations(ids: str, place: str, tmp_path: Path) -> None:
    run(ids, None if place == "memory" else tmp_path, 400, 50)
