"""The hash table: items in the buckets of their codes, ranked exactly by their embeddings."""

from flowhash.compile import get_ready
from flowhash.table.hits import Hits, Item, Stored
from flowhash.table.stats import Stats
from flowhash.table.table import HashTable

__all__ = ["HashTable", "Hits", "Item", "Stats", "Stored"]

get_ready()
