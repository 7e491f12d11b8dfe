"""``Searcher``: a search, from checked arguments to places and distances.

Few queries take one compiled call. Batches are grouped by bucket and split over
threads by the work that the pairs of query and bucket mean. Both may leave a query whose nearest
rows are too close together for their arithmetic; it is searched again with a finer one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import empty, is_compiled, kernel
from flowhash.errors import InputError
from flowhash.table.distance_metrics import METRICS, scale_queries
from flowhash.table.recall_calibration import log_shares
from flowhash.table.search.bucket_plan import (
    bucket_sizes,
    count_rows,
    first_wrong_bucket,
    open_until,
    pair_few,
    pair_up,
    pays_threads,
    shards_of,
)
from flowhash.table.search.quantised_scan import scan_alone
from flowhash.table.search.rerank import (
    RawHits,
    deliver,
    empty_hits,
    measure,
    scan_exactly,
    settle,
    sort_candidates,
)
from flowhash.table.search.scan import (
    ALONE,
    CHUNK_BYTES,
    CandidateHeaps,
    empty_candidates,
    merge,
    scan,
)
from flowhash.table.segments.arrays import look_up, note
from flowhash.table.segments.segment import TableState
from flowhash.table.table_settings import TableSettings
from flowhash.threads import available_threads

SMALL_BATCH = 16  # pairs of query and bucket that one compiled call does best
SMALL_QUERY = 256  # the same where there is one query, and too little work for a second thread
# Searches of few queries that go as batches before the kernel for them is compiled, where no
# process has done so yet: it saves a tenth of a millisecond each, compiling it takes seconds.
PATIENCE = 16
# Where there is a quantised plane, queries are scanned alone, unless so many of a batch open the
# same bucket that multiplying matrices pays: by the numbers of a row, or at the least. Rows in
# lists, with k > 1, are scattered over memory: each query fetches them again. So many neighbours
# are kept sorted by insertion; and a thread is for so many numbers in steps.
QUERIES_PER_NUMBER, QUERIES_AT_LEAST = 1 / 4, 24
QUERIES_PER_NUMBER_LISTED, QUERIES_AT_LEAST_LISTED = 1 / 64, 1
MOST_SORTED = 256
STEPS_PER_THREAD = 1 << 22
PIECES_PER_THREAD = 4
FEW_SCANNED = 32  # queries that are not worth sorting
FIRST = np.zeros(1, np.int64)  # the sequence of one query
NOT_WANTED = np.empty((0, 0))  # where exact distances are not
QUERIES_AT_ONCE = 1 << 16  # both bound the memory that a batch takes
CANDIDATES_AT_ONCE = 1 << 22
_few_asked = itertools.count()  # of this process


@dataclass
class Fineness:
    """Whether coarse scans pay: how many there were, and how many had to be done again."""

    tried: int = 0
    missed: int = 0

    @property
    def fine(self) -> bool:
        """Whether to scan finely from the start, because every fourth coarse scan missed."""
        return self.tried >= 32 and 4 * self.missed > self.tried


@dataclass(frozen=True, eq=False)
class Searcher:
    """One state of a table with the rows that may be found.

    Attributes:
        settings: of the table.
        state: what is searched.
        allowed: 1 for rows that may be found, one array for each part; empty if all may.
        fineness: what earlier searches have taught.
    """

    settings: TableSettings
    state: TableState
    allowed: Sequence[NDArray[np.uint8]]
    fineness: Fineness = field(default_factory=Fineness)

    @cached_property
    def metric(self) -> int:
        """The metric, as kernels know it."""
        return METRICS[self.settings.metric]

    @cached_property
    def loads(self) -> NDArray[np.int64]:
        """How many allowed rows each bucket has [d]."""
        return bucket_sizes(self.settings, self.state, self.allowed)

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """The logarithm of each bucket's share of the allowed rows [d]."""
        return log_shares(self.loads)

    @cached_property
    def noted(self) -> NDArray[np.int64]:
        """Where the arrays of each part are [parts, ...]."""
        parts = zip(self.state.parts, self.allowed, strict=True)
        lines = [note(part.segment.arrays, allowed) for part, allowed in parts]
        return np.stack(lines) if lines else np.empty((0, 0), np.int64)

    @cached_property
    def is_quantised(self) -> bool:
        """Whether there are segments, and all of them have quantised planes."""
        parts = self.state.parts
        return bool(parts) and all(part.segment.is_quantised for part in parts)

    def search(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], top: int,
        probe: int | NDArray[np.int32], at_least: int | None, threads: int | None,
    ) -> RawHits:  # fmt: skip
        """The ``top`` nearest rows in the first ``probe`` buckets of each query, or in more."""
        count = len(queries)
        if not isinstance(probe, int) and count == 1:
            probe = int(probe[0])
        if at_least is None and self._is_sparse(count, top, probe):
            if isinstance(probe, int) and count == 1:
                return self._scan_one(order, queries, top, probe, threads)
            opened = np.full(count, probe, np.int32) if isinstance(probe, int) else probe.copy()
            return self._scan_alone(order, queries, top, opened, threads)
        if (
            isinstance(probe, int)
            and at_least is None
            and (count * probe <= SMALL_BATCH or self._is_small(order, queries, probe, threads))
            and (_has_small_kernel() or next(_few_asked) >= PATIENCE)
        ):
            return self._few(order, queries, top, probe, self.fineness.fine)
        opened = np.full(count, probe, np.int32) if isinstance(probe, int) else probe
        pieces = []
        step = max(1, min(QUERIES_AT_ONCE, CANDIDATES_AT_ONCE // self._room(top, True)))
        for start in range(0, max(1, count), step):
            part = slice(start, start + step)
            pieces.append(
                self._batch(order[part], queries[part], top, opened[part], at_least, threads, start)
            )
        if len(pieces) == 1:
            return pieces[0]
        return RawHits(*(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))

    def _is_sparse(self, count: int, top: int, probe: int | NDArray[np.int32]) -> bool:
        """Whether so few queries open the same buckets that each is quicker scanned alone."""
        if not self.is_quantised or top > MOST_SORTED or count * top > CANDIDATES_AT_ONCE:
            return False
        if count == 1:
            return True
        dim, buckets = self.settings.dim, self.settings.buckets
        pairs = count * probe if isinstance(probe, int) else int(probe.sum())
        if self.settings.active > 1:
            return pairs <= max(QUERIES_AT_LEAST_LISTED, dim * QUERIES_PER_NUMBER_LISTED) * buckets
        return pairs <= max(QUERIES_AT_LEAST, dim * QUERIES_PER_NUMBER) * buckets

    def _scan_one(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], top: int, probe: int,
        threads: int | None,
    ) -> RawHits:  # fmt: skip
        """Scan the buckets of one query, their quantised planes first."""
        settings = self.settings
        work = self.state.live * probe * settings.dim // settings.buckets
        if settings.active == 1 and work >= 2 * STEPS_PER_THREAD:
            most = available_threads() if threads is None else threads
            shards = min(most, probe, work // STEPS_PER_THREAD)  # which share its buckets
            if shards > 1:
                opened = np.full(1, probe, np.int32)
                return self._scan_divided(order, queries, top, opened, shards)
        found = empty_hits(1, top)
        usable, fault, number = scan_alone(
            self.noted, settings.buckets, self.metric, order, probe, queries, FIRST,
            self.state.largest, NOT_WANTED, *found,
        )  # fmt: skip
        if not usable:
            self._refuse(order, queries, np.full(1, probe, np.int32))
        if fault != -1:
            self.state.parts[number].segment.fail(fault)
        return found

    def _scan_alone(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], top: int,
        opened: NDArray[np.int32], threads: int | None,
    ) -> RawHits:  # fmt: skip
        """The same for some queries, each by itself.

        Those whose first bucket is the same follow each other: it is in the processor's cache then.
        """
        count = len(queries)
        work = self.state.live * int(opened.sum()) * queries.shape[1] // self.settings.buckets
        most = available_threads() if threads is None else threads
        shards = max(1, min(most, count, work // STEPS_PER_THREAD))
        sequence = np.arange(count) if count < FEW_SCANNED else np.argsort(order[:, 0])
        return self._scan_lines(order, queries, opened, sequence, shards, top, NOT_WANTED)

    def _scan_divided(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], top: int,
        opened: NDArray[np.int32], shards: int,
    ) -> RawHits:  # fmt: skip
        """The same for one query, whose buckets are dealt out to threads; no row is in two."""
        width = -(-int(opened[0]) // shards)
        dealt = np.zeros((shards, width), np.int32)
        hands = np.empty(shards, np.int32)
        for shard in range(shards):
            hand = order[0, shard : opened[0] : shards]
            hands[shard] = len(hand)
            dealt[shard, : len(hand)] = hand
        if first_wrong_bucket(order, opened, self.settings.buckets) != -1:
            self._refuse(order, queries, opened)
        asked, exact = np.repeat(queries, shards, axis=0), np.empty((shards, top))
        found = self._scan_lines(dealt, asked, hands, np.arange(shards), shards, top, exact)
        kept = np.arange(top) < found.counts[:, None]
        exact, ids, places = exact[kept], found.keys[kept], found.places[kept]
        first = np.lexsort((ids, exact))[:top]
        merged = empty_hits(1, top)._replace(
            opened=opened, scanned=found.scanned.sum(keepdims=True)
        )
        merged.places.fill(-1)
        merged.distances.fill(np.inf)
        merged.keys.fill(-1)
        merged.counts[0] = len(first)
        merged.places[0, : len(first)] = places[first]
        merged.distances[0, : len(first)] = exact[first]
        merged.keys[0, : len(first)] = ids[first]
        return merged

    def _scan_lines(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], opened: NDArray[np.int32],
        sequence: NDArray[np.int64], shards: int, top: int, exact: NDArray[np.float64],
    ) -> RawHits:  # fmt: skip
        """Scan queries alone, in this sequence and so many threads."""
        found = empty_hits(len(queries), top)._replace(opened=opened)

        def scan_piece(piece: NDArray[np.int64]) -> None:
            usable, fault, number = scan_alone(
                self.noted, self.settings.buckets, self.metric, order, 0, queries, piece,
                self.state.largest, exact, *found,
            )  # fmt: skip
            if not usable:
                self._refuse(order, queries, opened)
            if fault != -1:
                self.state.parts[number].segment.fail(fault)

        if shards <= 1:
            scan_piece(sequence)
        else:  # buckets are of different sizes: whoever is done takes another piece
            pieces = np.array_split(sequence, min(len(sequence), shards * PIECES_PER_THREAD))
            with ThreadPoolExecutor(shards) as pool:
                list(pool.map(scan_piece, pieces))
        return found

    def _is_small(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], probe: int,
        threads: int | None,
    ) -> bool:  # fmt: skip
        """Whether it is one query that opens some more buckets, which one thread scans."""
        if len(queries) != 1 or probe > SMALL_QUERY:
            return False
        rows = sum(
            count_rows(part.segment.arrays.offsets, order, probe) for part in self.state.parts
        )
        return threads == 1 or not pays_threads(rows * queries.shape[1])

    def _room(self, top: int, coarse: bool) -> int:
        """Candidates of a query in a batch.

        Products of whole numbers are so precise that few spare ones do; most products are coarse
        where most buckets have few queries.
        """
        spare = max(16, top // 4) if coarse else max(8, top // 8)
        return min(top + spare, self.state.live + 1)

    def _few(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], top: int, probe: int,
        fine: bool,
    ) -> RawHits:  # fmt: skip
        found = empty_hits(len(queries), top)
        found.opened.fill(probe)
        usable, fault, number, sure = search_small_batch(
            self.noted, self.settings.buckets, self.metric, order, queries, probe,
            self.state.largest, self.state.residual, fine, found.places, found.distances,
            found.keys, found.counts, found.scanned,
        )  # fmt: skip
        self.fineness.tried += not fine
        if sure:
            return found
        if not usable:
            self._refuse(order, queries, found.opened)
        if fault != -1:
            self.state.parts[number].segment.fail(fault)
        if not fine:
            self.fineness.missed += 1
            return self._few(order, queries, top, probe, True)
        self._settle_exactly(order, queries, found.opened, np.arange(len(queries)), found)
        return found

    def _batch(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], top: int,
        probes: NDArray[np.int32], at_least: int | None, threads: int | None, first: int,
    ) -> RawHits:  # fmt: skip
        scaled = np.empty_like(queries)
        opened = probes.copy()
        farthest = opened if at_least is None else np.full_like(opened, order.shape[1])
        if (
            scale_queries(self.metric, queries, scaled) != -1
            or first_wrong_bucket(order, farthest, self.settings.buckets) != -1
        ):
            self._refuse(order, queries, farthest, first)
        if at_least is not None:
            open_until(self.settings, self.state, self.allowed, order, opened, at_least)
        fine = self.fineness.fine
        found, unproven = self._attempt(order, queries, scaled, opened, top, threads, fine)
        if len(unproven) and not fine:
            again, still = self._attempt(
                order[unproven], queries[unproven], scaled[unproven], opened[unproven], top,
                threads, True,
            )  # fmt: skip
            arrays: list[tuple[NDArray[Any], NDArray[Any]]] = list(zip(found, again, strict=True))
            for before, after in arrays:
                before[unproven] = after
            unproven = unproven[still]
        self._settle_exactly(order, queries, opened, unproven, found)
        return found._replace(opened=opened)

    def _attempt(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], scaled: NDArray[np.float32],
        opened: NDArray[np.int32], top: int, threads: int | None, fine: bool,
    ) -> tuple[RawHits, NDArray[np.intp]]:  # fmt: skip
        """Scan and rank; the answer, and the queries for which it is not proven."""
        pair_queries, turns, starts = pair_up(order, opened, self.settings.buckets)
        sequence = pair_queries[turns == 0]
        shards = shards_of(self.state, starts, queries.shape[1], threads)

        coarse = not fine and len(turns) <= ALONE * int(np.count_nonzero(np.diff(starts)))
        room = self._room(top, coarse)

        def nobody() -> CandidateHeaps:
            return empty_candidates(np.zeros(len(queries), np.int64), room)

        if opened.max(initial=1) == 1:
            return self._by_bucket(
                order, queries, scaled, pair_queries, turns, shards, nobody(), top, fine
            )

        def scan_shard(first: int, last: int) -> CandidateHeaps:
            mine = nobody()
            for number, part in enumerate(self.state.parts):
                fault = scan(
                    part.segment.arrays, number, self.allowed[number], self.metric, scaled, order,
                    pair_queries, turns, first, last, fine, mine,
                )  # fmt: skip
                part.segment.check(fault)
            return mine

        if len(shards) <= 1:
            found = scan_shard(*shards[0]) if shards else nobody()
            return self._rank(queries, sequence, found, top, None, 1)
        with ThreadPoolExecutor(len(shards)) as pool:
            results = list(pool.map(lambda shard: scan_shard(*shard), shards))
            for other in results[1:]:
                merge(results[0], other)
            return self._rank(queries, sequence, results[0], top, pool, len(shards))

    def _by_bucket(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], scaled: NDArray[np.float32],
        pair_queries: NDArray[np.int32], turns: NDArray[np.int32], shards: list[tuple[int, int]],
        found: CandidateHeaps, top: int, fine: bool,
    ) -> tuple[RawHits, NDArray[np.intp]]:  # fmt: skip
        """The same where each query opens one bucket, bucket by bucket.

        No two threads ever meet the same query.
        """
        answer = empty_hits(len(queries), top)._replace(scanned=found.scanned)
        ranking = empty_ranking(found)

        def search_shard(shard: tuple[int, int]) -> None:
            fault, number = search_by_bucket(
                self.noted, self.metric, queries, scaled, order, pair_queries, turns, *shard, fine,
                self.state.largest, self.state.residual, found, ranking, answer.places,
                answer.distances, answer.keys, answer.counts,
            )  # fmt: skip
            if fault != -1:
                self.state.parts[number].segment.fail(fault)

        if len(shards) > 1:
            with ThreadPoolExecutor(len(shards)) as pool:
                list(pool.map(search_shard, shards))
        else:
            for shard in shards:
                search_shard(shard)
        return answer, np.flatnonzero(ranking.proven == 0)

    def _rank(
        self, queries: NDArray[np.float32], sequence: NDArray[np.int32], found: CandidateHeaps,
        top: int, pool: ThreadPoolExecutor | None, shards: int,
    ) -> tuple[RawHits, NDArray[np.intp]]:  # fmt: skip
        """Rank the candidates exactly; the answer, and the queries for which it is not proven."""
        state, count = self.state, len(queries)
        answer = empty_hits(count, top)._replace(scanned=found.scanned)
        proven = np.empty(count, np.uint8)

        exact = np.empty(found.affinities.shape)
        ids = np.empty(found.affinities.shape, np.int64)
        ranks = np.empty(found.affinities.shape, np.int32)

        def rank_range(start: int, stop: int) -> None:
            mine = sequence[start:stop]
            line = np.empty((1, queries.shape[1]), np.float32)
            sort_candidates(found, mine, exact, ids)
            for number, part in enumerate(state.parts):
                fault = measure(
                    part.segment.arrays, number, self.metric, queries, found, mine, top,
                    state.largest, state.residual, line, exact, ids,
                )  # fmt: skip
                part.segment.check(fault)
            settle(
                self.metric, queries, state.largest, state.residual, found, mine, exact, ids, top,
                ranks, proven,
            )  # fmt: skip
            deliver(
                found, mine, exact, ids, ranks, answer.places, answer.distances, answer.keys,
                answer.counts,
            )  # fmt: skip

        edges = [count * shard // shards for shard in range(shards + 1)]
        if pool is None:
            rank_range(0, count)
        else:
            list(pool.map(rank_range, edges[:-1], edges[1:]))
        return answer, np.flatnonzero(proven == 0)

    def _settle_exactly(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], opened: NDArray[np.int32],
        unproven: NDArray[np.intp], answer: RawHits,
    ) -> None:  # fmt: skip
        """Search again, in float64, for queries whose candidates float32 could not tell apart."""
        top = answer.places.shape[1]
        for query in unproven.tolist():
            exact = np.empty((1, top + 1))
            keys = np.empty((1, top + 1), np.int64)
            places = np.empty((1, top + 1), np.int64)
            size = 0
            for number, part in enumerate(self.state.parts):
                size, fault = scan_exactly(
                    part.segment.arrays, number, self.allowed[number], self.metric, queries, query,
                    order[query, : opened[query]], top, size, exact, keys, places,
                )  # fmt: skip
                part.segment.check(fault)
            answer.places[query, :size] = places[0, :size]
            answer.distances[query, :size] = exact[0, :size]
            answer.keys[query, :size] = keys[0, :size]

    def _refuse(
        self, order: NDArray[np.int32], queries: NDArray[np.float32], opened: NDArray[np.int32],
        first: int = 0,
    ) -> NoReturn:  # fmt: skip
        """Say what is wrong with queries or buckets that a kernel refused, from ``first`` on."""
        bad = scale_queries(self.metric, queries, np.empty_like(queries))
        if bad != -1:
            line = queries[bad]
            if not np.isfinite(line).all():
                column = int(np.flatnonzero(~np.isfinite(line))[0])
                raise InputError(
                    f"queries[{first + bad}, {column}] is {line[column]}; every value must be "
                    "finite"
                )
            length = float(np.linalg.norm(line.astype(np.float64)))
            raise InputError(
                f"queries[{first + bad}] has length {length:g}; expected at most 3e18, and for "
                "cosine at least 1e-15. Divide all embeddings and queries by the same number"
            )
        query = first_wrong_bucket(order, opened, self.settings.buckets)
        shown = order[query, : opened[query]]
        raise InputError(
            f"ordered_buckets[{first + query}] opens {_shown(shown[:8].tolist())}"
            f"{'…' if len(shown) > 8 else ''}; expected different buckets from 0 to "
            f"{self.settings.buckets - 1}"
        )


def _shown(buckets: Sequence[int]) -> str:
    """Buckets as they came, but for those that int32 could not hold: they came as its limits."""
    most, least = np.iinfo(np.int32).max, np.iinfo(np.int32).min
    limits = {most: f"{most} or more", least: f"{least} or less"}
    return f"[{', '.join(limits.get(bucket, str(bucket)) for bucket in buckets)}]"


@cache
def _has_small_kernel() -> bool:
    return is_compiled(search_small_batch)


def expect_many_searches() -> None:
    """Compile what is for many searches at the next one: nobody waits for that one."""
    global _few_asked
    _few_asked = itertools.count(PATIENCE)


class Ranking(NamedTuple):
    """Scratch space to rank candidates, c for each query, and what came of it.

    Attributes:
        exact: their exact distances [n, c].
        ids: their ids [n, c].
        ranks: their order [n, c].
        proven: 1 where no other row can be among the nearest [n].
    """

    exact: NDArray[np.float64]
    ids: NDArray[np.int64]
    ranks: NDArray[np.int32]
    proven: NDArray[np.uint8]


@kernel
def empty_ranking(found: CandidateHeaps) -> Ranking:
    """Room to rank what is found."""
    shape = found.affinities.shape
    return Ranking(
        empty(shape, np.float64), empty(shape, np.int64), empty(shape, np.int32),
        empty(shape[0], np.uint8),
    )  # fmt: skip


@kernel
def scan_and_rank(
    noted: NDArray[np.int64],
    metric: int,
    queries: NDArray[np.float32],
    scaled: NDArray[np.float32],
    order: NDArray[np.int32],
    pair_queries: NDArray[np.int32],
    turns: NDArray[np.int32],
    first: int,
    last: int,
    fine: bool,
    largest: float,
    residual: float,
    found: CandidateHeaps,
    ranking: Ranking,
    sequence: NDArray[np.int32],
    places: NDArray[np.int64],
    distances: NDArray[np.float32],
    keys: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> tuple[int, int]:
    """Scan pairs ``first`` to ``last`` in all segments, then rank for ``sequence``.

    Returns:
        -1 or what is wrong, and with which segment.
    """
    for number in range(noted.shape[0]):
        segment, allowed = look_up(noted[number])
        fault = scan(segment, number, allowed, metric, scaled, order, pair_queries, turns, first,
                     last, fine, found)  # fmt: skip
        if fault != -1:
            return fault, number
    top = places.shape[1]
    exact, ids, ranks, proven = ranking
    line = empty((1, queries.shape[1]), np.float32)
    sort_candidates(found, sequence, exact, ids)
    for number in range(noted.shape[0]):
        segment, allowed = look_up(noted[number])
        fault = measure(segment, number, metric, queries, found, sequence, top, largest, residual,
                        line, exact, ids)  # fmt: skip
        if fault != -1:
            return fault, number
    settle(metric, queries, largest, residual, found, sequence, exact, ids, top, ranks, proven)
    deliver(found, sequence, exact, ids, ranks, places, distances, keys, counts)
    return -1, 0


@kernel
def search_by_bucket(
    noted: NDArray[np.int64],
    metric: int,
    queries: NDArray[np.float32],
    scaled: NDArray[np.float32],
    order: NDArray[np.int32],
    pair_queries: NDArray[np.int32],
    turns: NDArray[np.int32],
    first: int,
    last: int,
    fine: bool,
    largest: float,
    residual: float,
    found: CandidateHeaps,
    ranking: Ranking,
    places: NDArray[np.int64],
    distances: NDArray[np.float32],
    keys: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> tuple[int, int]:
    """Search where each query opens one bucket, in pairs ``first`` to ``last``.

    Candidates are ranked while their bucket's rows are in the processor's cache.

    Returns:
        -1 or what is wrong, and with which segment.
    """
    begin = first
    while begin < last:
        end, size = begin, 0
        while end < last and size < CHUNK_BYTES:
            bucket = order[pair_queries[end], turns[end]]
            for number in range(noted.shape[0]):
                offsets = look_up(noted[number])[0].offsets
                size += (offsets[bucket + 1] - offsets[bucket]) * queries.shape[1] * 4
            while end < last and order[pair_queries[end], turns[end]] == bucket:
                end += 1
        fault, number = scan_and_rank(noted, metric, queries, scaled, order, pair_queries, turns,
                                      begin, end, fine, largest, residual, found, ranking,
                                      pair_queries[begin:end], places, distances, keys,
                                      counts)  # fmt: skip
        if fault != -1:
            return fault, number
        begin = end
    return -1, 0


@kernel
def search_small_batch(
    noted: NDArray[np.int64],
    buckets: int,
    metric: int,
    order: NDArray[np.int32],
    queries: NDArray[np.float32],
    probe: int,
    largest: float,
    residual: float,
    fine: bool,
    places: NDArray[np.int64],
    distances: NDArray[np.float32],
    keys: NDArray[np.int64],
    counts: NDArray[np.int64],
    scanned: NDArray[np.int64],
) -> tuple[bool, int, int, bool]:
    """Search for a few queries, all in one call; the last five arrays are the answer.

    Returns:
        Whether the arguments can be used; -1 or what is wrong with a file, and with which segment;
        whether all queries are proven.
    """
    count, top = distances.shape
    room = top + max(16, top // 4)  # the spare ones let the proof succeed after a coarse scan
    scanned[:] = 0
    found = empty_candidates(scanned, room)
    scaled = empty(queries.shape, np.float32)
    pair_queries = empty(count * probe, np.int32)
    turns = empty(count * probe, np.int32)
    if scale_queries(metric, queries, scaled) != -1 or not pair_few(
        order, probe, buckets, pair_queries, turns
    ):
        return False, -1, 0, False
    ranking = empty_ranking(found)
    sequence = empty(count, np.int32)
    for query in range(count):
        sequence[query] = query
    fault, number = scan_and_rank(noted, metric, queries, scaled, order, pair_queries, turns, 0,
                                  count * probe, fine, largest, residual, found, ranking, sequence,
                                  places, distances, keys, counts)  # fmt: skip
    if fault != -1:
        return True, fault, number, False
    sure = True
    for query in range(count):
        sure &= ranking.proven[query] == 1
    return True, -1, 0, sure
