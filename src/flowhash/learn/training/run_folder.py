"""The folder of a run: claimed for settings and data, and kept from those that do not fit them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from flowhash.data import Splits
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn.settings import Settings
from flowhash.learn.training.process_group import Processes
from flowhash.model_files import read_json, write_json

# What an unfinished run may go on with changed: a rate that was too high, a batch too large. The
# rest decides what is learned, or the shape of what a checkpoint holds.
STAGE_KEEPS = ("loss", "outputs", "optimiser", "start")
RUN_KEEPS = ("backbone", "active", "rank", "seed")


def claim(folder: Path, settings: Settings, origin: dict[str, Any], processes: Processes) -> None:
    """Take a new folder, or see that the run in it may go on with these settings and data.

    Raises:
        InputError: it holds a run that differs in what cannot be changed, or in anything at all if
            it is finished; or a process does not see the folder.
    """
    asked = json.loads(json.dumps({"settings": settings.to_json(), "origin": origin}))
    path = folder / "settings.json"
    finished = (folder / "encoder" / "encoder.json").exists()
    if path.exists():
        _compare(folder, read_json(path), asked, finished)
    processes.wait()  # all have looked before the first one writes
    if processes.first:
        write_json(path, asked)
    processes.wait()
    if processes.any(not path.exists()):
        raise InputError(
            f"{folder} is not the same folder for all processes; it must be on a disk that they "
            "share"
        )


def _compare(folder: Path, before: dict[str, Any], asked: dict[str, Any], finished: bool) -> None:
    if before.get("origin") != asked["origin"]:
        differs = [
            name for name, value in asked["origin"].items()
            if before.get("origin", {}).get(name) != value
        ]  # fmt: skip
        raise InputError(
            f"{folder} holds a run on other data ({', '.join(differs)}); choose another folder"
        )
    # Fields that an older FlowHash did not have yet have their defaults.
    one = json.loads(json.dumps(Settings.from_json(before["settings"]).to_json()))
    other = asked["settings"]
    if finished:
        changed = [name for name in other if one.get(name) != other[name]]
    else:
        changed = [name for name in RUN_KEEPS if one.get(name) != other[name]]
        for stage in ("base", "hash"):
            was, now = one.get(stage) or {}, other[stage] or {}
            names = (name for name in STAGE_KEEPS if was.get(name) != now.get(name))
            changed += [f"{stage}.{name}" for name in names]
    if changed:
        raise InputError(
            f"{folder} holds a run with other settings ({', '.join(sorted(changed))}); choose "
            "another folder, or the same settings to go on with it"
        )


def origin_of(
    splits: Splits, base: Encoder | nn.Module | None, pairs: NDArray[Any] | None
) -> dict[str, Any]:
    """What tells the data of two runs apart, without reading all items."""
    arrays = splits.preprocessing.arrays()
    return {
        "items": len(splits.train),
        "labels": _digest([splits.train.labels, splits.validation.labels]),
        "preprocessing": _digest([arrays[name] for name in sorted(arrays)]),
        "base": _fingerprint(base),
        "pairs": None if pairs is None else _digest([pairs]),
    }


def _fingerprint(base: Encoder | nn.Module | None) -> str | None:
    if base is None:
        return None
    if isinstance(base, Encoder):
        return base.fingerprint
    return _digest(value.detach().cpu().numpy() for value in base.state_dict().values())


def _digest(arrays: Iterable[NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
