"""Work in numbered parts: what a worker does, whoever runs it.

A job is plain data: where things are and what to do with them. A part of it is a pure function of
that data and writes one file under a temporary name before it takes its own. So a part that is done
twice gives the same, and a worker that is killed leaves nothing that counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import flowhash


class PartJob(Protocol):
    """Work in parts."""

    def open(self) -> Any:
        """Open what all parts need: a table, an encoder; once a worker."""

    def do(self, opened: Any, part: int, threads: int | None) -> int:
        """Do one part with so many threads (None is all cores); how many rows it had."""


@dataclass(frozen=True)
class Done:
    """A part that is on disk."""

    part: int
    rows: int

    def __len__(self) -> int:
        return self.rows


class Runner(Protocol):
    """Does the parts of jobs: in this process, or on a cluster."""

    here: bool  # whether in this process

    def run(self, job: PartJob, parts: Sequence[int]) -> Iterator[Done]:
        """Do these parts, in any order; each is told when it is on disk."""


class Worker:
    """Does parts one after the other, and keeps open what the job needs for as long as it runs."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads  # of a part; None is all cores
        self._run: int | None = None
        self._opened: Any = None

    def version(self) -> str:
        """Which FlowHash this worker has."""
        return flowhash.__version__

    def do(self, job: PartJob, part: int, run: int = 0) -> int:
        """One part; how many rows it had.

        Files may have changed from one run of a runner to the next: ``run`` tells them apart.
        """
        if run != self._run:
            self.close()
            self._opened = job.open()
            self._run = run
        return job.do(self._opened, part, self._threads)

    def close(self) -> None:
        """Let go of what the last job opened."""
        opened, self._run, self._opened = self._opened, None, None
        with contextlib.suppress(AttributeError):  # most things need no closing
            opened.close()


class LocalRunner:
    """Does one part after the other in this process, with all cores."""

    here = True

    def run(self, job: PartJob, parts: Sequence[int]) -> Iterator[Done]:
        """Do these parts in their order."""
        worker = Worker()
        try:
            for part in parts:
                yield Done(part, worker.do(job, part))
        finally:
            worker.close()
