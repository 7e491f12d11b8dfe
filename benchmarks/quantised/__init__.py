"""Searches by the quantised plane against FAISS; one thread for everyone."""

from benchmarks.measurement import use_threads

use_threads(1)
