"""Files of a run: tensors as safetensors beside a JSON record; a crash loses nothing.

The JSON names its tensors' file and is replaced in one step, last: whoever reads it finds a pair
that belongs together, whenever the writer died.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flowhash.durable_files import memory, naming, read_regular_file, replace_file
from flowhash.errors import DamagedFileError, InputError, MissingExtraError, StorageError, reason
from flowhash.extras import require

LARGEST_RECORD = 1 << 28  # bytes of a JSON file; a million class names take a tenth of it
Kinds = Mapping[str, tuple[type, ...]]


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Replace a JSON file in one step, durably."""
    replace_file(path, _dumped(record))


def _dumped(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    # Names of files that are no UTF-8 may be in it; json.loads takes them back.
    return text.encode("utf-8", "surrogatepass")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        DamagedFileError: it cannot be read as one; the message names it.
    """
    return _read_record(path)[0]


def _read_record(path: Path) -> tuple[dict[str, Any], bytes]:
    """What a JSON file holds, and its bytes."""
    with naming(path):
        content = read_regular_file(path, LARGEST_RECORD)
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(
            f"{path} is not JSON: {reason(error)}; restore it from a copy"
        ) from error
    if not isinstance(record, dict):
        raise DamagedFileError(f"{path} does not hold a JSON object; restore it from a copy")
    return record, content


def write_sealed(path: Path, record: Mapping[str, Any]) -> None:
    """Like :func:`write_json`, with a checksum over all other entries as the last one."""
    write_json(path, {**record, "checksum": _checksum(record)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read what :func:`write_sealed` wrote, without the checksum.

    Raises:
        DamagedFileError: any byte of it is another one; the message names it.
    """
    record, content = _read_record(path)
    record.pop("checksum", None)
    try:
        # The bytes, not the entries: a changed space is a sign of a failing disk too.
        intact = content == _dumped({**record, "checksum": _checksum(record)})
    except (ValueError, RecursionError):  # NaN is no JSON, and was never written
        intact = False
    if not intact:
        raise DamagedFileError(
            f"{path} was changed after it was written, its checksum does not fit; restore it from "
            "a copy"
        )
    return record


def check_entries(path: Path, record: Any, kinds: Kinds, where: str = "") -> None:
    """Refuse a record that lacks an entry, or has one of another type than was written.

    ``kinds`` has the entries, and the types that each may have; bool does not count as int. Where
    ``record`` is a part of the file, ``where`` is the part's name.

    Raises:
        DamagedFileError: the message names the file and the entry.
    """
    if not isinstance(record, dict):
        raise DamagedFileError(
            f"{path}: {where or 'it'} is {_kind(record)}, not an object; restore it from a copy"
        )
    missing = [name for name in kinds if name not in record]
    if missing:
        part = f", in {where}" if where else ""
        raise DamagedFileError(f"{path} lacks {', '.join(missing)}{part}; restore it from a copy")
    for name, allowed in kinds.items():
        value = record[name]
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            full = f"{where}.{name}" if where else name
            expected = " or ".join(NAMES[kind] for kind in allowed)
            raise DamagedFileError(
                f"{path}: {full} is {_kind(value)}; expected {expected}. Restore it from a copy"
            )


NAMES = {
    dict: "an object", list: "a list", str: "a text", int: "a whole number", float: "a number",
    bool: "true or false", type(None): "null",
}  # fmt: skip


def _kind(value: Any) -> str:
    name = NAMES.get(type(value), type(value).__name__)
    return name if isinstance(value, dict | list) else f"{name}, {reason(repr(value)):.40}"


@contextlib.contextmanager
def described_by(path: Path, what: str) -> Iterator[None]:
    """Name the file whose content cannot be used, however using it fails.

    Files hold what others may have written: sizes, names and settings that no code of ours, or of
    a library, was made for. ``what`` is what it should describe.
    """
    try:
        yield
    except (StorageError, MissingExtraError):
        raise
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except ImportError as error:
        raise MissingExtraError(f"{path}: {reason(error)}") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's own
            raise StorageError(f"{path}: {reason(error.strerror or error)}") from error
        if isinstance(error, MemoryError) or "allocate memory" in str(error):  # torch's words
            raise StorageError(
                f"{path} describes a {what} that needs more memory than is free: {reason(error)}"
            ) from error
        raise DamagedFileError(
            f"{path} describes no {what} that can be used: {reason(error)}; restore it from a "
            "copy, or install the versions of its libraries that were used"
        ) from error


def _checksum(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Replace a safetensors file in one step, durably; returns its SHA-256."""
    save = require("safetensors.torch", "learn").save
    content = save(_separate(tensors))
    replace_file(path, content)
    return hashlib.sha256(content).hexdigest()


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, each in memory of its own, as safetensors demands it."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        plain = value.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        # Tied weights have two names for one memory.
        separate[name] = plain.clone() if storage in seen else plain
        seen.add(storage)
    return separate


def read_tensors(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """Read a safetensors file; ``sha256`` is what :func:`write_tensors` returned for it.

    Raises:
        DamagedFileError: it is missing, cut short or changed; the message names it.
        StorageError: it does not fit into the memory, or the system does not let it be read.
    """
    load = require("safetensors.torch", "learn").load
    most = memory() // 2  # the tensors take as much again
    with naming(path):
        try:
            size = path.stat().st_size
            if size > most:
                raise StorageError(
                    f"{path} has {size} bytes, and needs more memory than this machine has to be "
                    "read: twice as many. Read it on a larger one"
                )
            content = read_regular_file(path, most)
        except FileNotFoundError as error:
            # Also if somebody replaced it in this moment: then the record names another file now.
            raise DamagedFileError(f"{path} is missing; restore it from a copy") from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise DamagedFileError(
            f"{path} was changed after it was written, its checksum does not fit; restore it from "
            "a copy"
        )
    try:
        return dict(load(content))
    except Exception as error:  # the library's own error type derives from Exception only
        raise DamagedFileError(
            f"{path} cannot be read: {reason(error)}; restore it from a copy"
        ) from error
