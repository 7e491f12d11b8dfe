"""``flowhash table …``: look at a stored table, check it, make it compact."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash import engines
from flowhash.cli import options
from flowhash.cli.locations import load_encoder, place_of, shown, stored_queries
from flowhash.cli.output import Output, count, size
from flowhash.errors import InputError, MissingExtraError
from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.encoder import Encoded
    from flowhash.table import HealthReport, Stats

# What to do, by what a report calls it.
COMMANDS = {
    "calibrate": "flowhash calibrate {}",
    "adapt": "flowhash adapt {}, and calibrate it again",
    "compact": "flowhash table compact {}",
}

command = typer.Typer(
    name="table",
    help="Look at a stored hash table, how it is, check it, make it compact.",
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
    if found.mean_active < found.active:
        drawn.add_row("buckets of an item, on average", f"{found.mean_active:.2f}")
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


@command.command(epilog="Example:  flowhash table health pets.table")
def health(
    table: options.TablePlace,
    *,
    encoder: options.OwnEncoder = None,
    items: Annotated[
        int, typer.Option(min=30, help="Stored items that measure what a recall reaches.")
    ] = 300,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Of the stored items that are drawn.")
    ] = 0,
    device: options.Device = "auto",
    output: Output,
) -> None:
    """Show whether buckets and recall are still what they were, and what to do if not.

    Where the table was calibrated and its encoder makes codes of stored embeddings, some stored
    items measure what a recall reaches and scans now. Otherwise the loads of the buckets tell what
    it scans.
    """
    from flowhash.table import RECALL_NOTE

    place = place_of(table)
    with engines.open_any(place) as opened:
        made: Encoded | None = None
        own, why = None, None
        if opened.notes().get(RECALL_NOTE) is not None and len(opened):
            made, own, why = _measurable(opened, place, encoder, items, seed, device)
        if made is None:
            found = opened.health()
        else:
            found = opened.health(
                made.activations, made.embeddings, own=own, encoder=made.fingerprint
            )
    name = shown(place)
    output.result({"table": name, **asdict(found), "why_not_measured": why})
    output.show(_health_table(name, found))
    if output.as_json:
        return
    if found.calibrated and not found.measured:
        output.say(f"recall was not measured: {why}")
    for one in found.findings:
        print(f"{one.words}. To do: {COMMANDS[one.action].format(shlex.quote(name))}")
    if not found.findings:
        print("nothing is to be done")


def _measurable(
    table: Any, place: str | Path, given: Path | None, items: int, seed: int, device: str
) -> tuple[Encoded | None, Any, str | None]:
    """Stored items as queries, and their ids; or why there are none."""
    from flowhash.indexing import own_encoder
    from flowhash.table import FEWEST_MEASURED

    try:
        if len(table) < FEWEST_MEASURED:
            return None, None, f"it takes {FEWEST_MEASURED} items, of fewer it says too little"
        run = own_encoder(table, place, given)
        if run is None:
            return None, None, "the table does not say which encoder made it; give --encoder"
        made, own = stored_queries(table, load_encoder(run), items, seed, device)
    except (InputError, MissingExtraError) as error:
        if given is not None:
            raise
        return None, None, str(error)
    return made, own, None


def _health_table(name: str, found: HealthReport) -> Any:
    escape = require("rich.markup", "cli").escape
    drawn = require("rich.table", "cli").Table(title=escape(name), show_header=False)
    drawn.add_column()
    drawn.add_column(justify="right")
    drawn.add_row("items", f"{found.items:,}")
    drawn.add_row("deleted, not yet dropped", f"{found.deleted:,}", end_section=True)
    drawn.add_row("load variation", f"{found.load_variation:.2f}")
    drawn.add_row("mean load of buckets that hold items", f"{found.load_mean:,.1f}")
    drawn.add_row("empty buckets", f"{found.empty:,} of {found.buckets:,}")
    drawn.add_row("buckets to split", f"{len(found.to_split):,}", end_section=True)
    if found.calibrated is None:
        drawn.add_row("recall", "never calibrated")
        return drawn
    drawn.add_row("items when recall was calibrated", f"{found.calibrated:,}")
    since = f"{found.changed:,}" + (", too many" if found.old else "")
    drawn.add_row("added or deleted since", since, end_section=True)
    for one in found.drift:
        before, told = one.before, "" if one.reached is None else f"reaches {one.reached:.3f}, "
        drawn.add_row(
            f"recall {before.recall:g} of the {before.top} nearest",
            f"{told}scans {one.scanned:.2%}, was {before.scanned:.2%}",
        )
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
