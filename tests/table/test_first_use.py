"""What the first searches of a fresh installation do not compile."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowhash.table import HashTable, Hits
from flowhash.table.search import bucket_plan, rerank, scan, searcher
from tests.table.process import in_a_process

LATER: dict[str, Any] = {
    "few queries": searcher.search_small_batch,
    "ties": rerank.scan_exactly,
    "threads": scan.merge,
    "filters": bucket_plan.add_bucket_sizes,
    "at_least": bucket_plan.add_fresh,
}


def first_searches(patience: int) -> list[list[str]]:
    """What of LATER a process has compiled after its first searches, and after one more."""
    fresh: Any = searcher
    fresh._has_small_kernel = lambda: False  # as in a fresh installation
    rng = np.random.default_rng(0)
    table = HashTable.create(buckets=8, dim=4)
    codes, embeddings = rng.integers(0, 8, (500, 1)), rng.normal(size=(500, 4))
    table.add(codes, embeddings)
    answers: list[Hits] = []
    compiled: list[list[str]] = []
    for _ in range(patience + 1):
        if len(answers) == patience:
            compiled.append([name for name, kernel in LATER.items() if kernel.overloads])
        answers.append(table.search([[3]], embeddings[:1], top=5))
    compiled.append([name for name, kernel in LATER.items() if kernel.overloads])
    table.search(codes[:40], embeddings[:40])
    for hits in answers:  # whichever kernel gave them
        np.testing.assert_array_equal(hits.ids, answers[0].ids)
        np.testing.assert_array_equal(hits.distances, answers[0].distances)
        assert hits.scanned == answers[0].scanned == (codes == 3).sum()
    nearest = np.flatnonzero(codes[:, 0] == 3)
    away = ((embeddings[nearest].astype(np.float32) - embeddings[0].astype(np.float32)) ** 2).sum(1)
    assert answers[0].ids.tolist() == [nearest[np.argsort(away)[:5]].tolist()]
    return compiled


def test_the_first_searches_compile_only_what_batches_need_too() -> None:
    compiled = in_a_process("test_first_use", f"first_searches({searcher.PATIENCE})")
    assert compiled == [[], ["few queries"]]
