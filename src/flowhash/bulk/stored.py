"""A table as workers find it: one state of it, on storage that all of them see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowhash.errors import StorageError
from flowhash.table import HashTable
from flowhash.table.settings import Settings
from flowhash.table.storage.manifest import load


@dataclass(frozen=True)
class StoredTable:
    """A table's folder, and which state of it is meant.

    Attributes:
        path: the folder, as every node sees it.
        settings: of the table.
        name: random; tells it from a table that is made anew in the same folder.
        generation: grows with every change.
    """

    path: Path
    settings: Settings
    name: str
    generation: int

    @classmethod
    def of(cls, path: Path) -> StoredTable:
        """The state of this moment."""
        found = load(path)
        return cls(path.absolute(), found.settings, found.identity, found.generation)

    def identity(self) -> list[Any]:
        """What a plan keeps of it."""
        return [self.name, self.generation]

    def open(self) -> HashTable:
        """Open it to be searched.

        Raises:
            StorageError: it was changed since the work began.
        """
        table = HashTable.open(self.path)
        if table.version != f"{self.name} {self.generation}":
            table.close()
            raise StorageError(
                f"{self.path} was changed while it was searched; run the command again with "
                "--restart, and change the table before or after"
            )
        return table
