"""``flowhash fit``: from labelled data to an encoder in a folder."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from flowhash.data import Splits, open_data
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
        splits = open_data(source, **{name: value for name, value in opening.items() if value})
    settings = _settings(splits, choices)
    if not quiet and processes.first:
        _describe(splits, settings)
    try:
        encoder = train(splits, settings, out, device=device, quiet=quiet)
    except KeyboardInterrupt:
        print(f"flowhash: stopped; the same command goes on from {out}", file=sys.stderr)
        sys.exit(130)
    if processes.first:
        print(f"encoder: {out / 'encoder'}  ({encoder})")


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
