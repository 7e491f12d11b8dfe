"""``flowhash table …``: look at a stored table, check it, make it compact."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import typer

from flowhash.cli.checking import engine_faults
from flowhash.cli.notes import place_of, shown
from flowhash.cli.reply import Reply, count, size
from flowhash.engines import open_any, open_engine
from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.table import HashTable, Stats, folder_faults


def check(text: str, reply: Reply) -> None:
    """Read everything, print what is wrong, and exit with 1 if anything is."""
    place = place_of(text)
    if isinstance(place, Path):
        faults = folder_faults(place)
    else:
        with open_engine(place) as engine:
            faults = engine_faults(engine, not reply.quiet)
    name = shown(place)
    if faults:
        facts = {"table": name, "clean": False, "faults": faults}
        reply.result(facts, *faults, f"{name}: {count(len(faults), 'fault')}")
        raise typer.Exit(1)
    with open_any(place) as table:
        found = table.stats()
    read = "read"
    if isinstance(place, Path):
        read = f"in {count(found.segments, 'segment')}, {size(found.bytes)} read"
    reply.result(
        {"table": name, "clean": True, "faults": [], "items": found.items, "bytes": found.bytes},
        f"{name}: clean ({count(found.items, 'item')} {read})",
    )


def stats(text: str, as_json: bool) -> None:
    """Print the figures of a table."""
    place = place_of(text)
    with open_any(place) as table:
        found = table.stats()
        kinds = f"{table.metric}, {table.dtype}, ids {table.id_kind}"
        encoder = table.encoder
        settings = {"metric": table.metric, "dtype": table.dtype, "ids": table.id_kind}
    if as_json:
        Reply(as_json=True).result({**settings, "encoder": encoder, **asdict(found)})
        return
    console = require("rich.console", "cli").Console(highlight=False)
    console.print(_stats_table(shown(place), kinds, encoder, found))


def _stats_table(name: str, kinds: str, encoder: str | None, found: Stats) -> object:
    escape = require("rich.markup", "cli").escape
    table = require("rich.table", "cli").Table(title=escape(name), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("items", f"{found.items:,}")
    table.add_row("deleted, not yet dropped", f"{found.deleted:,}")
    table.add_row("segments", f"{found.segments:,}")
    table.add_row("buckets d, active k, dim", f"{found.buckets}, {found.active}, {found.dim}")
    table.add_row("metric, stored as", kinds)
    table.add_row("encoder", escape(encoder or "not given"), end_section=True)
    loads = f"{found.load_p50:,.0f} / {found.load_p99:,.0f} / {found.load_max:,}"
    table.add_row("load p50 / p99 / max", loads)
    table.add_row("empty buckets", f"{found.empty:,}")
    table.add_row("SUF, measured", "–" if math.isnan(found.suf) else f"{found.suf:,.2f}")
    table.add_row("SUF, expected of even codes", f"{found.expected_suf:,.2f}")
    variance = f"{found.expected_variance:,.1f}"
    table.add_row("expected variance of items found", variance, end_section=True)
    table.add_row("size", size(found.bytes))
    if found.items:
        share = found.bytes_per_item / found.bytes_per_embedding
        table.add_row("bytes an item", f"{found.bytes_per_item:,.1f}")
        table.add_row("as a multiple of the embeddings", f"{share:.3f}")
    return table


def compact(text: str, reply: Reply) -> None:
    """Merge all segments and drop what was deleted."""
    path = place_of(text)
    if not isinstance(path, Path):
        raise InputError(
            f"{shown(path)} is an address; only a table in a folder has segments to merge, an "
            "engine tidies up by itself. Expected a folder"
        )
    with HashTable.open(path, "r+") as table:
        before = table.stats()
        table.compact()
        after = table.stats()
    facts = {
        "table": path, "segments": after.segments, "dropped": before.deleted,
        "bytes_before": before.bytes, "bytes": after.bytes,
    }  # fmt: skip
    if before.segments <= 1 and not before.deleted:
        reply.result(facts, f"{path}: compact already ({size(before.bytes)})")
        return
    reply.result(
        facts,
        f"{path}: {count(before.segments, 'segment')} to {count(after.segments, 'segment')}, "
        f"{count(before.deleted, 'deleted row')} dropped, {size(before.bytes)} to "
        f"{size(after.bytes)}",
    )
