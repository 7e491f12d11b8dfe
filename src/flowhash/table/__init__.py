"""The hash table: items in the buckets of their codes, ranked exactly by their embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.compile import get_ready
from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.table.hash_table import HashTable as HashTable
    from flowhash.table.health_report import (
        HealthFinding as HealthFinding,
        HealthReport as HealthReport,
        RecallDrift as RecallDrift,
    )
    from flowhash.table.recall_calibration import (
        RecallCalibration as RecallCalibration,
        RecallCost as RecallCost,
    )
    from flowhash.table.results import Hits as Hits, Item as Item, Stored as Stored
    from flowhash.table.statistics import Stats as Stats

if TYPE_CHECKING:  # for other rooms
    from flowhash.table.arguments import (
        LARGEST_ID as LARGEST_ID,
        allowed_rows as allowed_rows,
        changed_notes as changed_notes,
        check_probe as check_probe,
        check_search as check_search,
        read_probe as read_probe,
        read_queries as read_queries,
    )
    from flowhash.table.distance_metrics import METRICS as METRICS, exact_distance as exact_distance
    from flowhash.table.hash_table import (
        buckets_at as buckets_at,
        opened_in_state as opened_in_state,
        search_state as search_state,
        state_of as state_of,
    )
    from flowhash.table.health_report import (
        FEWEST_MEASURED as FEWEST_MEASURED,
        examine as examine,
    )
    from flowhash.table.ids import (
        INT64 as INT64,
        NO_STRINGS as NO_STRINGS,
        STRING as STRING,
        Ids as Ids,
        Strings as Strings,
        pack_strings as pack_strings,
        read_ids as read_ids,
        string_ids as string_ids,
    )
    from flowhash.table.integrity import folder_faults as folder_faults
    from flowhash.table.recall_calibration import (
        FEWEST as FEWEST,
        RECALL_NOTE as RECALL_NOTE,
        RECALL_TOPS as RECALL_TOPS,
        calibrated as calibrated,
        changes_since as changes_since,
        check_recall as check_recall,
        noted_calibration as noted_calibration,
        open_buckets as open_buckets,
        opened_for_recall as opened_for_recall,
        read_recall as read_recall,
        required_calibration as required_calibration,
        warn_if_old as warn_if_old,
    )
    from flowhash.table.results import padded_codes as padded_codes
    from flowhash.table.search.scan import ROW_BITS as ROW_BITS, ROW_MASK as ROW_MASK
    from flowhash.table.search.searcher import (
        MOST_SORTED as MOST_SORTED,
        SMALL_BATCH as SMALL_BATCH,
        expect_many_searches as expect_many_searches,
    )
    from flowhash.table.segments.segment import (
        Segment as Segment,
        TableState as TableState,
    )
    from flowhash.table.statistics import (
        STATS_SAMPLE as STATS_SAMPLE,
        draw_sample as draw_sample,
        stats_of as stats_of,
    )
    from flowhash.table.storage.manifest import read_manifest as read_manifest
    from flowhash.table.storage.table_folder import TableFolder as TableFolder
    from flowhash.table.table_settings import (
        MOST_BUCKETS as MOST_BUCKETS,
        SettingsProperties as SettingsProperties,
        TableSettings as TableSettings,
        check_encoder as check_encoder,
        check_vectors as check_vectors,
    )

__all__, __getattr__, __dir__ = lazy_exports(__spec__)

get_ready()
