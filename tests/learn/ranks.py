"""What each process of ``tests/learn/test_processes.py`` runs; ``torchrun`` starts it.

``ranks.py FOLDER vectors`` trains the case of vectors to its end, and once with an interruption;
``ranks.py FOLDER others`` trains the others; ``ranks.py FOLDER dead`` lets process 1 die in the
midst of it. What happened to this process is written to ``FOLDER/RANK.json``.
``ranks.py FOLDER elastic RANK BATCH DROPOUT`` is for ``tests/learn/test_elastic.py``: that process
waits to be killed while it makes that batch, once; what is started in its place trains on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

from flowhash.data.labelled_data import Splits
from flowhash.errors import TrainingError
from flowhash.learn import Settings, Stage, train
from tests.learn.trainer import (
    clouds,
    group_settings,
    picture_settings,
    pictures,
    vector_settings,
    watched,
)

STEPS = 8


def _pictures() -> tuple[Splits, Settings]:
    settings = picture_settings(backbone={"name": "nin", "width": 1 / 16, "dropout": 0.0})
    assert settings.base is not None
    return pictures(), replace(
        settings,
        base=replace(settings.base, steps=STEPS, rate=1e-3),
        hash=replace(settings.hash, steps=STEPS),
    )


def _vectors() -> tuple[Splits, Settings]:
    settings = vector_settings(backbone={"name": "mlp", "hidden": [16]}, active=2)
    assert settings.base is not None
    return clouds(), replace(
        settings,
        base=replace(settings.base, steps=STEPS),
        # Five classes of two: the middle one is split over both processes.
        hash=Stage("npairs", 12, 5, 2, STEPS, {"product": True}),
    )


def _frozen() -> tuple[Splits, Settings]:
    """A backbone that is not trained in the hash stage, and nothing to validate on."""
    splits, settings = _vectors()
    nothing = splits.validation.subset(np.arange(0))
    frozen = replace(settings, hash=replace(settings.hash, backbone_rate=0.0))
    return replace(splits, validation=nothing), frozen


def _unused() -> tuple[Splits, Settings]:
    """A network of others, with weights that its output does not depend on: the pooler's."""
    config = {
        "model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 8, "image_size": 8, "patch_size": 4,
    }  # fmt: skip
    splits, settings = _pictures()
    backbone = {"name": "transformers", "pool": "mean", "config": config}
    assert settings.base is not None
    # Adam would make steps of gradients that are rounding only: a key's bias has no effect.
    return splits, replace(
        settings,
        backbone=backbone,
        base=replace(settings.base, optimiser="sgd"),
        hash=replace(settings.hash, optimiser="sgd"),
    )


def _falling() -> tuple[Splits, Settings]:
    """k falls, and buckets that no group has chosen are revived, in all processes alike."""
    settings = group_settings(
        backbone={"name": "mlp", "hidden": [16]},
        active=1,
        first_active=3,
        revive=True,
        penalty=0.05,
    )
    assert settings.base is not None
    return clouds(), replace(
        settings,
        base=replace(settings.base, steps=STEPS),
        hash=replace(settings.hash, steps=2 * STEPS),
    )


OTHERS: dict[str, Callable[[], tuple[Splits, Settings]]] = {
    "pictures": _pictures,
    "frozen": _frozen,
    "unused": _unused,
    "falling": _falling,
}
CASES = {"vectors": _vectors, **OTHERS}


def vectors(folder: Path, rank: int) -> dict[str, Any]:
    """The fingerprints of the case of vectors, and of one that process 1 was told to stop in
    between.
    """
    splits, settings = _vectors()
    undisturbed = train(splits, settings, folder / "vectors", device="cpu", quiet=True)
    if rank == 1:
        stopped = watched(splits, settings, 5, lambda: os.kill(os.getpid(), signal.SIGINT), 2)
    else:
        stopped = splits
    interrupted = False
    try:
        train(stopped, settings, folder / "resumed", device="cpu", quiet=True)
    except KeyboardInterrupt:
        interrupted = True
    if rank == 0:  # for one process to go on with, alone
        shutil.copytree(folder / "resumed", folder / "fewer")
    distributed.barrier()
    again = train(splits, settings, folder / "resumed", device="cpu", quiet=True)
    return {
        "vectors": undisturbed.fingerprint,
        "interrupted": interrupted,
        "resumed": again.fingerprint,
    }


def others(folder: Path, rank: int) -> dict[str, Any]:
    """The fingerprints of the other cases, and of the one in which ``test_elastic.py`` kills."""
    cases = {**OTHERS, "elastic": lambda: elastic_case(0.3)}
    return {
        name: train(*case(), folder / name, device="cpu", quiet=True).fingerprint
        for name, case in cases.items()
    }


def dead(folder: Path, rank: int) -> dict[str, Any]:
    """How this process ends when process 1 is gone.

    ``torchrun`` tells it to end as soon as it sees that: what it has to say, it says nevertheless.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    splits, settings = _vectors()
    if rank == 1:
        splits = watched(splits, settings, 7, lambda: os._exit(9), 2)
    try:
        train(splits, settings, folder / "run", device="cpu", quiet=True)
    except TrainingError as error:
        return {"error": str(error)}
    return {"error": None}


def elastic(folder: Path, rank: int) -> dict[str, Any]:
    """Train ``elastic_case``; one process waits for its death at a batch, counted from 1."""
    victim, batch = map(int, sys.argv[3:5])
    splits, settings = elastic_case(float(sys.argv[5]))
    again = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if rank == victim and not again:
        splits = watched(splits, settings, batch, lambda: _wait_for_death(folder), 2)
    encoder = train(splits, settings, folder / "run", device="cpu", quiet=True)
    return {"fingerprint": encoder.fingerprint, "restarts": again}


def elastic_case(dropout: float) -> tuple[Splits, Settings]:
    """Vectors; dropout masks differ between processes."""
    splits, settings = _vectors()
    backbone = {"name": "mlp", "hidden": [16], "dropout": dropout}
    return splits, replace(settings, backbone=backbone)


def _wait_for_death(folder: Path) -> None:
    """Say which process this is; batches are made ahead, so that the steps before go on."""
    unfinished = folder / "victim.new"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(folder / "victim")
    time.sleep(600)  # against staying for ever only


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    modes = {"vectors": vectors, "others": others, "dead": dead, "elastic": elastic}
    result = modes[sys.argv[2]](folder, rank)
    (folder / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
