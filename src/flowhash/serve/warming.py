"""Before the first request: load, and where needed compile, what searches use."""

from __future__ import annotations

import numpy as np

from flowhash.serve.finding import Query
from flowhash.serve.metrics import Metrics
from flowhash.serve.searching import Searching
from flowhash.serve.service import Service


def warm_up(service: Service) -> None:
    """Search a little in every way, once, so that nobody waits for a compiler later.

    Raises:
        StorageError: the table cannot be read.
    """
    if service.warm:
        return
    service.warm = True
    table = service.table
    uncounted = Metrics(lambda: 0)
    searching = Searching(table, service.embedder, uncounted, service.options.threads)
    random = np.random.default_rng(0)
    for count in (1, 40):  # a few queries and a batch take different kernels
        embeddings = random.normal(size=(count, table.dim)).astype(np.float32)
        order = np.tile(np.arange(table.buckets, dtype=np.int32), (count, 1))
        for probe, at_least in ((None, None), (None, 1), (table.buckets, None)):
            searching.batch([Query(embeddings, order, 10, probe, at_least, True)])
        searching.batch([Query(embeddings[:1], order[:1], 10, None, None, True, compare=True)])
        encoder = None if service.embedder is None else service.embedder.encoder
        if encoder is None:
            continue
        size = encoder.preprocessing.size
        if size is not None:
            rows = random.integers(0, 256, (min(count, 2), *size, 3), dtype=np.uint8)
            searching.batch([Query(rows, None, 10, None, None, False)])
        elif encoder.input_dim is not None:
            rows = random.normal(size=(count, encoder.input_dim)).astype(np.float32)
            searching.batch([Query(rows, None, 10, None, None, False)])
