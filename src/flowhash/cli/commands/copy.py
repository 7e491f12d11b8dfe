"""``flowhash copy``: a table into an engine, or out of one into a folder."""

from __future__ import annotations

import itertools
import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash import engines
from flowhash.cli import options
from flowhash.cli.locations import check_address, place_of, shown
from flowhash.cli.output import Output, and_goes_on, count, stoppable
from flowhash.errors import InputError, StorageError
from flowhash.progress_bars import shown as with_bar

if TYPE_CHECKING:
    from flowhash.engines import RemoteEngine
    from flowhash.table import HashTable, Stored

WRAP = 1 << 64
SNAPSHOTS = {"postgres"}  # engines whose batches are of one state
TRIES = 20  # to find a moment between two changes

command = typer.Typer(add_completion=False)


@command.command(
    epilog="Example:  flowhash copy pets.table 'postgresql://localhost/shop?table=pets'"
)
def copy(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            autocompletion=options.complete_address,
            help="The table's folder; or an address, to copy from there.",
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            autocompletion=options.complete_address,
            help="postgresql://HOST/DATABASE?table=NAME or qdrant://HOST:6333/COLLECTION, where "
            "nothing is yet; or a new folder, to copy from an address.",
        ),
    ],
    *,
    distribute: options.Distribute = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Remove an unfinished copy and begin anew.")
    ] = False,
    output: Output,
) -> None:
    """Copy a table into PostgreSQL or Qdrant, or back into a folder, and compare the two.

    To an address: Ctrl-C, or a server that is lost, leaves a copy that nobody can search; the same
    command goes on where it stopped. To a folder: it appears when it is whole; what was stopped or
    killed begins anew. From one address to another, copy to a folder, then from there.
    """
    start, end = place_of(source), place_of(target)
    if isinstance(start, Path) and isinstance(end, str):
        check_address(end, distribute)
        _into_engine(start, end, distribute, restart, output)
        return
    if isinstance(start, Path) or isinstance(end, str):
        kind, how = "addresses", "Copy to a folder, then from there"
        if isinstance(start, Path):
            kind, how = "folders", "A folder is copied with cp -r"
        raise InputError(
            f"{shown(start)} and {shown(end)} are both {kind}; expected a folder and an address. "
            f"{how}"
        )
    for option, given in (("--distribute", distribute), ("--restart", restart)):
        if given:
            raise InputError(f"{option} is for copies to an address; leave it out")
    check_address(start, False)
    _into_folder(start, end, output)


def _into_engine(
    source: Path, address: str, distribute: bool, restart: bool, output: Output
) -> None:
    from flowhash.table import HashTable

    reached = [0, 0]  # items that are there for good, and all of them

    def watch(done: int, total: int) -> None:
        reached[:] = done, total

    with HashTable.open(source) as table:
        try:
            with stoppable(
                lambda: (
                    f"{reached[0]:,} of {count(reached[1], 'item')} are at {shown(address)}, "
                    "the same command goes on"
                )
            ):
                done = engines.copy(
                    table, address, distribute=distribute, restart=restart,
                    notes=_carried(table, source), show=output.progress, watch=watch,
                )  # fmt: skip
        except StorageError as error:
            if reached[0] == reached[1]:  # nothing was begun, or all is there: it says what to do
                raise
            raise and_goes_on(error, *reached) from error
    seconds = done.seconds + done.check_seconds
    facts = {
        "table": source, "address": shown(address), "items": done.items, "before": done.before,
        "seconds": done.seconds, "check_seconds": done.check_seconds,
    }  # fmt: skip
    earlier = f" ({done.before:,} of them before)" if done.before else ""
    place = shlex.quote(shown(address))
    output.result(
        facts,
        f"{source}: {count(done.items, 'item')} copied to {shown(address)}{earlier} and compared, "
        f"in {seconds:.1f} s",
        f"next: flowhash search {place} QUERY   or   flowhash serve {place} --open",
    )


def _carried(table: HashTable, source: Path) -> dict[str, Any]:
    """What is noted about the table, for the copy: its encoder, what was indexed."""
    from flowhash.indexing import (
        INDEX,
        LostEncoderError,
        OtherEncoderError,
        TableNotes,
        own_encoder,
    )

    notes = TableNotes(table)
    known = notes.settings()
    kept = {name: known[name] for name in ("encoder", "items") if name in known}
    if "encoder" in kept:
        try:
            kept["encoder"] = str(own_encoder(table, source))
        except OtherEncoderError:  # which the copy is not to name, too
            del kept["encoder"]
        except LostEncoderError:  # it may be on the machine that searches
            pass
    return {**table.notes(), **({INDEX: kept} if kept else {}), **notes.sources()}


def _into_folder(address: str, folder: Path, output: Output) -> None:
    """Copy everything into a folder that is not there yet; it appears when it is whole."""
    from flowhash.durable_files import folder_aside, put_folder

    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} is there already; expected a new folder for the copy")
    began = time.monotonic()
    with (
        engines.open_engine(address) as engine,
        stoppable(lambda: f"nothing was written to {folder}, the same command begins anew"),
        folder_aside(folder) as made,
    ):
        items = _filled(engine, made, folder, output)
        put_folder(made, folder)
    seconds = time.monotonic() - began
    output.result(
        {"table": folder, "address": shown(address), "items": items, "seconds": seconds},
        f"{shown(address)}: {count(items, 'item')} copied to {folder} and compared, in "
        f"{seconds:.1f} s",
        f"next: flowhash search {shlex.quote(str(folder))} QUERY",
    )


def _filled(engine: RemoteEngine, made: Path, folder: Path, output: Output) -> int:
    """A table of everything that an engine holds; how many items that is."""
    import numpy as np

    from flowhash.indexing import TableNotes
    from flowhash.table import HashTable

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
        for batch in with_bar(batches, "copy", len(engine), output.progress):
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
        codes, embeddings = np.empty((0, table.active), np.int32), np.empty((0, table.dim))
        table.add(codes, embeddings, ids=[], notes=notes)
        return len(table)


def _one_state(engine: RemoteEngine) -> tuple[dict[str, Any], Iterator[Stored]]:
    """The notes and the items of one state: a note must know of no item that does not come."""
    from flowhash.indexing import INDEX, TableNotes

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
    """Refuse what is not one state of an engine, or not as many items as it says."""
    changed = engine.refresh()
    # A snapshot is what it is, whatever others do meanwhile.
    snapshot = engines.SCHEMES[engines.scheme_of(engine.address) or ""] in SNAPSHOTS
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
    import numpy as np

    from flowhash.table import INT64

    if engine.id_kind == INT64 and engine.next_id > 0:
        last = [engine.next_id - 1]
        table.add([list(range(table.active))], np.ones((1, table.dim)), last)
        table.delete(last)


def _checksum(batch: Stored) -> int:
    """A sum over items, so that it does not matter in which order or batches they are."""
    import hashlib

    import numpy as np

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
