"""From labelled data to a saved encoder: both stages, resumable, in one folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from flowhash.data import Splits
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn.settings import Settings
from flowhash.learn.stages import Stages
from flowhash.learn.training.process_group import join_processes
from flowhash.model_files import read_json, write_json
from flowhash.networks import EmbeddingNetwork

# What an unfinished run may go on with changed: a rate that was too high, a batch too large. The
# rest decides what is learned, or the shape of what a checkpoint holds.
STAGE_KEEPS = ("loss", "outputs", "optimiser", "start")
RUN_KEEPS = (
    "backbone", "active", "first_active", "groups", "rank", "class_order", "revive", "seed",
)  # fmt: skip


def train(
    splits: Splits,
    settings: Settings,
    folder: str | Path | None,
    *,
    backbone: nn.Module | None = None,
    base: Encoder | EmbeddingNetwork | None = None,
    pairs: ArrayLike | None = None,
    directions: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> Encoder:
    """Train the base embedding, then the hash network by Algorithm 1; returns the encoder.

    Everything goes into ``folder``: ``settings.json``, ``metrics.jsonl``, the last and the best
    checkpoint of each stage, and the finished ``encoder``. Called again with the same arguments it
    goes on where it was interrupted, bit for bit, or returns what is finished. An unfinished run
    may go on with another rate, schedule, batch or number of steps.

    Args:
        splits: what to learn from, and what to validate on.
        settings: what to do; see ``preset``.
        folder: a new folder, or that of an interrupted run. None keeps nothing: for short trainings
            that nobody would resume.
        backbone: a network of your own (see ``flowhash.networks.custom_backbone``) instead of the
            one that ``settings.backbone`` describes.
        base: an encoder whose base network is used as it is, with its preprocessing: stage 1 is
            left out.
        pairs: positive pairs [p, 2] of positions in ``splits.train`` to learn from instead of
            labels; each pair is its own class in a batch.
        directions: of the classes in the base embedding [classes, m], where the hash stage starts
            at them (``start="classes"``) and stage 1 does not run here: a classifier's weights,
            with or without its biases as one more column. The class means by default. Where
            there are groups, of the groups; or of the classes, and the groups of a class start at
            its direction, turned towards their own means.
        groups: of the items of ``splits.train`` [n], from 0 on, each inside one class: what gets a
            code of its own in stage 2. By default what ``settings.groups`` says.
        device: "auto", "cpu" or "cuda".
        quiet: no progress on the terminal.

    Raises:
        InputError: settings that do not fit the data or the folder.
        TrainingError: training cannot go on; the message names the last good checkpoint.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the same call goes on.
    """
    folder = None if folder is None else Path(folder)
    processes = join_processes(device)
    if isinstance(base, Encoder):
        splits = _prepared_for(base, splits)
    stages = Stages(splits, settings, folder, processes, pairs, quiet, directions, groups)
    stages.check(base)
    if folder is not None:
        _claim_folder(folder, stages, base)
        if (folder / "encoder" / "encoder.json").exists():
            return Encoder.load(folder / "encoder", backbone or _backbone_of(base))
    with _settled(splits):
        torch.manual_seed(settings.seed)
        network, record = stages.base(backbone, base)
        hashed = stages.hash(network, backbone, record)
    ranker = None if settings.rank == "hash" else network
    names = splits.train.class_names if pairs is None else ()
    encoder = Encoder(ranker, hashed, splits.preprocessing, settings.active, names)
    if processes.first and folder is not None:
        encoder.save(folder / "encoder")
    processes.wait()
    return encoder


def train_base(
    splits: Splits,
    settings: Settings,
    folder: str | Path,
    *,
    backbone: nn.Module | None = None,
    pairs: ArrayLike | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> EmbeddingNetwork:
    """Train stage 1 alone: one base that several hash networks share, one for each k.

    Give what it returns to ``train`` as ``base=``. It is resumable like ``train``, and ``train``
    with the same settings and folder goes on with stage 2.

    Args:
        splits: what to learn from, and what to validate on.
        settings: what to do; its hash stage is not run.
        folder: a new folder, or that of an interrupted run.
        backbone: a network of your own, or one that another run trained, to start from.
        pairs: positive pairs instead of labels; see ``train``.
        device: "auto", "cpu" or "cuda".
        quiet: no progress on the terminal.

    Raises:
        InputError: settings without a base stage, or that do not fit the data or the folder.
        TrainingError: training cannot go on; the message names the last good checkpoint.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the same call goes on.
    """
    if settings.base is None:
        raise InputError("the settings have no base stage; give settings with one to train it")
    folder = Path(folder)
    stages = Stages(splits, settings, folder, join_processes(device), pairs, quiet)
    stages.check(None, hashing=False)
    _claim_folder(folder, stages, None)
    with _settled(splits):
        torch.manual_seed(settings.seed)
        network, _ = stages.base(backbone, None, hashing=False)
    return network.eval()


@contextlib.contextmanager
def _settled(splits: Splits) -> Iterator[None]:
    """Leave the caller's random numbers alone, and train on vectors with one thread.

    The matrices of a dense layer are so small that several threads mostly wait for each other: on a
    busy machine two took several times as long as one.
    """
    threads = torch.get_num_threads()
    try:
        if splits.preprocessing.kind == "vectors":
            torch.set_num_threads(1)
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads(threads)


def _prepared_for(base: Encoder, splits: Splits) -> Splits:
    """The splits with the preprocessing that the base network was trained with."""
    theirs, ours = base.preprocessing, splits.preprocessing
    if (theirs.kind, theirs.size) != (ours.kind, ours.size):
        raise InputError(
            f"the encoder given as base takes {theirs.kind} of size {theirs.size}, the data set "
            f"holds {ours.kind} of size {ours.size}; open the data with that size"
        )
    return replace(splits, preprocessing=theirs)


def _backbone_of(base: Encoder | EmbeddingNetwork | None) -> nn.Module | None:
    # The hash network of an adapted encoder takes embeddings, and has no backbone for items.
    network = (base.base or base.hash) if isinstance(base, Encoder) else base
    return None if network is None else network.backbone


def _claim_folder(folder: Path, stages: Stages, base: Encoder | EmbeddingNetwork | None) -> None:
    """Take a new folder, or see that the run in it may go on with these settings and data.

    Raises:
        InputError: it holds a run that differs in what cannot be changed, or in anything at all if
            it is finished; or a process does not see the folder.
    """
    settings, origin = stages.settings.to_json(), _origin_of(stages.splits, base, stages.pairs)
    origin["groups"] = None if stages.groups is None else _digest([stages.groups.labels])
    asked = json.loads(json.dumps({"settings": settings, "origin": origin}))
    processes = stages.processes
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
    known = before.get("origin", {})  # of an older FlowHash it has no groups
    differs = [name for name, value in asked["origin"].items() if known.get(name) != value]
    if differs:
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
            keeps: tuple[str, ...] = STAGE_KEEPS
            if stage == "hash" and other["groups"] != "classes":
                keeps += ("items",)  # which decides how small a group may be
            names = (name for name in keeps if was.get(name) != now.get(name))
            changed += [f"{stage}.{name}" for name in names]
    if changed:
        raise InputError(
            f"{folder} holds a run with other settings ({', '.join(sorted(changed))}); choose "
            "another folder, or the same settings to go on with it"
        )


def _origin_of(
    splits: Splits, base: Encoder | EmbeddingNetwork | None, pairs: NDArray[Any] | None
) -> dict[str, Any]:
    """What tells the data of two runs apart, without reading all items."""
    fingerprint = None
    if isinstance(base, Encoder):
        fingerprint = base.fingerprint
    elif base is not None:
        fingerprint = _digest(value.detach().cpu().numpy() for value in base.state_dict().values())
    arrays = splits.preprocessing.arrays()
    return {
        "items": len(splits.train),
        "labels": _digest([splits.train.labels, splits.validation.labels]),
        "preprocessing": _digest([arrays[name] for name in sorted(arrays)]),
        "base": fingerprint,
        "pairs": None if pairs is None else _digest([pairs]),
    }


def _digest(arrays: Iterable[NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
