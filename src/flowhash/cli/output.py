"""What a command says: progress for people, its result for people or for scripts, why it ended.

Words that several commands have are here, too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowhash.cli import options
from flowhash.errors import Advice, Argument, OldCalibrationWarning, StorageError
from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.data import Splits

# What the library calls by its own names has other names here.
ADVICE = {
    Advice.CREATE: "`flowhash index --out` makes one",
    Advice.NEW_FOLDER: "give a new or empty folder",
    Advice.ONE_WRITER: "Close that one first, or serve with --read-only",
    Advice.ENCODE_FIRST: "items that are not encoded yet need --encoder",
    Advice.WITHOUT_RAY: "leave --ray out to work in this process",
}
# The arguments of RayRunner and calibrate.
OPTIONS = {"address": "ray", "tops": "top"}


@dataclass(frozen=True)
class Output:
    """How a command answers; the options that every command ends with."""

    config: options.Config = None
    quiet: options.Quiet = False
    as_json: options.Json = False

    @property
    def progress(self) -> bool:
        """Whether there are bars."""
        return not self.quiet

    def say(self, words: str) -> None:
        """A line about what happens now; beside JSON, on the error stream."""
        if not self.quiet:
            print(words, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def show(self, renderable: Any) -> None:
        """A part of the result that rich draws, for people."""
        if not self.as_json:
            console = require("rich.console", "cli").Console(highlight=False)
            console.print(renderable)

    def result(self, facts: Mapping[str, Any], *lines: str) -> None:
        """The result: facts for scripts, or lines for people."""
        if self.as_json:
            print(json.dumps(plain(facts), indent=1, ensure_ascii=False))
        else:
            for line in lines:
                print(line, flush=True)


class Stopped(Exception):  # noqa: N818, no error
    """Ctrl-C, and what to know then: what is done, and that the same command goes on."""


@contextlib.contextmanager
def stoppable(words: Callable[[], str]) -> Iterator[None]:
    """Work that Ctrl-C may stop; ``words`` are asked for if it does."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Stopped(words()) from error


@contextlib.contextmanager
def without_notices(quiet: bool = True) -> Iterator[None]:
    """No word of compiling within: what ``--quiet`` asks for."""
    log = logging.getLogger("flowhash.compile")  # by its name: numba need not be loaded
    level = log.level
    if quiet:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def telling_if_old() -> Iterator[None]:
    """Say once, on the error stream, that a calibration is old, in place of Python's warning."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", OldCalibrationWarning)
        yield
    old = [one for one in said if issubclass(one.category, OldCalibrationWarning)]
    for one in old[:1]:
        print(f"flowhash: {one.message}", file=sys.stderr, flush=True)
    for one in said:
        if one not in old:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def in_words(error: Exception) -> str:
    """What an error says, with options instead of the library's arguments."""
    remedy, subject = getattr(error, "remedy", None), getattr(error, "subject", None)
    words = str(getattr(error, "words", error))
    if subject is not None:
        words = f"{_option(subject)} {words}"
    if isinstance(remedy, Advice):
        return f"{words} {ADVICE[remedy]}"
    if isinstance(remedy, Argument):
        values = {"True": "", "...": remedy.name.upper()}
        value = values.get(remedy.value, remedy.value.strip('"(),'))
        return f"{words} {_option(remedy.name)} {value}".rstrip()
    return words


def _option(argument: str) -> str:
    return f"--{OPTIONS.get(argument, argument).replace('_', '-')}"


def and_goes_on(error: StorageError, done: int, total: int) -> StorageError:
    """What a lost server leaves, in the words that an interrupt has.

    It is a least number: what the server stored last it may have had no time to confirm.
    """
    words = (
        f"{in_words(error)}; at least {done:,} of {total:,} items are stored, the same command "
        "goes on"
    )
    return StorageError(words) if error.errno is None else StorageError(error.errno, words)


def plain(value: Any) -> Any:
    """A value as JSON has it: no NaN and no infinity, text for paths and other things."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):  # an array or a number of numpy
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def count(number: int, word: str) -> str:
    """A number of things: "1 item", "2,000 items"."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def size(number: float) -> str:
    """A number of bytes: "1.5 MiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} GiB"


_RANKED = {
    "base": "their own Euclidean distance",
    "whitened": "their distance after a map that makes the spread within classes even",
    "hash": "the hash network's outputs",
}


def described(splits: Splits, settings: Any) -> list[str]:
    """The data and the settings in words, before hours are spent on them."""
    test = 0 if splits.test is None else len(splits.test)
    size = splits.preprocessing.size
    shape = "" if size is None else f", {size[0]} × {size[1]} pixels,"
    lines = [
        f"{splits.train.source}: {len(splits.train)} {splits.preprocessing.kind}{shape} of "
        f"{splits.train.classes} classes to learn from, {len(splits.validation)} to validate on, "
        f"{test} to test"
    ]
    for name, stage in (("base", settings.base), ("hash", settings.hash)):
        if stage is None:
            lines.append(f"{name}: none, vectors rank by {_RANKED[settings.rank]}")
        else:
            lines.append(
                f"{name}: {settings.backbone['name']}, {stage.loss}, {stage.outputs} outputs, "
                f"{stage.steps} steps of {stage.classes} classes × {stage.items}"
            )
    first = settings.first_active
    falling = "" if first is None else f" from {first} at the first step"
    order = "" if settings.class_order is None else f", class order {settings.class_order:g}"
    coded = f"groups {settings.groups}{order}"
    return [
        *lines,
        f"k = {settings.active}{falling}, λ = {settings.penalty}, {coded}, seed {settings.seed}",
    ]


def require_evaluation() -> None:
    """See that everything for a comparison is installed before hours are spent."""
    for module in ("torch", "sklearn", "PIL", "matplotlib", "jinja2"):
        require(module, "evaluate")


def tell_comparison(output: Output, outcome: Any, written: list[Path]) -> None:
    """The result of a comparison: its rows for scripts, its files for people."""
    facts = {"rows": [asdict(row) for row in outcome.rows], "written": written}
    output.result(facts, *(f"wrote {path}" for path in written))


def rows_table(outcome: Any, table: str, title: str) -> Any:
    """One table of a comparison for the terminal, a section for each k."""
    from flowhash.evaluate import METHODS, terminal_grid

    grid = terminal_grid(outcome.rows, table)
    drawn = require("rich.table", "cli").Table(title=title, title_justify="left")
    for name in ("method", "k", *(column.title for column in grid.columns)):
        drawn.add_column(name, justify="left" if name == "method" else "right")
    for group in grid.groups:
        k = "" if group.k is None else str(group.k)
        for line in group.lines:
            style = "bold" if line.label == METHODS["flowhash"] else None
            drawn.add_row(line.label, k, *(cell.text for cell in line.cells), style=style)
        if group.k is not None:
            drawn.add_section()
    return drawn
