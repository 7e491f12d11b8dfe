"""Work that is too much for one machine: in parts, on a Ray cluster or in this process."""

from flowhash.bulk.answer_files import Answers, read_answers
from flowhash.bulk.build_table import TableChoices, index
from flowhash.bulk.encode_items import Choices, Source, encode
from flowhash.bulk.neighbour_join import neighbours
from flowhash.bulk.ray_runner import RayRunner
from flowhash.bulk.runners import LocalRunner
from flowhash.bulk.search_queries import search
from flowhash.bulk.work_folder import Interrupted, Work

__all__ = [
    "Answers",
    "Choices",
    "Interrupted",
    "LocalRunner",
    "RayRunner",
    "Source",
    "TableChoices",
    "Work",
    "encode",
    "index",
    "neighbours",
    "read_answers",
    "search",
]
