"""An engine and a hash table that are given the same, and a model by brute force beside them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.engines import Engine, create_engine, open_engine
from flowhash.engines.engine_registry import room_of
from flowhash.table import HashTable, Hits
from tests.engines.servers import Postgres
from tests.table.oracles import Model, Stored, brute_force, differences, put

METRICS = ["euclidean", "cosine", "inner"]
QDRANT_VARIABLE = "FLOWHASH_TEST_QDRANT"
# The client that plays Qdrant is always tested; a server if somebody has one.
SERVERS = ["qdrant server"] if os.environ.get(QDRANT_VARIABLE) else []
REMOTE = ["postgres", "qdrant", *SERVERS]
numbers = itertools.count()


@dataclass(eq=False)
class Pair:
    """Whatever is done is done to both, and compared.

    Attributes:
        engine: the one that is tested.
        table: in memory.
        model: what both must contain.
        address: of the engine; None for a table, which is its own control.
    """

    engine: Any
    table: HashTable
    address: str | None = None
    model: Model = field(default_factory=dict)

    @property
    def remote(self) -> bool:
        return self.address is not None

    @property
    def share(self) -> int:
        """What to divide sizes by: the client that plays Qdrant does it all in Python."""
        return 3 if (self.address or "").startswith("qdrant+local") else 1

    def add(self, codes: Any, embeddings: Any, ids: Any = None, payloads: Any = None) -> list[Any]:
        """Add the same to both; the ids."""
        expected = self.table.add(codes, embeddings, ids, payloads)
        given = self.engine.add(codes, embeddings, ids, payloads)
        assert given.dtype == expected.dtype
        assert given.tolist() == expected.tolist()
        put(self.model, self.table.dtype, codes, embeddings, expected.tolist(), payloads)
        assert len(self.engine) == len(self.model)
        assert self.engine.next_id == self.table.next_id
        return list(expected.tolist())

    def delete(self, ids: Any) -> int:
        """Delete the same from both; how many there were."""
        gone = self.table.delete(ids)
        assert self.engine.delete(ids) == gone
        for item in [ids] if isinstance(ids, (int, str)) else ids:
            self.model.pop(item, None)
        assert len(self.engine) == len(self.model)
        return gone

    def search(
        self, order: Any, queries: Any, top: int = 16, *, where: Any = None, exact: bool = True,
        **options: Any,
    ) -> Hits:  # fmt: skip
        """Search both and by brute force, and compare; the engine's hits.

        ``where`` may hold conditions on payloads: the table is given the ids that satisfy them, by
        a filter in Python. ``exact`` is that sums of float64 do not round, so that the formulas as
        numpy sums them give the same bits.
        """
        allowed = where
        if isinstance(where, dict):
            allowed = [name for name, item in self.model.items() if satisfies(item, where)]
            given: Any = where if self.remote else allowed
        else:
            given = where
            allowed = permitted(where)
        hits = self.engine.search(
            order, queries, top, where=given, payloads=True, buckets=True, **options
        )
        expected = self.table.search(
            order, queries, top, where=allowed, payloads=True, buckets=True, **options
        )
        assert bits(hits) == bits(expected)
        assert hits.payloads == expected.payloads
        np.testing.assert_array_equal(hits.buckets, expected.buckets, strict=True)
        answer = brute_force(
            self.model, order, queries, top, metric=self.table.metric,
            probe=options.get("probe") or self.table.active, at_least=options.get("at_least"),
            where=allowed,
        )  # fmt: skip
        assert differences(hits, answer, exact) == []
        return hits

    def same_contents(self) -> None:
        """What is stored is what the model has, to the bit."""
        assert engine_contents(self.engine) == {
            name: (sorted(item.code), item.embedding.astype(np.float32).tobytes(), item.payload)
            for name, item in self.model.items()
        }

    def reopen(self, mode: str = "r+") -> None:
        """Close the engine and open it again; a table in memory stays."""
        if self.address is not None:
            self.engine.close()
            self.engine = open_engine(self.address, mode)


def bits(hits: Hits) -> tuple[Any, ...]:
    """Hits as what can be compared, with the types of everything."""
    return (
        (hits.ids.dtype, hits.ids.shape, hits.ids.tolist()),
        (hits.distances.dtype, hits.distances.shape, hits.distances.tolist()),
        (hits.counts.dtype, hits.counts.tolist()),
        (hits.scanned.dtype, hits.scanned.tolist()),
        (hits.opened.dtype, hits.opened.tolist()),
    )


def engine_contents(engine: Any) -> dict[Any, Any]:
    """Everything in an engine: code, bytes of the embedding and payload of every id."""
    found: dict[Any, Any] = {}
    for batch in engine.batches(97):
        for index, item in enumerate(batch.ids.tolist()):
            assert item not in found, f"{item!r} twice"
            found[item] = (
                [bucket for bucket in batch.codes[index].tolist() if bucket >= 0],
                batch.embeddings[index].tobytes(),
                batch.payloads[index],
            )
    return found


def permitted(where: Any) -> Any:
    """The ids that ``where`` allows, if it is a mask; otherwise as it is."""
    if isinstance(where, np.ndarray) and where.dtype == bool:
        return set(np.flatnonzero(where).tolist())
    return where


def satisfies(item: Stored, conditions: dict[str, Any]) -> bool:
    """Whether a payload has all the values, by Python's own comparison."""
    payload = item.payload or {}
    return all(
        key in payload and payload[key] in (value if isinstance(value, (list, tuple)) else [value])
        for key, value in conditions.items()
    )


Make = Callable[..., Pair]


def make_pairs(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Make]:
    """A function that makes pairs of one kind; what it made is removed at the end."""
    made: list[Pair] = []

    def make(**settings: Any) -> Pair:
        address = address_of(kind, request, folder)
        table = HashTable.create(**settings)
        engine: Engine
        if address is None:
            engine = HashTable.create(**settings)
        else:
            engine = create_engine(address, **settings)
        made.append(Pair(engine, table, address))
        return made[-1]

    yield make
    for pair in made:
        pair.engine.close()
        if pair.address is not None:
            room_of(pair.address).remove(pair.address)


def address_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str | None:
    """Where nothing is yet."""
    if kind == "table":
        return None
    if kind == "postgres":
        postgres: Postgres = request.getfixturevalue("postgres")
        return postgres.address()
    pytest.importorskip("qdrant_client", reason="the tests of Qdrant need flowhash[qdrant]")
    name = f"parity_{os.getpid()}_{next(numbers)}"
    if kind == "qdrant":
        return f"qdrant+local://{folder / name}?collection={name}"
    return f"{os.environ[QDRANT_VARIABLE].rstrip('/')}/{name}"
