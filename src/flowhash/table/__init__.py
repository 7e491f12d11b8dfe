"""The hash table: items in the buckets of their codes, ranked exactly by their embeddings."""

from flowhash.compile import get_ready
from flowhash.table.hash_table import HashTable
from flowhash.table.results import Hits, Item, Stored
from flowhash.table.statistics import Stats

__all__ = ["HashTable", "Hits", "Item", "Stats", "Stored"]

get_ready()
