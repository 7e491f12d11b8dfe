"""CIFAR-100 with more buckets than classes: are they used, and what do they find?"""

from benchmarks.measurement import use_threads

use_threads(1)
