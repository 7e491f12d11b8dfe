"""Small inputs for bulk work, and its results in a form that can be compared."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from flowhash.bulk import read_answers
from flowhash.bulk.parquet_files import FACTS, matrix, plain
from flowhash.table import HashTable
from tests.table.oracles import Model, brute_force, differences, put

DIM, BUCKETS = 6, 9


def random_codes(random: np.random.Generator, count: int, active: int) -> NDArray[np.int32]:
    order = np.argsort(random.random((count, BUCKETS)), axis=1)
    return np.sort(order[:, :active], axis=1).astype(np.int32)


def random_order(random: np.random.Generator, count: int, width: int) -> NDArray[np.int32]:
    return np.argsort(random.random((count, BUCKETS)), axis=1)[:, :width].astype(np.int32)


class Items:
    """Encoded items, as arrays."""

    def __init__(
        self,
        count: int,
        active: int = 1,
        ids: str = "int64",
        seed: int = 0,
        among: int | None = None,
    ) -> None:
        random = np.random.default_rng(seed)
        self.codes = random_codes(random, count, active)
        self.embeddings = random.normal(size=(count, DIM)).astype(np.float32)
        numbers = np.arange(count) if among is None else random.integers(0, among, count)
        self.ids: list[Any] = numbers.tolist()
        if ids == "string":
            self.ids = [f"item {number}" for number in self.ids]
        self.payloads: list[Any] = [
            None if number % 3 == 0 else {"row": number, "seed": seed} for number in range(count)
        ]

    def write(self, folder: Path, cuts: list[int], facts: dict[str, Any] | None = None) -> Path:
        """As ``bulk encode`` writes them, cut into files."""
        import json

        folder.mkdir(exist_ok=True)
        active = self.codes.shape[1]
        told = {"encoder": "abc", "buckets": BUCKETS, "active": active, "dim": DIM}
        edges = [0, *cuts, len(self.ids)]
        for number, (first, last) in enumerate(itertools.pairwise(edges)):
            rows = slice(first, last)
            ids = self.ids[rows]
            texts = [None if one is None else json.dumps(one) for one in self.payloads[rows]]
            columns = {
                "id": plain(ids if isinstance(self.ids[0], str) else np.array(ids, np.int64)),
                "code": matrix(self.codes[rows]),
                "embedding": matrix(self.embeddings[rows]),
                "buckets": matrix(self.codes[rows]),
                "payload": plain(texts),
            }
            path = folder / f"part-{number:06d}.parquet"
            noted = {FACTS: json.dumps(told if facts is None else facts)}
            pq.write_table(
                pa.table(columns).replace_schema_metadata(noted), path, compression="NONE",
                use_dictionary=False, write_statistics=False, write_page_checksum=True,
            )  # fmt: skip
        return folder

    def add_to(self, table: HashTable, cuts: list[int]) -> None:
        """One file after another."""
        edges = [0, *cuts, len(self.ids)]
        for first, last in itertools.pairwise(edges):
            rows = slice(first, last)
            if first < last:
                table.add(
                    self.codes[rows], self.embeddings[rows], self.ids[rows], self.payloads[rows]
                )

    def model(self, dtype: str = "float32") -> Model:
        model: Model = {}
        put(model, dtype, self.codes, self.embeddings, self.ids, self.payloads)
        return model


def make_table(path: Path, items: Items, cuts: list[int], **settings: Any) -> Path:
    ids = "string" if isinstance(items.ids[0], str) else "int64"
    with HashTable.create(
        path, buckets=BUCKETS, dim=DIM, active=items.codes.shape[1], ids=ids, **settings
    ) as table:
        items.add_to(table, cuts)
    return path


def wrong_answers(
    folder: Path, model: Model, order: Any, queries: Any, top: int, probe: int, metric: str
) -> list[str]:
    """How the answers in a folder differ from brute force."""
    found = read_answers(folder)
    answer = brute_force(model, order, queries, top, metric=metric, probe=probe)
    return differences(found.hits, answer)


def content_of(folder: Path) -> list[dict[str, Any]]:
    """All rows of a parquet folder as any reader sees them."""
    return pa.Table.to_pylist(pq.read_table(folder))
