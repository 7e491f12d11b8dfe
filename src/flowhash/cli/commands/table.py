"""``flowhash table …``: look at a stored table, check it, make it compact."""

from __future__ import annotations

import contextlib
import math
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash import engines
from flowhash.cli import options
from flowhash.cli.locations import load_encoder, place_of, shown, stored_queries
from flowhash.cli.output import Output, count, size
from flowhash.errors import InputError, MissingExtraError, StorageError
from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.encoder import Encoded, Encoder
    from flowhash.table import HealthReport, Stats

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
    name = shown(place)
    with engines.open_any(place) as opened:
        loaded, why, unknown = _own_encoder(opened, place, encoder)
        made: Encoded | None = None
        own = None
        if loaded is not None and opened.notes().get(RECALL_NOTE) is not None and len(opened):
            made, own, why = _measurable(opened, loaded, encoder, items, seed, device)
        if made is None:
            found = opened.health()
        else:
            found = opened.health(
                made.activations, made.embeddings, own=own, encoder=made.fingerprint
            )
        whose = " --encoder RUN" if unknown else ""
        if encoder is not None:
            whose = f" --encoder {shlex.quote(str(encoder))}"
        to_do = _Advice(opened, shlex.quote(name), loaded, whose).of(found)
    unmeasured = why if found.calibrated and not found.measured else None
    facts = {"table": name, **asdict(found), "why_not_measured": unmeasured}
    for one, said in zip(facts["findings"], to_do, strict=True):
        one["to_do"] = said
    output.result(facts)
    output.show(_health_table(name, found))
    if output.as_json:
        return
    if unmeasured is not None:
        output.say(f"recall was not measured: {unmeasured}")
    for finding, said in zip(found.findings, to_do, strict=True):
        print(f"{finding.words}. To do: {said}")
    if not found.findings:
        print("nothing is to be done")


def _own_encoder(
    table: Any, place: str | Path, given: Path | None
) -> tuple[Encoder | None, str | None, bool]:
    """The encoder of a table; or why there is none, and whether nobody knows where it is."""
    from flowhash.indexing import own_encoder

    if not len(table) and given is None:
        return None, None, False
    try:
        run = own_encoder(table, place, given)
        if run is None:
            return None, "the table does not say which encoder made it; give --encoder", True
        loaded = load_encoder(run)
        from flowhash.encoder import check_table  # which wants torch

        check_table(loaded, table)
        return loaded, None, False
    except (InputError, MissingExtraError, StorageError) as error:
        if given is not None:
            raise
        return None, str(error), not isinstance(error, MissingExtraError)


def _measurable(
    table: Any, encoder: Encoder, given: Path | None, items: int, seed: int, device: str
) -> tuple[Encoded | None, Any, str | None]:
    """Stored items as queries, and their ids; or why there are none."""
    from flowhash.table import FEWEST_MEASURED

    try:
        if len(table) < FEWEST_MEASURED:
            return None, None, f"it takes {FEWEST_MEASURED} items, of fewer it says too little"
        made, own = stored_queries(table, encoder, items, seed, device)
    except InputError as error:
        if given is not None:
            raise
        return None, None, str(error)
    return made, own, None


@dataclass(frozen=True)
class _Advice:
    """Which command does what a report recommends, for one that is not refused.

    Attributes:
        table: open.
        name: of it, for a shell.
        encoder: its own; None where nobody knows it, or it cannot be loaded.
        whose: the option that names its folder, where the user must give it.
    """

    table: Any
    name: str
    encoder: Encoder | None
    whose: str

    def of(self, found: HealthReport) -> list[str]:
        """What to do for each finding; what is adapted is calibrated afterwards, not before."""
        said = {"compact": f"flowhash table compact {self.name}"}
        actions = {one.action for one in found.findings}
        if "calibrate" in actions:
            said["calibrate"] = self._calibrate(found.items)
        if "adapt" in actions:
            said["adapt"], possible = self._adapt(found.items)
            if possible:
                said["calibrate"] = said["adapt"]
        return [said[one.action] for one in found.findings]

    def _calibrate(self, items: int, adapted: bool = False) -> str:
        """Words; once it is adapted the table names its encoder, which takes embeddings."""
        from flowhash.table import FEWEST

        whose = "" if adapted else self.whose
        stored = adapted or self.encoder is None or self.encoder.takes_embeddings
        if stored and items >= FEWEST:
            return f"flowhash calibrate {self.name}{whose}"
        return (
            f"flowhash calibrate {self.name} QUERIES{whose}, with a file of {FEWEST} or more "
            "queries like those to come"
        )

    def _adapt(self, items: int) -> tuple[str, bool]:
        """Words, and whether the table can be adapted where it is."""
        from flowhash.indexing import adapted_before, check_adaptable
        from flowhash.table import HashTable

        if not isinstance(self.table, HashTable):
            return (
                f"an address is not adapted in place; copy it into a folder (flowhash copy "
                f"{self.name} FOLDER), adapt that, and copy it to a new address"
            ), False
        command = f"flowhash adapt {self.name}{self.whose}"
        again = f"{command}, then {self._calibrate(items, adapted=True)}"
        if self.encoder is None:
            return again, True
        from flowhash.learn import is_router

        with contextlib.suppress(InputError):  # a lost encoder, which was given here
            if adapted_before(self.table) is not None:
                return (
                    "adapt has fitted the buckets to these very items; for fewer in each fit an "
                    "encoder with more buckets (flowhash fit --buckets) and index them with that"
                ), False
        try:
            check_adaptable(self.table, self.encoder)
        except InputError as error:
            return f"adapt would, but {error}", False
        if is_router(self.encoder):
            return f"{command}, which calibrates it, too", True
        return again, True


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
