"""Codes: the exact solver against OR-Tools, the top k against numpy; one thread for everyone."""

from benchmarks.measurement import use_threads

use_threads(1)
