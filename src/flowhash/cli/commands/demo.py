"""``flowhash demo``: the whole job on one data set, from labelled items to a page to search."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash.cli import options
from flowhash.cli.config_file import save_settings
from flowhash.cli.locations import opened, writable
from flowhash.cli.output import Output, count, require_evaluation, rows_table, stoppable
from flowhash.errors import InputError, MissingExtraError
from flowhash.settings_file import write_section

if TYPE_CHECKING:
    from flowhash.data import Splits
    from flowhash.encoder import Encoder

DATA = ("digits", "cifar100")
ACTIVE = (1, 2, 3)
STORED = 5000  # items that are stored at once
PIXELS = "Plain pixels"

command = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class DemoResult:
    """What the demo made.

    Attributes:
        outcome: the comparison.
        report: a page to open.
        encoder: the folder of the encoder with k = 1.
        table: the table that was made with it.
        items: how many it holds.
        classes: what one item is called.
    """

    outcome: Any
    report: Path
    encoder: Path
    table: Path
    items: int
    classes: str


@command.command(epilog="Example:  flowhash demo")
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
        int, typer.Option(min=1, help="k on plain pixels, 1 to 8.", rich_help_panel=PIXELS)
    ] = 3,
    penalty: Annotated[
        float,
        typer.Option(help="λ on plain pixels, 0 or more.", rich_help_panel=PIXELS),
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
    if data not in DATA:
        raise InputError(f"the demo has no {data!r}; choose {' or '.join(DATA)}")
    output = Output(quiet, as_json)
    place = Path("flowhash-demo") / data if out is None else out
    pixels = pixels and data == "digits"
    learn = learn and _can_learn(output, alone=not pixels)
    if pixels and not (quiet or as_json):
        from flowhash.cli.pixel_demo import show_pixels

        show_pixels(active, penalty)
    if not learn:
        output.result({"learned": False})
        return
    writable(place)
    save_settings(context, place / "demo.toml", out=place)
    began = time.monotonic()
    with stoppable(lambda: f"the same command goes on from {place}"):
        if data == "digits":
            found = _learn_digits(place, device, output)
        else:
            found = _learn_cifar100(place, options.opening(context), device, output)
    _answer(found, time.monotonic() - began, output)


def _can_learn(output: Output, alone: bool) -> bool:
    try:
        require_evaluation()
    except MissingExtraError as error:
        if alone:
            raise
        output.say(f"Nothing is learned here: {error}\n")
        return False
    return True


def _learn_digits(out: Path, device: str, output: Output) -> DemoResult:
    """Train on digits for each k, put all methods through the table, write the report, index."""
    from flowhash.data import draw_digit, open_data
    from flowhash.evaluate import evaluate, write_evaluation
    from flowhash.learn import read_journal

    splits = open_data("digits")
    encoders = _digits_encoders(splits, out, device, output)
    output.say("compare with other ways to search the same digits")
    outcome = evaluate(encoders, splits, draw=draw_digit, device=device, progress=output.progress)
    outcome.curves = {
        name: read_journal(out / folder / "metrics.jsonl")
        for name, folder in [("stage 1", "base"), *((f"k = {k}", f"k{k}") for k in ACTIVE)]
    }
    title = "FlowHash on handwritten digits"
    report = write_evaluation(outcome, out, title, "flowhash demo", "report")[-1]
    place = out / "k1" / "encoder"
    items = _index(encoders[0], place, out / "table", "digits", "all", {}, device, output)
    return DemoResult(outcome, report, place, out / "table", items, "digit")


def _digits_encoders(splits: Splits, out: Path, device: str, output: Output) -> list[Encoder]:
    from flowhash.learn import preset, train, train_base

    output.say("learn the base embedding of the digits (stage 1)")
    base = train_base(splits, preset("cpu-digits"), out / "base", device=device, quiet=True)
    encoders = []
    for k in ACTIVE:
        output.say(f"learn 32 buckets, k = {k} (stage 2, Algorithm 1)")
        settings = preset("cpu-digits", active=k)
        encoders.append(
            train(splits, settings, out / f"k{k}", base=base, device=device, quiet=True)
        )
    return encoders


def _learn_cifar100(out: Path, opening: dict[str, Any], device: str, output: Output) -> DemoResult:
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
    items = _index(
        encoder, out / "encoder", out / "table", "cifar100", "train",
        {name: value for name, value in opening.items() if name != "download"}, device, output,
    )  # fmt: skip
    return DemoResult(outcome, written[-1], out / "encoder", out / "table", items, "image")


def _index(
    encoder: Encoder, place: Path, path: Path, source: str, split: str, opening: dict[str, Any],
    device: str, output: Output,
) -> int:  # fmt: skip
    """A table of the data set, with pictures; one that is not whole is gone on with."""
    from flowhash.data import open_collection
    from flowhash.indexing import SETTINGS, ResumableIndexing, TableChoices, open_table

    items = open_collection(source, split=split, **opening)
    with open_table(path, encoder, items, TableChoices()) as table:
        options = {"encoder": place, "items": source, "split": split, "out": path, **opening}
        write_section(path / SETTINGS, ["index"], options)
        if len(table) < len(items):
            output.say("index the items, with a picture of each")
            work = ResumableIndexing(table, encoder, items, [source, split], pictures=True)
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


def _answer(found: DemoResult, seconds: float, output: Output) -> None:
    title = f"Each test {found.classes} searched among the others"
    output.show(rows_table(found.outcome, "test", title))
    page = f"{_command()} serve {shlex.quote(str(found.table))} --open"
    facts = {
        "rows": [asdict(row) for row in found.outcome.rows], "report": found.report,
        "encoder": found.encoder, "table": found.table, "items": found.items, "page": page,
        "seconds": seconds,
    }  # fmt: skip
    output.result(
        facts,
        f"\nLearned, compared and indexed, all in {seconds:.0f} s (what was done before is kept).",
        f"The report, to open in a browser:  {found.report}",
        f"The search page, over {count(found.items, 'item')}:  {page}",
    )
