"""What a run leaves to read: ``metrics.jsonl`` always, TensorBoard where it is installed."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any


class NoJournal:
    """Of a training without a folder: nothing is written."""

    length = 0

    def write(self, stage: str, step: int, values: dict[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Journal:
    """Appends one JSON object a line; a resumed run cuts off what came after its checkpoint.

    Args:
        path: the file.
        length: where to go on, as a checkpoint recorded it; 0 starts anew.
        tensorboard: a folder for TensorBoard's events, or None.
    """

    def __init__(self, path: Path, length: int = 0, tensorboard: Path | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, min(length, path.stat().st_size))
        self._file = path.open("ab")
        self._board = None if tensorboard is None else _board(tensorboard)

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
