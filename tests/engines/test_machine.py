"""Random sequences of operations through a hash table and an engine at once."""

from __future__ import annotations

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

from flowhash.engines import open_engine
from flowhash.engines.engine_registry import room_of
from flowhash.errors import InputError
from tests.engines.pairs import METRICS, Make, Pair

DIM = 3
NUMBERS = [*range(-4, 24), -(2**63), 10**12]
PAYLOADS = [None, None, {}, {"text": "ä'\0"}, {"size": 7, "list": [1, None]}, {"size": 8}]
seeds = st.integers(0, 2**16)
numbers = st.sampled_from(NUMBERS)


class Machine(RuleBasedStateMachine):
    """A pair, and a second reader of the engine that sees what the pair has written.

    Attributes:
        make: makes pairs with the engine that is tested.
        ids: "int64" or "string".
    """

    def __init__(self, make: Make, ids: str) -> None:
        super().__init__()
        self.make, self.ids = make, ids
        self.pair: Any = None
        self.reader: Any = None

    @initialize(
        buckets=st.integers(1, 9),
        active=st.integers(1, 3),
        metric=st.sampled_from(METRICS),
        dtype=st.sampled_from(["float32", "float16"]),
    )
    def create(self, buckets: int, active: int, metric: str, dtype: str) -> None:
        self.buckets, self.active = buckets, min(active, buckets)
        pair = self.pair = self.make(
            buckets=buckets, dim=DIM, active=self.active, metric=metric, dtype=dtype, ids=self.ids
        )
        if pair.remote and not pair.address.startswith("qdrant+local"):  # one process at a time
            self.reader = open_engine(pair.address)

    def teardown(self) -> None:
        if self.pair is not None:
            self.pair.engine.close()
            if self.reader is not None:
                self.reader.close()
            if self.pair.remote:
                room_of(self.pair.address).remove(self.pair.address)
                self.pair.address = None

    def name(self, number: int) -> Any:
        """An id of the table's kind."""
        return f"nümber {number}" if self.ids == "string" else number

    def vectors(self, generator: Any, count: int) -> Any:
        values = generator.integers(-3, 4, size=(count, DIM)).astype(np.float32)
        values[~values.any(axis=1)] = 1
        return values

    def items(self, seed: int, count: int) -> Any:
        generator = np.random.default_rng(seed)
        codes = np.argsort(generator.random((count, self.buckets)), axis=1)[:, : self.active]
        payloads = [PAYLOADS[index] for index in generator.integers(0, len(PAYLOADS), count)]
        return codes, self.vectors(generator, count), payloads

    @rule(seed=seeds, chosen=st.lists(numbers, max_size=12), with_payloads=st.booleans())
    def add_given(self, seed: int, chosen: list[int], with_payloads: bool) -> None:
        codes, vectors, payloads = self.items(seed, len(chosen))
        names = [self.name(number) for number in chosen]
        self.pair.add(codes, vectors, names, payloads if with_payloads else None)

    @precondition(lambda self: self.ids == "int64")
    @rule(seed=seeds, count=st.integers(0, 12), with_payloads=st.booleans())
    def add_counted(self, seed: int, count: int, with_payloads: bool) -> None:
        codes, vectors, payloads = self.items(seed, count)
        self.pair.add(codes, vectors, None, payloads if with_payloads else None)

    @rule(seed=seeds, chosen=st.lists(numbers, min_size=1, max_size=4, unique=True))
    def add_refused(self, seed: int, chosen: list[int]) -> None:
        codes, vectors, payloads = self.items(seed, len(chosen))
        vectors[seed % len(chosen)] = np.nan
        with pytest.raises(InputError, match="finite"):
            self.pair.engine.add(codes, vectors, [self.name(one) for one in chosen], payloads)

    @rule(chosen=st.lists(numbers, max_size=8), as_set=st.booleans())
    def delete(self, chosen: list[int], as_set: bool) -> None:
        names: Any = [self.name(number) for number in chosen]
        self.pair.delete(set(names) if as_set else names)

    @rule(share=st.sampled_from([0.3, 0.8, 1.0]), seed=seeds)
    def delete_many(self, share: float, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.pair.delete([name for name in self.pair.model if generator.random() < share])

    @rule(mode=st.sampled_from(["same contents", "search"]))
    def reopen(self, mode: str) -> None:
        self.pair.reopen()
        if mode == "same contents":
            self.pair.same_contents()
        assert self.pair.engine.next_id == self.pair.table.next_id

    @rule(
        seed=seeds,
        queries=st.sampled_from([0, 1, 1, 2, 7, 40]),
        top=st.sampled_from([1, 3, 16, 100]),
        probe=st.one_of(st.none(), st.integers(1, 9)),
        at_least=st.one_of(st.none(), st.integers(1, 30)),
        where=st.one_of(st.none(), st.none(), st.lists(numbers)),
        form=st.sampled_from(["list", "set", "mask", "payload", "payloads"]),
        by_reader=st.booleans(),
    )
    def search(
        self, seed: int, queries: int, top: int, probe: int | None, at_least: int | None,
        where: list[int] | None, form: str, by_reader: bool,
    ) -> None:  # fmt: skip
        generator = np.random.default_rng(seed)
        order = np.argsort(generator.random((queries, self.buckets)), axis=1)
        asked = self.vectors(generator, queries)
        given: Any = None
        if where is not None:
            given = [self.name(number) for number in where]
            if form == "set":
                given = set(given)
            elif form.startswith("payload"):
                given = {"size": 7} if form == "payload" else {"size": [7, 8]}
            elif form == "mask" and self.ids == "int64":
                given = np.zeros(20, bool)
                given[[number for number in where if 0 <= number < 20]] = True
        pair = self.pair
        if by_reader and self.reader is not None:
            pair = Pair(self.reader, pair.table, pair.address, pair.model)
        probe = None if probe is None else min(probe, self.buckets)
        # 1 - cosine rounds as the order of the operations wants, in the last of 53 bits.
        exact = pair.table.metric != "cosine"
        pair.search(order, asked, top, probe=probe, at_least=at_least, where=given, exact=exact)
        assert len(pair.engine) == len(pair.model)

    @rule()
    def look_at_everything(self) -> None:
        self.pair.same_contents()
        stats, expected = self.pair.engine.stats(), self.pair.table.stats()
        for name in ("items", "load_p50", "load_p99", "load_max", "empty", "suf"):
            assert getattr(stats, name) == pytest.approx(getattr(expected, name), nan_ok=True)
        np.testing.assert_array_equal(
            self.pair.engine.bucket_loads(), self.pair.table.bucket_loads()
        )

    @rule(number=numbers)
    def look_at_one(self, number: int) -> None:
        name, model = self.name(number), self.pair.model
        assert (name in self.pair.engine) == (name in model)
        if name not in model:
            with pytest.raises(KeyError):
                self.pair.engine[name]
            return
        item = self.pair.engine[name]
        assert (item.id, item.payload) == (name, model[name].payload)
        assert item.embedding.tolist() == model[name].embedding.tolist()
        assert item.code.tolist() == sorted(model[name].code)

    @precondition(lambda self: self.reader is not None)
    @rule()
    def refresh_the_reader(self) -> None:
        self.reader.refresh()
        assert len(self.reader) == len(self.pair.model)
        assert not self.reader.refresh()

    @invariant()
    def knows_how_many(self) -> None:
        if self.pair is not None:
            assert len(self.pair.engine) == len(self.pair.model)


def run(make: Make, ids: str, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        lambda: Machine(make, ids),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("ids", ["int64", "string"])
def test_any_sequence_of_operations(make_remote: Make, ids: str) -> None:
    run(make_remote, ids, 15, 25)


@pytest.mark.slow
@pytest.mark.parametrize("ids", ["int64", "string"])
def test_any_long_sequence_of_operations(make_remote: Make, ids: str) -> None:
    run(make_remote, ids, 200, 50)
