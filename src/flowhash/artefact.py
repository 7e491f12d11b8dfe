"""Files of a run: tensors as safetensors beside a JSON record; a crash loses nothing.

The JSON names its tensors' file and is replaced in one step, last: whoever reads it finds a pair
that belongs together, whenever the writer died.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flowhash.errors import DamagedFileError
from flowhash.extras import require
from flowhash.table.files import naming, replace_file


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
    with naming(path):
        return _parsed(path, path.read_bytes())


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not JSON: {error}; restore it from a copy") from error
    if not isinstance(record, dict):
        raise DamagedFileError(f"{path} does not hold a JSON object; restore it from a copy")
    return record


def write_sealed(path: Path, record: Mapping[str, Any]) -> None:
    """Like :func:`write_json`, with a checksum over all other entries as the last one."""
    write_json(path, {**record, "checksum": _checksum(record)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read what :func:`write_sealed` wrote, without the checksum.

    Raises:
        DamagedFileError: any byte of it is another one; the message names it.
    """
    with naming(path):
        content = path.read_bytes()
    record = _parsed(path, content)
    record.pop("checksum", None)
    try:
        # The bytes, not the entries: a changed space is a sign of a failing disk too.
        intact = content == _dumped({**record, "checksum": _checksum(record)})
    except ValueError:  # NaN is no JSON, and was never written
        intact = False
    if not intact:
        raise DamagedFileError(
            f"{path} was changed after it was written, its checksum does not fit; restore it from "
            "a copy"
        )
    return record


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
    """Read a safetensors file.

    Args:
        path: the file.
        sha256: what :func:`write_tensors` returned, to compare the file with.

    Raises:
        DamagedFileError: it is missing, cut short or changed; the message names it.
    """
    load = require("safetensors.torch", "learn").load
    if not path.is_file():
        raise DamagedFileError(f"{path} is missing; restore it from a copy")
    with naming(path):
        content = path.read_bytes()
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise DamagedFileError(
            f"{path} was changed after it was written, its checksum does not fit; restore it from "
            "a copy"
        )
    try:
        return dict(load(content))
    except Exception as error:  # the library's own error type derives from Exception only
        raise DamagedFileError(f"{path} cannot be read: {error}; restore it from a copy") from error
