"""Where things are, as the user names them: data sets, encoders, tables, folders for results.

Addresses where a folder or a file is expected are refused before anything is made or shown: they
may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowhash import data, engines
from flowhash.errors import DamagedFileError, InputError
from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.encoder import Encoded, Encoder

# The only parameters that take addresses.
TAKE_ADDRESSES = {
    "index": {"to"},
    "search": {"table"},
    "calibrate": {"table"},
    "serve": {"table"},
    "adapt": {"table"},  # to say what to do instead
    "copy": {"source", "target"},
    "table stats": {"table"},
    "table health": {"table"},
    "table check": {"table"},
    "table compact": {"table"},
}
# Well formed or not: what looks so may hold a password, and is not repeated.
ADDRESS = re.compile(r"(postgres|postgresql|qdrant(\+\w+)?)(:|//)", re.IGNORECASE)
# What libpq takes besides: with a password, or with a place and more, whose name may be mistyped.
CONNECTION = re.compile(r"\bpassword\s*=|^\s*\w+\s*=\s*('[^']*'|[^\s=]*)\s+\w+\s*=", re.IGNORECASE)


def place_of(text: str) -> str | Path:
    """Where a table is as the user names it: an address, or a folder."""
    return text if engines.is_address(text) else Path(text)


def shown(place: str | Path) -> str:
    """A place in words, without a password."""
    return engines.hidden(place) if isinstance(place, str) else str(place)


def check_address(address: str, distribute: bool) -> None:
    """See that an address can be used at all, before anything is loaded for it."""
    engines.room_of(address)
    if distribute and engines.SCHEMES[engines.scheme_of(address) or ""] != "postgres":
        raise InputError(
            f"--distribute is for PostgreSQL with Citus, not for {shown(address)}; leave it out"
        )


def opened(source: str, options: dict[str, Any], progress: bool) -> data.Splits:
    """The data set; a broken image is found now, not in the middle of a training."""
    splits = data.open_data(source, progress=progress, **options)
    seen: list[data.ImageFolder] = []  # splits of one folder are choices of one store
    for part in (splits.train, splits.validation, splits.test):
        store = getattr(part and part.items, "items", part and part.items)
        if isinstance(store, data.ImageFolder) and all(store is not other for other in seen):
            seen.append(store)
            complaints = store.verify(progress)
            if complaints:
                more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
                raise DamagedFileError(complaints[0] + more)
    return splits


def located(source: str) -> str | Path:
    """A data set as it can be found from any folder."""
    return source if source in data.NAMED else Path(source).expanduser().resolve()


def encoder_folder(run: Path) -> Path:
    """Where the encoder of a run is, or the encoder's own folder."""
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
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"cannot write to {folder}: {error.strerror}; choose another folder"
        ) from error


def refuse_misplaced(command: str, parameters: Iterable[Any], given: Mapping[str, Any]) -> None:
    """Refuse addresses where a folder or a file is expected, and what is almost one.

    The message names the parameter, not what was given for it.
    """
    takes = TAKE_ADDRESSES.get(command, set())
    for parameter in parameters:
        value = given.get(parameter.name)
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, str | Path):
                _check(str(one), _name(parameter), parameter.name in takes)


def _name(parameter: Any) -> str:
    long = [word for word in parameter.opts if word.startswith("--")]
    return long[0] if long else str(parameter.metavar or parameter.name).upper()


def _check(value: str, name: str, takes: bool) -> None:
    if CONNECTION.search(value) and "://" not in value:
        raise InputError(
            f"{name} has a password in it, or may have one, but is no address; expected "
            "postgresql://USER@HOST/DATABASE?table=NAME, or a folder"
        )
    if ADDRESS.match(value) is None:
        return
    if not takes:
        raise InputError(
            f"{name} is an address; expected a folder or a file. Addresses are for index --to, "
            "copy, search, serve and table"
        )
    if "://" not in value:
        raise InputError(
            f"{name} is no address; expected postgresql://USER@HOST/DATABASE?table=NAME or "
            "qdrant://HOST:6333/COLLECTION"
        )


def read_queries(encoder: Encoder, table: Any, text: str) -> tuple[list[str], Any]:
    """What a query of the command line names: a name for each, and the items to encode.

    Raises:
        InputError: it is no file, or one that the encoder cannot take; the encoder is not that of
            the table.
    """
    from flowhash.data import DATA_FILES, IMAGE_SUFFIXES, any_arrays, read_npy
    from flowhash.encoder import check_table

    check_table(encoder, table)
    path = Path(text).expanduser()
    suffix = path.suffix.lower()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "is not there"
        raise InputError(f"{text} {what}; give an image, an .npy or .npz file, or id:ID")
    kind = encoder.preprocessing.kind
    dimensions = 4 if kind == "images" else 2  # of an array of what the encoder takes
    if suffix in IMAGE_SUFFIXES and kind == "images":
        return [text], [path]
    if suffix == ".npy" and (one := read_npy(path)).ndim == dimensions - 1:
        return [text], _fitting(text, one[None], encoder)
    if suffix in DATA_FILES:
        items, _ = any_arrays(path, None, None, None)
        items = _fitting(text, items, encoder)
        return [f"{text} row {row}" for row in range(len(items))], items
    expected = "an image file, or .npy or .npz" if kind == "images" else ".npy or .npz"
    raise InputError(f"{text} is no query for an encoder of {kind}; expected {expected}")


def _fitting(text: str, items: Any, encoder: Encoder) -> Any:
    """Vectors of a file, if they have as many numbers as the encoder takes."""
    dim = encoder.input_dim  # None of images
    if dim is not None and items.ndim == 2 and items.shape[1] != dim:
        raise InputError(
            f"{text} has vectors of {items.shape[1]} numbers; expected {dim}, which the encoder "
            "was trained on. Make them by the model that made the vectors of the training, or fit "
            "anew to such vectors"
        )
    return items


def stored_queries(
    table: Any, encoder: Encoder, wanted: int, seed: int, device: str
) -> tuple[Encoded, Any]:
    """Some items of the table as queries, and their ids."""
    import numpy as np

    from flowhash.encoder import check_table

    check_table(encoder, table)
    if not encoder.takes_embeddings:
        raise InputError(
            "the encoder takes items, and the table holds their embeddings only; give QUERIES, a "
            "file of items like those that will be searched for"
        )
    _, drawn = table.sample(wanted, seed)
    own = [item.id for item in drawn]
    kind = np.int64 if table.id_kind == "int64" else object
    made = encoder.encode_stored(np.stack([item.embedding for item in drawn]), device)
    return made, np.array(own, kind)
