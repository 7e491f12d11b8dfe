"""Progress bars with rate and time left, where rich is installed; on the error stream."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from typing import Any, TypeVar

from flowhash.errors import MissingExtraError
from flowhash.extras import require

Part = TypeVar("Part")
Several = TypeVar("Several", bound=Sized)

PATIENCE = 2.0  # seconds of work before a bar appears
PLAIN_SECONDS = 30.0  # between two lines where there is no terminal


def make_bar(*columns: str, fact: str | None = None) -> Any:
    """A bar of rich with these columns; None without rich, or where no terminal would show it.

    Args:
        columns: names of rich's columns, between the bar and the time left.
        fact: a format for the task's own fields, shown beside them.
    """
    if not sys.stderr.isatty():
        return None
    try:
        bars: Any = require("rich.progress", "cli")
        console = require("rich.console", "cli").Console(stderr=True)
    except MissingExtraError:  # a bar is no reason to fail
        return None
    made = [getattr(bars, column)() for column in ("BarColumn", *columns)]
    if fact is not None:
        made.append(bars.TextColumn(fact))
    title = bars.TextColumn("{task.description}")
    return bars.Progress(title, *made, bars.TimeRemainingColumn(), console=console)


@contextlib.contextmanager
def bytes_bar(
    what: str, done: int, total: int | None, show: bool = True
) -> Iterator[Callable[[int], None]]:
    """A bar for bytes; yields what to call with the number of new ones."""
    bar = make_bar("DownloadColumn", "TransferSpeedColumn") if show else None
    if bar is None:
        yield lambda count: None
        return
    with bar:
        task = bar.add_task(what, completed=done, total=total)
        yield lambda count: bar.advance(task, count)


@contextlib.contextmanager
def items_bar(what: str, total: int, show: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar for items that somebody else's loop works on; yields what to call with their number.

    Where there is no terminal, a line says now and then how far it is.
    """
    advanced = [0]

    def steps() -> Iterator[range]:
        while True:
            yield range(advanced[0])

    def advance(count: int) -> None:
        advanced[0] = count
        next(bar)

    bar = shown(steps(), what, total, show)
    try:
        yield advance
    finally:
        bar.close()


def tracked(parts: Iterable[Part], what: str, total: int, show: bool = True) -> Iterator[Part]:
    """``parts``, with a bar where they take longer than two seconds."""
    began = time.monotonic()
    bar, task = None, None
    with contextlib.ExitStack() as stack:
        for done, part in enumerate(parts):
            if show and time.monotonic() - began > PATIENCE:
                show, bar = False, make_bar("MofNCompleteColumn")  # looked for once
                if bar is not None:
                    stack.enter_context(bar)
                    task = bar.add_task(what, total=total)
            if bar is not None:
                bar.update(task, completed=done)
            yield part


def shown(
    parts: Iterator[Several], what: str, total: int | None, show: bool
) -> Generator[Several, None, None]:
    """``parts`` of several items each, with a bar that counts items and has their rate.

    Where there is no terminal, a line says now and then how far it is.
    """
    bar = make_bar("MofNCompleteColumn", fact="{task.fields[rate]:.0f}/s") if show else None
    if bar is None:
        yield from _told(parts, what, total) if show else parts
        return
    with bar:
        task = bar.add_task(what, total=total, rate=0.0)
        for part in parts:
            bar.update(task, advance=len(part), rate=bar.tasks[0].speed or 0.0)
            yield part


def _told(parts: Iterator[Several], what: str, total: int | None) -> Iterator[Several]:
    """``parts``, with a line on the error stream every half minute."""
    said, done = time.monotonic(), 0
    for part in parts:
        done += len(part)
        if time.monotonic() - said >= PLAIN_SECONDS:
            said = time.monotonic()
            whole = "" if total is None else f" of {total:,}"
            print(f"{what}: {done:,}{whole}", file=sys.stderr, flush=True)
        yield part
