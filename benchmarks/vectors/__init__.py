"""Vectors without labels: what a recall takes, in items and in time, beside k-means and a graph."""

import os

from benchmarks.measurement import use_threads

use_threads(2)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads of one library would slow others
