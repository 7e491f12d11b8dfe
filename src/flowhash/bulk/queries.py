"""Queries in files that workers map: each reads only the rows of its part.

Arrays in an uncompressed ``.npz`` file can be mapped as they are. Parquet cannot: its files are
unpacked to such a file each, by the workers, before the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.bulk.columns import new_file, read_columns, rows_of
from flowhash.bulk.plan import Place, part_name
from flowhash.data.files import npz_array, npz_names
from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.table.ids import Strings, pack

FOLDER = "_queries"  # in the folder of the answers


@dataclass(frozen=True)
class Unpacking:
    """A job: the parquet files of queries as ``.npz`` files.

    Attributes:
        files: one a part.
        out: where they go.
        named: whether the queries have ids.
    """

    files: tuple[Path, ...]
    out: Place
    named: bool

    def open(self) -> None:
        """Nothing is shared between files."""

    def do(self, opened: None, part: int, threads: int | None) -> int:
        """Unpack one file."""
        source = self.files[part]
        names = ["buckets", "embedding", *(["id"] if self.named else [])]
        table = read_columns(source, names)
        arrays = {
            "buckets": rows_of(source, "buckets", table.column("buckets"), np.int32),
            "embeddings": rows_of(source, "embedding", table.column("embedding"), np.float32),
        }
        if self.named:
            arrays |= _ids(source, table.column("id"))
        path = self.out.folder / f"{part_name(part)}.npz"
        with new_file(self.out, path) as unfinished, unfinished.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        return int(table.num_rows)


def _ids(path: Path, column: Any) -> dict[str, NDArray[Any]]:
    """Ids as arrays of a file: numbers, or all strings as bytes one after another."""
    arrow = require("pyarrow", "parquet")
    if column.null_count:
        raise InputError(
            f"{path}: {column.null_count} queries have no id; give every query one, or leave the "
            "column id out"
        )
    if arrow.types.is_integer(column.type):
        return {"ids": column.to_numpy()}
    packed = pack(text.encode() for text in column.to_pylist())
    return {"id_bytes": packed.content, "id_offsets": packed.offsets}


@dataclass(frozen=True, eq=False)
class Texts:
    """Strings one after another, of which only those that are asked for are read."""

    packed: Strings

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Some of them [n] object."""
        found = np.empty(len(rows), object)
        found[:] = [self.packed.at(row).decode() for row in rows.tolist()]
        return found


@dataclass(frozen=True)
class Queries:
    """Queries in ``.npz`` files, one after another.

    Attributes:
        files: with the arrays buckets [n, m] int32, embeddings [n, dim] float32 and perhaps ids
            [n], or id_bytes and id_offsets for strings that were unpacked.
    """

    files: tuple[Path, ...]

    def open(self) -> MappedQueries:
        """Map the files."""
        return MappedQueries(self.files)


class MappedQueries:
    """The arrays of all files, mapped; rows are counted through them."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.buckets = [_array(path, "buckets") for path in files]
        self.embeddings = [_array(path, "embeddings") for path in files]
        names = npz_names(files[0])
        self.ids: list[NDArray[Any] | Texts] = []
        if "id_offsets" in names:
            self.ids = [
                Texts(Strings(_array(path, "id_bytes"), _array(path, "id_offsets")))
                for path in files
            ]
        elif "ids" in names:
            self.ids = [_array(path, "ids") for path in files]
        self.named = bool(self.ids)
        self._starts = np.cumsum([0, *(len(part) for part in self.buckets)])
        for path, buckets, embeddings in zip(files, self.buckets, self.embeddings, strict=True):
            _check(path, buckets, embeddings)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def sizes(self) -> tuple[int, int, int]:
        """How many queries, buckets of each, and numbers of each."""
        return len(self), self.buckets[0].shape[1], self.embeddings[0].shape[1]

    def first_buckets(self) -> NDArray[Any]:
        """The bucket that each query opens first [n]."""
        return np.concatenate([part[:, 0] for part in self.buckets])

    def take(self, arrays: Sequence[NDArray[Any] | Texts], rows: NDArray[np.int64]) -> NDArray[Any]:
        """Rows, which ascend, of arrays that lie one after another."""
        edges = np.searchsorted(rows, self._starts)
        pieces = [
            array[rows[first:last] - start]
            for array, start, first, last in zip(
                arrays, self._starts[:-1], edges[:-1], edges[1:], strict=True
            )
            if first < last
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def check_queries(place: Path, sizes: tuple[int, int, int], probe: int, dim: int) -> None:
    """Refuse queries that the table cannot answer, before the work begins.

    Args:
        place: what the message calls them.
        sizes: how many they are, how many buckets each names, and how many numbers it has.
        probe: how many buckets are to be opened.
        dim: of the table.
    """
    count, width, size = sizes
    if not count:
        raise InputError(f"{place} has no queries; give at least one")
    if size != dim:
        raise InputError(
            f"the queries of {place} have {size} numbers each, but the table has dim={dim}; encode "
            "them with the encoder of the table"
        )
    if probe > width:
        raise InputError(
            f"--probe is {probe}, but {place} names only {width} buckets a query; encode the "
            f"queries with --probe {probe}, or open fewer"
        )


def _array(path: Path, name: str) -> NDArray[Any]:
    names = npz_names(path)
    if name not in names:
        raise InputError(
            f"{path} has {', '.join(names) or 'nothing'}; expected the arrays buckets and "
            "embeddings, and perhaps ids"
        )
    return npz_array(path, name)


def _check(path: Path, buckets: NDArray[Any], embeddings: NDArray[Any]) -> None:
    if buckets.ndim != 2 or buckets.dtype.kind not in "iu" or not buckets.shape[1]:
        raise InputError(
            f"{path}: buckets has shape {buckets.shape} and dtype {buckets.dtype}; expected whole "
            "numbers [n, m], the buckets of each query in the order to open them"
        )
    if (
        embeddings.ndim != 2
        or len(embeddings) != len(buckets)
        or embeddings.dtype.kind not in "fiu"
    ):
        raise InputError(
            f"{path}: embeddings has shape {embeddings.shape} and dtype {embeddings.dtype}; "
            f"expected numbers [{len(buckets)}, dim], one row for each of the buckets"
        )
