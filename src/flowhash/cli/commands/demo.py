"""``flowhash demo``: the whole job on one data set, from labelled items to a page to search."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash import codes
from flowhash.cli import options
from flowhash.cli.config_file import save_settings
from flowhash.cli.locations import opened, writable
from flowhash.cli.output import Output, count, require_evaluation, rows_table, stoppable
from flowhash.data import NAMED
from flowhash.errors import InputError, MissingExtraError, SolverError
from flowhash.evaluate import median_seconds
from flowhash.extras import require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from flowhash.encoder import Encoder

    # The comparison, its page, and the encoder with k = 1 and where it is.
    Learned = tuple[Any, Path, Encoder, Path]

DATA = ("digits", "cifar100")
ACTIVE = (1, 2, 3)
STORED = 5000  # items that are stored at once
PIXELS = "Plain pixels"
SIDE = 8
NEAREST = 10
COLOURS = (
    "red", "green", "yellow", "blue", "magenta", "cyan", "white", "orange1", "purple", "sea_green2",
)  # fmt: skip

command = typer.Typer(add_completion=False)


@command.command(epilog="Example:  flowhash demo")
def demo(
    context: typer.Context,
    data: Annotated[
        str, typer.Argument(metavar="[DATA]", help="digits, or cifar100 (an hour or two).")
    ] = "digits",
    *,
    out: Annotated[
        Path | None, typer.Option(help="Where everything goes; flowhash-demo/DATA if not given.")
    ] = None,
    folder: options.Folder = None,
    download: options.Download = False,
    pixels: Annotated[
        bool, typer.Option(help="Of digits: the solver and the table on plain pixels first.")
    ] = True,
    active: Annotated[
        int, typer.Option(min=1, help="k on plain pixels, 1 to 8.", rich_help_panel=PIXELS)
    ] = 3,
    penalty: Annotated[
        float,
        typer.Option(help="λ on plain pixels, 0 or more.", rich_help_panel=PIXELS),
    ] = 1.0,
    learn: Annotated[bool, typer.Option(help="Learn buckets, compare, index, report.")] = True,
    device: options.Device = "auto",
    output: Output,
) -> None:
    """Do the whole job: learn base and buckets, build the table, compare, report, search page.

    On handwritten digits it takes a minute or two on two cores. Run again, it finds what is done.
    """
    if data not in DATA:
        raise InputError(f"the demo has no {data!r}; choose {' or '.join(DATA)}")
    place = Path("flowhash-demo") / data if out is None else out
    pixels = pixels and data == "digits"
    learn = learn and _can_learn(output, alone=not pixels)
    if pixels and not (output.quiet or output.as_json):
        _show_pixels(active, penalty)
    if not learn:
        output.result({"learned": False})
        return
    writable(place)
    save_settings(context, place / "demo.toml", out=place)
    began = time.monotonic()
    with stoppable(lambda: f"the same command goes on from {place}"):
        if data == "digits":
            outcome, report, encoder, saved = _learn_digits(place, device, output)
        else:
            given = options.Opening(folder).given(download=download)
            outcome, report, encoder, saved = _learn_cifar100(place, given, device, output)
        items = _index(encoder, saved, place / "table", data, folder, device, output)
    seconds = time.monotonic() - began
    what = "digit" if data == "digits" else "image"
    output.show(rows_table(outcome, "test", f"Each test {what} searched among the others"))
    page = f"{_command()} serve {shlex.quote(str(place / 'table'))} --open"
    facts = {
        "rows": [asdict(row) for row in outcome.rows], "report": report, "encoder": saved,
        "table": place / "table", "items": items, "page": page, "seconds": seconds,
    }  # fmt: skip
    output.result(
        facts,
        f"\nLearned, compared and indexed, all in {seconds:.0f} s (what was done before is kept).",
        f"The report, to open in a browser:  {report}",
        f"The search page, over {count(items, 'item')}:  {page}",
    )


def _can_learn(output: Output, alone: bool) -> bool:
    try:
        require_evaluation()
    except MissingExtraError as error:
        if alone:
            raise
        output.say(f"Nothing is learned here: {error}\n")
        return False
    return True


def _learn_digits(out: Path, device: str, output: Output) -> Learned:
    """Train on digits for each k, put all methods through the table, write the report."""
    from flowhash.data import draw_digit, open_data
    from flowhash.evaluate import evaluate, write_evaluation
    from flowhash.learn import preset, read_journal, train, train_base

    splits = open_data("digits")
    output.say("learn the base embedding of the digits (stage 1)")
    base = train_base(splits, preset("cpu-digits"), out / "base", device=device, quiet=True)
    encoders = []
    for k in ACTIVE:
        output.say(f"learn 32 buckets, k = {k} (stage 2, Algorithm 1)")
        settings = preset("cpu-digits", active=k)
        encoders.append(
            train(splits, settings, out / f"k{k}", base=base, device=device, quiet=True)
        )
    output.say("compare with other ways to search the same digits")
    outcome = evaluate(encoders, splits, draw=draw_digit, device=device, progress=output.progress)
    outcome.curves = {
        name: read_journal(out / folder / "metrics.jsonl")
        for name, folder in [("stage 1", "base"), *((f"k = {k}", f"k{k}") for k in ACTIVE)]
    }
    title = "FlowHash on handwritten digits"
    report = write_evaluation(outcome, out, title, "flowhash demo", "report")[-1]
    return outcome, report, encoders[0], out / "k1" / "encoder"


def _learn_cifar100(out: Path, opening: dict[str, Any], device: str, output: Output) -> Learned:
    """The same on CIFAR-100, by the plan that reproduces the paper on two cores."""
    from flowhash.evaluate import Trainings, make_plan, reproduce, write_reproduction

    splits = opened("cifar100", opening, output.progress)
    runs = out / "runs"
    outcome = reproduce(
        splits, "cifar100", "triplet", runs, unseen=False, device=device, quiet=output.quiet,
        say=output.say,
    )  # fmt: skip
    plan = make_plan("cifar100", "triplet", "cpu")
    command = "flowhash demo cifar100 --folder DATA"
    written = write_reproduction(outcome, plan.experiment, out / "results", command)
    trainings = Trainings(plan, splits, runs / "seed-0", device, output.quiet)
    encoder = trainings.encoder(1)
    encoder.save(out / "encoder")
    return outcome, written[-1], encoder, out / "encoder"


def _index(
    encoder: Encoder, saved: Path, path: Path, source: str, folder: Path | None, device: str,
    output: Output,
) -> int:  # fmt: skip
    """A table of the data set, with pictures; one that is not whole is gone on with."""
    from flowhash.data import open_collection
    from flowhash.indexing import IndexRun, TableChoices, TableNotes, open_table

    split = {"digits": "all", "cifar100": "train"}[source]
    opening = options.Opening(folder).given() if NAMED[source].in_folder else {}
    items = open_collection(source, split=split, **opening)
    with open_table(path, encoder, items, TableChoices()) as table:
        given = {"encoder": saved, "items": source, "split": split, "out": path, **opening}
        TableNotes(table).write_settings(given)
        if len(table) < len(items):
            output.say("index the items, with a picture of each")
            work = IndexRun(table, encoder, items, [source, split], pictures=True)
            if work.done:
                output.say(f"going on after {work.done:,} of {count(len(items), 'item')}")
            work.run(STORED, device, output.progress)
        return len(table)


def _command() -> str:
    """What starts this command from here; an environment that is not active has it in a folder."""
    path = Path(sys.argv[0])
    if shutil.which("flowhash") is not None or path.name != "flowhash" or not path.exists():
        return "flowhash"
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _show_pixels(active: int, penalty: float) -> None:
    """Solve the digits' codes with and without a penalty, then search by pixels.

    A digit is an image of 8 × 8 pixels. Taken as activations, each pixel is a bucket, and the ten
    classes compete for pixels: a picture that fits into a terminal.
    """
    if not 1 <= active <= SIDE:
        raise InputError(f"active is {active}; choose a number of buckets from 1 to {SIDE}")
    console = require("rich.console", "demo").Console(highlight=False)
    digits = require("sklearn.datasets", "demo").load_digits()
    pixels = (digits.data - digits.data.mean(axis=0)) / (digits.data.std(axis=0) + 1e-3)
    means, _ = codes.class_means(pixels, digits.target)
    found = [(0.0, codes.assign_codes(means, active, 0.0))]
    if penalty != 0.0:
        found.append((penalty, codes.assign_codes(means, active, penalty)))
    console.print(
        f"\n[bold]{len(pixels)} handwritten digits[/], 10 classes, {SIDE} × {SIDE} pixels. "
        f"Each pixel is a bucket;\neach digit activates the {active} in which it is brightest "
        "against the average.\n"
    )
    _print_maps(console, found)
    _print_table(console, found)
    _print_bound(console, pixels, digits.target, active, penalty)
    _print_race(console, means, active, penalty)
    _print_search(console, pixels, digits.target, active)


def _owners(assignment: codes.Assignment) -> list[list[int]]:
    """The digits that hold each pixel."""
    owners: list[list[int]] = [[] for _ in range(SIDE * SIDE)]
    for digit, code in enumerate(assignment.codes.tolist()):
        for bucket in code:
            owners[bucket].append(digit)
    return owners


def _map_lines(assignment: codes.Assignment) -> list[str]:
    """The image plane, one text line a row of pixels, each pixel with the digits that hold it."""
    cells = []
    for digits in _owners(assignment):
        text = "".join(map(str, digits)) or "·"
        style = "dim" if not digits else COLOURS[digits[0]] if len(digits) == 1 else "bold reverse"
        cells.append(" " * (4 - len(text)) + f"[{style}]{text}[/]")
    return ["".join(cells[row * SIDE : (row + 1) * SIDE]) for row in range(SIDE)]


def _print_maps(console: Console, found: list[tuple[float, codes.Assignment]]) -> None:
    """Side by side where the terminal is wide enough, else one below the other."""
    width = 4 * SIDE
    maps = []
    for penalty, assignment in found:
        name = f"penalty {penalty:g}: min-cost flow" if penalty else "no penalty: top-k"
        maps.append([f"{name:^{width}}", *_map_lines(assignment)])
    if console.width >= len(maps) * (width + 6):
        for lines in zip(*maps, strict=True):
            console.print("      ".join(lines))
    else:
        for line in (line for lines in maps for line in [*lines, ""]):
            console.print(line)
    console.print("[dim]a number is a digit that holds the pixel; two or more: they share it[/]\n")


def _print_table(console: Console, found: list[tuple[float, codes.Assignment]]) -> None:
    table = require("rich.table", "demo").Table(
        title="Which codes are optimal", title_justify="left"
    )
    for name in ("penalty", "digits that clash", "fullest", "minimum ĝ", "gap", "proven"):
        table.add_column(name, justify="right")
    for penalty, assignment in found:
        owners = _owners(assignment)
        pairs = {pair for digits in owners for pair in combinations(digits, 2)}
        table.add_row(
            f"{penalty:g}",
            f"{len(pairs)} of 45 pairs",
            str(max(map(len, owners))),
            f"{assignment.objective:.4f}",
            f"{assignment.gap:.1e}",
            "yes" if assignment.certified else "no",
        )
    console.print(table)


def _print_bound(
    console: Console, pixels: NDArray[np.float64], labels: NDArray[Any], active: int, penalty: float
) -> None:
    """Check the paper's upper bound (Eq. 4), which is about classes of one size."""
    import numpy as np

    size = int(np.bincount(labels).min())
    chosen = np.concatenate([np.flatnonzero(labels == label)[:size] for label in range(10)])
    items, names = pixels[chosen], labels[chosen]
    means, _ = codes.class_means(items, names)
    best = codes.assign_codes(means, active, penalty)
    over_items = codes.item_objective(best.codes[names], items, names, penalty / size)
    gap = codes.upper_bound_gap(items, names, active)
    bound = size * best.objective + gap
    console.print(
        f"\nThe paper's upper bound, {size} items of each class: m·ĝ + M = {bound:.0f} ≥ g = "
        f"{over_items:.0f}.\nIt is loose, M = {gap:.0f}, because these pixels were never trained. "
        "Training draws\nthe items of a class together, and M falls."
    )


def _print_race(console: Console, means: NDArray[np.float64], active: int, penalty: float) -> None:
    import numpy as np

    penalties = np.full(means.shape[1], penalty)
    try:
        codes.ortools_codes(means, active, penalties)
    except (MissingExtraError, SolverError) as error:
        console.print(f"\nNo race against OR-Tools: {error}\n", markup=False)
        return
    ours = median_seconds(lambda: codes.assign_codes(means, active, penalty))
    theirs = median_seconds(lambda: codes.ortools_codes(means, active, penalties))
    console.print(
        f"\nSolved in [bold]{ours * 1e6:.0f} µs[/]; OR-Tools' minimum-cost flow, the paper's way, "
        f"took {theirs * 1e6:.0f} µs:\n[bold]{theirs / ours:.0f} times[/] as long for the same "
        "optimum.\n"
    )


def _print_search(
    console: Console, pixels: NDArray[np.float64], labels: NDArray[Any], active: int
) -> None:
    """Put all digits into a hash table by their brightest pixels and look each of them up."""
    from flowhash.table import HashTable

    stored = HashTable.create(buckets=SIDE * SIDE, dim=SIDE * SIDE, active=active)
    stored.add(codes.topk_codes(pixels, active), pixels)
    order = codes.ordered_buckets(pixels)
    # One more than wanted: each digit finds itself first.
    hits = stored.search(order, pixels, top=NEAREST + 1, at_least=NEAREST + 1)
    exact = stored.search(order, pixels, top=NEAREST + 1, probe=SIDE * SIDE)
    right = [(labels[found.ids[:, 1:]] == labels[:, None]).mean() for found in (hits, exact)]
    factor = (len(stored) - 1) / (hits.scanned.mean() - 1)
    console.print(
        f"The hash table: every digit in the buckets of its own {active} brightest pixels. A\n"
        f"search scans {hits.scanned.mean() - 1:.0f} of {len(stored)} digits, "
        f"[bold]{factor:.1f} times[/] fewer, and {right[0]:.1%} of its\n{NEAREST} nearest are the "
        f"same digit; with exhaustive search {right[1]:.1%}. These codes are\npixels, nobody "
        "learned them.\n"
    )
