"""``flowhash data …``: what a data set holds, whether it can be used, where to get it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import typer

from flowhash.cli.fit import described
from flowhash.cli.opening import opened
from flowhash.cli.reply import Reply, count, in_words
from flowhash.data import NAMED, ImageFolder, LabelledItems, find_images, open_data
from flowhash.errors import DamagedFileError, InputError, MissingExtraError, StorageError
from flowhash.extras import require
from flowhash.progress_bars import tracked

CHUNK = 1000  # items that are read at once


def info(source: str, opening: dict[str, Any], reply: Reply) -> None:
    """Splits, classes and sizes, and what ``fit`` would choose."""
    splits = open_data(source, **opening)
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    sizes = np.bincount(splits.train.labels, minlength=splits.train.classes)
    facts = {
        "source": splits.train.source, "kind": splits.preprocessing.kind,
        "splits": {name: None if part is None else len(part) for name, part in parts.items()},
        "classes": dict(zip(splits.train.class_names, sizes.tolist(), strict=True)),
        "fit": None,
    }  # fmt: skip
    lines = [repr(splits.train), f"splits: {_sizes(parts)}"]
    lines.append(
        f"items of a class to learn from: {sizes.min():,} to {sizes.max():,}, e.g. "
        + ", ".join(
            f"{name} {size:,}"
            for name, size in list(zip(splits.train.class_names, sizes, strict=True))[:5]
        )
    )
    try:
        require("torch", "learn")
        from flowhash.learn import suggest

        settings = suggest(splits)
        facts["fit"] = settings.to_json()
        lines += ["`flowhash fit` would take:", *described(splits, settings)[1:]]
    except (InputError, MissingExtraError) as error:
        lines.append(f"`flowhash fit` cannot take it: {error}")
    reply.result(facts, *lines)


def check(source: str, opening: dict[str, Any], reply: Reply) -> None:
    """Read everything; name what is wrong, and exit with 1 if anything is."""
    items, faults = _read(source, opening)
    facts = {"source": source, "items": items, "faults": faults}
    if faults:
        reply.result(facts, *faults, f"{source}: {count(len(faults), 'fault')}")
        raise typer.Exit(1)
    reply.result(facts, f"{source}: {count(items, 'item')}, all of them readable")


def _read(source: str, opening: dict[str, Any]) -> tuple[int, list[str]]:
    """How many items there are, and what is wrong with some of them."""
    path = Path(source).expanduser()
    faults: list[str] = []
    if source not in NAMED and path.is_dir():  # every image first: opening stops at the first fault
        images = find_images(path, ignore_other=True)
        faults = ImageFolder(images, (32, 32)).verify()
        if faults:
            return len(images), faults
    try:
        splits = open_data(source, **opening)
    except InputError as error:
        if source in NAMED or not path.exists():
            raise
        return 0, [in_words(error)]  # it is there, but holds what cannot be used
    parts = [part for part in (splits.train, splits.validation, splits.test) if part is not None]
    if not path.is_dir():
        faults = [fault for part in parts for fault in _faults(part)]
    return sum(len(part) for part in parts), faults


def download(data: str, folder: Path, reply: Reply) -> None:
    """Fetch a data set, unless it is there."""
    if data != "cifar100":
        raise InputError(
            f"{data!r} cannot be downloaded; expected cifar100. ImageNet32 asks for an account: "
            "fetch it from its site and give --folder"
        )
    splits = opened(data, {"folder": folder, "download": True})
    facts = {"data": data, "folder": folder, "items": len(splits.train)}
    reply.result(facts, f"{data} is in {folder}: {splits!r}")


def _faults(part: LabelledItems) -> list[str]:
    faults = []
    starts = range(0, len(part), CHUNK)
    for start in tracked(starts, f"read {part.source}", len(starts)):
        places = np.arange(start, min(start + CHUNK, len(part)))
        try:
            part.take(places)
        except (DamagedFileError, StorageError) as error:
            faults.append(str(error))
    return faults


def _sizes(parts: dict[str, LabelledItems | None]) -> str:
    return ", ".join(f"{name} {0 if part is None else len(part):,}" for name, part in parts.items())
