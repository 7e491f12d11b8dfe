"""``flowhash calibrate``: how many buckets a recall takes, so that ``search --recall`` can ask."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowhash import engines
from flowhash.cli import options
from flowhash.cli.locations import load_encoder, place_of, read_queries, shown, stored_queries
from flowhash.cli.output import Output, count
from flowhash.errors import InputError
from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.encoder import Encoder
    from flowhash.engines import RemoteEngine
    from flowhash.table import HashTable, RecallCalibration

SHOWN = (0.8, 0.9, 0.95, 0.98, 0.99)  # recalls whose cost is told

command = typer.Typer(add_completion=False)


@command.command(epilog="Example:  flowhash calibrate pets.table queries.npy")
def calibrate(
    table: options.TablePlace,
    queries: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUERIES]",
            help="An .npy or .npz file of queries like those to come, 50 or more. Stored items, "
            "each searched among the others, if not given.",
        ),
    ] = None,
    *,
    encoder: options.OwnEncoder = None,
    items: Annotated[
        int, typer.Option(min=50, help="How many stored items, where no queries are given.")
    ] = 1_000,
    top: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Neighbours that will be asked for; may be given again. 1, 5, 10, 20, 50 and 100 "
            "if not given.",
        ),
    ] = None,
    copies: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Give this share of the items a second bucket first, where a recall then scans "
            "less. In a folder, where the table has room (`index --active 2`).",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Of the stored items that are drawn.")
    ] = 0,
    device: options.Device = "auto",
    output: Output,
) -> None:
    """Find out how many buckets a recall takes, so that a search can be asked for one.

    Some queries are searched among all items, and what would have found their neighbours is noted
    in the table. From then on `flowhash search --recall 0.95` opens as many buckets as that takes,
    on average over queries like these.
    """
    from flowhash.table import RECALL_TOPS

    place = place_of(table)
    with engines.open_any(place, "r+") as stored:
        if not len(stored):
            raise InputError(f"{shown(place)} is empty; put items into it with `flowhash index`")
        loaded = load_encoder(_run_of(stored, place, encoder))
        began = time.monotonic()
        if copies is not None:
            _share(stored, loaded, place, copies, seed, device, output)
        if queries is None:
            made, own = stored_queries(stored, loaded, items, seed, device)
        else:
            made, own = loaded.encode(read_queries(loaded, stored, queries)[1], device=device), None
        found = stored.calibrate(
            made.activations, made.embeddings, tops=tuple(top or RECALL_TOPS), own=own,
            encoder=made.fingerprint,
        )  # fmt: skip
        _report(found, shown(place), len(stored), time.monotonic() - began, output)


def _share(
    table: HashTable | RemoteEngine, encoder: Encoder, place: str | Path, copies: float, seed: int,
    device: str, output: Output,
) -> None:  # fmt: skip
    """Second buckets for a share of the items."""
    from flowhash.indexing import share_table
    from flowhash.table import HashTable

    if not isinstance(table, HashTable):
        raise InputError(
            f"{shown(place)} is an address; --copies gives new codes to the items of a folder "
            "only. Copy it into a folder (flowhash copy), calibrate that, and copy it to a new "
            "address"
        )
    share_table(
        table, encoder, copies, seed=seed, device=device, show=output.progress, say=output.say
    )


def _run_of(table: HashTable | RemoteEngine, place: str | Path, given: Path | None) -> Path:
    from flowhash.indexing import own_encoder

    run = own_encoder(table, place, given)
    if run is None:
        raise InputError(
            f"{shown(place)} does not say which encoder made it; give --encoder, the run of "
            "`flowhash fit`"
        )
    return run


def _report(
    found: RecallCalibration, place: str, items: int, seconds: float, output: Output
) -> None:
    tops = sorted(found.thresholds)
    top = max((each for each in tops if each <= 10), default=tops[0])
    costs = []
    for recall in (each for each in SHOWN if each < found.highest):
        share, opened = found.expected(recall, top)
        costs.append({"recall": recall, "scanned": share, "opened": opened})
    source = "stored items" if found.stored else "queries"
    facts = {
        "table": place, "items": items, "queries": found.queries, "stored": found.stored,
        "tops": tops, "top": top, "highest": found.highest, "expected": costs, "seconds": seconds,
    }  # fmt: skip
    neighbours = "nearest one" if top == 1 else f"{top} nearest"
    output.result(
        facts,
        f"{place}: thresholds by {found.queries:,} {source} among {count(items, 'item')}, in "
        f"{seconds:.1f} s",
    )
    table = require("rich.table", "cli").Table(
        title=f"what a recall of the {neighbours} takes", title_justify="left"
    )
    for name in ("recall", "buckets opened", "items scanned", "times fewer"):
        table.add_column(name, justify="right")
    for cost in costs:
        share = cost["scanned"]
        table.add_row(
            f"{cost['recall']:g}", f"{cost['opened']:.1f}", f"{share:.2%}", f"{1 / share:.1f}"
        )
    output.show(table)
    if not output.as_json:
        output.say(f"next: flowhash search {shlex.quote(place)} QUERY --recall 0.95")
