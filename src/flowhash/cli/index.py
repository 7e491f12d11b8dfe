"""``flowhash index``: items into a table, batch by batch, each stored for good before the next."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from flowhash.cli.config import save_settings
from flowhash.cli.notes import shown
from flowhash.cli.opening import (
    and_goes_on,
    encoder_folder,
    in_our_words,
    load_encoder,
    located,
    writable,
)
from flowhash.cli.reply import Reply, count
from flowhash.data import NAMED, Collection, open_collection
from flowhash.engines import SCHEMES, BrowsedEngine, is_address, room_of, scheme_of
from flowhash.errors import InputError, StorageError
from flowhash.indexing import SETTINGS, ResumableIndexing, TableChoices, open_table

if TYPE_CHECKING:
    from flowhash.encoder import Encoder

LOOKED_UP = 1000  # names that are looked for at once


def index(
    context: typer.Context,
    run: Path,
    source: str,
    split: str,
    opening: dict[str, Any],
    out: str | Path,
    choices: TableChoices,
    replace: bool,
    again: bool,
    batch: int,
    device: str,
    reply: Reply,
) -> None:
    """Open everything, add what is not there yet, say what comes next."""
    if batch < 1:
        raise InputError(f"--batch is {batch}; expected one or more items")
    encoder = load_encoder(run)
    collection = _opened(source, split, opening, encoder, device)
    if isinstance(out, Path) and out.exists():
        writable(out)
    began = time.monotonic()
    with open_table(out, encoder, collection, choices) as table:
        before = len(table)
        words = [str(_place(source)), split, repr(sorted(opening.items(), key=str))]
        work = ResumableIndexing(table, encoder, collection, words, choices.pictures, again)
        if work.finished:
            _was_there(reply, source, out, table)
            return
        if not replace:
            _refuse_other_source(work, source, out)
        _save(context, work, out, run, source)
        added = _added(work, out, batch, device, reply)
        replaced = max(0, before + added - len(table))
        _answer(reply, out, table, added, replaced, time.monotonic() - began)


def chosen_place(
    context: typer.Context, out: Path | None, to: str | None, distribute: bool
) -> str | Path:
    """Where items go: the folder of ``--out`` or the address of ``--to``.

    Raises:
        InputError: there is none, or both, or one that cannot be.
    """
    if out is not None and to is not None:
        # One of them in a file, such as the settings of an earlier run: the command line wins.
        typed = [name for name in ("out", "to") if _is_typed(context, name)]
        if len(typed) != 1:
            raise InputError(
                "there is an --out, for a folder, and a --to, for an address; give one"
            )
        out, to = (out, None) if typed == ["out"] else (None, to)
    if out is None and to is None:
        raise InputError(
            "nothing says where the items go; give --out FOLDER, or --to ADDRESS for a database"
        )
    if to is None:
        assert out is not None
        if is_address(out):
            raise InputError("--out is an address; expected a folder. Give addresses with --to")
        if distribute:
            raise InputError("--distribute is for PostgreSQL with Citus; give --to postgresql://…")
        return out
    if not is_address(to):
        raise InputError(
            f"--to is {shown(to)!r}; expected an address, postgresql://… or qdrant://…. Give "
            "folders with --out"
        )
    check_address(to, distribute)
    return to


def check_address(address: str, distribute: bool) -> None:
    """See that an address can be used at all, before anything is loaded for it.

    Raises:
        InputError: nobody knows such addresses, or it cannot be distributed.
        MissingExtraError: its packages are not installed.
    """
    room_of(address)
    if distribute and SCHEMES[scheme_of(address) or ""] != "postgres":
        raise InputError(
            f"--distribute is for PostgreSQL with Citus, not for {shown(address)}; leave it out"
        )


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _save(
    context: typer.Context, work: ResumableIndexing, out: str | Path, run: Path, source: str
) -> None:
    """Note what ``search`` needs to know, and how this command runs again."""
    folder = encoder_folder(run)
    if isinstance(out, Path):
        table = work.table
        save_settings(
            context, out / SETTINGS, encoder=folder, items=located(source), out=out,
            metric=table.metric, dtype=table.dtype, to=None,
        )  # fmt: skip
    else:
        work.notes.write_settings(
            {"encoder": str(folder.expanduser().resolve()), "items": str(_place(source))}
        )


def _added(work: ResumableIndexing, out: str | Path, batch: int, device: str, reply: Reply) -> int:
    """Add what is left; how many items that was. Stopped, or with a lost server, it says so."""
    total = count(len(work.collection), "item")
    if work.done:
        reply.say(f"going on after {work.done:,} of {total}")
    try:
        return work.run(batch, device, show=not reply.quiet)
    except KeyboardInterrupt:
        print(
            f"flowhash: stopped; {work.done:,} of {total} are in {shown(out)}, the same command "
            "goes on",
            file=sys.stderr,
        )
        sys.exit(130)
    except StorageError as error:
        if isinstance(out, Path):
            raise
        raise and_goes_on(error, work.done, len(work.collection)) from error


def _was_there(reply: Reply, source: str, out: str | Path, table: BrowsedEngine) -> None:
    facts = {"table": shown(out), "added": 0, "replaced": 0, "items": len(table), "seconds": 0.0}
    reply.result(
        facts,
        f"{shown(out)}: {source} was indexed before, nothing was added; the table has "
        f"{count(len(table), 'item')}. To add it once more, under new numbers, give --again",
    )


def _answer(
    reply: Reply, out: str | Path, table: BrowsedEngine, added: int, replaced: int, seconds: float
) -> None:
    facts = {
        "table": shown(out), "added": added, "replaced": replaced, "items": len(table),
        "seconds": seconds,
    }  # fmt: skip
    again = f", {count(replaced, 'item')} replaced" if replaced else ""
    place = shlex.quote(shown(out))
    reply.result(
        facts,
        f"{shown(out)}: {count(added, 'item')} added in {seconds:.1f} s{again}; the table has "
        f"{count(len(table), 'item')}",
        f"next: flowhash search {place} QUERY   or   flowhash serve {place} --open",
    )


def _place(source: str) -> str | Path:
    return source if source in NAMED else Path(source).expanduser().resolve()


def _opened(
    source: str, split: str, opening: dict[str, Any], encoder: Encoder, device: str
) -> Collection:
    """The items; that the encoder takes them is seen before there is a table."""
    takes = encoder.preprocessing
    try:
        found = open_collection(source, size=takes.size, split=split, **opening)
    except InputError as error:
        raise InputError(in_our_words(str(error))) from error
    if found.items.kind != takes.kind:
        raise InputError(
            f"{source} holds {found.items.kind}, but the encoder takes {takes.kind}; give items of "
            "the kind that it was trained on"
        )
    if not len(found):
        raise InputError(f"{source} has no items; give at least one to store")
    try:
        encoder.encode(found.take(np.arange(1)), device=device)
    except InputError as error:
        raise InputError(f"{source} does not fit the encoder: {error}") from error
    return found


def _refuse_other_source(work: ResumableIndexing, source: str, out: str | Path) -> None:
    """Two folders may have files of one name: the second must not replace the first unasked."""
    earlier = work.notes.settings().get("items")
    if not work.names or earlier in (None, str(_place(source))):
        return
    names = list(work.collection.names)
    both: list[str] = []
    for start in range(0, len(names), LOOKED_UP):
        some = names[start : start + LOOKED_UP]
        codes = work.table.codes_of(some)
        both += [name for name, code in zip(some, codes, strict=True) if code is not None]
    if both:
        raise InputError(
            f"{count(len(both), 'item')} of {source} have names that {shown(out)} has already from "
            f"{earlier}, such as {both[0]}; give --replace to replace them, or index the folder "
            "above both"
        )
