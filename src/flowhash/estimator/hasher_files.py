"""A fitted estimator in a folder, and on its way to another process.

folder/flowhasher.json       parameters, classes, what the folder below is called; written last
folder/fitted-…/encoder/     the encoder
folder/fitted-…/table/       the table
folder/fitted-…/labels.safetensors   the number of each item's class, -1 for none
"""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from flowhash.durable_files import STRAY
from flowhash.encoder import Encoder
from flowhash.errors import DamagedFileError, InputError, reason
from flowhash.estimator.fit_encoder import layer_sizes
from flowhash.model_files import (
    check_entries,
    described_by,
    read_sealed,
    read_tensors,
    write_sealed,
    write_tensors,
)
from flowhash.table import HashTable

if TYPE_CHECKING:
    from flowhash.estimator.flow_hasher import FlowHasher

FORMAT = 3  # of whitened vectors, which earlier versions would give to the hash network
INNER = 2
BEFORE_INNER = 1  # the format of all other metrics, which earlier versions read, but for encoders
# with an order of buckets, whose own format says so
RECORD = "flowhasher.json"
LABELS = "labels.safetensors"
FITTED = re.compile(r"fitted-[0-9a-f]{16}")
UNFINISHED = re.compile(f"{FITTED.pattern}|{re.escape(RECORD)}{STRAY}")  # left by a killed save
ROWS = 8_192  # items that are encoded or read at once
LARGEST_CLASSES = 1 << 30  # bytes of their names
ENTRIES: dict[str, tuple[type, ...]] = {
    "parameters": (dict,), "classes": (dict,), "features": (int,),
    "feature_names": (list, type(None)), "labels_sha256": (str,),
}  # fmt: skip
CLASSES: dict[str, tuple[type, ...]] = {"dtype": (str,), "values": (list,)}
Kind = TypeVar("Kind", bound="FlowHasher")


def new_table(
    encoder: Encoder, metric: str, path: Path | None = None, active: int = 1
) -> HashTable:
    """An empty table that ranks by ``metric``, "euclidean", "cosine" or "inner".

    Its items may be in ``active`` buckets, and in as many as the encoder makes.

    Rows of length one have the same order by Euclidean distance as by cosine.
    """
    return encoder.create_table(
        path,
        metric="inner" if metric == "inner" else "euclidean",
        active=max(active, encoder.active),
    )


def check_unchanged(table: HashTable, items: int) -> None:
    """Refuse a table whose ids are no longer the positions 0 to ``items`` - 1."""
    if len(table) != items or table.next_id != items:
        raise InputError(
            f"table_ was changed from outside: it has {len(table)} items and would number the next "
            f"one {table.next_id}, expected {items} for both, because labels belong to positions. "
            "Put items in with add, or fit again; to delete some, keep a HashTable of your own"
        )


def contents(table: HashTable, items: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Codes [n, k] and embeddings [n, dim] of all ``items``, in the order of their ids."""
    check_unchanged(table, items)
    codes = np.empty((len(table), table.active), np.int32)
    embeddings = np.empty((len(table), table.dim), np.float32)
    for part in table.batches(ROWS, payloads=False):
        codes[part.ids] = part.codes
        embeddings[part.ids] = part.embeddings
    return codes, embeddings


def save_hasher(hasher: FlowHasher, folder: Path) -> None:
    """Write a new sub-folder, then the record that names it, then remove older ones."""
    metric = hasher.effective_metric_
    feature_names = getattr(hasher, "feature_names_in_", None)
    record: dict[str, Any] = {  # made, and refused, before anything is written
        "format": _format(hasher.encoder_, metric),
        "parameters": {name: _plain(value) for name, value in hasher.get_params().items()},
        "classes": _plain_classes(hasher.classes_),
        "metric": metric,
        "features": hasher.n_features_in_,
        "feature_names": None if feature_names is None else list(feature_names),
        "trials": getattr(hasher, "trials_", []),  # of an older pickle there are none
    }
    _refuse_content(folder)
    name = f"fitted-{secrets.token_hex(8)}"
    inside = folder / name
    codes, embeddings = contents(hasher.table_, hasher.n_samples_fit_)
    hasher.encoder_.save(inside / "encoder")
    with new_table(hasher.encoder_, metric, inside / "table", codes.shape[1]) as table:
        notes = hasher.table_.notes()  # how many buckets a recall takes
        table.add(codes, embeddings, encoder=hasher.encoder_.fingerprint, notes=notes)
    labels = {"labels": torch.from_numpy(hasher._numbers)}
    record |= {"fitted": name, "labels_sha256": write_tensors(inside / LABELS, labels)}
    write_sealed(folder / RECORD, record)
    for old in folder.iterdir():
        if FITTED.fullmatch(old.name) and old.name != name:
            shutil.rmtree(old, ignore_errors=True)


def _refuse_content(folder: Path) -> None:
    """Refuse a folder of somebody else's: among what it holds nobody would find these files."""
    if not folder.exists() or (folder / RECORD).is_file():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; expected a new folder, or an empty one")
    others = sorted(one.name for one in folder.iterdir() if not UNFINISHED.fullmatch(one.name))
    if others:
        raise InputError(
            f"{folder} holds {reason(others[0]):.80} and no FlowHasher; expected a new folder, an "
            "empty one, or one that FlowHasher.save wrote. Give another folder"
        )


def _format(encoder: Encoder, metric: str) -> int:
    """The lowest that says what it takes to read this."""
    if encoder.base is not None and not encoder.base.passes_through:
        return FORMAT
    return INNER if metric == "inner" else BEFORE_INNER


def load_hasher(kind: type[Kind], folder: Path) -> Kind:
    """Read what :func:`save` wrote, whole: damage is found now, not in an answer."""
    path = folder / RECORD
    if not path.is_file():
        raise InputError(f"{folder} holds no FlowHasher: there is no {RECORD} in it; give the "
                         "folder that FlowHasher.save wrote")  # fmt: skip
    record = read_sealed(path)
    if record.get("format") not in (BEFORE_INNER, INNER, FORMAT):
        raise InputError(
            f"{path} has format {reason(repr(record.get('format'))):.40}; this FlowHash reads 1 "
            f"to {FORMAT}. Install the version that wrote it, or a newer one"
        )
    if not FITTED.fullmatch(str(record.get("fitted"))):
        raise DamagedFileError(f"{path} names no folder of ours; restore it from a copy")
    check_entries(path, record, ENTRIES)
    inside = folder / record["fitted"]
    try:
        encoder = Encoder.load(inside / "encoder")
        labels = _read_labels(path, inside / LABELS, record)
        codes, embeddings, notes = _read_table(inside / "table", encoder.fingerprint)
        if len(labels) != len(codes):
            raise DamagedFileError(
                f"{inside} holds {len(codes)} items and {len(labels)} labels; restore it from a "
                "copy"
            )
        with described_by(path, "FlowHasher"):
            hasher = _hasher(kind, path, record, encoder.input_dim)
            assemble(hasher.__dict__, encoder, codes, embeddings, labels, notes)
            return hasher
    except InputError as error:
        raise DamagedFileError(f"{inside}: {error}; restore it from a copy") from error


def _read_labels(path: Path, file: Path, record: dict[str, Any]) -> NDArray[np.int64]:
    """The number of each item's class [n], -1 for none."""
    found = read_tensors(file, record["labels_sha256"]).get("labels")
    check_entries(path, record["classes"], CLASSES, "classes")
    classes = len(record["classes"]["values"])
    if (
        found is None
        or found.dtype != torch.int64
        or found.ndim != 1
        or (len(found) and not -1 <= int(found.min()) <= int(found.max()) < classes)
    ):
        raise DamagedFileError(
            f"{file} does not hold one number an item, of {classes} classes or -1; restore it from "
            "a copy"
        )
    labels: NDArray[np.int64] = found.numpy()
    return labels


def _hasher(kind: type[Kind], path: Path, record: dict[str, Any], dim: int | None) -> Kind:
    """The estimator of a record, without encoder and table; ``dim`` is what the encoder takes."""
    hasher = kind(**_parameters(path, kind, record["parameters"]))
    hasher.classes_ = _classes(path, record["classes"])
    hasher.n_features_in_ = record["features"]
    metric = record.get("metric", hasher.metric)  # older ones: the parameter
    known = kind._parameter_constraints["metric"][0].options
    names = record["feature_names"]
    if record["features"] != dim or metric not in known:
        raise DamagedFileError(
            f"{path} has {record['features']} features and the metric {reason(repr(metric)):.40}, "
            f"but its encoder takes {dim} numbers; restore it from a copy"
        )
    hasher.effective_metric_ = metric
    hasher.trials_ = _trials(path, record.get("trials", []))  # older ones tried nothing
    if names is not None:
        if len(names) != record["features"] or not all(isinstance(name, str) for name in names):
            raise DamagedFileError(
                f"{path}: feature_names are not {record['features']} texts; restore it from a copy"
            )
        hasher.feature_names_in_ = np.array(names, object)
    return hasher


def _trials(path: Path, stored: Any) -> list[dict[str, Any]]:
    if not isinstance(stored, list) or not all(isinstance(trial, dict) for trial in stored):
        raise DamagedFileError(f"{path}: trials are not a list of objects; restore it from a copy")
    return stored


def _read_table(
    path: Path, fingerprint: str
) -> tuple[NDArray[np.int32], NDArray[np.float32], dict[str, Any]]:
    with HashTable.open(path, encoder=fingerprint) as table:
        faults = table.check()
        if faults:
            raise DamagedFileError(f"{faults[0]}; restore {path} from a copy")
        return (*contents(table, len(table)), table.notes())


def assemble(
    state: dict[str, Any],
    encoder: Encoder,
    codes: NDArray[np.int32],
    embeddings: NDArray[np.float32],
    labels: NDArray[np.int64],
    notes: dict[str, Any] | None = None,
) -> None:
    """Put encoder, table with its notes, and labels into an estimator's attributes."""
    table = new_table(encoder, state["effective_metric_"], active=codes.shape[1])
    table.add(codes, embeddings, encoder=encoder.fingerprint, notes=notes)
    state.update(encoder_=encoder, table_=table, _numbers=labels, n_samples_fit_=len(table))


def portable(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes with the encoder as the bytes of its files and the table as arrays."""
    state = dict(state)
    if "table_" in state:
        table = state.pop("table_")
        codes, embeddings = contents(table, state["n_samples_fit_"])
        with tempfile.TemporaryDirectory() as folder:
            state.pop("encoder_").save(folder)
            parts = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
        state["_portable"] = {
            "encoder": parts, "codes": codes, "embeddings": embeddings, "notes": table.notes(),
        }  # fmt: skip
    return state


def restored(state: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The attributes as they were before :func:`portable`.

    Parameters that an older FlowHash did not have yet get their ``defaults``.
    """
    state = defaults | state
    kept = state.pop("_portable", None)
    if kept is not None:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in kept["encoder"].items():
                (Path(folder) / Path(name).name).write_bytes(content)
            encoder = Encoder.load(folder)
        notes = kept.get("notes")  # of an older pickle there are none
        assemble(state, encoder, kept["codes"], kept["embeddings"], state["_numbers"], notes)
    return state


def _plain(value: Any) -> Any:
    """A parameter as JSON holds it; a generator of random numbers is not kept."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, np.random.RandomState):
        return None
    return list(layer_sizes(value))


def _parameters(path: Path, kind: type[Any], stored: dict[str, Any]) -> dict[str, Any]:
    known = kind().get_params()
    for name, value in stored.items():
        sizes = isinstance(value, list) and all(isinstance(size, int) for size in value)
        if name == "hidden":
            wrong = not sizes and value != "auto"
        else:
            wrong = isinstance(value, list | dict)
        if wrong:
            raise DamagedFileError(
                f"{path}: parameters.{reason(name):.40} is {reason(repr(value)):.40}; expected a "
                'number, a text, true, false or null, and for hidden "auto" or a list of whole '
                "numbers. Restore it from a copy"
            )
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in stored.items()
        if name in known
    }


def _plain_classes(classes: NDArray[Any]) -> dict[str, Any]:
    values = classes.tolist()
    if not all(isinstance(value, str | int | float | bool) for value in values):
        raise InputError(
            f"the labels are of type {type(values[0]).__name__}; only strings and numbers can be "
            "saved. Fit with such labels"
        )
    return {"dtype": classes.dtype.str if classes.dtype != object else "O", "values": values}


def _classes(path: Path, stored: dict[str, Any]) -> NDArray[Any]:
    values = stored["values"]
    dtype = np.dtype(object if stored["dtype"] == "O" else stored["dtype"])
    if (
        dtype.kind not in "biufUO"
        or dtype.itemsize * len(values) > LARGEST_CLASSES
        or not all(isinstance(value, str | int | float) for value in values)
    ):
        raise DamagedFileError(
            f"{path}: classes are not texts or numbers of the type {reason(stored['dtype']):.40}; "
            "restore it from a copy"
        )
    return np.array(values, dtype)
