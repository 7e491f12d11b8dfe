"""``flowhash index``: items into a table, batch by batch, each safe on disk before the next."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from flowhash.cli.config import read_settings, save_settings
from flowhash.cli.indexing import SETTINGS, Indexing, TableChoices, open_table
from flowhash.cli.opening import encoder_folder, in_our_words, load_encoder, located, writable
from flowhash.cli.reply import Reply, count
from flowhash.data import NAMED, Collection, open_collection
from flowhash.errors import InputError
from flowhash.table import HashTable

if TYPE_CHECKING:
    from flowhash.encoder import Encoder


def index(
    context: typer.Context,
    run: Path,
    source: str,
    split: str,
    opening: dict[str, Any],
    out: Path,
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
    if out.exists():
        writable(out)
    began = time.monotonic()
    with open_table(out, encoder, collection, choices) as table:
        before = len(table)
        words = [str(_place(source)), split, repr(sorted(opening.items(), key=str))]
        work = Indexing(table, encoder, collection, words, choices.pictures)
        if again:
            work.begin_anew()
        elif work.finished:
            _was_there(reply, source, out, table)
            return
        if not replace:
            _refuse_other_source(table, collection, source, out)
        save_settings(
            context, out / SETTINGS, encoder=encoder_folder(run), items=located(source),
            metric=table.metric, dtype=table.dtype,
        )  # fmt: skip
        try:
            added = work.run(batch, device, reply)
        except KeyboardInterrupt:
            print(
                f"flowhash: stopped; {work.done:,} of {count(len(collection), 'item')} are in "
                f"{out}, the same command goes on",
                file=sys.stderr,
            )
            sys.exit(130)
        replaced = before + added - len(table)
        _answer(reply, out, table, added, replaced, time.monotonic() - began)


def _was_there(reply: Reply, source: str, out: Path, table: HashTable) -> None:
    facts = {"table": out, "added": 0, "replaced": 0, "items": len(table), "seconds": 0.0}
    reply.result(
        facts,
        f"{out}: {source} was indexed before, nothing was added; the table has "
        f"{count(len(table), 'item')}. To add it once more, under new numbers, give --again",
    )


def _answer(
    reply: Reply, out: Path, table: HashTable, added: int, replaced: int, seconds: float
) -> None:
    facts = {
        "table": out, "added": added, "replaced": replaced, "items": len(table),
        "seconds": seconds,
    }  # fmt: skip
    again = f", {count(replaced, 'item')} replaced" if replaced else ""
    place = shlex.quote(str(out))
    reply.result(
        facts,
        f"{out}: {count(added, 'item')} added in {seconds:.1f} s{again}; the table has "
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
        raise InputError(f"{source} does not fit the encoder {error}") from error
    return found


def _refuse_other_source(table: HashTable, collection: Collection, source: str, out: Path) -> None:
    """Two folders may have files of one name: the second must not replace the first unasked."""
    earlier = read_settings(out / SETTINGS, "index").get("items")
    if table.id_kind != "string" or earlier in (None, str(_place(source))):
        return
    both = [name for name in collection.names if name in table]
    if both:
        raise InputError(
            f"{count(len(both), 'item')} of {source} have names that {out} has already from "
            f"{earlier}, such as {both[0]}; give --replace to replace them, or index the folder "
            "above both"
        )
