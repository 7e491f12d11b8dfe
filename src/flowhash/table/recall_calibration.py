"""``RecallCalibration``: which buckets a query opens so that a recall, asked for, is reached.

A query's activations, divided by a temperature, give each bucket a probability that a neighbour
lies in it: their softmax. What a bucket is worth is that probability over its share of the items,
in logarithms, because an item costs the same to scan in every bucket. All buckets worth more than
one threshold are opened, the same threshold for all queries, so that those whose network is unsure
open more. Queries whose true neighbours are known set the threshold, by conformal risk control:
for a further query like these the expected recall is the one asked for, or more.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import numbers, whole_number
from flowhash.compile import filter_kernel, inner_kernel, kernel, larger, two_to, whole_part
from flowhash.errors import Argument, InputError, OldCalibrationWarning
from flowhash.table.ids import STRING, read_ids
from flowhash.table.results import Hits
from flowhash.threads import in_shards

RECALL_NOTE = "recall"  # the name of the table's note that keeps it
CHANGES = "changed since recall was calibrated"  # of the note that counts items added and deleted
# Neighbours whose recall is calibrated, unless others are asked for. Between two of them the larger
# counts, so that they lie near each other.
RECALL_TOPS = (1, 5, 10, 20, 50, 100)
FEWEST = 50  # queries: with fewer not even a recall of 0.95 could be promised
LEVELS = 256  # of missed neighbours that thresholds are kept for
SCANS = 17  # thresholds for which it is kept how much is scanned
SHARPNESS = tuple(2.0 ** (power / 2) for power in range(2, 15))  # tried: spread over temperature
TEMPERATURE_PART = 5  # every fifth query chooses the temperature, the others set the thresholds
AIM = 0.9  # the recall at which temperatures are compared
BEST_ONLY = 1e300  # a threshold that no bucket reaches, in place of infinity, which JSON has not
OLD = 0.2  # of the items added or deleted: from then on a calibration is called old
RECALLS = (0.8, 0.9, 0.95, 0.99)  # whose cost is told

EMPTIED = "the table is empty, or was emptied meanwhile; add items first"
ORDERS_AT_ONCE = 1 << 24  # buckets named to find the true neighbours of some queries
LOOKED_UP = 1_000  # ids at once, to see whether they are in the table
LN2 = math.log(2)
INSERTION_SORTED = 64  # buckets that are sorted fastest by insertion
MOST_KNOWN = 1_000  # thresholds that are kept once they were found
COUNTED = 256  # queries whose unions of buckets are counted, with k > 1

Found = TypeVar("Found")
# Items scanned by queries, given their buckets in order [q, m] and how many they open [q].
Scanned = Callable[[NDArray[np.int32], NDArray[np.int32]], NDArray[np.int64]]


@dataclass(frozen=True)
class RecallCost:
    """What a recall takes on average.

    Attributes:
        recall: of the ``top`` nearest items.
        top: how many neighbours.
        scanned: the share of the table that is scanned.
        opened: how many buckets are opened.
    """

    recall: float
    top: int
    scanned: float
    opened: float


@dataclass(frozen=True)
class RecallStart:
    """What recalls took when the buckets of a table were first calibrated.

    A later calibration knows the items that have come since, and takes for usual what they cost.

    Attributes:
        stored: whether by items of the table.
        concentration: of the buckets, see :func:`load_concentration`.
        costs: what recalls took.
    """

    stored: bool
    concentration: float
    costs: tuple[RecallCost, ...]


@dataclass(frozen=True)
class RecallCalibration:
    """What a table knows of its recall; see :meth:`flowhash.HashTable.calibrate`.

    Attributes:
        temperature: that activations are divided by.
        queries: how many set the thresholds.
        stored: whether they were items of the table, each searched among the others.
        items: in the table at that time.
        misses: shares of neighbours that are missed, falling.
        thresholds: for each number of neighbours, the worth from which on buckets are opened so
            that on average so many are missed.
        scan_thresholds: some of these, falling, for the two that follow.
        scan_shares: the mean share of the table that is scanned with each.
        scan_opened: the mean number of buckets that are opened with each.
        concentration: of the buckets at that time, see :func:`load_concentration`; 0 where an
            earlier version did not keep it.
        start: what the first calibration of these buckets found; None where this is the first.
    """

    temperature: float
    queries: int
    stored: bool
    items: int
    misses: tuple[float, ...]
    thresholds: dict[int, tuple[float, ...]]
    scan_thresholds: tuple[float, ...]
    scan_shares: tuple[float, ...]
    scan_opened: tuple[float, ...]
    concentration: float = 0.0
    start: RecallStart | None = None

    def to_json(self) -> dict[str, Any]:
        """As the value of a note."""
        return {"version": 1, **asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RecallCalibration:
        """From what ``to_json`` gave, after JSON has made strings of its numbers.

        Raises:
            InputError: it is of a newer FlowHash, or no calibration.
        """
        try:
            fields = dict(values)
            version = fields.pop("version")
            if version != 1:
                raise InputError(
                    f"the calibration has version {version}; this FlowHash reads 1. Calibrate the "
                    "table again, or install a newer one"
                )
            tops = {int(top): tuple(line) for top, line in fields.pop("thresholds").items()}
            for name in ("misses", "scan_thresholds", "scan_shares", "scan_opened"):
                fields[name] = tuple(fields[name])
            if (start := fields.get("start")) is not None:
                costs = tuple(RecallCost(**cost) for cost in start["costs"])
                fields["start"] = RecallStart(**{**start, "costs": costs})
            return cls(**fields, thresholds=tops)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"the table's calibration cannot be read ({error}); calibrate it again"
            ) from error

    @property
    def highest(self) -> float:
        """The highest recall that so many queries can promise, below one."""
        return 1 - 1 / (self.queries + 1)

    @cached_property
    def _known(self) -> dict[tuple[str, float, int], Any]:
        """What was found once: a single query, and a request, would notice the interpolation."""
        return {}

    def threshold(self, recall: float, top: int) -> float:
        """The worth from which on buckets are opened; minus infinity opens all that have items.

        Args:
            recall: above 0, up to 1: the share of the ``top`` nearest items to find on average.
            top: how many neighbours. Those of the next larger number that was calibrated are
                taken: nearer neighbours are found more easily.

        Raises:
            InputError: it cannot be promised; the message says what to do.
        """
        recall, top = read_recall(recall), whole_number("top", top, 1)
        known: float = self._once("threshold", recall, top, self._threshold)
        return known

    def _once(
        self, name: str, recall: float, top: int, find: Callable[[float, int], Found]
    ) -> Found:
        found: Found | None = self._known.get((name, recall, top))
        if found is None:
            found = find(recall, top)
            if len(self._known) < MOST_KNOWN:
                self._known[name, recall, top] = found
        return found

    def _threshold(self, recall: float, top: int) -> float:
        if recall == 1:
            return -math.inf
        larger = [known for known in sorted(self.thresholds) if known >= top]
        if not larger:
            known = ", ".join(map(str, sorted(self.thresholds)))
            among = f" (for {known})" if len(self.thresholds) > 1 else ""
            raise InputError(
                f"recall was calibrated for up to {max(self.thresholds)} neighbours{among}, not "
                f"for {top}; ask for fewer, or calibrate again with",
                Argument("tops", f"({top},)"),
            )
        # Conformal risk control (Angelopoulos et al., 2022): one more query, missed altogether,
        # is counted with those that were seen.
        allowed = ((1 - recall) * (self.queries + 1) - 1) / self.queries
        if allowed < 0:
            raise InputError(
                f"recall is {recall:g}; the {self.queries} queries of the calibration promise up "
                f"to {self.highest:.4f}. Calibrate with more queries, or ask for 1, which scans "
                "all items"
            )
        # Between two levels on a line: they are so near that nothing is left to prove.
        return float(np.interp(allowed, self.misses[::-1], self.thresholds[larger[0]][::-1]))

    def expected(self, recall: float, top: int) -> tuple[float, float]:
        """The mean share of the table that is scanned, and how many buckets are opened.

        A recall of 1 scans all and opens whatever holds items: infinity stands for so many.
        """
        if read_recall(recall) == 1:
            return 1.0, math.inf
        return self._once("expected", recall, top, self._expected)

    def _expected(self, recall: float, top: int) -> tuple[float, float]:
        threshold = max(self.threshold(recall, top), self.scan_thresholds[-1])
        rising = self.scan_thresholds[::-1]
        return (
            float(np.interp(threshold, rising, self.scan_shares[::-1])),
            float(np.interp(threshold, rising, self.scan_opened[::-1])),
        )

    def costs(self, recalls: Sequence[float] = RECALLS) -> list[RecallCost]:
        """What recalls take, as far as they can be promised, for each number of neighbours."""
        return [
            RecallCost(recall, top, *self.expected(recall, top))
            for top in sorted(self.thresholds)
            for recall in recalls
            if recall < self.highest
        ]

    def at_start(self, cost: RecallCost) -> float:
        """The share of the table that a recall scanned when these buckets were first calibrated.

        Queries of another kind say nothing of it; then it is told from the loads.
        """
        start = self.start
        if start is None:
            return cost.scanned
        for one in start.costs:
            if start.stored == self.stored and (one.recall, one.top) == (cost.recall, cost.top):
                return one.scanned
        known = self.concentration and start.concentration
        return cost.scanned * start.concentration / self.concentration if known else cost.scanned

    def is_old(self, changed: int) -> bool:
        """Whether so many items, added or deleted since, are too many to rely on it."""
        return changed > OLD * self.items


def load_concentration(loads: NDArray[np.int64], items: int) -> float:
    """The sum of the squared shares of the items that buckets hold.

    With k = 1 it is the share of the table that an item's own bucket holds, on average: 1/d where
    all are as full. What a search scans grows with it.
    """
    return float(np.square(loads / max(1, items)).sum())


def open_buckets(
    activations: NDArray[np.float32],
    loads: NDArray[np.int64],
    temperature: float,
    threshold: float,
    everything: bool = False,
    threads: int | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The buckets that are worth at least ``threshold``, the best of them first.

    Each query opens one at least. Buckets without items are worth nothing.

    Args:
        activations: [q, d].
        loads: items of each bucket [d].
        temperature: that activations are divided by.
        threshold: on a bucket's worth.
        everything: whether the others follow, in order, behind those that are opened.
        threads: how many threads at the most; all cores by default.

    Returns:
        Buckets [q, m], -1 behind a query's last one, and how many of them are opened [q].
    """
    return open_by_share(
        activations, log_shares(loads), temperature, threshold, everything, threads
    )


def log_shares(loads: NDArray[np.int64]) -> NDArray[np.float64]:
    """The logarithm of each bucket's share of the items, minus infinity where it has none [d]."""
    with np.errstate(divide="ignore"):
        shares: NDArray[np.float64] = np.log(loads / max(1, loads.sum()))
    return shares


def open_by_share(
    activations: NDArray[np.float32],
    shares: NDArray[np.float64],
    temperature: float,
    threshold: float,
    everything: bool = False,
    threads: int | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """:func:`open_buckets` where :func:`log_shares` are known [d]."""
    opened = np.empty(len(activations), np.int32)
    if len(activations) == 1:  # whose list is all there is to lay out
        line = list_worth(activations, shares, temperature, threshold, everything, opened)
        return line.reshape(1, -1), opened

    def listed(start: int, stop: int) -> NDArray[np.int32]:
        return list_worth(
            activations[start:stop], shares, temperature, threshold, everything, opened[start:stop]
        )

    found = in_shards(listed, len(activations), threads)
    if everything:
        return np.concatenate(found).reshape(len(activations), len(shares)), opened
    order = np.full((len(activations), opened.max(initial=1)), -1, np.int32)
    order[np.arange(order.shape[1]) < opened[:, None]] = np.concatenate(found)
    return order, opened


@filter_kernel
def exponential_sum(values: NDArray[np.float64], largest: float) -> float:
    """The sum of e^(value - largest), to 13 digits or so; no value is above ``largest``.

    Each is 2^k e^r with |r| up to ln 2 / 2, and e^r the first terms of its series: SIMD code, where
    np.exp is called for one number after the other.
    """
    total = np.float64(0.0)
    for place in range(values.shape[0]):
        power = larger(values[place] - largest, -700.0)  # less than that is nothing
        turns = whole_part(power * (1 / LN2))
        r = power - turns * LN2
        series = 1 / 362_880 + r * (1 / 3_628_800 + r * (1 / 39_916_800))
        series = 1 / 720 + r * (1 / 5_040 + r * (1 / 40_320 + r * series))
        series = 1 / 6 + r * (1 / 24 + r * (1 / 120 + r * series))
        series = 1.0 + r * (1.0 + r * (1 / 2 + r * series))
        total += series * two_to(turns)
    return total


@inner_kernel
def bucket_worth(
    activations: NDArray[np.float32],
    query: int,
    shares: NDArray[np.float64],
    temperature: float,
    worth: NDArray[np.float64],
) -> int:
    """Write what each bucket is worth to a query [d]; the bucket that is worth most."""
    largest = -np.inf
    for bucket in range(worth.shape[0]):
        worth[bucket] = activations[query, bucket] / temperature
        largest = larger(largest, worth[bucket])
    normaliser = largest + np.log(exponential_sum(worth, largest))
    most = -np.inf
    for bucket in range(worth.shape[0]):
        # A bucket without items, whose share is minus infinity, is worth nothing.
        held = shares[bucket] > -np.inf
        worth[bucket] = worth[bucket] - (normaliser + shares[bucket]) if held else -np.inf
        most = larger(most, worth[bucket])
    for bucket in range(worth.shape[0]):
        if worth[bucket] == most:
            return bucket
    return 0


@kernel
def list_worth(
    activations: NDArray[np.float32],
    shares: NDArray[np.float64],
    temperature: float,
    threshold: float,
    everything: bool,
    opened: NDArray[np.int32],
) -> NDArray[np.int32]:
    """Write how many buckets each query opens, one at least [q].

    Only those are sorted, a few of many, unless ``everything`` is listed.

    Returns:
        The buckets of one query after the other, those worth most first.
    """
    queries, buckets = activations.shape
    worth = np.empty(buckets)
    chosen = np.empty(buckets + 1, np.int32)
    found = np.empty(buckets * queries if everything else buckets + 16 * queries, np.int32)
    end = 0
    for query in range(queries):
        best = bucket_worth(activations, query, shares, temperature, worth)
        count = 0
        for bucket in range(buckets):
            # Without a threshold everything that holds items is opened.
            chosen[count] = bucket
            count += worth[bucket] >= threshold and worth[bucket] > -np.inf
        if count == 0:
            chosen[0], count = best, 1
        opened[query] = count
        if everything:
            chosen[:buckets] = np.arange(buckets)
            count = buckets
        if end + count > found.shape[0]:
            longer = np.empty(2 * found.shape[0], np.int32)
            longer[:end] = found[:end]
            found = longer
        sort_by_worth(chosen[:count], worth, found[end : end + count])
        end += count
    return found[:end].copy()  # or all the room would be kept


@kernel
def sort_by_worth(
    chosen: NDArray[np.int32], worth: NDArray[np.float64], found: NDArray[np.int32]
) -> None:
    """Write the chosen buckets, ascending, in the order of their worth; ties stay as they are."""
    if len(chosen) > INSERTION_SORTED:
        sequence = np.argsort(-worth[chosen], kind="mergesort")
        for turn in range(len(chosen)):
            found[turn] = chosen[sequence[turn]]
        return
    for filled in range(len(chosen)):
        bucket, turn = chosen[filled], filled
        while turn > 0 and worth[found[turn - 1]] < worth[bucket]:
            found[turn] = found[turn - 1]
            turn -= 1
        found[turn] = bucket


class CalibratedTable(Protocol):
    """What a calibration asks of a table, of whatever engine."""

    @property
    def buckets(self) -> int:
        """d, the number of buckets."""
        ...

    @property
    def dim(self) -> int:
        """How many numbers an embedding has."""
        ...

    @property
    def id_kind(self) -> str:
        """Whether ids are whole numbers or strings."""
        ...

    @property
    def active(self) -> int:
        """k, how many buckets an item is in."""
        ...

    def search(self, *arguments: Any, **options: Any) -> Hits:
        """The nearest items among those in the buckets that each query opens."""
        ...

    def bucket_loads(self) -> NDArray[np.int64]:
        """How many items each bucket holds [d]."""
        ...

    def codes_of(self, ids: list[Any]) -> list[list[int] | None]:
        """The buckets of each item; None for those that are not there."""
        ...

    def notes(self) -> dict[str, Any]:
        """What was noted about the table."""
        ...

    def __len__(self) -> int: ...


def calibrated(
    table: CalibratedTable,
    activations: ArrayLike,
    queries: ArrayLike,
    tops: int | Sequence[int],
    own: Any,
    threads: int | None,
    encoder: str | None,
) -> RecallCalibration:
    """See :meth:`flowhash.HashTable.calibrate`."""
    known_tops, items, itself = _read_tops(tops), len(table), own is not None
    made, asked = read_trial(
        table, activations, queries, itself, FEWEST, "a recall can be promised"
    )
    if items - itself < 1:
        raise InputError(f"the table has {items} items, too few to search; add items first")
    own = read_own(table, own, len(asked))
    wanted = sorted({min(top, items - itself) for top in known_tops})
    loads = table.bucket_loads()
    true = true_neighbours(table, asked, wanted[-1], own, threads, encoder)
    neighbours = true.buckets
    assert neighbours is not None
    if not true.counts.any():  # another thread has taken the items away
        raise InputError(EMPTIED)

    def scanned(order: NDArray[np.int32], opened: NDArray[np.int32]) -> NDArray[np.int64]:
        if table.active == 1:
            behind = np.arange(order.shape[1]) >= opened[:, None]
            total: NDArray[np.int64] = np.where(behind, 0, loads[order]).sum(axis=1)
            return total
        some = slice(None, COUNTED)
        part = asked[np.arange(len(asked)) % TEMPERATURE_PART != 0][some]
        return table.search(
            order[some], part, 1, probe=opened[some], threads=threads, encoder=encoder
        ).scanned

    found = calibrate_recall(made, neighbours, loads, tuple(wanted), scanned, items, itself)
    return replace(found, start=_start_of(table.notes()))


def _start_of(notes: Mapping[str, Any]) -> RecallStart | None:
    """What the first calibration found, where there was one before."""
    try:
        earlier = noted_calibration(notes)
    except InputError:  # it cannot be read, and is replaced
        return None
    if earlier is None:
        return None
    if earlier.start is not None:
        return earlier.start
    return RecallStart(earlier.stored, earlier.concentration, tuple(earlier.costs()))


def _read_tops(tops: Any) -> list[int]:
    """Numbers of neighbours, or one alone."""
    given = [tops] if isinstance(tops, str) or not isinstance(tops, Iterable) else list(tops)
    if not given:
        raise InputError("tops is empty; expected one number of neighbours or more")
    return [whole_number("tops", top, 1) for top in given]


def read_recall(value: Any) -> float:
    """A recall that is asked for, if it is one number above 0, up to 1."""
    if type(value) is float and 0 < value <= 1:
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) <= 1:
        raise InputError(f"recall is {value!r:.80}; expected one number, a share above 0, up to 1")
    return float(value)


def read_trial(
    table: CalibratedTable,
    activations: ArrayLike,
    queries: ArrayLike,
    itself: bool,
    fewest: int,
    purpose: str,
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Check queries that try a table [q, d], [q, dim]: as many as fit, and no fewer than needed.

    ``itself`` says whether they are items of it.
    """
    made, asked = read_activations(activations, table.buckets), numbers(queries, "queries")
    if asked.ndim != 2 or asked.shape[1] != table.dim:
        raise InputError(
            f"queries has shape {asked.shape}; expected [{len(made)}, {table.dim}], the embeddings "
            "of the queries whose activations came"
        )
    if len(made) != len(asked):
        raise InputError(
            f"there are {len(asked)} queries and activations of {len(made)}; expected as many"
        )
    if len(made) < fewest:
        came = "there is 1 query" if len(asked) == 1 else f"there are {len(asked)} queries"
        more = "Give more"
        if itself:
            came, more = f"{came}, from the table", "Take more of its items, or give other queries"
        raise InputError(f"{came}; expected {fewest} or more, so that {purpose}. {more}")
    return made, asked


def read_own(table: CalibratedTable, own: Any, count: int) -> NDArray[Any] | None:
    """Check the ids of queries that are items of the table [q].

    One that is not there would leave nothing out of its answer, and an item that finds itself
    promises too much.
    """
    if own is None:
        return None
    if isinstance(own, bool | np.bool_):
        raise InputError(f"own is {own}; expected the ids of the {count} queries, one each")
    try:
        ids = read_ids(own, table.id_kind)
    except InputError as error:
        raise InputError(f"own cannot be used: {error}") from error
    if len(ids) != count:
        raise InputError(f"own has {len(ids)} ids for {count} queries; expected one each")
    values = [ids.value(place) for place in range(count)]
    for start in range(0, count, LOOKED_UP):
        part = values[start : start + LOOKED_UP]
        for name, code in zip(part, table.codes_of(part), strict=True):
            if code is None:
                raise InputError(
                    f"own has {name!r:.80}, which is not in the table; expected ids of stored "
                    "items. Leave own out where the queries are no items of it"
                )
    return np.array(values, object if table.id_kind == STRING else np.int64)


def true_neighbours(
    table: CalibratedTable,
    queries: NDArray[Any],
    top: int,
    own: Any,
    threads: int | None,
    encoder: str | None,
) -> Hits:
    """The nearest of all items, with their buckets; without those in ``own``, which ask."""
    held = np.flatnonzero(table.bucket_loads()).astype(np.int32)
    if not len(held):
        raise InputError(EMPTIED)
    itself = own is not None
    step = max(1, ORDERS_AT_ONCE // len(held))
    found = []
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        order = np.tile(held, (len(queries[part]), 1))
        hits = table.search(
            order, queries[part], top + itself, probe=len(held), buckets=True, threads=threads,
            encoder=encoder,
        )  # fmt: skip
        found.append(hits.without(np.asarray(own)[part]) if itself else hits)
    return Hits.concatenate(found)


def holds_enough(
    loads: NDArray[np.int64],
    order: NDArray[np.int32],
    opened: NDArray[np.int32],
    active: int,
    at_least: int,
) -> bool:
    """Whether the opened buckets of each query are sure to hold so many different items.

    With k > 1 those of the fullest bucket are counted, since others may be in it, too.
    """
    held = loads[order]
    if len(order) > 1:  # else the line ends where the query does
        held[np.arange(order.shape[1]) >= opened[:, None]] = 0
    most = held.sum(axis=1) if active == 1 else held.max(axis=1, initial=0)
    return bool((most >= at_least).all())


def read_activations(values: ArrayLike, buckets: int) -> NDArray[np.float32]:
    """Check activations of queries [q, d]."""
    if (  # what single queries should be, without the detours
        type(values) is np.ndarray
        and values.dtype == np.float32
        and values.ndim == 2
        and values.shape[1] == buckets
        and values.flags.carray
        and np.isfinite(values).all()
    ):
        return values
    array = numbers(values, "activations")
    if array.ndim != 2 or array.shape[1] != buckets or array.dtype.kind != "f":
        raise InputError(
            f"activations has shape {array.shape} and dtype {array.dtype}; with recall expected "
            f"the network's outputs [q, {buckets}] as floats, not buckets in order: how many are "
            "opened depends on how sure the network is"
        )
    if not np.isfinite(array).all():
        query = int(np.argmin(np.isfinite(array).all(axis=1)))
        raise InputError(f"activations[{query}] has a value that is not finite")
    return np.require(array, np.float32, ["C"])


def noted_calibration(notes: Mapping[str, Any]) -> RecallCalibration | None:
    """The calibration among a table's notes, if there is one."""
    return RecallCalibration.from_json(notes[RECALL_NOTE]) if RECALL_NOTE in notes else None


def changes_since(found: RecallCalibration, notes: Mapping[str, Any], items: int) -> int:
    """Items added and deleted since the calibration, at the least.

    Engines do not count them: there it is by how many the table has more or fewer ``items``.
    """
    return max(int(notes.get(CHANGES, 0)), abs(items - found.items))


def required_calibration(found: RecallCalibration | None) -> RecallCalibration:
    """A calibration that must be there.

    Raises:
        InputError: there is none; the message says how one is made.
    """
    if found is None:
        raise InputError(
            "recall was never calibrated for this table, so that nobody knows how many buckets it "
            "takes; calibrate it first (`flowhash calibrate`, in Python calibrate), or give probe"
        )
    return found


def warn_if_old(found: RecallCalibration, changed: int, level: int) -> None:
    """Warn, at the caller so many calls above, where too many items have come and gone."""
    if found.is_old(changed):
        warnings.warn(
            f"{changed} items were added or deleted since recall was calibrated, with "
            f"{found.items}; it may not be reached. Calibrate again",
            OldCalibrationWarning,
            stacklevel=level + 1,
        )


def only_bucket(
    activations: ArrayLike, buckets: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """What each query opens in a table of one bucket: every recall is reached by that."""
    count = len(read_activations(activations, buckets))
    return np.zeros((count, 1), np.int32), np.ones(count, np.int32)


def check_recall(probe: Any, where: Any) -> None:
    """Refuse what does not go together with a recall."""
    if probe is not None or where is not None:
        other = "where" if probe is None else "probe"
        raise InputError(
            f"recall came together with {other}; recall says itself how many buckets are opened, "
            "and was calibrated for all items. Give probe or at_least instead of it"
        )


def opened_for_recall(
    table: CalibratedTable,
    activations: ArrayLike,
    recall: float,
    top: int,
    probe: Any,
    where: Any,
    at_least: int | None,
    warn: bool = True,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The buckets of each query in order, and how many of them a recall takes, in any engine.

    It warns where the calibration is old, unless that is told otherwise.
    """
    check_recall(probe, where)
    if table.buckets == 1:
        read_recall(recall)
        return only_bucket(activations, 1)
    notes = table.notes()
    found = required_calibration(noted_calibration(notes))
    if warn:
        warn_if_old(found, changes_since(found, notes, len(table)), 3)
    return open_buckets(
        read_activations(activations, table.buckets),
        table.bucket_loads(),
        found.temperature,
        found.threshold(recall, top),
        at_least is not None,
    )


def counted_changes(notes: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The notes that change with so many items added or deleted: none without a calibration."""
    return {CHANGES: notes.get(CHANGES, 0) + count} if RECALL_NOTE in notes and count else {}


def calibrate_recall(
    activations: NDArray[np.float32],
    neighbours: NDArray[np.int32],
    loads: NDArray[np.int64],
    tops: tuple[int, ...],
    scanned: Scanned,
    items: int,
    stored: bool,
) -> RecallCalibration:
    """A calibration by queries whose true neighbours are known.

    Args:
        activations: of the queries [q, d].
        neighbours: the buckets of the nearest items of each, nearest first; -1 where there are no
            more items [q, n, k].
        loads: items of each bucket [d].
        tops: numbers of neighbours, up to n.
        scanned: counts what queries scan.
        items: in the table.
        stored: whether the queries are items of the table.
    """
    choosing = np.arange(len(activations)) % TEMPERATURE_PART == 0
    top = min(max(tops), max(10, min(tops)))
    temperature = _best_temperature(activations[choosing], neighbours[choosing, :top], loads)
    setting = ~choosing
    worth, ranked = _worth(activations[setting], loads, temperature)
    count = len(ranked)
    misses = np.append(np.geomspace(0.5, 0.1 / count, LEVELS - 1), 0.0)
    thresholds = {
        top: _thresholds(worth, ranked, neighbours[setting, :top], misses) for top in tops
    }
    every = np.concatenate(list(thresholds.values()))
    every = every[every < BEST_ONLY]
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)
    levels = np.linspace(high, low, SCANS)
    shares, opened = [], []
    for level in levels:
        order, counts = open_buckets(activations[setting], loads, temperature, level)
        shares.append(float(scanned(order, counts).mean()) / items)
        opened.append(float(counts.mean()))
    return RecallCalibration(
        temperature, count, stored, items, tuple(misses.tolist()),
        {top: tuple(line.tolist()) for top, line in thresholds.items()},
        tuple(levels.tolist()), tuple(shares), tuple(opened), load_concentration(loads, items),
    )  # fmt: skip


def _worth(
    activations: NDArray[np.float32], loads: NDArray[np.int64], temperature: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """What buckets are worth to queries [q, d], and the best of each [q]."""
    with np.errstate(divide="ignore"):
        shares = np.log(loads / max(1, loads.sum()))
    worth = np.empty(activations.shape)
    best = np.empty(len(activations), np.int64)
    for query, line in enumerate(worth):
        best[query] = bucket_worth(activations, query, shares, temperature, line)
    return worth, best


def _thresholds(
    worth: NDArray[np.float64],
    best: NDArray[np.int64],
    neighbours: NDArray[np.int32],
    misses: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The largest threshold with which at most each of ``misses`` is missed on average."""
    queries = np.arange(len(worth))[:, None, None]
    found = np.where(neighbours >= 0, worth[queries, neighbours], -np.inf)
    # The best bucket is opened whatever it is worth.
    found[(neighbours == best[:, None, None]) & (neighbours >= 0)] = BEST_ONLY
    reached = found.max(axis=2)  # the threshold up to which a neighbour is found [q, n]
    there = neighbours[:, :, 0] >= 0
    counts = there.sum(axis=1)
    weights = np.where(there, 1 / np.maximum(counts, 1)[:, None], 0.0) / (counts > 0).sum()
    falling = np.argsort(-reached[there], kind="stable")
    values = reached[there][falling]
    recall = np.cumsum(weights[there][falling])
    # The neighbour with which the recall is reached must be found itself.
    places = np.searchsorted(recall, 1 - misses - 1e-9)
    chosen: NDArray[np.float64] = values[np.minimum(places, len(values) - 1)]
    return chosen


def _best_temperature(
    activations: NDArray[np.float32], neighbours: NDArray[np.int32], loads: NDArray[np.int64]
) -> float:
    """The temperature with which the recall ``AIM`` takes the fewest items, buckets added up."""
    largest = activations.max(axis=1).astype(np.float64)
    spread = float((largest - activations.mean(axis=1, dtype=np.float64)).mean()) or 1.0
    fewest, chosen = np.inf, spread
    for sharpness in SHARPNESS:
        temperature = spread / sharpness
        worth, best = _worth(activations, loads, temperature)
        [threshold] = _thresholds(worth, best, neighbours, np.array([1 - AIM]))
        opened = worth >= threshold
        opened[np.arange(len(best)), best] = True
        items = float((opened @ loads.astype(np.float64)).mean())
        if items < fewest:
            fewest, chosen = items, temperature
    return chosen
