"""Ten million items against one million; one thread for BLAS."""

from benchmarks.measurement import use_threads

use_threads(1)
