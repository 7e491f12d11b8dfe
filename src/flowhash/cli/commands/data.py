"""``flowhash data …``: what a data set holds, whether it can be used, where to get it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash.cli import options
from flowhash.cli.locations import opened
from flowhash.cli.output import Output, count, described, in_words
from flowhash.data import NAMED
from flowhash.errors import DamagedFileError, InputError, MissingExtraError, StorageError
from flowhash.extras import require
from flowhash.progress_bars import tracked

if TYPE_CHECKING:
    from flowhash.data import LabelledItems

CHUNK = 1000  # items that are read at once

command = typer.Typer(
    name="data",
    help="Look at a data set, check it, download it.",
    no_args_is_help=True,
    add_completion=False,
)


@command.command(epilog="Example:  flowhash data info pets")
def info(
    data: options.Data,
    *,
    opening: options.Opening,
    size: options.Size = None,
    output: Output,
) -> None:
    """Show what a data set holds, how it is split, and what `fit` would choose for it."""
    import numpy as np

    from flowhash.data import open_data

    splits = open_data(data, progress=output.progress, **opening.given(size=size))
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    sizes = np.bincount(splits.train.labels, minlength=splits.train.classes)
    facts = {
        "source": splits.train.source, "kind": splits.preprocessing.kind,
        "splits": {name: None if part is None else len(part) for name, part in parts.items()},
        "classes": dict(zip(splits.train.class_names, sizes.tolist(), strict=True)),
        "fit": None,
    }  # fmt: skip
    counts = (f"{name} {len(part or ()):,}" for name, part in parts.items())
    lines = [repr(splits.train), f"splits: {', '.join(counts)}"]
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
        more = ""
        if splits.preprocessing.kind == "vectors":
            more = ", or more buckets and a hidden layer, if they are better on validation"
        lines += [f"`flowhash fit` would take{more}:", *described(splits, settings)[1:]]
    except (InputError, MissingExtraError) as error:
        lines.append(f"`flowhash fit` cannot take it: {error}")
    output.result(facts, *lines)


@command.command(epilog="Example:  flowhash data check pets")
def check(data: options.Data, opening: options.Opening, output: Output) -> None:
    """Read every item and name what cannot be used: broken images, values that are not finite.

    Exits with 0 if all is well and with 1 if something is wrong.
    """
    items, faults = _read(data, opening.given(), output.progress)
    facts = {"source": data, "items": items, "faults": faults}
    if faults:
        output.result(facts, *faults, f"{data}: {count(len(faults), 'fault')}")
        raise typer.Exit(1)
    output.result(facts, f"{data}: {count(items, 'item')}, all of them readable")


def _read(source: str, opening: dict[str, Any], progress: bool) -> tuple[int, list[str]]:
    """How many items there are, and what is wrong with some of them."""
    from flowhash.data import ImageFolder, find_images, open_data

    path = Path(source).expanduser()
    faults: list[str] = []
    if source not in NAMED and path.is_dir():  # every image first: opening stops at the first fault
        images = find_images(path, ignore_other=True)
        faults = ImageFolder(images, (32, 32)).verify(progress)
        if faults:
            return len(images), faults
    try:
        splits = open_data(source, progress=progress, **opening)
    except InputError as error:
        if source in NAMED or not path.exists():
            raise
        return 0, [in_words(error)]  # it is there, but holds what cannot be used
    parts = [part for part in (splits.train, splits.validation, splits.test) if part is not None]
    if not path.is_dir():
        faults = [fault for part in parts for fault in _faults(part, progress)]
    return sum(len(part) for part in parts), faults


def _faults(part: LabelledItems, progress: bool) -> list[str]:
    import numpy as np

    faults = []
    starts = range(0, len(part), CHUNK)
    for start in tracked(starts, f"read {part.source}", len(starts), progress):
        places = np.arange(start, min(start + CHUNK, len(part)))
        try:
            part.take(places)
        except (DamagedFileError, StorageError) as error:
            faults.append(str(error))
    return faults


@command.command(epilog="Example:  flowhash data download cifar100 --folder data")
def download(
    data: Annotated[str, typer.Argument(metavar="DATA", help=f"{options.DOWNLOADED}.")],
    folder: Annotated[Path, typer.Option(help="Where it goes.")],
    output: Output,
) -> None:
    """Download a data set and compare it with its checksum; an interrupted download goes on."""
    if data not in NAMED or not NAMED[data].download:
        raise InputError(
            f"{data!r} cannot be downloaded; expected {options.DOWNLOADED}. ImageNet32 asks for an "
            "account: fetch it from its site and give --folder"
        )
    splits = opened(data, {"folder": folder, "download": True}, output.progress)
    facts = {"data": data, "folder": folder, "items": len(splits.train)}
    output.result(facts, f"{data} is in {folder}: {splits!r}")
