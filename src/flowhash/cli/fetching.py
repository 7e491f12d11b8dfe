"""A table in an engine, into a new folder."""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flowhash.cli.aside import aside
from flowhash.cli.notes import shown
from flowhash.cli.reply import Reply, count
from flowhash.durable_files import flush_folder
from flowhash.engines import SCHEMES, RemoteEngine, open_engine, scheme_of
from flowhash.errors import InputError, StorageError
from flowhash.indexing import INDEX, TableNotes
from flowhash.progress_bars import shown as with_bar
from flowhash.table import INT64, HashTable, Stored

WRAP = 1 << 64
SNAPSHOTS = {"postgres"}  # engines whose batches are of one state
TRIES = 20  # to find a moment between two changes


def fetch(address: str, folder: Path, reply: Reply) -> None:
    """Copy everything into a folder that is not there yet; it appears when it is whole."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} is there already; expected a new folder for the copy")
    began = time.monotonic()
    with open_engine(address) as engine:
        try:
            with aside(folder) as made:
                items = _filled(engine, made, folder, reply)
                _put(made, folder)
        except KeyboardInterrupt:
            print(
                f"flowhash: stopped; nothing was written to {folder}, the same command begins anew",
                file=sys.stderr,
            )
            sys.exit(130)
    seconds = time.monotonic() - began
    reply.result(
        {"table": folder, "address": shown(address), "items": items, "seconds": seconds},
        f"{shown(address)}: {count(items, 'item')} copied to {folder} and compared, in "
        f"{seconds:.1f} s",
        f"next: flowhash search {shlex.quote(str(folder))} QUERY",
    )


def _put(made: Path, folder: Path) -> None:
    """Give a folder its name, unless somebody made one of this name meanwhile."""
    try:
        made.replace(folder)
    except OSError as error:
        if not folder.exists():
            raise
        raise InputError(
            f"{folder} was made by somebody else meanwhile, and is left as it is; give another "
            "folder"
        ) from error
    flush_folder(folder.parent)


def _filled(engine: RemoteEngine, made: Path, folder: Path, reply: Reply) -> int:
    """A table of everything that an engine holds; how many items that is."""
    sent = came = 0
    settings = TableNotes(engine).settings()
    notes, batches = _one_state(engine)
    with HashTable.create(
        made,
        buckets=engine.buckets,
        dim=engine.dim,
        active=engine.active,
        metric=engine.metric,
        dtype=engine.dtype,
        ids=engine.id_kind,
        encoder=engine.encoder,
    ) as table:
        _carry_next_id(engine, table)
        for batch in with_bar(batches, "copy", len(engine), not reply.quiet):
            table.add(batch.codes, batch.embeddings, batch.ids, batch.payloads)
            sent = (sent + _checksum(batch)) % WRAP
            came += len(batch)
        _refuse_mixture(engine, came, len(table))
        stored = sum(_checksum(batch) for batch in table.batches()) % WRAP
        if stored != sent:
            raise StorageError(
                f"{made} does not hold what came from {engine.address}; nothing was kept. Try "
                "again, on another disk"
            )
        if settings:
            TableNotes(table).write_settings({**settings, "out": folder})
        table.add(np.empty((0, table.active), int), np.empty((0, table.dim)), [], notes=notes)
        return len(table)


def _one_state(engine: RemoteEngine) -> tuple[dict[str, Any], Iterator[Stored]]:
    """The notes and the items of one state: a note must know of no item that does not come.

    Raises:
        StorageError: it changes too often.
    """
    engine.refresh()
    for _ in range(TRIES):
        notes = {**engine.notes(), **TableNotes(engine).sources()}
        batches = engine.batches()
        first = list(itertools.islice(batches, 1))  # from here on a snapshot is what it is
        if not engine.refresh():
            notes.pop(INDEX, None)
            return notes, itertools.chain(first, batches)
    raise _mixture(engine)


def _refuse_mixture(engine: RemoteEngine, came: int, kept: int) -> None:
    """Refuse what is not one state of an engine.

    Raises:
        StorageError: it changed meanwhile, and its items do not come from one snapshot; or they are
            not as many as it says.
    """
    changed = engine.refresh()
    # A snapshot is what it is, whatever others do meanwhile.
    snapshot = SCHEMES[scheme_of(engine.address) or ""] in SNAPSHOTS
    if came != kept or (changed and not snapshot):
        raise _mixture(engine)
    if not changed and len(engine) != came:
        raise StorageError(
            f"{engine.address} says that it has {count(len(engine), 'item')}, but {came:,} came; "
            f"see flowhash table check {shlex.quote(engine.address)}"
        )


def _mixture(engine: RemoteEngine) -> StorageError:
    return StorageError(
        f"{engine.address} changed while it was copied, or somebody left a change unfinished; "
        "try again when nobody writes to it"
    )


def _carry_next_id(engine: RemoteEngine, table: HashTable) -> None:
    """Let an empty table count on where an engine does: no id of a deleted item comes again."""
    if engine.id_kind == INT64 and engine.next_id > 0:
        last = [engine.next_id - 1]
        table.add([list(range(table.active))], np.ones((1, table.dim)), last)
        table.delete(last)


def _checksum(batch: Stored) -> int:
    """A sum over items, so that it does not matter in which order or batches they are."""
    total = 0
    codes = np.ascontiguousarray(batch.codes, "<i4")
    embeddings = np.ascontiguousarray(batch.embeddings, "<f4")
    for row, (item, payload) in enumerate(zip(batch.ids.tolist(), batch.payloads, strict=True)):
        digest = hashlib.blake2b(
            json.dumps([item, payload], sort_keys=True).encode(), digest_size=8
        )
        digest.update(codes[row].tobytes())
        digest.update(embeddings[row].tobytes())
        total += int.from_bytes(digest.digest(), "little")
    return total
