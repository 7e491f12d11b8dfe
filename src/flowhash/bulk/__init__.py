"""Work that is too much for one machine: in parts, on a Ray cluster or in this process."""

from flowhash.bulk.answers import Answers, read_answers
from flowhash.bulk.cluster import RayRunner
from flowhash.bulk.encoding import Choices, Source, encode
from flowhash.bulk.indexing import TableChoices, index
from flowhash.bulk.job import LocalRunner
from flowhash.bulk.neighbours import neighbours
from flowhash.bulk.searching import search
from flowhash.bulk.work import Interrupted, Work

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
