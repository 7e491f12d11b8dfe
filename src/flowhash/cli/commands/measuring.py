"""``demo`` and ``bench …``: see it at work, measure it here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowhash.cli import options
from flowhash.cli.reply import Reply


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(epilog="Example:  flowhash demo")(demo)
    bench = typer.Typer(
        help="Measure FlowHash on this machine, against its peers in the same run.",
        no_args_is_help=True,
    )
    example = "Example:  flowhash bench solver --classes 64 --buckets 256 --active 2"
    bench.command("solver", epilog=example)(bench_solver)
    bench.command("search", epilog="Example:  flowhash bench search pets.table")(bench_search)
    app.add_typer(bench, name="bench")


def demo(
    context: typer.Context,
    data: Annotated[
        str, typer.Argument(metavar="[DATA]", help="digits, or cifar100 (an hour or two).")
    ] = "digits",
    out: Annotated[
        Path | None, typer.Option(help="Where everything goes; flowhash-demo/DATA if not given.")
    ] = None,
    folder: options.Folder = None,
    download: options.Download = False,
    pixels: Annotated[
        bool, typer.Option(help="Of digits: the solver and the table on plain pixels first.")
    ] = True,
    active: Annotated[
        int, typer.Option(min=1, help="k on plain pixels, 1 to 8.", rich_help_panel="Plain pixels")
    ] = 3,
    penalty: Annotated[
        float,
        typer.Option(help="λ on plain pixels, 0 or more.", rich_help_panel="Plain pixels"),
    ] = 1.0,
    learn: Annotated[bool, typer.Option(help="Learn buckets, compare, index, report.")] = True,
    device: options.Device = "auto",
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Do the whole job: learn base and buckets, build the table, compare, report, search page.

    On handwritten digits it takes a minute or two on two cores. Run again, it finds what is done.
    """
    from flowhash.cli.demo import Pixels, demo

    plain = Pixels(active, penalty) if pixels else None
    demo(context, data, folder, download, out, plain, learn, device, Reply(quiet, as_json))


def bench_solver(
    classes: Annotated[int, typer.Option(min=1, help="Classes in a batch.")] = 64,
    buckets: Annotated[int, typer.Option(min=1, help="d.")] = 256,
    active: Annotated[int, typer.Option(min=1, help="k.")] = 1,
    penalty: Annotated[float, typer.Option(help="λ.")] = 0.1,
    repeats: Annotated[int, typer.Option(min=1, help="Problems to solve; medians are shown.")] = 9,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Time the exact solver beside OR-Tools' minimum-cost flow, on random costs, one thread."""
    from flowhash.cli.bench import solver

    solver(classes, buckets, active, penalty, repeats, Reply(quiet, as_json))


def bench_search(
    table: options.TablePath,
    top: Annotated[int, typer.Option(min=1, help="How many to find.")] = 10,
    queries: Annotated[int, typer.Option(min=1, help="Stored items that are searched for.")] = 2000,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 5,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of both sides; all cores if not given.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of queries.")] = 0,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Time a table beside FAISS on the same items: exhaustive, and inverted lists of equal scan."""
    from flowhash.cli.bench import search

    search(table, top, queries, repeats, threads, seed, Reply(quiet, as_json))
