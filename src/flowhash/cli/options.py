"""Options that several sub-commands have: how a data set is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
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
    int | None, typer.Option(help="Height and width that images in a folder get; 32 unless told.")
]
IgnoreOther = Annotated[
    bool, typer.Option("--ignore-other", help="Pass over files in a folder that are no images.")
]
Download = Annotated[bool, typer.Option(help="Download cifar100 into --folder.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Quiet = Annotated[bool, typer.Option(help="No progress.")]
