"""Brute force for the hash table: every item is looked at, nothing is clever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.table import HashTable
from flowhash.table.results import Hits


@dataclass(frozen=True, eq=False)
class Stored:
    """What a table must know about an item.

    Attributes:
        code: its buckets.
        embedding: as stored, exactly, in float64.
        payload: what came with it.
    """

    code: frozenset[int]
    embedding: NDArray[np.float64]
    payload: dict[str, Any] | None = None


Model = dict[Any, Stored]


@dataclass(frozen=True, eq=False)
class Answer:
    """What a search must return; distances are float64 here."""

    ids: NDArray[Any]
    distances: NDArray[np.float64]
    counts: NDArray[np.int64]
    scanned: NDArray[np.int64]
    opened: NDArray[np.int64]
    payloads: list[list[dict[str, Any] | None]]


def as_stored(embedding: ArrayLike, dtype: str) -> NDArray[np.float64]:
    """Rounded as a table of that dtype rounds."""
    return np.asarray(embedding).astype(np.float32).astype(dtype).astype(np.float64)


def put(
    model: Model,
    dtype: str,
    codes: Any,
    embeddings: Any,
    ids: Any,
    payloads: Any = None,
) -> None:
    """Add items to a model; later ones replace earlier ones."""
    for index, item in enumerate(ids):
        payload = None if payloads is None else payloads[index]
        code = frozenset(int(bucket) for bucket in codes[index] if bucket >= 0)
        model[item] = Stored(code, as_stored(embeddings[index], dtype), payload)


def shortened(rng: np.random.Generator, codes: Any) -> Any:
    """The same codes with 1 to k buckets each, -1 behind the last [n, k]."""
    count, active = np.shape(codes)
    return np.where(np.arange(active) < rng.integers(1, active + 1, count)[:, None], codes, -1)


def string_key(text: str) -> int:
    """FNV-1a with 64 bits, its upper half mixed into the lower one, as a signed number."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    value ^= value >> 32
    return value - 2**64 if value >= 2**63 else value


def distances_from(query: Any, embeddings: Any, metric: str) -> NDArray[np.float64]:
    """The distance of every embedding from a query, in float64."""
    asked = np.asarray(query).astype(np.float32).astype(np.float64)
    if metric == "euclidean":
        return ((embeddings - asked) ** 2).sum(axis=1)
    products = (embeddings * asked).sum(axis=1)
    if metric == "inner":
        return -products
    return 1.0 - products / np.sqrt((embeddings**2).sum(axis=1) * (asked**2).sum())


def brute_force(
    model: Mapping[Any, Stored],
    order: Any,
    queries: Any,
    top: int,
    *,
    metric: str,
    probe: int,
    at_least: int | None = None,
    where: Iterable[Any] | None = None,
) -> Answer:
    """The answer to a search.

    Args:
        model: the items by their ids.
        order: the buckets of each query in its order [q, m].
        queries: [q, dim].
        top: how many to return.
        metric: what to rank by.
        probe: how many buckets to open.
        at_least: open more of them until so many items are found.
        where: the ids that may be found; None for all.
    """
    names = list(model)
    strings = any(isinstance(name, str) for name in names)
    permitted = set(names if where is None else where)
    allowed = np.array([name in permitted for name in names], bool)
    keys = np.array([string_key(name) if strings else name for name in names], np.int64)
    dim = np.asarray(queries).shape[1]
    embeddings = np.array([model[name].embedding for name in names]).reshape(len(names), dim)
    lists: dict[int, list[int]] = {}
    for index, name in enumerate(names):
        for bucket in model[name].code:
            lists.setdefault(bucket, []).append(index)
    count = len(queries)
    ids = np.full((count, top), None, object)
    distances = np.full((count, top), np.inf)
    counts, scanned, opened = (np.zeros(count, np.int64) for _ in range(3))
    payloads: list[list[dict[str, Any] | None]] = []
    for query in range(count):
        found = np.zeros(len(names), bool)
        for turn, bucket in enumerate(np.asarray(order)[query].tolist()):
            if turn >= probe and (at_least is None or (found & allowed).sum() >= at_least):
                break
            found[lists.get(bucket, [])] = True
            opened[query] += 1
        rows = np.flatnonzero(found & allowed)
        away = distances_from(queries[query], embeddings[rows], metric)
        best = np.lexsort((keys[rows], away))[:top]
        scanned[query], counts[query] = len(rows), len(best)
        distances[query, : len(best)] = away[best]
        ids[query, : len(best)] = [names[row] for row in rows[best]]
        payloads.append([model[names[row]].payload for row in rows[best]])
    return Answer(ids, distances, counts, scanned, opened, payloads)


def differences(hits: Hits, answer: Answer, exact: bool = True) -> list[str]:
    """How hits differ from the answer, a line for each way.

    With ``exact`` distances must be the float64 ones rounded to float32; without, the sums may
    have rounded in another order.
    """
    string_ids = hits.ids.dtype == object
    ids = answer.ids if string_ids else np.where(answer.ids == None, -1, answer.ids)  # noqa: E711
    faults = []
    if hits.ids.shape != ids.shape or not (hits.ids == ids).all():
        faults.append(f"ids {hits.ids.tolist()} instead of {ids.tolist()}")
    rounded = answer.distances.astype(np.float32)
    close = hits.distances.shape == rounded.shape and (
        np.array_equal(hits.distances, rounded)
        if exact
        else np.allclose(hits.distances, rounded, rtol=3e-7, atol=1e-12)
    )
    if not close:
        faults.append(f"distances {hits.distances.tolist()} instead of {rounded.tolist()}")
    faults += [
        f"{name} {getattr(hits, name)} instead of {getattr(answer, name)}"
        for name in ("counts", "scanned", "opened")
        if not np.array_equal(getattr(hits, name), getattr(answer, name))
    ]
    if hits.payloads is not None and hits.payloads != answer.payloads:
        faults.append(f"payloads {hits.payloads} instead of {answer.payloads}")
    return faults


def contents(table: HashTable) -> list[tuple[Any, tuple[int, ...], bytes, str]]:
    """Everything that is in a table, in an order that does not depend on how it is stored."""
    items = [table[item] for item in table]
    return sorted(
        (item.id, tuple(item.code.tolist()), item.embedding.tobytes(), repr(item.payload))
        for item in items
    )


def model_contents(model: Mapping[Any, Stored]) -> list[tuple[Any, tuple[int, ...], bytes, str]]:
    """The same, of a model."""
    return sorted(
        (
            name,
            tuple(sorted(item.code)),
            item.embedding.astype(np.float32).tobytes(),
            repr(item.payload),
        )
        for name, item in model.items()
    )
