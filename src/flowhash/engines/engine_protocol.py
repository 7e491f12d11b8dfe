"""``Engine``: one that stores items in buckets and searches them as a table does; its check-up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.progress_bars import shown
from flowhash.table import (
    RECALL_TOPS,
    STRING,
    HealthReport,
    Hits,
    Item,
    RecallCalibration,
    Stats,
    Stored,
    string_ids,
)


@runtime_checkable
class Engine(Protocol):
    """Stores items in the k buckets of their codes, and ranks those that a query opens, exactly.

    :class:`flowhash.HashTable` is one; the arguments, the answers and the errors of the others are
    its own. Each class has ``create(place, *, buckets, dim, ...)`` and ``open(place, mode)`` too.
    """

    @property
    def buckets(self) -> int:
        """d, the number of buckets."""
        ...

    @property
    def dim(self) -> int:
        """How many numbers an embedding has."""
        ...

    @property
    def active(self) -> int:
        """k, how many buckets an item is in."""
        ...

    @property
    def metric(self) -> str:
        """What is ranked by."""
        ...

    @property
    def dtype(self) -> str:
        """How embeddings are stored."""
        ...

    @property
    def id_kind(self) -> str:
        """What ids are: "int64" or "string"."""
        ...

    @property
    def encoder(self) -> str | None:
        """The fingerprint of the encoder, if it was given."""
        ...

    @property
    def writable(self) -> bool:
        """Whether items can be changed through this object."""
        ...

    @property
    def next_id(self) -> int:
        """The id of the next item that is added without one."""
        ...

    def add(
        self,
        codes: ArrayLike,
        embeddings: ArrayLike,
        ids: Any = None,
        payloads: Sequence[dict[str, Any] | None] | None = None,
        *,
        encoder: str | None = None,
        notes: Mapping[str, Any] | None = None,
        expected_notes: Mapping[str, Any] | None = None,
    ) -> NDArray[Any]:
        """Add items, all or none, and their notes; an id that is there is replaced. The ids [n]."""
        ...

    def delete(self, ids: Any) -> int:
        """Delete items; how many there were."""
        ...

    def search(
        self,
        ordered_buckets: ArrayLike,
        queries: ArrayLike,
        top: int = 16,
        *,
        probe: int | ArrayLike | None = None,
        at_least: int | None = None,
        recall: float | None = None,
        where: Any = None,
        threads: int | None = None,
        payloads: bool = False,
        buckets: bool = False,
        encoder: str | None = None,
    ) -> Hits:
        """The nearest items among those in the buckets that each query opens."""
        ...

    def calibrate(
        self,
        activations: ArrayLike,
        queries: ArrayLike,
        *,
        tops: Sequence[int] = RECALL_TOPS,
        own: Any = None,
        threads: int | None = None,
        encoder: str | None = None,
    ) -> RecallCalibration:
        """Find out how many buckets a recall takes, and note it."""
        ...

    def health(
        self,
        activations: ArrayLike | None = None,
        queries: ArrayLike | None = None,
        *,
        own: Any = None,
        threads: int | None = None,
        encoder: str | None = None,
    ) -> HealthReport:
        """How even the buckets are, what a recall takes now and took then, and what to do."""
        ...

    def stats(self) -> Stats:
        """Loads of buckets, measured and expected SUF, bytes."""
        ...

    def notes(self) -> dict[str, Any]:
        """What was noted about it, such as where its encoder is."""
        ...

    def note(self, name: str, value: Any) -> None:
        """Note something, durably; None removes it. ``value`` is what JSON can hold."""
        ...

    def close(self) -> None:
        """Let go of what is held open; closing twice is fine."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, item: object) -> bool: ...

    def __getitem__(self, item: Any) -> Item: ...


@runtime_checkable
class BrowsedEngine(Engine, Protocol):
    """An engine that a server can put before people."""

    def refresh(self) -> bool:
        """See what others have changed; whether that was anything."""
        ...

    def batches(self, size: int = 8192, payloads: bool = True) -> Iterator[Stored]:
        """All items, some at a time."""
        ...

    def sample(self, count: int, seed: int) -> tuple[int, list[Item]]:
        """How many items there are, and a random sample of them; the same for the same seed."""
        ...

    def bucket_items(self, bucket: int, count: int, seed: int) -> list[Item]:
        """A random sample of the items in a bucket."""
        ...

    def bucket_payloads(
        self, bucket: int, count: int, seed: int
    ) -> tuple[int, list[dict[str, Any] | None]]:
        """How many items a bucket holds, and the payloads of a random sample of them."""
        ...

    def bucket_loads(self) -> NDArray[np.int64]:
        """How many items each bucket holds [d]."""
        ...

    def codes_of(self, ids: list[Any]) -> list[list[int] | None]:
        """The buckets of each item, ascending; None for those that are not there."""
        ...


@runtime_checkable
class RemoteEngine(BrowsedEngine, Protocol):
    """An engine that another process runs."""

    @property
    def address(self) -> str:
        """Where it is, without a password."""
        ...

    def __enter__(self) -> RemoteEngine: ...

    def __exit__(self, *error: Any) -> None: ...


def engine_faults(engine: RemoteEngine, show: bool) -> list[str]:
    """Everything that is wrong with what an engine holds, a line for each fault.

    Every item must be there once, with 1 to k different buckets and finite numbers, and every
    bucket must hold the items whose codes name it.
    """
    faults: list[str] = []
    engine.refresh()
    keys = [np.zeros(0, np.int64)]
    loads = np.zeros(engine.buckets, np.int64)
    for batch in shown(engine.batches(payloads=False), "check", len(engine), show):
        faults += _batch_faults(engine, batch)
        keys.append(string_ids(batch.ids).keys if engine.id_kind == STRING else batch.ids)
        inside = batch.codes[(batch.codes >= 0) & (batch.codes < engine.buckets)]
        loads += np.bincount(inside.ravel(), minlength=engine.buckets)
    held, total = engine.bucket_loads(), len(engine)
    if engine.refresh():
        return [
            f"{engine.address} changed while it was read; check it again when nobody writes to it"
        ]
    read = np.concatenate(keys)
    if len(read) != total:
        faults.append(f"{len(read):,} items were read, but the engine counts {total:,}")
    twice = len(read) - len(np.unique(read))
    if twice:
        faults.append(f"{twice:,} items are there more than once")
    for bucket in np.flatnonzero(held != loads)[:20].tolist():
        faults.append(
            f"bucket {bucket} holds {held[bucket]:,} items, but {loads[bucket]:,} items name it"
        )
    return faults


def _batch_faults(engine: RemoteEngine, batch: Stored) -> list[str]:
    """What is wrong with single items, the first of each kind."""
    codes, faults = batch.codes, []
    wrong = (codes[:, 0] < 0) | ((codes < -1) | (codes >= engine.buckets)).any(axis=1)
    before, after = codes[:, :-1], codes[:, 1:]
    wrong |= ((after >= 0) & ((after <= before) | (before < 0))).any(axis=1)
    if wrong.any():
        place = int(np.argmax(wrong))
        faults.append(
            f"item {batch.ids[place]!r} has the code {codes[place].tolist()}; expected "
            f"1 to {engine.active} different buckets, ascending, below {engine.buckets}"
        )
    if not (finite := np.isfinite(batch.embeddings).all(axis=1)).all():
        place = int(np.argmin(finite))
        faults.append(f"item {batch.ids[place]!r} has numbers that are not finite")
    return faults
