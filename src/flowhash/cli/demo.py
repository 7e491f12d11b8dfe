"""``flowhash demo``: the whole job on one data set, from labelled items to a page to search."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowhash.cli.demo_learning import Learned, learn_cifar100, learn_digits
from flowhash.cli.demo_pixels import show_pixels
from flowhash.cli.evaluate import require_evaluation, writable
from flowhash.cli.reply import Reply, count
from flowhash.errors import InputError, MissingExtraError
from flowhash.extras import require

DATA = ("digits", "cifar100")
TABLES = {"test": "among the others", "train": "among the training items"}


@dataclass(frozen=True)
class Pixels:
    """The first part, on plain pixels: k and λ."""

    active: int
    penalty: float


def demo(
    data: str,
    folder: Path | None,
    download: bool,
    out: Path | None,
    pixels: Pixels | None,
    learn: bool,
    device: str,
    reply: Reply,
) -> None:
    """Show, learn, compare, index, and say how to open the page."""
    if data not in DATA:
        raise InputError(f"the demo has no {data!r}; choose {' or '.join(DATA)}")
    place = Path("flowhash-demo") / data if out is None else out
    if learn:
        learn = _can_learn(reply, alone=pixels is None or data != "digits")
    if data == "digits" and pixels is not None and not (reply.quiet or reply.as_json):
        show_pixels(pixels.active, pixels.penalty)
    if not learn:
        return
    writable(place)
    began = time.monotonic()
    try:
        if data == "digits":
            found = learn_digits(place, device, reply)
        else:
            found = learn_cifar100(place, folder, download, device, reply)
    except KeyboardInterrupt:
        print(f"flowhash: stopped; the same command goes on from {place}", file=sys.stderr)
        sys.exit(130)
    _answer(found, time.monotonic() - began, reply)


def _can_learn(reply: Reply, alone: bool) -> bool:
    try:
        require_evaluation()
    except MissingExtraError as error:
        if alone:
            raise
        reply.say(f"Nothing is learned here: {error}\n")
        return False
    return True


def _answer(found: Learned, seconds: float, reply: Reply) -> None:
    reply.show(_rows(found.outcome, found.classes))
    page = f"flowhash serve {found.table} --open"
    facts = {
        "rows": [asdict(row) for row in found.outcome.rows], "report": found.report,
        "encoder": found.encoder, "table": found.table, "items": found.items, "page": page,
        "seconds": seconds,
    }  # fmt: skip
    reply.result(
        facts,
        f"\nLearned, compared and indexed in {seconds:.0f} s; run again, it finds what is done.",
        f"The report, to open in a browser:  {found.report}",
        f"The search page, over {count(found.items, 'item')}:  {page}",
    )


def _rows(outcome: Any, classes: str) -> Any:
    from flowhash.evaluate import METHODS

    table = require("rich.table", "cli").Table(
        title=f"Each test {classes} searched among the others", title_justify="left"
    )
    for name in ("method", "k", "Pr@1", "Pr@4", "Pr@16", "SUF", "NMI"):
        table.add_column(name, justify="left" if name == "method" else "right")
    before = None
    for row in outcome.rows:
        if row.table != "test":
            continue
        if before is not None and row.k != before:
            table.add_section()
        before = row.k
        numbers = [f"{value:.1f}" for value in (row.pr1, row.pr4, row.pr16, row.suf)]
        k = "" if row.k is None else str(row.k)
        style = "bold" if row.method == "flowhash" else None
        nmi = "" if row.nmi is None else f"{row.nmi:.1f}"
        table.add_row(METHODS[row.method], k, *numbers, nmi, style=style)
    return table
