"""``flowhash table …``: look at a stored table, check it, make it compact."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flowhash import engines
from flowhash.cli import options
from flowhash.cli.locations import place_of, shown
from flowhash.cli.output import Output, count, size
from flowhash.errors import InputError
from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.table import Stats

command = typer.Typer(
    name="table",
    help="Look at a stored hash table, check it, make it compact.",
    no_args_is_help=True,
    add_completion=False,
)


@command.command(epilog="Example:  flowhash table stats pets.table")
def stats(table: options.TablePlace, output: Output) -> None:
    """Show how full the buckets are, how much searching they save, and what the table takes."""
    place = place_of(table)
    with engines.open_any(place) as opened:
        found = opened.stats()
        settings = {"metric": opened.metric, "dtype": opened.dtype, "ids": opened.id_kind}
        encoder = opened.encoder
    output.result({**settings, "encoder": encoder, **asdict(found)})
    kinds = f"{settings['metric']}, {settings['dtype']}, ids {settings['ids']}"
    output.show(_stats_table(shown(place), kinds, encoder, found))


def _stats_table(name: str, kinds: str, encoder: str | None, found: Stats) -> Any:
    escape = require("rich.markup", "cli").escape
    drawn = require("rich.table", "cli").Table(title=escape(name), show_header=False)
    drawn.add_column()
    drawn.add_column(justify="right")
    drawn.add_row("items", f"{found.items:,}")
    drawn.add_row("deleted, not yet dropped", f"{found.deleted:,}")
    drawn.add_row("segments", f"{found.segments:,}")
    drawn.add_row("buckets d, active k, dim", f"{found.buckets}, {found.active}, {found.dim}")
    drawn.add_row("metric, stored as", kinds)
    drawn.add_row("encoder", escape(encoder or "not given"), end_section=True)
    loads = f"{found.load_p50:,.0f} / {found.load_p99:,.0f} / {found.load_max:,}"
    drawn.add_row("load p50 / p99 / max", loads)
    drawn.add_row("empty buckets", f"{found.empty:,}")
    drawn.add_row("SUF, measured", "–" if math.isnan(found.suf) else f"{found.suf:,.2f}")
    drawn.add_row("SUF, expected of even codes", f"{found.expected_suf:,.2f}")
    variance = f"{found.expected_variance:,.1f}"
    drawn.add_row("expected variance of items found", variance, end_section=True)
    drawn.add_row("size", size(found.bytes))
    if found.items:
        share = found.bytes_per_item / found.bytes_per_embedding
        drawn.add_row("bytes an item", f"{found.bytes_per_item:,.1f}")
        drawn.add_row("as a multiple of the embeddings", f"{share:.3f}")
    return drawn


@command.command(epilog="Example:  flowhash table check pets.table")
def check(table: options.TablePlace, output: Output) -> None:
    """Read every byte, compare it with its checksum, and see that all fits together.

    Of an address every item is read; its bytes are the server's own to check. Exits with 0 if the
    table is clean, with 1 if anything is wrong with it, and with 2 if there is no table.
    """
    from flowhash.table import folder_faults

    place = place_of(table)
    if isinstance(place, Path):
        faults = folder_faults(place, output.progress)
    else:
        with engines.open_engine(place) as engine:
            faults = engines.engine_faults(engine, output.progress)
    name = shown(place)
    if faults:
        facts = {"table": name, "clean": False, "faults": faults}
        output.result(facts, *faults, f"{name}: {count(len(faults), 'fault')}")
        raise typer.Exit(1)
    with engines.open_any(place) as opened:
        found = opened.stats()
    read = "read"
    if isinstance(place, Path):
        read = f"in {count(found.segments, 'segment')}, {size(found.bytes)} read"
    output.result(
        {"table": name, "clean": True, "faults": [], "items": found.items, "bytes": found.bytes},
        f"{name}: clean ({count(found.items, 'item')} {read})",
    )


@command.command(epilog="Example:  flowhash table compact pets.table")
def compact(table: options.TablePlace, output: Output) -> None:
    """Merge all segments into one and drop what was deleted: the fastest to search.

    For tables in folders; engines tidy up by themselves.
    """
    from flowhash.table import HashTable

    path = place_of(table)
    if not isinstance(path, Path):
        raise InputError(
            f"{shown(path)} is an address; only a table in a folder has segments to merge, an "
            "engine tidies up by itself. Expected a folder"
        )
    with HashTable.open(path, "r+") as opened:
        before = opened.stats()
        opened.compact()
        after = opened.stats()
    facts = {
        "table": path, "segments": after.segments, "dropped": before.deleted,
        "bytes_before": before.bytes, "bytes": after.bytes,
    }  # fmt: skip
    if before.segments <= 1 and not before.deleted:
        output.result(facts, f"{path}: compact already ({size(before.bytes)})")
        return
    output.result(
        facts,
        f"{path}: {count(before.segments, 'segment')} to {count(after.segments, 'segment')}, "
        f"{count(before.deleted, 'deleted row')} dropped, {size(before.bytes)} to "
        f"{size(after.bytes)}",
    )
