"""Folders of the client's local mode."""

from __future__ import annotations

import atexit
import contextlib
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from qdrant_client import QdrantClient


class LocalFolder:
    """A folder of local mode, opened once in a process and shared by all who use it.

    The client locks the folder, and its local mode is not made for threads: one at a time.
    """

    opened: ClassVar[dict[Path, LocalFolder]] = {}
    guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.users = 0
        self.lock = threading.RLock()
        with warnings.catch_warnings():  # that local mode is slow for many points: the docs say so
            warnings.simplefilter("ignore")
            self.client = QdrantClient(path=str(folder), force_disable_check_same_thread=True)

    @classmethod
    def take(cls, folder: Path) -> LocalFolder:
        """Use a folder; :meth:`leave` it afterwards."""
        folder = folder.resolve()
        with cls.guard:
            found = cls.opened.get(folder)
            if found is None:
                found = cls.opened[folder] = cls(folder)
            found.users += 1
            return found

    def leave(self) -> None:
        """The last one closes it."""
        with self.guard:
            self.users -= 1
            if self.users == 0:
                del self.opened[self.folder]
                self.client.close()

    @contextlib.contextmanager
    def together(self, collection: str) -> Iterator[None]:
        """Put what is written meanwhile on disk at once.

        The client commits every point by itself, and waits for the disk each time. With SQLite's
        write-ahead log commits do not wait, and the checkpoint at the end does.
        """
        kept = getattr(self.client, "_client", None)
        kept = getattr(kept, "collections", {}).get(collection)
        database = getattr(getattr(kept, "storage", None), "storage", None)
        if not isinstance(database, sqlite3.Connection):
            yield  # another version of the client: slower, and as safe
            return
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        yield
        database.execute("PRAGMA wal_checkpoint(FULL)")


@atexit.register
def _leave_all() -> None:
    """Close what was left open while the modules that it takes are still there."""
    for folder in list(LocalFolder.opened.values()):
        folder.client.close()
