"""The same search on engines that others run: PostgreSQL (and Citus), Qdrant.

Every engine is used as :class:`flowhash.HashTable` is, and returns exactly what it returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.engines.engine_protocol import (
        BrowsedEngine as BrowsedEngine,
        Engine as Engine,
        RemoteEngine as RemoteEngine,
    )
    from flowhash.engines.engine_registry import (
        create_engine as create_engine,
        engine_exists as engine_exists,
        hidden as hidden,
        is_address as is_address,
        open_any as open_any,
        open_engine as open_engine,
    )
    from flowhash.engines.table_copy import Copied as Copied, Loading as Loading, copy as copy

if TYPE_CHECKING:  # for other rooms
    from flowhash.engines.engine_protocol import engine_faults as engine_faults
    from flowhash.engines.engine_registry import (
        SCHEMES as SCHEMES,
        room_of as room_of,
        scheme_of as scheme_of,
    )

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
