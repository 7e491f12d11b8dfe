"""What a person sees while training runs: a bar with loss, rate and time left, and milestones."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from flowhash.progress_bars import make_bar

PLAIN_SECONDS = 30.0  # between two lines where there is no terminal


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
        if not self.quiet and sys.stderr.isatty():
            self._bar = make_bar("MofNCompleteColumn", fact="{task.fields[facts]}")
        if self._bar is not None:
            self._task = self._bar.add_task(
                self.title, total=self.total, completed=self.start, facts=""
            )
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, done: int, facts: str) -> None:
        """Say how far it is; ``facts`` stands beside it."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, facts=facts)
        elif time.monotonic() - self._said >= PLAIN_SECONDS:
            self._said = time.monotonic()
            share = (done - self.start) / (self._said - self._began)
            left = (self.total - done) / share if share else 0.0
            self.say(f"{self.title} {done}/{self.total}  {facts}  {_clock(left)} left")

    def say(self, line: str) -> None:
        """A line that stays."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(line, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
