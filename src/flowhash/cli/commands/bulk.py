"""``flowhash bulk …``: encode, index, search and join in parts, here or on a Ray cluster."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from flowhash import bulk
from flowhash.cli import options
from flowhash.cli.config_file import save_settings
from flowhash.cli.locations import encoder_folder, located
from flowhash.cli.output import Output, Stopped, count, telling_if_old
from flowhash.data import NAMED
from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.settings_file import read_settings, write_section

ENCODED = "_encode.toml"  # beside the encoded files; it names encoder and items
WHERE = "Where it runs"
Out = Annotated[Path, typer.Option(help="Folder for parquet files; the work goes on there.")]
Top = Annotated[int, typer.Option(min=1, help="How many to find of each.")]

command = typer.Typer(
    name="bulk",
    help="Encode, index, search, find neighbours in parts: for very many items or queries.\n\n"
    "Without --ray a command does its parts in this process, one after another. With --ray "
    "ADDRESS a Ray cluster (docs.ray.io) does them, on many machines at once, all of which "
    "must see the same folders; the result is the same. Stopped or killed, the same command "
    "goes on with the parts that are missing.",
    no_args_is_help=True,
    add_completion=False,
)


@dataclass(frozen=True)
class Execution:
    """How the parts of a command are done; the options of every command here."""

    rows: Annotated[int | None, typer.Option(min=1, help="Of a part; the usual suits most.")] = None
    restart: Annotated[
        bool, typer.Option("--restart", help="Drop what is in --out and begin anew.")
    ] = False
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Do the parts on a Ray cluster: host:port or ray://host:port, auto for the one "
            "that runs here, local for a new one on this machine. Without it no Ray is needed: "
            "this process does them, one after another, with all cores.",
            rich_help_panel=WHERE,
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of the cluster, with --ray; all its CPUs but one if not told.",
            rich_help_panel=WHERE,
        ),
    ] = None

    def given(self, output: Output) -> dict[str, Any]:
        """What every kind of work takes."""
        return {"rows": self.rows, "restart": self.restart, "show": output.progress}

    def device(self, asked: str) -> str:
        """Where items are encoded: on a cluster, on a GPU only if it is asked for.

        Workers that ask for no GPU may share a node's with others.
        """
        return "cpu" if asked == "auto" and self.ray is not None else asked

    @contextlib.contextmanager
    def runner(self, device: str = "cpu") -> Iterator[bulk.Runner]:
        """Who does the parts; a worker takes a GPU where it encodes on cuda."""
        require("pyarrow", "parquet" if self.ray is None else "ray")
        if self.ray is None:
            if self.workers is not None:
                raise InputError("--workers is for a cluster; give --ray, too, or leave it out")
            yield bulk.LocalRunner()
            return
        with bulk.RayRunner(self.ray, self.workers, 1 if device == "cuda" else 0) as runner:
            yield runner


@dataclass(frozen=True)
class TableExecution(Execution):
    """The same where the parts are segments of a table."""

    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Items of a segment; 256 MiB of files if not told."),
    ] = None
    restart: Annotated[
        bool, typer.Option("--restart", help="Drop segments that were built, and begin anew.")
    ] = False


@contextlib.contextmanager
def _telling(out: Path, output: Output) -> Iterator[Callable[..., None]]:
    """Say how far it is if Ctrl-C stops it; yields what tells the result."""
    began = time.monotonic()

    def tell(work: bulk.Work, word: str, *lines: str, **facts: Any) -> None:
        seconds = time.monotonic() - began
        now, rows = work.plan.rows - work.before, work.plan.rows
        facts = {
            "out": out, "rows": rows, "done_now": now, "parts": len(work.plan.sizes), **facts,
            "seconds": seconds,
        }  # fmt: skip
        done = f"{rows:,} queries" if word == "query" and rows != 1 else count(rows, word)
        what = f"{out}: {done} in {count(len(work.plan.sizes), 'part')}"
        if not now:
            what += ", all of which were there before"
        else:
            what += f", {now:,} of them now, in {seconds:.1f} s"
        output.result(facts, what, *lines)

    try:
        yield tell
    except bulk.Interrupted as stopped:
        raise Stopped(f"{stopped}, the same command goes on in {out}") from stopped


@command.command(
    epilog="Example:  flowhash bulk encode pets.run pets --out pets.encoded --ray auto"
)
def encode(
    context: typer.Context,
    encoder: options.EncoderPath,
    items: options.Items,
    *,
    out: Out,
    split: options.Split = "train",
    ids: Annotated[
        str | None,
        typer.Option(
            help="numbers, which are rows, or names. Names for images in files, numbers otherwise."
        ),
    ] = None,
    probe: Annotated[
        int | None,
        typer.Option(min=1, help="Buckets to keep of each in order, for queries; k if not given."),
    ] = None,
    activations: Annotated[
        bool,
        typer.Option("--activations", help="Keep them, for queries that ask for a recall."),
    ] = False,
    pictures: options.Pictures = True,
    opening: options.Opening,
    batch: Annotated[int, typer.Option(min=1, help="Items in memory at once.")] = 5000,
    device: options.Device = "auto",
    execution: Execution,
    output: Output,
) -> None:
    """Make codes and embeddings of items, as parquet files.

    Ctrl-C stops it; the same command goes on with the parts that are missing, as it does after a
    machine was lost. On a cluster, --device auto is cpu; with cuda, a worker takes a GPU.
    """
    run = encoder_folder(encoder)
    device = execution.device(device)
    choices = bulk.Choices(ids, probe, pictures, batch, device, activations)
    source = _source_of(items, split, opening.given())
    with _telling(out, output) as tell, execution.runner(device) as runner:
        work = bulk.encode(run, source, out, runner, choices, **execution.given(output))
    save_settings(context, out / ENCODED, encoder=run, items=located(source.source))
    tell(work, "item", f"next: flowhash bulk index {shlex.quote(str(out))} --out TABLE")


def _source_of(items: str, split: str, opening: dict[str, Any]) -> bulk.Source:
    """Items as every worker finds them, wherever it runs."""
    place = items if items in NAMED else str(Path(items).expanduser().absolute())
    options = tuple(
        (name, str(value.expanduser().absolute()) if isinstance(value, Path) else value)
        for name, value in sorted(opening.items())
    )
    return bulk.Source(place, split, options)


@command.command(epilog="Example:  flowhash bulk index pets.encoded --out pets.table")
def index(
    encoded: Annotated[
        Path, typer.Argument(metavar="ENCODED", help="A folder of `bulk encode`, or one file.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="The table's folder; one that is there is added to.")],
    metric: options.Metric = None,
    dtype: options.Dtype = None,
    buckets: Annotated[
        int | None,
        typer.Option(min=1, help="Of a new table, for parquet files that do not say it."),
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Merge all segments into one at the end.")
    ] = False,
    execution: TableExecution,
    output: Output,
) -> None:
    """Put encoded items into a table: segments are built in parallel and taken over in one step.

    Items replace those of the same id. Killed at any moment, it leaves the table as it was before
    or with everything in it; the same command goes on.
    """
    from flowhash.indexing import SETTINGS

    choices = bulk.TableChoices(metric=metric, dtype=dtype, buckets=buckets)
    with _telling(out, output) as tell, execution.runner() as runner:
        items, work = bulk.index(
            encoded, out, runner, choices, compact=compact, **execution.given(output)
        )
    known = read_settings(encoded / ENCODED, "bulk", "encode") if encoded.is_dir() else {}
    if "encoder" in known and not (out / SETTINGS).exists():  # search and serve look there
        section = {"encoder": known["encoder"], "items": known["items"], "out": out.resolve()}
        write_section(out / SETTINGS, ["index"], section)
    place = shlex.quote(str(out))
    tell(
        work, "item", f"the table has {count(items, 'item')}",
        f"next: flowhash bulk search {place} QUERIES --out ANSWERS   or   flowhash serve {place}",
        items=items,
    )  # fmt: skip


@command.command(
    epilog="Example:  flowhash bulk search pets.table queries.encoded --out answers --top 10"
)
def search(
    table: options.TablePath,
    queries: Annotated[
        str,
        typer.Argument(
            metavar="QUERIES",
            help="A folder of `bulk encode`, an .npz file with buckets (with --recall: "
            "activations) and embeddings, or, with --encoder, items.",
        ),
    ],
    *,
    out: Out,
    top: Top = 10,
    probe: options.Probe = None,
    recall: options.Recall = None,
    encoder: Annotated[
        Path | None,
        typer.Option(help="A run of fit, or the encoder in it: makes queries of items."),
    ] = None,
    split: Annotated[str, typer.Option(help="Of items: train, validation, test or all.")] = "train",
    opening: options.Opening,
    device: options.Device = "auto",
    execution: Execution,
    output: Output,
) -> None:
    """Search a table with very many queries, bucket by bucket.

    Every worker maps the table, so it must lie where all machines see it. The answers carry the row
    of their query.
    """
    from flowhash.table import HashTable

    place, given = Path(queries).expanduser(), opening.given()
    device = execution.device(device) if encoder is not None else "cpu"
    with _telling(out, output) as tell, execution.runner(device) as runner:
        if encoder is not None:
            place = out / bulk.ENCODED
            HashTable.open(table).close()  # before anything is encoded for it
            wanted = bulk.Choices(
                probe=probe, pictures=False, device=device, activations=recall is not None
            )
            bulk.encode(
                encoder_folder(encoder), _source_of(queries, split, given), place, runner, wanted,
                restart=execution.restart, show=output.progress,
            )  # fmt: skip
        elif given:
            raise InputError(
                "options that say how items are opened need --encoder, which makes queries of them"
            )
        with telling_if_old():
            work = bulk.search(
                table, place, out, runner, top=top, probe=probe, recall=recall,
                **execution.given(output),
            )  # fmt: skip
    tell(work, "query")


@command.command(
    epilog="Example:  flowhash bulk neighbours pets.table --out pets.neighbours --top 10"
)
def neighbours(
    table: options.TablePath, *, out: Out, top: Top = 10, execution: Execution, output: Output
) -> None:
    """Find the nearest other items of every item, among those that share a bucket with it."""
    with _telling(out, output) as tell, execution.runner() as runner:
        work = bulk.neighbours(table, out, runner, top=top, **execution.given(output))
    tell(work, "item")
