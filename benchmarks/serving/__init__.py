"""The server under load, which runs on the same cores; one thread for torch."""

from benchmarks.measurement import use_threads

use_threads(1)
