"""Progress bars with rate and time left, where rich is installed; on the error stream."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from flowhash.errors import MissingExtraError
from flowhash.extras import require

Part = TypeVar("Part")

PATIENCE = 2.0  # seconds of work before a bar appears


def _bar(*columns: str) -> Any:
    """A bar of rich with these columns, or None where rich is not installed."""
    try:
        bars: Any = require("rich.progress", "cli")
        console = require("rich.console", "cli").Console(stderr=True)
    except MissingExtraError:
        return None
    shown = (getattr(bars, column)() for column in ("BarColumn", *columns, "TimeRemainingColumn"))
    return bars.Progress(bars.TextColumn("{task.description}"), *shown, console=console)


@contextlib.contextmanager
def bytes_bar(what: str, done: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar for bytes; yields what to call with the number of new ones."""
    bar = _bar("DownloadColumn", "TransferSpeedColumn")
    if bar is None:
        yield lambda count: None
        return
    with bar:
        task = bar.add_task(what, completed=done, total=total)
        yield lambda count: bar.advance(task, count)


def tracked(parts: Iterable[Part], what: str, total: int) -> Iterator[Part]:
    """``parts``, with a bar where they take longer than two seconds."""
    began = time.monotonic()
    bar, task = None, None
    with contextlib.ExitStack() as stack:
        for done, part in enumerate(parts):
            if bar is None and time.monotonic() - began > PATIENCE:
                bar = _bar("MofNCompleteColumn")
                if bar is None:
                    began = float("inf")  # do not look for rich again
                    yield part
                    continue
                stack.enter_context(bar)
                task = bar.add_task(what, total=total)
            if bar is not None:
                bar.update(task, completed=done)
            yield part
