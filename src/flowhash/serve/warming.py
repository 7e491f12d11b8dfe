"""Before the first request: load, and where needed compile, what searches and changes use."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import numpy as np

from flowhash.errors import DamagedFileError
from flowhash.serve.errors import LOG
from flowhash.serve.metrics import Metrics
from flowhash.serve.search_executor import Query, Searching
from flowhash.serve.service import Service
from flowhash.table import HashTable


def warm_up(service: Service) -> None:
    """Search a little in every way, and add a little elsewhere, so that nobody waits later.

    Raises:
        StorageError: the table cannot be read; what is damaged in it is only noted.
    """
    if service.warm:
        return
    service.warm = True
    _search(service)
    if service.gate.writable and isinstance(service.table, HashTable):
        _add(service.table)


def _search(service: Service) -> None:
    table = service.table
    uncounted = Metrics(lambda: 0)
    searching = Searching(
        table, service.embedder, uncounted, service.options.threads, damage=service.damage
    )

    def search(query: Query) -> None:
        for answer in searching.batch([query]):
            if isinstance(answer, DamagedFileError):
                LOG.error("the table is damaged, the rest of it is served: %s", answer)
                service.damage.note(answer)

    random = np.random.default_rng(0)
    for count in (1, 40):  # a few queries and a batch take different kernels
        embeddings = random.normal(size=(count, table.dim)).astype(np.float32)
        order = np.tile(np.arange(table.buckets, dtype=np.int32), (count, 1))
        for probe, at_least in ((None, None), (None, 1), (table.buckets, None)):
            search(Query(embeddings, order, 10, probe, at_least, True))
        search(Query(embeddings[:1], order[:1], 10, None, None, True, compare=True))
        encoder = None if service.embedder is None else service.embedder.encoder
        if encoder is None:
            continue
        size = encoder.preprocessing.size
        if size is not None:
            rows = random.integers(0, 256, (min(count, 2), *size, 3), dtype=np.uint8)
            search(Query(rows, None, 10, None, None, False))
        elif encoder.input_dim is not None:
            rows = random.normal(size=(count, encoder.input_dim)).astype(np.float32)
            search(Query(rows, None, 10, None, None, False))


def _add(table: HashTable) -> None:
    """Add, replace, delete and merge in a small table like this one, in a folder that goes away."""
    try:
        with TemporaryDirectory(prefix="flowhash-", ignore_cleanup_errors=True) as folder:
            _change(table, f"{folder}/table")
    except OSError:  # nothing can be written there; what writes files is compiled later then
        _change(table, None)


def _change(table: HashTable, path: str | None) -> None:
    numbers = table.id_kind == "int64"
    with HashTable.create(
        path, buckets=table.buckets, dim=table.dim, active=table.active, metric=table.metric,
        dtype=table.dtype, ids=table.id_kind,
    ) as small:  # fmt: skip
        codes = np.arange(table.active)[None].repeat(3, 0)
        embeddings = np.eye(3, table.dim, dtype=np.float32) + 1
        ids = [2, 0, 0] if numbers else ["c", "a", "a"]
        payloads = [{"row": row} for row in range(3)]
        small.add(codes, embeddings, None if numbers else ids, payloads)
        small.add(codes, embeddings, ids, payloads)
        small.delete(ids[:1])
        small.compact()
