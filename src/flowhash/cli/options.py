"""Options that several sub-commands have, alone and in groups.

A group is a dataclass, whose fields are options. A command that takes one has all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from flowhash.cli.config_file import read_config
from flowhash.data import NAMED


def complete_data(incomplete: str) -> list[str]:
    """Names of data sets for the shell; files it completes itself."""
    return [name for name in NAMED if name.startswith(incomplete)]


def complete_preset(incomplete: str) -> list[str]:
    """Names of presets for the shell, written out: importing them would import torch."""
    kinds = ("cpu-cifar100", "paper-cifar100", "paper-imagenet32")
    names = [f"{kind}-{loss}" for kind in kinds for loss in ("npairs", "triplet")]
    return [name for name in ["cpu-digits", *names] if name.startswith(incomplete)]


def complete_address(incomplete: str) -> list[str]:
    """How addresses begin, for the shell; once a letter is typed, so that files come first."""
    schemes = ("postgresql://", "qdrant://", "qdrant+https://")
    return [scheme for scheme in schemes if incomplete and scheme.startswith(incomplete)]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer takes it: an option for each field of the groups that it takes."""
    plain: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if not is_dataclass(group):
            plain.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = group
        own = get_type_hints(group, include_extras=True)
        plain += [
            inspect.Parameter(
                one.name,
                parameter.KEYWORD_ONLY,
                default=parameter.empty if one.default is MISSING else one.default,
                annotation=own[one.name],
            )
            for one in fields(group)
        ]

    @wraps(command)
    def grouped(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
        command(**given)

    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in plain}
    vars(grouped)["__signature__"] = inspect.Signature(plain)
    return grouped


NAMES = ", ".join(NAMED)
IN_FOLDERS = " or ".join(name for name, data in NAMED.items() if data.in_folder)
DOWNLOADED = " or ".join(name for name, data in NAMED.items() if data.download)

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        autocompletion=complete_data,
        help=f"{NAMES}, a folder of images (one sub-folder a class), or an .npy, .npz or "
        ".parquet file.",
    ),
]
Items = Annotated[
    str,
    typer.Argument(
        metavar="ITEMS",
        autocompletion=complete_data,
        help=f"A folder of images, an image, an .npy, .npz or .parquet file, or {NAMES}. Labels "
        "are kept where there are any.",
    ),
]
Split = Annotated[str, typer.Option(help=f"Of {NAMES}: train, validation, test or all.")]
Folder = Annotated[
    Path | None,
    typer.Option(help=f"Where {IN_FOLDERS} is on this machine."),
]
Size = Annotated[
    int | None,
    typer.Option(min=1, help="Height and width that images in a folder get; 32 unless told."),
]
Download = Annotated[bool, typer.Option(help=f"Download {DOWNLOADED} into --folder.")]


@dataclass(frozen=True)
class Opening:
    """How a data set is opened."""

    folder: Folder = None
    labels: Annotated[Path | None, typer.Option(help="The labels beside an .npy file.")] = None
    embedding: Annotated[
        str | None, typer.Option(help="The array or column of vectors in an .npz or .parquet file.")
    ] = None
    label: Annotated[str | None, typer.Option(help="The array or column of labels in it.")] = None
    ignore_other: Annotated[
        bool, typer.Option("--ignore-other", help="Pass over files in a folder that are no images.")
    ] = False

    def given(self, **more: Any) -> dict[str, Any]:
        """What was given of it, and of ``more``, as the library takes it."""
        return {name: value for name, value in (asdict(self) | more).items() if value}


# What a command works with, and what it makes.
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
Pictures = Annotated[
    bool, typer.Option(help="Keep a small picture of each image, for the search page.")
]
Metric = Annotated[
    str | None, typer.Option(help="Of a new table: euclidean (if not told), cosine or inner.")
]
Dtype = Annotated[
    str | None,
    typer.Option(help="Of a new table: float32 (if not told), or float16 for half the space."),
]
Distribute = Annotated[
    bool,
    typer.Option("--distribute", help="On PostgreSQL with Citus: spread it over the nodes."),
]
Probe = Annotated[int | None, typer.Option(min=1, help="Buckets to open; k if not given.")]
Recall = Annotated[
    float | None,
    typer.Option(
        help="Open as many buckets as it takes to find this share of the nearest items, on "
        "average, such as 0.95; `flowhash calibrate` comes first."
    ),
]
Copies = Annotated[
    float | None,
    typer.Option(
        min=0, max=1,
        help="The share of the items that get a second bucket, where a recall then scans less; "
        "20 and 40 % are tried if not given.",
    ),
]  # fmt: skip
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
