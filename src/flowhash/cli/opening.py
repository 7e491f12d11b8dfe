"""Data sets and encoders as the user names them on the command line."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowhash.cli.reply import in_words
from flowhash.data import NAMED, ImageFolder, Splits, open_data
from flowhash.errors import DamagedFileError, InputError, StorageError
from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.encoder import Encoder


def opened(source: str, options: dict[str, Any]) -> Splits:
    """The data set; a broken image is found now, not in the middle of a training."""
    splits = open_data(source, **options)
    seen: list[ImageFolder] = []  # splits of one folder are choices of one store
    for part in (splits.train, splits.validation, splits.test):
        store = getattr(part and part.items, "items", part and part.items)
        if isinstance(store, ImageFolder) and all(store is not other for other in seen):
            seen.append(store)
            complaints = store.verify()
            if complaints:
                more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
                raise DamagedFileError(complaints[0] + more)
    return splits


def located(source: str) -> str | Path:
    """A data set as it can be found from any folder."""
    return source if source in NAMED else Path(source)


def encoder_folder(run: Path) -> Path:
    """Where the encoder of a run is, or the encoder's own folder.

    Raises:
        InputError: there is none.
    """
    folder = run / "encoder" if (run / "encoder" / "encoder.json").exists() else run
    if (folder / "encoder.json").exists():
        return folder
    what = "holds no finished encoder" if run.exists() else "does not exist"
    raise InputError(
        f"{run} {what}; expected the folder that `flowhash fit --out` made, or the encoder in it"
    )


def load_encoder(run: Path) -> Encoder:
    """The encoder of a run, or in a folder of its own."""
    folder = encoder_folder(run)
    require("torch", "learn")
    from flowhash.encoder import Encoder

    return Encoder.load(folder)


def writable(folder: Path) -> None:
    """Make a folder for results before the work, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"cannot write to {folder}: {error.strerror}; choose another folder"
        ) from error


def and_goes_on(error: StorageError, done: int, total: int) -> StorageError:
    """What a lost server leaves, in the words that an interrupt has.

    It is a least number: what the server stored last it may have had no time to confirm.
    """
    words = (
        f"{in_words(error)}; at least {done:,} of {total:,} items are stored, the same "
        "command goes on"
    )
    return StorageError(words) if error.errno is None else StorageError(error.errno, words)
