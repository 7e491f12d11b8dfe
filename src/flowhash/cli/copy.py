"""``flowhash copy``: a table into an engine, or out of one into a folder."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Any

from flowhash.cli.index import check_address
from flowhash.cli.notes import place_of, shown
from flowhash.cli.opening import and_goes_on
from flowhash.cli.reply import Reply, count
from flowhash.engines import copy as copy_to_engine
from flowhash.errors import InputError, StorageError
from flowhash.indexing import INDEX, LostEncoderError, TableNotes, own_encoder
from flowhash.table import HashTable


def copy(source: str, target: str, distribute: bool, restart: bool, reply: Reply) -> None:
    """Copy what is in one place to the other."""
    start, end = place_of(source), place_of(target)
    if isinstance(start, Path) and isinstance(end, str):
        check_address(end, distribute)
        _into_engine(start, end, distribute, restart, reply)
        return
    if isinstance(start, Path) or isinstance(end, str):
        kind = "folders" if isinstance(start, Path) else "addresses"
        how = "a folder is copied with cp -r" if isinstance(start, Path) else "copy to a folder"
        raise InputError(
            f"{shown(start)} and {shown(end)} are both {kind}; expected a folder and an address. "
            f"{how[0].upper()}{how[1:]}{'' if isinstance(start, Path) else ', then from there'}"
        )
    for option, given in (("--distribute", distribute), ("--restart", restart)):
        if given:
            raise InputError(f"{option} is for copies to an address; leave it out")
    check_address(start, False)
    from flowhash.cli.fetching import fetch

    fetch(start, end, reply)


def _into_engine(source: Path, address: str, distribute: bool, restart: bool, reply: Reply) -> None:
    reached = [0, 0]  # items that are there for good, and all of them

    def watch(done: int, total: int) -> None:
        reached[:] = done, total

    with HashTable.open(source) as table:
        try:
            done = copy_to_engine(
                table, address, distribute=distribute, restart=restart,
                notes=_carried(table, source), show=not reply.quiet, watch=watch,
            )  # fmt: skip
        except KeyboardInterrupt:
            print(
                f"flowhash: stopped; {reached[0]:,} of {count(reached[1], 'item')} are at "
                f"{shown(address)}, the same command goes on",
                file=sys.stderr,
            )
            sys.exit(130)
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
    reply.result(
        facts,
        f"{source}: {count(done.items, 'item')} copied to {shown(address)}{earlier} and compared, "
        f"in {seconds:.1f} s",
        f"next: flowhash search {place} QUERY   or   flowhash serve {place} --open",
    )


def _carried(table: HashTable, source: Path) -> dict[str, Any]:
    """What is noted about the table, for the copy: its encoder, what was indexed."""
    notes = TableNotes(table)
    known = notes.settings()
    kept = {name: known[name] for name in ("encoder", "items") if name in known}
    if "encoder" in kept:
        with contextlib.suppress(LostEncoderError):  # it may be on the machine that searches
            kept["encoder"] = str(own_encoder(known, source, None))
    return {**table.notes(), **({INDEX: kept} if kept else {}), **notes.sources()}
