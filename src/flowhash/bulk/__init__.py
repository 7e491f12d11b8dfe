"""Work that is too much for one machine: in parts, on a Ray cluster or in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.bulk.build_table import index as index
    from flowhash.bulk.encode_items import Choices as Choices, Source as Source, encode as encode
    from flowhash.bulk.neighbour_join import neighbours as neighbours
    from flowhash.bulk.parquet_files import Answers as Answers, read_answers as read_answers
    from flowhash.bulk.ray_runner import RayRunner as RayRunner
    from flowhash.bulk.runners import LocalRunner as LocalRunner
    from flowhash.bulk.search_queries import search as search
    from flowhash.bulk.work_folder import Interrupted as Interrupted, Work as Work
    from flowhash.indexing import TableChoices as TableChoices

if TYPE_CHECKING:  # for other rooms
    from flowhash.bulk.runners import Runner as Runner
    from flowhash.bulk.work_folder import ENCODED as ENCODED

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
