"""The demo's second part: learn base and buckets for k = 1, 2, 3, compare, report, index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowhash.cli.opening import opened
from flowhash.cli.reply import Reply, count
from flowhash.data import Splits, draw_digit, open_collection, open_data
from flowhash.indexing import SETTINGS, ResumableIndexing, TableChoices, open_table
from flowhash.settings_file import write_section

if TYPE_CHECKING:
    from flowhash.encoder import Encoder

ACTIVE = (1, 2, 3)
STORED = 5000  # items that are stored at once


@dataclass(frozen=True)
class Learned:
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


def learn_digits(out: Path, device: str, reply: Reply) -> Learned:
    """Train on digits, put all methods through the table, write the report, index."""
    from flowhash.evaluate import evaluate, write_evaluation
    from flowhash.learn import read_journal

    splits = open_data("digits")
    encoders = _digits_encoders(splits, out, device, reply)
    reply.say("compare with other ways to search the same digits")
    outcome = evaluate(encoders, splits, draw=draw_digit, device=device, progress=not reply.quiet)
    outcome.curves = {
        name: read_journal(out / folder / "metrics.jsonl")
        for name, folder in [("stage 1", "base"), *((f"k = {k}", f"k{k}") for k in ACTIVE)]
    }
    title = "FlowHash on handwritten digits"
    report = write_evaluation(outcome, out, title, "flowhash demo", "report")[-1]
    place = out / "k1" / "encoder"
    items = _index(encoders[0], place, out / "table", "digits", "all", {}, device, reply)
    return Learned(outcome, report, place, out / "table", items, "digit")


def _digits_encoders(splits: Splits, out: Path, device: str, reply: Reply) -> list[Encoder]:
    from flowhash.learn import preset, train, train_base

    reply.say("learn the base embedding of the digits (stage 1)")
    base = train_base(splits, preset("cpu-digits"), out / "base", device=device, quiet=True)
    encoders = []
    for k in ACTIVE:
        reply.say(f"learn 32 buckets, k = {k} (stage 2, Algorithm 1)")
        settings = preset("cpu-digits", active=k)
        encoders.append(
            train(splits, settings, out / f"k{k}", base=base, device=device, quiet=True)
        )
    return encoders


def learn_cifar100(
    out: Path, folder: Path | None, download: bool, device: str, reply: Reply
) -> Learned:
    """The same on CIFAR-100, by the plan that reproduces the paper on two cores."""
    from flowhash.evaluate import Trainings, make_plan, reproduce, write_reproduction

    opening: dict[str, Any] = {"folder": folder, "download": download}
    opening = {name: value for name, value in opening.items() if value}
    splits = opened("cifar100", opening)
    runs = out / "runs"
    outcome = reproduce(
        splits, "cifar100", "triplet", runs, unseen=False, device=device, quiet=reply.quiet,
        say=reply.say,
    )  # fmt: skip
    plan = make_plan("cifar100", "triplet", "cpu")
    command = "flowhash demo cifar100 --folder DATA"
    written = write_reproduction(outcome, plan.experiment, out / "results", command)
    trainings = Trainings(plan, splits, runs / "seed-0", device, reply.quiet)
    encoder = trainings.encoder(1)
    encoder.save(out / "encoder")
    items = _index(
        encoder, out / "encoder", out / "table", "cifar100", "train",
        {name: value for name, value in opening.items() if name != "download"}, device, reply,
    )  # fmt: skip
    return Learned(outcome, written[-1], out / "encoder", out / "table", items, "image")


def _index(
    encoder: Encoder, place: Path, path: Path, source: str, split: str, opening: dict[str, Any],
    device: str, reply: Reply,
) -> int:  # fmt: skip
    """A table of the data set, with pictures; one that is not whole is gone on with."""
    items = open_collection(source, split=split, **opening)
    with open_table(path, encoder, items, TableChoices()) as table:
        options = {"encoder": place, "items": source, "split": split, "out": path, **opening}
        write_section(path / SETTINGS, ["index"], options)
        if len(table) < len(items):
            reply.say("index the items, with a picture of each")
            work = ResumableIndexing(table, encoder, items, [source, split], pictures=True)
            if work.done:
                reply.say(f"going on after {work.done:,} of {count(len(items), 'item')}")
            work.run(STORED, device, show=not reply.quiet)
        return len(table)
