"""Searching: candidates by Qdrant's float32, measured again, asked for until they are proven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from qdrant_client import models

from flowhash.engines.engine_arguments import EngineQueries
from flowhash.engines.exact_answers import (
    GROWTH,
    SPARE,
    EngineCandidates,
    exact_distances,
    least_possible,
    ranked,
)
from flowhash.engines.qdrant.client_connection import Store
from flowhash.engines.qdrant.collection_marker import CollectionFacts
from flowhash.engines.qdrant.point_counts import PointCounts
from flowhash.engines.qdrant.point_filter import Chosen
from flowhash.engines.qdrant.points import (
    CODE,
    DIRECTION,
    EMBEDDING,
    NAME,
    TEXT,
    code_of,
    directions,
    embedding_of,
    item_id,
    unpacked,
)
from flowhash.table import STRING, Hits, padded_codes

REQUESTS = 128  # of one batch at the most
NUMBERS = 1 << 19  # of vectors that one batch brings at the most, as far as single queries allow
VALUES = 1 << 18  # of filters that one batch carries


@dataclass(frozen=True, eq=False)
class CandidateSearch:
    """What does not change between the queries of a search.

    Attributes:
        store: the collection.
        facts: of the moment.
        chosen: which points may be found.
        counts: of those.
        payloads: whether hits bring theirs.
        buckets: whether hits bring the buckets that they are in.
    """

    store: Store
    facts: CollectionFacts
    chosen: Chosen
    counts: PointCounts
    payloads: bool
    buckets: bool

    def answer(self, asked: EngineQueries) -> Hits:
        """The exact answer to all queries."""
        settings, count = self.facts.settings, len(asked.queries)
        opened = self.counts.opened(asked.order, asked.probe, asked.at_least)
        unions = [
            frozenset(line[:number])
            for line, number in zip(asked.order.tolist(), opened.tolist(), strict=True)
        ]
        sizes = self.counts.unions(unions)
        scanned = np.array([sizes[union] for union in unions], np.int64)
        nobody = self._candidates([[]])
        hits, _ = ranked(nobody, np.empty(0), settings.ids, count, asked.top, scanned, opened)
        # One more than there are is as good as all of them: the list comes back shorter.
        limits = np.minimum(asked.top + SPARE, scanned + 1)
        vectors = directions(asked.queries) if settings.metric == "cosine" else asked.queries
        asking = np.flatnonzero(scanned)
        while len(asking):
            unproven = []
            for some in self._batches(asking, limits):
                lists = self._ask(vectors, unions, some, limits)
                proven = self._rank(asked, some, lists, limits, hits)
                unproven.append(some[~proven])
            asking = np.concatenate(unproven)
            limits[asking] *= GROWTH
        return hits

    def _batches(
        self, asking: NDArray[np.intp], limits: NDArray[np.int64]
    ) -> Iterator[NDArray[np.intp]]:
        """The queries in parts whose requests and answers are of a moderate size."""
        most = REQUESTS
        if self.chosen.size:
            most = max(1, min(most, VALUES // self.chosen.size))
        numbers = limits[asking] * self.facts.settings.dim
        start = 0
        while start < len(asking):
            within = int(
                np.searchsorted(np.cumsum(numbers[start : start + most]), NUMBERS, "right")
            )
            stop = start + max(1, within)
            yield asking[start:stop]
            start = stop

    def _ask(
        self,
        vectors: NDArray[np.float32],
        unions: Sequence[frozenset[int]],
        some: NDArray[np.intp],
        limits: NDArray[np.int64],
    ) -> list[list[Any]]:
        """The nearest points of each query, as Qdrant ranks them."""
        settings = self.facts.settings
        fields = [NAME] if settings.ids == STRING else []
        fields += [TEXT] if self.payloads else []
        fields += [CODE] if self.buckets else []
        using = DIRECTION if settings.metric == "cosine" else EMBEDDING
        requests = [
            models.QueryRequest(
                query=models.NearestQuery(nearest=vectors[query].tolist()),
                using=using,
                filter=self.chosen.filter(unions[query]),
                params=models.SearchParams(exact=True),
                limit=int(limits[query]),
                with_payload=fields or False,
                with_vector=[EMBEDDING],
            )
            for query in some.tolist()
        ]
        answers = self.store.ask("query_batch_points", requests=requests)
        return [answer.points for answer in answers]

    def _rank(
        self,
        asked: EngineQueries,
        some: NDArray[np.intp],
        lists: list[list[Any]],
        limits: NDArray[np.int64],
        hits: Hits,
    ) -> NDArray[np.bool_]:
        """Put what was found for some queries into the hits; for which it is proven [m]."""
        settings = self.facts.settings
        candidates = self._candidates(lists)
        queries = np.ascontiguousarray(asked.queries[some])
        exact = exact_distances(settings.metric, queries, candidates)
        found, worst = ranked(
            candidates, exact, settings.ids, len(some), asked.top, hits.scanned[some],
            hits.opened[some],
        )  # fmt: skip
        hits.ids[some], hits.distances[some] = found.ids, found.distances
        hits.counts[some] = found.counts
        if hits.payloads is not None and found.payloads is not None:
            for query, texts in zip(some.tolist(), found.payloads, strict=True):
                hits.payloads[query] = texts
        if hits.buckets is not None and found.buckets is not None:
            hits.buckets[some] = found.buckets
        last = np.array([points[-1].score if points else 0.0 for points in lists])
        least = least_possible(
            settings.metric, settings.dim, _distances(settings.metric, last),
            np.linalg.norm(queries.astype(np.float64), axis=1), self.facts.largest,
        )  # fmt: skip
        lengths = np.array([len(points) for points in lists])
        proven: NDArray[np.bool_] = (lengths < limits[some]) | (worst < least)
        return proven

    def _candidates(self, lists: list[list[Any]]) -> EngineCandidates:
        """The points that were found for each of some queries."""
        settings = self.facts.settings
        points = [point for points in lists for point in points]
        ids = np.empty(len(points), object if settings.ids == STRING else np.int64)
        ids[:] = [item_id(settings, point) for point in points]
        embeddings = np.array([embedding_of(point) for point in points], np.float32)
        codes = None
        if self.buckets:
            each = [code_of(settings, point) for point in points]
            codes = padded_codes(each, settings.active)
        return EngineCandidates(
            np.repeat(np.arange(len(lists)), [len(points) for points in lists]),
            ids,
            embeddings.reshape(len(points), settings.dim),
            [unpacked(point.payload) for point in points] if self.payloads else None,
            codes,
        )


def _distances(metric: str, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Qdrant's scores as the table's distances."""
    if metric == "euclidean":
        return scores * scores
    return 1.0 - scores if metric == "cosine" else -scores
