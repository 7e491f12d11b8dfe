"""Clusters with a cap on their size: the flow, k-means-constrained, and a million items."""

from benchmarks.measurement import use_threads

use_threads(2)
