"""Checkpoints of a stage: the last one, to go on from, and the best one, to keep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flowhash.model_files import (
    check_entries,
    read_sealed,
    read_tensors,
    write_sealed,
    write_tensors,
)

ORDER = "order.json"  # beside them: the order of buckets that was chosen after the last step
ORDERED = ("pr1", "suf", "weight")  # what validation said of it


@dataclass(frozen=True)
class Checkpoint:
    """What was read from one: its JSON record and its tensors."""

    record: dict[str, Any]
    tensors: dict[str, Tensor]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``name.``, without it."""
        start = name + "."
        return {
            key.removeprefix(start): value
            for key, value in self.tensors.items()
            if key.startswith(start)
        }


class Checkpoints:
    """The checkpoints in a stage's folder; names are "last" and "best"."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """The record of a checkpoint."""
        return self.folder / f"{name}.json"

    def exists(self, name: str) -> bool:
        """Whether there is such a checkpoint on disk, from which a run can go on."""
        return self.path(name).exists()

    def save(self, name: str, record: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Write a checkpoint in place of the one before, in an order that survives a crash."""
        file = f"{name}-{record['step']:07d}.safetensors"
        checksum = write_tensors(self.folder / file, tensors)
        write_sealed(self.path(name), {**record, "tensors": file, "sha256": checksum})
        for old in self.folder.glob(f"{name}-*.safetensors*"):  # unfinished ones too
            if old.name != file:
                old.unlink(missing_ok=True)

    def record(self, name: str, **entries: tuple[type, ...]) -> dict[str, Any] | None:
        """The JSON record of a checkpoint, with these entries of these types; None without one."""
        if not self.exists(name):
            return None
        record = read_sealed(self.path(name))
        check_entries(self.path(name), record, entries)
        return record

    def load(self, name: str) -> Checkpoint | None:
        """Read a checkpoint, or None where there is none yet.

        Raises:
            DamagedFileError: a file of it is damaged or missing; the message names it.
        """
        record = self.record(name, step=(int,), tensors=(str,), sha256=(str,))
        if record is None:
            return None
        file = self.folder / Path(record["tensors"]).name
        return Checkpoint(record, read_tensors(file, record["sha256"]))


class PassingCheckpoints(Checkpoints):
    """Checkpoints of a training without a folder: kept in memory, gone with it."""

    def __init__(self) -> None:
        super().__init__(Path())
        self._kept: dict[str, Checkpoint] = {}

    def exists(self, name: str) -> bool:
        """Never: no run can go on from what is in memory only."""
        return False

    def save(self, name: str, record: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Keep a copy: training goes on with the tensors themselves."""
        copies = {key: value.detach().clone() for key, value in tensors.items()}
        self._kept[name] = Checkpoint(record, copies)

    def load(self, name: str) -> Checkpoint | None:
        """What was kept last under this name."""
        return self._kept.get(name)


def state_tensors(
    network: nn.Module, loss: nn.Module, optimiser: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """All tensors that the next step depends on."""
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"loss.{name}": value for name, value in loss.state_dict().items()}
    for index, values in optimiser.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{index}.{name}"] = value
    return tensors


def restore(
    checkpoint: Checkpoint, network: nn.Module, loss: nn.Module, optimiser: torch.optim.Optimizer
) -> None:
    """Put the tensors of a checkpoint back where ``state_tensors`` took them from."""
    network.load_state_dict(checkpoint.part("network"))
    loss.load_state_dict(checkpoint.part("loss"))
    parameters = [value for group in optimiser.param_groups for value in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in checkpoint.part("optimiser").items():
        index, name = key.split(".", 1)
        like = parameters[int(index)]
        if value.shape == like.shape:
            # In the parameter's own memory layout: sums in another order would not be bit-equal.
            value = torch.empty_like(like).copy_(value)
        state.setdefault(int(index), {})[name] = value
    optimiser.load_state_dict(
        {"state": state, "param_groups": optimiser.state_dict()["param_groups"]}
    )


def best_validation(folder: Path) -> dict[str, Any] | None:
    """What validation said of the state that a stage kept, and its "step".

    Where buckets are opened by class first, it is of that order, whose "weight" is there too.

    Args:
        folder: of the stage, such as "hash" in the folder of a run.

    Returns:
        None where there was nothing to validate on, or no step yet.

    Raises:
        DamagedFileError: the record of the checkpoint is damaged; the message names it.
    """
    record = Checkpoints(folder).record("best", step=(int,), best=(dict,))
    if record is None:
        return None
    order = folder / ORDER
    ordered = read_sealed(order) if order.exists() else {}
    if ordered:
        check_entries(order, ordered, dict.fromkeys(ORDERED, (int, float)))
    found = {name: ordered[name] for name in ORDERED if ordered}
    return {**record["best"], **found, "step": record["step"]}


def training_seconds(folder: Path) -> float | None:
    """How long a stage has trained, interruptions left out; None before its first checkpoint.

    Takes and raises what ``best_validation`` does.
    """
    record = Checkpoints(folder).record("last", seconds=(int, float))
    return None if record is None else float(record["seconds"])
