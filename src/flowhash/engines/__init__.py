"""The same search on engines that others run: PostgreSQL (and Citus), Qdrant.

Every engine is used as :class:`flowhash.HashTable` is, and returns exactly what it returns.
"""

from flowhash.engines.engine_address import hidden, is_address
from flowhash.engines.engine_protocol import BrowsedEngine, Engine, Loading, RemoteEngine
from flowhash.engines.engine_registry import create_engine, engine_exists, open_any, open_engine
from flowhash.engines.table_copy import Copied, copy

__all__ = [
    "BrowsedEngine",
    "Copied",
    "Engine",
    "Loading",
    "RemoteEngine",
    "copy",
    "create_engine",
    "engine_exists",
    "hidden",
    "is_address",
    "open_any",
    "open_engine",
]
