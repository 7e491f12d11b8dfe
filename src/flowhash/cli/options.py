"""Options that several sub-commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flowhash.cli.config_file import read_config
from flowhash.data import NAMED


def complete_data(incomplete: str) -> list[str]:
    """Names of data sets for the shell; files it completes itself."""
    return [name for name in NAMED if name.startswith(incomplete)]


def complete_preset(incomplete: str) -> list[str]:
    """Names of presets for the shell, written out: importing them would import torch."""
    names = ["cpu-digits"]
    names += [
        f"{kind}-{loss}"
        for kind in ("cpu-cifar100", "paper-cifar100", "paper-imagenet32")
        for loss in ("npairs", "triplet")
    ]
    return [name for name in names if name.startswith(incomplete)]


def complete_address(incomplete: str) -> list[str]:
    """How addresses begin, for the shell; once a letter is typed, so that files come first."""
    schemes = ("postgresql://", "qdrant://", "qdrant+https://")
    return [scheme for scheme in schemes if incomplete and scheme.startswith(incomplete)]


# How a data set is opened.
OPENING = ("folder", "labels", "embedding", "label", "size", "download", "ignore_other")


def opening(context: typer.Context) -> dict[str, Any]:
    """The options that say how a data set is opened, as far as they were given."""
    given = {name: context.params.get(name) for name in OPENING}
    return {name: value for name, value in given.items() if value}


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        autocompletion=complete_data,
        help="digits, cifar100, imagenet32, a folder of images (one sub-folder a class), or an "
        ".npy, .npz or .parquet file.",
    ),
]
Folder = Annotated[
    Path | None, typer.Option(help="Where cifar100 or imagenet32 is on this machine.")
]
Labels = Annotated[Path | None, typer.Option(help="The labels beside an .npy file.")]
Embedding = Annotated[
    str | None, typer.Option(help="The array or column of vectors in an .npz or .parquet file.")
]
Label = Annotated[str | None, typer.Option(help="The array or column of labels in it.")]
Size = Annotated[
    int | None,
    typer.Option(min=1, help="Height and width that images in a folder get; 32 unless told."),
]
IgnoreOther = Annotated[
    bool, typer.Option("--ignore-other", help="Pass over files in a folder that are no images.")
]
Download = Annotated[bool, typer.Option(help="Download cifar100 into --folder.")]

# What a command works with.
EncoderPath = Annotated[
    Path, typer.Argument(metavar="ENCODER", help="A run of fit, or the encoder in it.")
]
OwnEncoder = Annotated[
    Path | None,
    typer.Option(help="A run of fit, or the encoder in it; by default the one of `index`."),
]
TablePath = Annotated[Path, typer.Argument(metavar="TABLE", help="The table's folder.")]
# Text, not a path: that would take two slashes for one.
TablePlace = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        autocompletion=complete_address,
        help="The table's folder, or its address: postgresql://… or qdrant://….",
    ),
]
Distribute = Annotated[
    bool,
    typer.Option("--distribute", help="On PostgreSQL with Citus: spread it over the nodes."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]

# How it answers.
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        help="Take options from a TOML file; those given here win.",
        is_eager=True,
        callback=read_config,
        rich_help_panel="How to answer",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="No progress, only the result.", rich_help_panel="How to answer"
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="The result as JSON, for scripts.", rich_help_panel="How to answer"
    ),
]
