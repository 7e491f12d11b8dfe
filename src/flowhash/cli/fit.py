"""``flowhash fit``: from labelled data to an encoder in a folder."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import typer

from flowhash.cli.config import save_settings
from flowhash.cli.opening import located, opened, writable
from flowhash.cli.reply import Reply
from flowhash.data import Splits
from flowhash.errors import InputError
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
    steps: int | None = None


def fit(
    context: typer.Context,
    data: str,
    opening: dict[str, Any],
    out: Path | None,
    choices: Choices,
    device: str,
    reply: Reply,
) -> None:
    """Open the data, settle the settings, train both stages, say where the encoder is."""
    require("torch", "learn")
    from flowhash.learn import join_processes, train

    folder = Path(f"{Path(data).expanduser().resolve().stem}.run") if out is None else out
    processes = join_processes(device)
    if folder.exists():
        writable(folder)
    with processes.in_turn():  # one downloads and converts, the others find it done
        splits = opened(data, opening)
    _refuse_single_items(splits)
    settings = _settings(splits, choices)
    if processes.first:
        for line in described(splits, settings):
            reply.say(line)
    finished = (folder / "encoder" / "encoder.json").exists()
    try:
        encoder = train(splits, settings, folder, device=device, quiet=reply.quiet)
    except InputError as error:
        if choices.preset is None:
            raise
        advice = f"The preset is {choices.preset}; without one the settings suit the data"
        raise InputError(f"{error}. {advice}") from error
    except KeyboardInterrupt:
        if processes.first:
            _save(context, folder, data, settings)
        print(f"flowhash: stopped; the same command goes on from {folder}", file=sys.stderr)
        sys.exit(130)
    if processes.first:
        _save(context, folder, data, settings)
        _answer(reply, folder, encoder, finished)


def _save(context: typer.Context, folder: Path, data: str, settings: Any) -> None:
    """What the run was made with; never what was refused, which another run's folder keeps."""
    chosen = {name: getattr(settings, name) for name in ("active", "penalty", "rank")}
    buckets = settings.hash.outputs
    save_settings(
        context, folder / "fit.toml", data=located(data), out=folder, buckets=buckets, **chosen
    )


def _refuse_single_items(splits: Splits) -> None:
    """A class of one item has no pair to learn from; say which, by their names."""
    sizes = np.bincount(splits.train.labels, minlength=splits.train.classes)
    single = [splits.train.class_names[label] for label in np.flatnonzero(sizes == 1)]
    if single:
        shown = ", ".join(single[:5]) + (" …" if len(single) > 5 else "")
        raise InputError(
            f"{splits.train.source} has classes with a single item to learn from: {shown} "
            f"({len(single)} in all); training takes two or more of each. Add items to them, or "
            "leave them out"
        )


def _answer(reply: Reply, folder: Path, encoder: Any, finished: bool) -> None:
    facts = {
        "run": folder, "encoder": folder / "encoder", "fingerprint": encoder.fingerprint,
        "buckets": encoder.buckets, "active": encoder.active, "dim": encoder.dim,
        "classes": len(encoder.class_names), "validation": _best(folder),
        "settings": folder / "fit.toml",
    }  # fmt: skip
    reply.result(
        facts,
        f"{'was finished before' if finished else 'finished'}: {_result(folder)}",
        f"encoder: {folder / 'encoder'}  ({encoder})",
        f"next: flowhash index {shlex.quote(str(folder))} ITEMS --out TABLE",
    )


def _best(folder: Path) -> dict[str, Any] | None:
    """What validation said of the state that was kept."""
    path = folder / "hash" / "best.json"
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    return {**record["best"], "step": record["step"]}


def _result(folder: Path) -> str:
    found = _best(folder)
    if found is None:
        return "there was nothing to validate on"
    return (
        f"validation Pr@1 {100 * found['pr1']:.2f} %, SUF {found['suf']:.1f} at step "
        f"{found['step']} of the hash stage"
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
    if choices.steps is not None:
        for name in ("base", "hash"):
            stage = getattr(settings, name)
            if stage is not None:
                changes[name] = dataclasses.replace(stage, steps=choices.steps)
    if settings.augment is not None and not choices.flip:
        changes["augment"] = {**settings.augment, "flip": False}
    return dataclasses.replace(settings, **changes)


def described(splits: Splits, settings: Any) -> list[str]:
    """The data and the settings in words, before hours are spent on them."""
    test = 0 if splits.test is None else len(splits.test)
    size = splits.preprocessing.size
    shape = "" if size is None else f", {size[0]} × {size[1]} pixels,"
    lines = [
        f"{splits.train.source}: {len(splits.train)} {splits.preprocessing.kind}{shape} of "
        f"{splits.train.classes} classes to learn from, {len(splits.validation)} to validate on, "
        f"{test} to test"
    ]
    for name, stage in (("base", settings.base), ("hash", settings.hash)):
        if stage is None:
            lines.append(f"{name}: none, vectors rank by their own Euclidean distance")
        else:
            lines.append(
                f"{name}: {settings.backbone['name']}, {stage.loss}, {stage.outputs} outputs, "
                f"{stage.steps} steps of {stage.classes} classes × {stage.items}"
            )
    return [*lines, f"k = {settings.active}, λ = {settings.penalty}, seed {settings.seed}"]
