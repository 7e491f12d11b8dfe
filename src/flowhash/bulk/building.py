"""Encoded files as tables of one segment, which one table takes over later."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowhash.bulk.columns import read_columns, rows_of
from flowhash.bulk.plan import Place, part_name
from flowhash.durable_files import flush_folder, naming
from flowhash.errors import InputError
from flowhash.table import HashTable
from flowhash.table.segments.segment import State
from flowhash.table.settings import Settings
from flowhash.table.storage.table_folder import Folder

COLUMNS = ["id", "code", "embedding"]


@dataclass(frozen=True)
class Building:
    """A job: each part is a table of one segment.

    Attributes:
        files: of each part, in their order.
        settings: of the table.
        out: where the parts go.
        payloads: whether the files have any.
        encoder: the fingerprint of the files, or None.
    """

    files: tuple[tuple[Path, ...], ...]
    settings: Settings
    out: Place
    payloads: bool
    encoder: str | None

    def open(self) -> None:
        """Nothing is shared between parts."""

    def do(self, opened: None, part: int, threads: int | None) -> int:
        """Build one table, and give it its name when it is on disk."""
        path = self.out.folder / part_name(part)
        unfinished = self.out.unfinished(path)
        try:
            with naming(path):
                unfinished.mkdir()
            rows = self._build(unfinished, self.files[part])
            self.out.check()
            try:
                unfinished.rename(path)
            except OSError:
                if not path.exists():  # then another worker was faster
                    raise
            flush_folder(self.out.folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return rows

    def _build(self, path: Path, files: tuple[Path, ...]) -> int:
        names = [*COLUMNS, *(["payload"] if self.payloads else [])]
        tables = [(file, read_columns(file, names)) for file in files]
        codes = [rows_of(file, "code", table.column("code"), np.int32) for file, table in tables]
        vectors = [
            rows_of(file, "embedding", table.column("embedding"), np.float32)
            for file, table in tables
        ]
        ids = [_ids(file, table.column("id"), self.settings.ids) for file, table in tables]
        texts: list[Any] = []
        for file, table in tables:
            texts += _payloads(file, table.column("payload")) if self.payloads else []
        count = sum(len(some) for some in codes)
        del tables, table  # payloads are in memory twice otherwise, and may be pictures
        folder = Folder.create(path, self.settings, make=False)  # the driver may have taken it away
        with HashTable(self.settings, folder, State()) as made:
            try:
                made.add(
                    np.concatenate(codes), np.concatenate(vectors), np.concatenate(ids),
                    texts or None, encoder=self.encoder,
                )  # fmt: skip
            except InputError as error:
                raise InputError(f"{files[0]}: {error}") from error
        return count


def _ids(path: Path, column: Any, kind: str) -> Any:
    if column.null_count:
        raise InputError(f"{path}: {column.null_count} rows have no id; give every row one")
    return column.to_numpy() if kind == "int64" else np.array(column.to_pylist(), object)


def _payloads(path: Path, column: Any) -> list[Any]:
    try:
        return [None if text is None else json.loads(text) for text in column.to_pylist()]
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: a payload is not JSON ({error}); expected an object or nothing"
        ) from error
