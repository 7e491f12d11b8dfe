"""What ``bulk encode`` wrote, for those who read it: a folder of parquet files, or one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowhash.bulk.parquet_columns import read_head
from flowhash.bulk.work_folder import read_plan
from flowhash.errors import InputError, StorageError
from flowhash.extras import require

ENCODED = ("id", "code", "embedding", "buckets", "payload")


@dataclass(frozen=True)
class EncodedFiles:
    """Encoded items in files.

    Attributes:
        place: the folder or file, for messages.
        files: in their order.
        rows: of each file.
        sizes: bytes of each file, unpacked.
        widths: how many numbers the lists of each column have: code is k, embedding dim.
        ids: "int64" or "string"; None without ids.
        buckets: d; None where the files do not say.
        encoder: the fingerprint; None where the files do not say.
        payloads: whether all files have payloads.
        moved: whether embeddings are the vectors themselves, but moved by the encoder, so that
            their angles and products are other ones.
    """

    place: Path
    files: tuple[Path, ...]
    rows: tuple[int, ...]
    sizes: tuple[int, ...]
    widths: dict[str, int]
    ids: str | None
    buckets: int | None
    encoder: str | None
    payloads: bool
    moved: bool = False


def open_encoded(place: Path, wanted: Sequence[str]) -> EncodedFiles:
    """Look at the files; nothing but their ends is read.

    Args:
        place: a folder of parquet files, or one.
        wanted: columns that they must have.

    Raises:
        InputError: nothing is there, columns are missing, or the files do not fit each other.
        StorageError: the work that writes them is not finished.
        DamagedFileError: a file cannot be read; the message names it.
    """
    files = _files(place)
    heads = [(path, *read_head(path)) for path in files]
    first, schema, _, facts, _ = heads[0]
    for path, other, _, noted, _ in heads:
        missing = [name for name in wanted if name not in other.names]
        if missing:
            raise InputError(
                f"{path} has no column {missing[0]}, only {', '.join(other.names) or 'none'}; "
                "expected files of `flowhash bulk encode`"
            )
        differs = [
            name for name in ENCODED
            if name in schema.names and name != "payload"
            and (name not in other.names or other.field(name).type != schema.field(name).type)
        ]  # fmt: skip
        if differs or noted != facts:
            raise InputError(
                f"{path} does not fit {first}: {differs[0] if differs else 'the encoder'} is "
                "another; give files of one `flowhash bulk encode`"
            )
    rows = tuple(count for _, _, count, _, _ in heads)
    if not sum(rows):
        raise InputError(f"{place} has no rows; encode at least one item")
    return EncodedFiles(
        place, tuple(files), rows, tuple(size for *_, size in heads), _widths(first, schema),
        _id_kind(first, schema), facts.get("buckets"), facts.get("encoder"),
        all("payload" in other.names for _, other, *_ in heads), bool(facts.get("moved")),
    )  # fmt: skip


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise InputError(f"{place} does not exist; expected a folder of `flowhash bulk encode`")
    plan = read_plan(place)
    files = sorted(path for path in place.glob("*.parquet") if path.name[0] not in "._")
    if plan is not None and plan.command != "encode":
        raise InputError(
            f"{place} holds what `flowhash bulk {plan.command}` found; expected a folder of "
            "`flowhash bulk encode`"
        )
    if plan is not None and len(files) < len(plan.sizes):
        raise StorageError(
            f"{place} has {len(files)} of {len(plan.sizes)} parts; run `flowhash bulk encode` "
            "again, which makes those that are missing"
        )
    if not files:
        raise InputError(f"{place} has no parquet files; expected a folder of `bulk encode`")
    return files


def _widths(path: Path, schema: Any) -> dict[str, int]:
    arrow = require("pyarrow", "parquet")
    found = {}
    for name in ("code", "embedding", "buckets"):
        if name in schema.names:
            kind = schema.field(name).type
            if not arrow.types.is_fixed_size_list(kind):
                raise InputError(
                    f"{path}: the column {name} has type {kind}; expected lists of a fixed size, "
                    "such as fixed_size_list<float>[64]"
                )
            found[name] = int(kind.list_size)
    return found


def _id_kind(path: Path, schema: Any) -> str | None:
    arrow = require("pyarrow", "parquet")
    if "id" not in schema.names:
        return None
    kind = schema.field("id").type
    if arrow.types.is_integer(kind):
        return "int64"
    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        return "string"
    raise InputError(f"{path}: the column id has type {kind}; expected whole numbers or strings")
