"""``flowhash adapt``: buckets fitted to the items that are in a table, without labels."""

from __future__ import annotations

import math
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash.cli import options
from flowhash.cli.config_file import save_settings
from flowhash.cli.locations import encoder_folder, load_encoder, place_of, shown, writable
from flowhash.cli.output import Output, count, stoppable
from flowhash.errors import InputError

if TYPE_CHECKING:
    from flowhash.encoder import Encoder
    from flowhash.table import HashTable

SETTINGS = "adapt.toml"  # in the run

command = typer.Typer(add_completion=False)


@command.command(epilog="Example:  flowhash adapt pets.table")
def adapt(
    context: typer.Context,
    table: options.TablePlace,
    *,
    encoder: options.OwnEncoder = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A new folder for the run with the new encoder; TABLE.adapted if not given."
        ),
    ] = None,
    copies: options.Copies = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Of the sample that buckets are fitted to.")
    ] = 0,
    again: Annotated[
        bool, typer.Option("--again", help="Adapt also what has not changed since the last time.")
    ] = False,
    device: options.Device = "auto",
    output: Output,
) -> None:
    """Fit the buckets to the items that are in a table, without labels.

    For tables with items of classes that training never saw. The buckets start at the trained ones.
    Where the encoder was fitted to vectors without labels, it learns anew in which buckets
    neighbours lie, gives second buckets, and calibrates. Otherwise calibration and second buckets
    are dropped; `flowhash calibrate --copies` makes them anew.
    The new encoder is saved, then every item gets its new code, in one step; searches by others go
    on meanwhile. Stopped or killed, it leaves the table and its encoder as they were, and the same
    command goes on.
    """
    from flowhash.table import HashTable

    place = place_of(table)
    if not isinstance(place, Path):
        raise InputError(
            f"{shown(place)} is an address; only the items of a folder get new codes in place. "
            "Copy it into a folder (flowhash copy), adapt that, and copy it to a new address"
        )
    with HashTable.open(place, "r+") as opened:
        if not len(opened):
            raise InputError(f"{place} is empty; put items into it with `flowhash index`")
        if not again and _was_adapted(opened, place, encoder, out, copies, seed, output):
            return
        loaded = _encoder_of(opened, place, encoder)
        _adapt(context, opened, place, loaded, out, copies, seed, device, output)


def _was_adapted(
    table: HashTable, place: Path, encoder: Path | None, out: Path | None, copies: float | None,
    seed: int, output: Output,
) -> bool:  # fmt: skip
    """Whether there is nothing to do, and then say so."""
    from flowhash.indexing import adapted_before, fingerprint_at, tell_index

    given = None if encoder is None else encoder_folder(encoder)
    before = adapted_before(table, seed, given, copies)
    if before is None or fingerprint_at(before) != table.encoder:
        return False  # what adapts says why another encoder will not do
    tell_index(table, before)  # which a command that was killed may have left out
    facts = {
        "table": place, "items": len(table), "adapted": False, "resumed": False,
        "encoder": before, "fingerprint": table.encoder, "seconds": 0.0,
    }  # fmt: skip
    unused = "" if out is None else f"; {out} was not used"
    output.result(
        facts,
        f"{place}: was adapted before, and nothing has changed since; its encoder is {before}"
        f"{unused}. To adapt it once more give --again",
    )
    return True


def _encoder_of(table: HashTable, place: Path, given: Path | None) -> Encoder:
    from flowhash.indexing import own_encoder

    run = own_encoder(table, place, given)
    if run is None:
        raise InputError(
            f"{place} does not say which encoder made it; give --encoder, the run of `flowhash fit`"
        )
    return load_encoder(run)


def _adapt(
    context: typer.Context, table: HashTable, place: Path, encoder: Encoder, out: Path | None,
    copies: float | None, seed: int, device: str, output: Output,
) -> None:  # fmt: skip
    from flowhash.indexing import ENCODER, adapt_table, adaptation_folder

    folder = adaptation_folder(table, encoder, seed, copies) if out is None else out.expanduser()
    writable(folder.parent)
    began, before = time.monotonic(), table.stats()

    def words() -> str:
        if table.encoder != encoder.fingerprint:
            return f"{place} is adapted, its encoder is {folder / ENCODER}"
        kept = f"the encoder is fitted, in {folder}; " if folder.exists() else ""
        return f"{place} is as it was; {kept}the same command goes on"

    with stoppable(words):
        done = adapt_table(
            table, encoder, folder, copies=copies, seed=seed, device=device, show=output.progress,
            say=output.say,
        )  # fmt: skip
        save_settings(context, folder / SETTINGS, table=place, out=None, encoder=None)
        after = table.stats()
    facts: dict[str, Any] = {
        "table": place, "items": len(table), "adapted": True, "resumed": done.resumed,
        "encoder": folder / ENCODER, "fingerprint": done.encoder.fingerprint,
        "suf_before": before.suf, "suf": after.suf, "empty_before": before.empty,
        "empty": after.empty, "load_max_before": before.load_max, "load_max": after.load_max,
        "seconds": time.monotonic() - began,
    }  # fmt: skip
    quoted = shlex.quote(str(place))
    output.result(
        facts,
        f"{place}: {count(len(table), 'item')} in buckets of their own, in {facts['seconds']:.1f} "
        f"s; SUF {_factor(before.suf)} before, {_factor(after.suf)} now; the fullest bucket had "
        f"{before.load_max:,} and has {after.load_max:,}",
        f"encoder: {folder / ENCODER}  ({done.encoder})"
        + (", fitted by an earlier attempt" if done.resumed else ""),
        f"next: flowhash search {quoted} QUERY   or   flowhash serve {quoted} --open; a server "
        "that has the table open is to be started again; more items come with flowhash index "
        f"{shlex.quote(str(folder))} ITEMS --out {quoted}",
    )


def _factor(suf: float) -> str:
    return "–" if math.isnan(suf) else f"{suf:.1f}"
