"""``flowhash demo``: the whole job on one data set, from labelled items to a page to search."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from flowhash.cli.config import save_settings
from flowhash.cli.demo_learning import Learned, learn_cifar100, learn_digits
from flowhash.cli.demo_pixels import show_pixels
from flowhash.cli.evaluate import require_evaluation
from flowhash.cli.opening import writable
from flowhash.cli.reply import Reply, count
from flowhash.cli.rows import rows_table
from flowhash.errors import InputError, MissingExtraError

DATA = ("digits", "cifar100")


@dataclass(frozen=True)
class Pixels:
    """The first part, on plain pixels: k and λ."""

    active: int
    penalty: float


def demo(
    context: typer.Context,
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
        reply.result({"learned": False})
        return
    writable(place)
    save_settings(context, place / "demo.toml", out=place)
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


def _command() -> str:
    """What starts this command from here; an environment that is not active has it in a folder."""
    path = Path(sys.argv[0])
    if shutil.which("flowhash") is not None or path.name != "flowhash" or not path.exists():
        return "flowhash"
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _answer(found: Learned, seconds: float, reply: Reply) -> None:
    title = f"Each test {found.classes} searched among the others"
    reply.show(rows_table(found.outcome, "test", title))
    page = f"{_command()} serve {shlex.quote(str(found.table))} --open"
    facts = {
        "rows": [asdict(row) for row in found.outcome.rows], "report": found.report,
        "encoder": found.encoder, "table": found.table, "items": found.items, "page": page,
        "seconds": seconds,
    }  # fmt: skip
    reply.result(
        facts,
        f"\nLearned, compared and indexed, all in {seconds:.0f} s (what was done before is kept).",
        f"The report, to open in a browser:  {found.report}",
        f"The search page, over {count(found.items, 'item')}:  {page}",
    )
