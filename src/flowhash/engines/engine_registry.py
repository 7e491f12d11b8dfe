"""Engines by their addresses."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from flowhash.engines.engine_address import SCHEMES, hidden, is_address, scheme_of
from flowhash.engines.engine_protocol import RemoteEngine
from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.table import HashTable

# What each engine's extra, which has its name, must have installed.
NEEDED = {"postgres": ("psycopg", "psycopg_pool"), "qdrant": ("qdrant_client",)}


def room_of(address: str) -> ModuleType:
    """The module of an engine.

    Raises:
        InputError: no engine has such addresses.
        MissingExtraError: its packages are not installed.
    """
    scheme = scheme_of(address)
    if scheme not in SCHEMES:
        known = "postgresql://HOST/DATABASE?table=NAME or qdrant://HOST:6333/COLLECTION"
        shown = hidden(address)[:60]
        raise InputError(f"{shown!r} is no address that FlowHash knows; expected {known}")
    room = SCHEMES[scheme]
    for package in NEEDED[room]:
        require(package, room)
    return importlib.import_module(f"flowhash.engines.{room}")


def open_engine(address: str, mode: str = "r", *, encoder: str | None = None) -> RemoteEngine:
    """Open what is stored at an address.

    Args:
        address: such as ``postgresql://host/database?table=pets``.
        mode: "r" to search, "r+" to change it too.
        encoder: if given, the fingerprint that it must have been made with.

    Raises:
        InputError: the address, or the encoder, does not fit.
        StorageError: the server does not answer, refuses, or holds nothing there.
    """
    engine: RemoteEngine = room_of(address).open_stored(address, mode, encoder=encoder)
    return engine


def open_any(
    place: str | Path, mode: str = "r", *, encoder: str | None = None
) -> HashTable | RemoteEngine:
    """Open the table in a folder, or what is stored at an address; arguments as of both."""
    if isinstance(place, str) and is_address(place):
        return open_engine(place, mode, encoder=encoder)
    return HashTable.open(place, mode, encoder=encoder)


def create_engine(address: str, *, buckets: int, dim: int, **settings: Any) -> RemoteEngine:
    """Make an empty table at an address.

    Args:
        address: where nothing is yet.
        buckets: d.
        dim: numbers of an embedding.
        **settings: the others of :meth:`flowhash.HashTable.create`; and for PostgreSQL
            ``distribute=True``, to spread it over the nodes of Citus by bucket.

    Raises:
        InputError: a setting that cannot be.
        StorageError: the server does not answer, refuses, or holds something there already.
    """
    made: RemoteEngine = room_of(address).create_stored(
        address, buckets=buckets, dim=dim, **settings
    )
    return made


def engine_exists(address: str) -> bool:
    """Whether something is stored at an address, be it an unfinished copy."""
    return bool(room_of(address).exists(address))
