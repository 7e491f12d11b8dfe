"""The gated distance, the solver's share of a training step, the speed of NIN; two threads."""

from benchmarks.measurement import use_threads

use_threads(2)
