"""Searches of the table against FAISS and hnswlib; two threads for everyone."""

from benchmarks.measurement import use_threads

use_threads(2)  # FAISS Flat multiplies with BLAS: let it
