"""``flowhash fit``: from labelled data to an encoder in a folder."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

from flowhash.data import ImageFolder, Splits, open_data
from flowhash.errors import DamagedFileError, InputError
from flowhash.extras import require


@dataclasses.dataclass(frozen=True)
class Choices:
    """What the user chose; None leaves it to the preset, or to what suits the data."""

    preset: str | None
    buckets: int | None
    active: int | None
    penalty: float | None
    rank: str | None
    flip: bool
    seed: int


def fit(
    source: str,
    opening: dict[str, Any],
    out: Path,
    choices: Choices,
    device: str,
    quiet: bool,
) -> None:
    """Open the data, settle the settings, train both stages, say where the encoder is."""
    require("torch", "learn")
    from flowhash.learn import train
    from flowhash.learn.processes import join

    processes = join(device)
    with processes.in_turn():  # one downloads and converts, the others find it done
        splits = opened(source, {name: value for name, value in opening.items() if value})
    settings = _settings(splits, choices)
    if not quiet and processes.first:
        _describe(splits, settings)
    finished = (out / "encoder" / "encoder.json").exists()
    try:
        encoder = train(splits, settings, out, device=device, quiet=quiet)
    except InputError as error:
        if choices.preset is None:
            raise
        advice = f"The preset is {choices.preset}; without one the settings suit the data"
        raise InputError(f"{error}. {advice}") from error
    except KeyboardInterrupt:
        print(f"flowhash: stopped; the same command goes on from {out}", file=sys.stderr)
        sys.exit(130)
    if processes.first:
        print(f"{'was finished before' if finished else 'finished'}: {_result(out)}")
        print(f"encoder: {out / 'encoder'}  ({encoder})")


# What the library calls by the names of its arguments has other names here.
OPTIONS = {
    "ignore_other=True": "--ignore-other",
    "embedding=": "--embedding",
    "label=": "--label",
    "give labels, an array or the name of an .npy file": "give --labels, an .npy file",
    "download=True": "--download",
}


def opened(source: str, options: dict[str, Any]) -> Splits:
    """The data set; a broken image is found now, not in the middle of a training."""
    try:
        splits = open_data(source, **options)
    except InputError as error:
        message = re.sub(r'open_data\("\w+", folder=\.\.\.\)', "--folder FOLDER", str(error))
        for words, option in OPTIONS.items():
            message = message.replace(words, option)
        raise InputError(message) from error
    for part in (splits.train, splits.validation, splits.test):
        store = getattr(part and part.items, "items", part and part.items)
        if isinstance(store, ImageFolder):
            complaints = store.verify()
            if complaints:
                more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
                raise DamagedFileError(complaints[0] + more)
    return splits


def _result(out: Path) -> str:
    """What validation said of the state that was kept."""
    best = out / "hash" / "best.json"
    if not best.exists():
        return "there was nothing to validate on"
    record = json.loads(best.read_text())
    found = record["best"]
    return (
        f"validation Pr@1 {100 * found['pr1']:.2f} %, SUF {found['suf']:.1f} at step "
        f"{record['step']} of the hash stage"
    )


def _settings(splits: Splits, choices: Choices) -> Any:
    from flowhash.learn import preset, suggest

    if choices.preset is None:
        settings = suggest(splits, choices.buckets, choices.active or 1)
    else:
        settings = preset(choices.preset)
        if choices.buckets is not None:
            hashing = dataclasses.replace(settings.hash, outputs=choices.buckets)
            settings = dataclasses.replace(settings, hash=hashing)
    changes = {
        name: getattr(choices, name)
        for name in ("active", "penalty", "rank", "seed")
        if getattr(choices, name) is not None
    }
    if settings.augment is not None and not choices.flip:
        changes["augment"] = {**settings.augment, "flip": False}
    return dataclasses.replace(settings, **changes)


def _describe(splits: Splits, settings: Any) -> None:
    test = 0 if splits.test is None else len(splits.test)
    size = splits.preprocessing.size
    shape = "" if size is None else f", {size[0]} × {size[1]} pixels,"
    print(
        f"{splits.train.source}: {len(splits.train)} {splits.preprocessing.kind}{shape} of "
        f"{splits.train.classes} classes to learn from, {len(splits.validation)} to validate on, "
        f"{test} to test"
    )
    for name, stage in (("base", settings.base), ("hash", settings.hash)):
        if stage is None:
            print(f"{name}: none, vectors rank by their own Euclidean distance")
        else:
            print(
                f"{name}: {settings.backbone['name']}, {stage.loss}, {stage.outputs} outputs, "
                f"{stage.steps} steps of {stage.classes} classes × {stage.items}"
            )
    print(f"k = {settings.active}, λ = {settings.penalty}, seed {settings.seed}", flush=True)
