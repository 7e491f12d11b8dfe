"""``flowhash index``: items into a table, batch by batch, each stored for good before the next."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash import engines
from flowhash.cli import options
from flowhash.cli.config_file import save_settings
from flowhash.cli.locations import (
    check_address,
    encoder_folder,
    load_encoder,
    located,
    shown,
    writable,
)
from flowhash.cli.output import Output, and_goes_on, count, stoppable
from flowhash.errors import InputError, StorageError

if TYPE_CHECKING:
    from flowhash.indexing import IndexRun

LOOKED_UP = 1000  # names that are looked for at once

command = typer.Typer(add_completion=False)


@command.command(epilog="Example:  flowhash index pets.run pets --out pets.table")
def index(
    context: typer.Context,
    encoder: options.EncoderPath,
    items: options.Items,
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="The table's folder; one that is there is added to. This, or --to."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            autocompletion=options.complete_address,
            help="Instead of --out: postgresql://HOST/DATABASE?table=NAME or "
            "qdrant://HOST:6333/COLLECTION.",
        ),
    ] = None,
    distribute: options.Distribute = False,
    split: options.Split = "train",
    ids: Annotated[
        str | None,
        typer.Option(
            help="Of a new table: numbers that count on, or names, so that a file added again "
            "replaces itself. Names for images in files, numbers otherwise."
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Items of another source may replace those of their name."),
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Add rows that were indexed before, under new numbers."),
    ] = False,
    active: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of a new table: in how many buckets an item may be, where that is more than the "
            "encoder's k: room for second ones (`calibrate --copies`). 2 without labels.",
        ),
    ] = None,
    pictures: options.Pictures = True,
    metric: options.Metric = None,
    dtype: options.Dtype = None,
    opening: options.Opening,
    download: options.Download = False,
    batch: Annotated[int, typer.Option(min=1, help="Items that are stored at once.")] = 5000,
    device: options.Device = "auto",
    output: Output,
) -> None:
    """Put items into a table, so that they are found: encode, add, keep.

    The table is a folder (--out), or kept by PostgreSQL or Qdrant (--to). Each batch is safe on
    disk before the next begins. Ctrl-C stops it; the same command goes on
    where it stopped. The table remembers its encoder: search and serve need no other word.
    """
    from flowhash.data import open_collection
    from flowhash.indexing import IndexRun, TableChoices, check_items, open_table

    place = _chosen_place(context, out, to, distribute)
    loaded = load_encoder(encoder)
    given = opening.given(download=download)
    collection = open_collection(
        items, size=loaded.preprocessing.size, split=split, progress=output.progress, **given
    )
    check_items(loaded, collection, items, device)
    if isinstance(place, Path) and place.exists():
        writable(place)
    began = time.monotonic()
    choices = TableChoices(ids, pictures, metric, dtype, distribute, active=active)
    with open_table(place, loaded, collection, choices) as table:
        before = len(table)
        words = [str(located(items)), split, repr(sorted(given.items(), key=str))]
        work = IndexRun(table, loaded, collection, words, pictures, again)
        facts: dict[str, Any] = {
            "table": shown(place), "added": 0, "replaced": 0, "items": before, "seconds": 0.0,
        }  # fmt: skip
        if work.finished:
            # The encoder may lie elsewhere by now, or be the one that all items have new codes of.
            _save(context, work, place, encoder, items)
            output.result(
                facts,
                f"{shown(place)}: {items} was indexed before, nothing was added; the table has "
                f"{count(before, 'item')}. To add it once more, under new numbers, give --again",
            )
            return
        if not replace:
            _refuse_other_source(work, items, place)
        _save(context, work, place, encoder, items)
        added = _added(work, place, batch, device, output)
        seconds = time.monotonic() - began
        replaced = max(0, before + added - len(table))
        facts |= {"added": added, "replaced": replaced, "items": len(table), "seconds": seconds}
        then = _then(table, loaded, shlex.quote(shown(place)))
    gone = f", {count(replaced, 'item')} replaced" if replaced else ""
    output.result(
        facts,
        f"{shown(place)}: {count(added, 'item')} added in {seconds:.1f} s{gone}; the table has "
        f"{count(facts['items'], 'item')}",
        f"next: {then}",
    )


def _then(table: Any, encoder: Any, place: str) -> str:
    """What to do next; without labels a recall is what searches ask for."""
    from flowhash.learn import is_router
    from flowhash.table import HashTable

    if is_router(encoder) and isinstance(table, HashTable) and table.calibration is None:
        return f"flowhash adapt {place}, then flowhash search {place} QUERY --recall 0.95"
    return f"flowhash search {place} QUERY   or   flowhash serve {place} --open"


def _chosen_place(
    context: typer.Context, out: Path | None, to: str | None, distribute: bool
) -> str | Path:
    """Where items go: the folder of ``--out`` or the address of ``--to``."""
    if out is not None and to is not None:
        # One of them in a file, such as the settings of an earlier run: the command line wins.
        sources = {name: context.get_parameter_source(name) for name in ("out", "to")}
        typed = [name for name, one in sources.items() if one and one.name == "COMMANDLINE"]
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
        if engines.is_address(out):
            raise InputError("--out is an address; expected a folder. Give addresses with --to")
        if distribute:
            raise InputError("--distribute is for PostgreSQL with Citus; give --to postgresql://…")
        return out
    if not engines.is_address(to):
        raise InputError(
            f"--to is {shown(to)!r}; expected an address, postgresql://… or qdrant://…. Give "
            "folders with --out"
        )
    check_address(to, distribute)
    return to


def _save(context: typer.Context, work: IndexRun, out: str | Path, run: Path, source: str) -> None:
    """Note what ``search`` needs to know, and how this command runs again."""
    from flowhash.indexing import SETTINGS

    folder = encoder_folder(run)
    if isinstance(out, Path):
        table = work.table
        save_settings(
            context, out / SETTINGS, encoder=folder, items=located(source), out=out,
            metric=table.metric, dtype=table.dtype, to=None,
        )  # fmt: skip
    else:
        work.notes.write_settings(
            {"encoder": str(folder.expanduser().resolve()), "items": str(located(source))}
        )


def _added(work: IndexRun, out: str | Path, batch: int, device: str, output: Output) -> int:
    """Add what is left; how many items that was. Stopped, or with a lost server, it says so."""
    total = count(len(work.collection), "item")
    if work.done:
        output.say(f"going on after {work.done:,} of {total}")
    try:
        with stoppable(
            lambda: f"{work.done:,} of {total} are in {shown(out)}, the same command goes on"
        ):
            return work.run(batch, device, output.progress)
    except StorageError as error:
        if isinstance(out, Path):
            raise
        raise and_goes_on(error, work.done, len(work.collection)) from error


def _refuse_other_source(work: IndexRun, source: str, out: str | Path) -> None:
    """Two folders may have files of one name: the second must not replace the first unasked."""
    earlier = work.notes.settings().get("items")
    if not work.names or earlier in (None, str(located(source))):
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
