"""Where a collection is: a server, or a folder of the client's local mode."""

from __future__ import annotations

import atexit
import contextlib
import os
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from qdrant_client import QdrantClient

from flowhash.errors import InputError

DEFAULT = "flowhash"
PORT = 6333
FORBIDDEN = '<>:"/\\|?*\0\x1f'  # in the name of a collection, by Qdrant's rules
EXPECTED = "qdrant://HOST:6333/COLLECTION or qdrant+local:///FOLDER?collection=NAME"


@dataclass(frozen=True)
class QdrantAddress:
    """A collection.

    Attributes:
        collection: its name.
        shown: the address for people, without a key.
        folder: of the client's local mode; None for a server.
        host: of the server.
        port: for HTTP.
        grpc_port: for gRPC.
        https: whether both are encrypted.
        key: for the server, or None.
    """

    collection: str
    shown: str
    folder: Path | None = None
    host: str = ""
    port: int = PORT
    grpc_port: int = PORT + 1
    https: bool = False
    key: str | None = None

    def may_hold(self) -> bool:
        """Whether to look: opening a folder in local mode would make it."""
        return self.folder is None or (self.folder / "meta.json").is_file()


def read_address(text: str) -> QdrantAddress:
    """Take an address apart.

    The key of a server is in the variable ``QDRANT_API_KEY``, or in the address:
    ``qdrant://:KEY@HOST:6333/COLLECTION``.

    Raises:
        InputError: it names no collection. The message never has the key.
    """
    scheme = text.partition(":")[0].lower()
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # whose words may have the key in them
        raise InputError(
            f"an address of Qdrant cannot be read; expected {EXPECTED}. In a key write % as %25, / "
            "as %2F, ? as %3F, # as %23, @ as %40 and [ as %5B, or give it in QDRANT_API_KEY"
        ) from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = {"collection"} if scheme == "qdrant+local" else {"grpc_port"}
    place = f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    for name in sorted(options.keys() - known):
        raise InputError(f"{place} has the option {name!r:.40}; expected only {sorted(known)}")
    if scheme == "qdrant+local":
        folder = Path(unquote(parts.path))
        if parts.netloc or not folder.is_absolute():
            raise InputError(f"{place} has no absolute folder; expected {EXPECTED}")
        name = _checked(options.get("collection", DEFAULT), place)
        return QdrantAddress(name, f"{place}?collection={name}", folder=folder)
    if parts.hostname is None:
        raise InputError(f"{place} has no host; expected {EXPECTED}")
    if parts.username:
        raise InputError(
            f"{place}: Qdrant knows no users; put a colon before the key (qdrant://:KEY@HOST), or "
            "set QDRANT_API_KEY"
        )
    name = _checked(unquote(parts.path).strip("/") or DEFAULT, place)
    key = unquote(parts.password) if parts.password else os.environ.get("QDRANT_API_KEY")
    port = PORT if port is None else port
    grpc_port = options.get("grpc_port", str(port + 1))
    if not grpc_port.isdecimal():
        raise InputError(f"{place}: grpc_port is {grpc_port!r:.20}; expected a whole number")
    server = parts.netloc.rpartition("@")[2]
    return QdrantAddress(
        name, f"{scheme}://{server}/{name}", host=parts.hostname, port=port,
        grpc_port=int(grpc_port), https=scheme == "qdrant+https", key=key or None,
    )  # fmt: skip


def _checked(name: str, place: str) -> str:
    """The name of a collection, as Qdrant allows it."""
    wrong = any(character in FORBIDDEN for character in name)
    if wrong or name in ("", ".", "..") or len(name) > 255:
        raise InputError(
            f"{place} names the collection {name!r:.60}; expected 1 to 255 characters, none "
            'of them one of < > : " / \\ | ? *'
        )
    return name


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
