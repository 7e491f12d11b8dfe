"""``Journal``, what a run writes into its file and TensorBoard; ``Progress`` for the terminal."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from flowhash.progress_bars import PLAIN_SECONDS, make_bar


class Journal:
    """Appends one JSON object a line; a resumed run cuts off what came after its checkpoint.

    Args:
        folder: of the run; TensorBoard's events go there too, where it is installed.
        length: where to go on, as a checkpoint recorded it; 0 starts anew.
    """

    def __init__(self, folder: Path, length: int) -> None:
        path = folder / "metrics.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, min(length, path.stat().st_size))
        self._file = path.open("ab")
        self._board = _board(folder / "tensorboard")

    @property
    def length(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def write(self, stage: str, step: int, values: dict[str, Any]) -> None:
        """Add one line, and the numbers in it to TensorBoard."""
        line = {"stage": stage, "step": step, **values}
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{stage}/{name}", value, step)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The lines that were written; none where there is no file."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    # A run that goes on may be in the middle of its last line.
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _board(folder: Path) -> Any:
    try:
        importlib.import_module("tensorboard")
    except ImportError:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


class Progress:
    """A bar in a terminal (with rich), lines now and then elsewhere, nothing when quiet.

    Args:
        title: what is running.
        total: steps.
        start: the first of them, where a run goes on.
        quiet: show nothing.
    """

    def __init__(self, title: str, total: int, start: int = 0, quiet: bool = False) -> None:
        self.title, self.total, self.start, self.quiet = title, total, start, quiet
        self._bar: Any = None
        self._task: Any = None
        self._began = self._said = time.monotonic()

    def __enter__(self) -> Progress:
        if not self.quiet:
            self._bar = make_bar("MofNCompleteColumn", fact="{task.fields[facts]}")
        if self._bar is not None:
            self._task = self._bar.add_task(
                self.title, total=self.total, completed=self.start, facts=""
            )
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, done: int, facts: str) -> None:
        """Say how far it is; ``facts`` stands beside it."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, facts=facts)
        elif time.monotonic() - self._said >= PLAIN_SECONDS:
            self._said = time.monotonic()
            share = (done - self.start) / (self._said - self._began)
            minutes, seconds = divmod(round((self.total - done) / share if share else 0.0), 60)
            left = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"  # hours, also above 24
            self.say(f"{self.title} {done}/{self.total}  {facts}  {left} left")

    def say(self, line: str) -> None:
        """A line that stays."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(line, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)
