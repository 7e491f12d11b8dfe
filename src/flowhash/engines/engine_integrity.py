"""An engine's check-up: read every item, and see that what is stored fits together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowhash.engines.engine_protocol import RemoteEngine
from flowhash.progress_bars import shown
from flowhash.table import STRING, Stored, string_ids


def engine_faults(engine: RemoteEngine, show: bool) -> list[str]:
    """Everything that is wrong with what an engine holds, a line for each fault.

    Every item must be there once, with k different buckets and finite numbers, and every bucket
    must hold the items whose codes name it.
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
    faults += _total_faults(np.concatenate(keys), total)
    for bucket in np.flatnonzero(held != loads)[:20].tolist():
        faults.append(
            f"bucket {bucket} holds {held[bucket]:,} items, but {loads[bucket]:,} items name it"
        )
    return faults


def _total_faults(keys: NDArray[np.int64], total: int) -> list[str]:
    faults = []
    if len(keys) != total:
        faults.append(f"{len(keys):,} items were read, but the engine counts {total:,}")
    twice = len(keys) - len(np.unique(keys))
    if twice:
        faults.append(f"{twice:,} items are there more than once")
    return faults


def _batch_faults(engine: RemoteEngine, batch: Stored) -> list[str]:
    """What is wrong with single items, the first of each kind."""
    codes, faults = batch.codes, []
    wrong = (codes < 0).any(axis=1) | (codes >= engine.buckets).any(axis=1)
    wrong |= (np.diff(codes, axis=1) <= 0).any(axis=1)
    if wrong.any():
        place = int(np.argmax(wrong))
        faults.append(
            f"item {batch.ids[place]!r} has the code {codes[place].tolist()}; expected "
            f"{engine.active} different buckets, ascending, below {engine.buckets}"
        )
    if not (finite := np.isfinite(batch.embeddings).all(axis=1)).all():
        place = int(np.argmin(finite))
        faults.append(f"item {batch.ids[place]!r} has numbers that are not finite")
    return faults
