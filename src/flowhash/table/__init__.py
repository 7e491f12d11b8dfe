"""The hash table: items in the buckets of their codes, ranked exactly by their embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.compile import get_ready
from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.table.hash_table import HashTable as HashTable
    from flowhash.table.results import Hits as Hits, Item as Item, Stored as Stored
    from flowhash.table.statistics import Stats as Stats

if TYPE_CHECKING:  # for other rooms
    from flowhash.table.arguments import (
        changed_notes as changed_notes,
        whole_number as whole_number,
    )
    from flowhash.table.hash_table import (
        CachedStats as CachedStats,
        codes_at as codes_at,
        draw as draw,
        search_state as search_state,
        state_of as state_of,
    )
    from flowhash.table.ids import (
        INT64 as INT64,
        NO_STRINGS as NO_STRINGS,
        STRING as STRING,
        Ids as Ids,
        Strings as Strings,
        pack as pack,
        read_ids as read_ids,
        string_ids as string_ids,
    )
    from flowhash.table.integrity import folder_faults as folder_faults
    from flowhash.table.search.rerank import distance as distance
    from flowhash.table.search.scan import ROW_BITS as ROW_BITS, ROW_MASK as ROW_MASK
    from flowhash.table.search.small_batch import FEW as FEW
    from flowhash.table.segments.segment import Segment as Segment, State as State
    from flowhash.table.settings import (
        METRICS as METRICS,
        MOST_BUCKETS as MOST_BUCKETS,
        Settings as Settings,
        SettingsProperties as SettingsProperties,
        check_encoder as check_encoder,
        check_vectors as check_vectors,
    )
    from flowhash.table.statistics import SAMPLE as SAMPLE, stats_of as stats_of
    from flowhash.table.storage.manifest import load as load
    from flowhash.table.storage.table_folder import Folder as Folder

__all__, __getattr__, __dir__ = lazy_exports(__spec__)

get_ready()
