"""What ends a training, in words: what happened, what to do, and where the last good state is."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch

from flowhash.errors import TrainingError
from flowhash.learn.checkpoint import Checkpoints
from flowhash.learn.processes import Processes


def refuse_infinite(value: float, what: str, step: int) -> None:
    """Stop where a number is NaN or infinite."""
    if not math.isfinite(value):
        raise TrainingError(f"{what} is {value} at step {step}")


@contextlib.contextmanager
def explained(checkpoints: Checkpoints, processes: Processes, batch: int) -> Iterator[None]:
    """Turn what ends a training into one message with what to do and the last good checkpoint."""
    try:
        yield
        return
    except TrainingError as error:
        trouble, cause = f"{error}; lower the rate, or look for bad items", error
    except torch.OutOfMemoryError as error:
        trouble = f"{processes.device} has no memory for a batch of {batch}; make it smaller"
        cause = error  # type: ignore[assignment]
    except RuntimeError as error:
        if processes.world == 1 or not _is_lost(error):
            raise
        trouble = f"process {processes.rank} lost another one: {str(error).splitlines()[0]}"
        cause = error  # type: ignore[assignment]
    path = checkpoints.path("last")
    kept = "there is no checkpoint yet"
    if checkpoints.exists("last"):
        kept = f"the last good checkpoint is {path}; a run in this folder goes on from it"
    raise TrainingError(f"{trouble}; {kept}") from cause


def _is_lost(error: RuntimeError) -> bool:
    """Whether it is trouble between processes, not in the network."""
    if isinstance(error, torch.distributed.DistError):
        return True
    words = ("gloo", "nccl", "connection", "timed out", "socket")
    return any(word in str(error).lower() for word in words)
