"""The results of an evaluation: a row for each method, and all that a report shows."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowhash.durable_files import replace_file
from flowhash.errors import InputError

# The methods in the order of a table, and what people call them.
METHODS = {
    "exhaustive": "exhaustive",
    "exhaustive-raw": "exhaustive, raw vectors",
    "exhaustive-unit": "exhaustive, unit vectors",
    "th": "Th",
    "vq": "VQ",
    "vq-raw": "VQ, raw vectors",
    "vq-unit": "VQ, unit vectors",
    "vq-train": "VQ, fitted on train",
    "ivf": "FAISS IVF, same scan",
    "classifier": "classifier",
    "start": "start, zero steps",
    "flowhash": "FlowHash",
    "flowhash-free": "FlowHash, λ = 0",
    "flowhash-own": "FlowHash, ranked by itself",
}
# What is searched, in order, as a heading says it; other names are headings as they are.
TABLES = {
    "train": "Train table",
    "test": "Test table",
    "validation": "Validation table",
    "unseen": "Unseen classes",
}

# The curves of recall against items scanned, in the order of a legend, and what people call them.
RECALL_CURVES = {
    "flowhash": "FlowHash, one threshold",
    "flowhash-probe": "FlowHash, fixed probe",
    "ivf": "IVF, fixed probe",
    "hnsw": "HNSW",
}
RECALL_TOP = 10  # nearest items whose recall the curves show

Leads = dict[str, dict[str, list[float]]]  # by rival and quantity: an interval
Draws = dict[str, NDArray[np.float64]]  # by quantity: its value in each draw of the queries
Key = tuple[str, str, int | None]  # method, table, k
Place = tuple[str, str, int | None, int]  # method, table, k, seed


@dataclass(frozen=True)
class Row:
    """One method on one table at one k; shares are in per cent, as the paper prints them.

    Attributes:
        method: a key of ``METHODS``.
        table: what is searched: "train", "test", or "unseen" for classes that training had not.
        k: buckets an item is in; None for exhaustive search, which has no buckets.
        seed: of the training.
        suf: items in the table over items scanned, at the plain k buckets.
        pr1: Pr@1; pr4 and pr16 likewise.
        nmi: normalised mutual information of buckets and labels at k = 1, else None.
        scanned: items scanned a query at the plain k buckets, on average.
        seconds: wall-clock of the search of one query, in a batch of up to 10,000, without the
            networks.
        flat: the same for FAISS Flat on the same vectors in the same run; None without FAISS, and
            where a method ranks by vectors of its own.
        passes: forward passes of a network a query.
        buckets: d; 1 for exhaustive search.
        items: in the table.
        queries: how many were asked.
        suf1: SUF where buckets are opened until 1 item is found; suf4 and suf16 likewise.
        ami: adjusted mutual information at k = 1, else None.
        purity: share of items in a bucket that have its most frequent class, at k = 1, else None.
        recall1: recall@1 against exhaustive search; recall4 and recall16 likewise.
        map_r: mean average precision at R, the number of items of the query's class.
        expected: SUF if codes were independent and even, Eq. 9 of the paper, for d and k.
        variance: of the number of items that a query scans, under the same assumption.
        note: what a reader must know about the row.
        pr1_low: low end of the 95 % interval of Pr@1 minus exhaustive search's, in points, by a
            paired bootstrap over the queries; pr1_high is its high end, and so on. None in files
            of an older FlowHash.
        leads: of FlowHash's rows: for every rival, and for FlowHash with λ = 0, named by
            ``rival_name``, the 95 % intervals [low, high] of the differences to it in "suf", "pr1",
            "pr4" and "pr16"; empty for others.
        over_seeds: the same, and for all methods those to exhaustive search, of the mean over all
            seeds: both queries and seeds vary. Every seed's row has the same ones; empty for a
            single seed, and for a method that was trained with one seed of several.
    """

    method: str
    table: str
    k: int | None
    seed: int
    suf: float
    pr1: float
    pr4: float
    pr16: float
    nmi: float | None
    scanned: float
    seconds: float
    flat: float | None = None
    passes: int = 1
    buckets: int = 1
    items: int = 0
    queries: int = 0
    suf1: float | None = None
    suf4: float | None = None
    suf16: float | None = None
    ami: float | None = None
    purity: float | None = None
    recall1: float | None = None
    recall4: float | None = None
    recall16: float | None = None
    map_r: float | None = None
    expected: float | None = None
    variance: float | None = None
    note: str = ""
    pr1_low: float | None = None
    pr1_high: float | None = None
    pr4_low: float | None = None
    pr4_high: float | None = None
    pr16_low: float | None = None
    pr16_high: float | None = None
    leads: Leads = field(default_factory=dict, hash=False)
    over_seeds: Leads = field(default_factory=dict, hash=False)

    @property
    def place(self) -> Place:
        """What tells it from all other rows of an experiment."""
        return self.method, self.table, self.k, self.seed

    @property
    def key(self) -> Key:
        """What tells it from all rows of its seed."""
        return self.method, self.table, self.k

    @property
    def microseconds(self) -> float:
        """Wall-clock of the search of one query, as tables show it."""
        return 1e6 * self.seconds

    @property
    def over_flat(self) -> float | None:
        """How many times faster than FAISS Flat, in the same run."""
        return self.flat / self.seconds if self.flat is not None and self.seconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        """As a plain dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Row:
        """From what ``to_json`` gave; fields of a newer FlowHash are passed over."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


@dataclass(frozen=True)
class Measure:
    """A number over seeds.

    Attributes:
        mean: over all seeds that have it.
        deviation: the sample standard deviation (n − 1); None for one seed.
    """

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class MergedRow:
    """All seeds of one method on one table at one k."""

    method: str
    table: str
    k: int | None
    rows: tuple[Row, ...]

    @property
    def key(self) -> Key:
        """What tells it from all others of an experiment."""
        return self.method, self.table, self.k

    @property
    def label(self) -> str:
        """What people call the method."""
        return method_label(self.method)

    @property
    def note(self) -> str:
        """What must be known of it; where seeds differ, all of it."""
        return "; ".join(dict.fromkeys(row.note for row in self.rows if row.note))

    def values(self, name: str) -> list[float]:
        """A quantity of the rows, a field's or property's name, where they have it."""
        found = [getattr(row, name) for row in self.rows]
        return [float(value) for value in found if value is not None and not math.isnan(value)]

    def measure(self, name: str) -> Measure | None:
        """Mean and deviation of a quantity; None if no row has it."""
        known = self.values(name)
        if not known:
            return None
        return Measure(float(np.mean(known)), float(np.std(known, ddof=1)) if known[1:] else None)

    def mean(self, name: str) -> float | None:
        """The mean alone."""
        found = self.measure(name)
        return None if found is None else found.mean


def merge_seeds(rows: Iterable[Row]) -> list[MergedRow]:
    """One for each table, k and method, in the order of a printed table."""
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault((row.method, row.table, row.k), []).append(row)
    merged = [MergedRow(*key, tuple(same)) for key, same in found.items()]
    return sorted(merged, key=_place)


def group_seeds(rows: Sequence[Row]) -> dict[Key, tuple[Row, ...]]:
    """The rows of one experiment by method, table and k: one a seed.

    Raises:
        InputError: a method is not known, or two rows have the same seed, as when rows of two
            losses are mixed: their mean would be of nothing.
    """
    merged = merge_seeds(rows)
    for each in merged:
        if each.method not in METHODS:
            raise InputError(f"method is {each.method!r}; expected one of {', '.join(METHODS)}")
        seeds = [row.seed for row in each.rows]
        twice = [seed for place, seed in enumerate(seeds) if seed in seeds[:place]]
        if twice:
            raise InputError(
                f"two rows are {each.method} on {each.table} with k = {each.k} and seed "
                f"{twice[0]}; expected one. Make a table for each experiment"
            )
    return {each.key: each.rows for each in merged}


def _place(merged: MergedRow) -> tuple[int, str, int, int, str]:
    # Exhaustive search has no k and comes first; what nobody has named yet comes last.
    tables = list(TABLES)
    table = tables.index(merged.table) if merged.table in TABLES else len(tables)
    return table, merged.table, merged.k or 0, method_order(merged.method), merged.method


def method_label(method: str) -> str:
    """What people call a method; a name that is no key stands for itself."""
    return METHODS.get(method, method)


def method_order(method: str) -> int:
    """Where a method stands among those of one k."""
    return list(METHODS).index(method) if method in METHODS else len(METHODS)


def table_heading(table: str) -> str:
    """The heading of a searched table."""
    return TABLES.get(table, f"{table} table")


def active_counts(merged: Iterable[MergedRow]) -> list[int]:
    """Every k that is there, ascending."""
    return sorted({each.k for each in merged if each.k is not None})


def rivals(row: Row, rows: Iterable[Row]) -> list[Row]:
    """Whom a row of FlowHash has to lead, among ``rows``; nobody for other methods.

    All other methods on the same table, with the same seed and at the same k, and exhaustive
    search; and the classifier at k = 1 beside every k, because more buckets are no gain where one
    bucket of a classifier does as well.
    """
    if not is_ours(row.method):
        return []
    return [
        other
        for other in rows
        if (other.table, other.seed) == (row.table, row.seed)
        and not is_ours(other.method)
        and (other.k in (None, row.k) or (other.method, other.k) == ("classifier", 1))
    ]


def compared(row: Row, rows: Iterable[Row]) -> list[Row]:
    """Whom the difference of a row is taken to: its rivals, and for FlowHash itself with λ = 0."""
    rows = list(rows)
    free = ("flowhash-free", row.table, row.k, row.seed)
    ours = row.method == "flowhash"
    return [*rivals(row, rows), *(other for other in rows if ours and other.place == free)]


def lead_over(rows: Sequence[Row], name: str, field: str) -> tuple[float, float] | None:
    """The interval of a difference to the rival called ``name``, over all seeds of a method.

    That over queries and seeds; of a single seed, or in files of an older FlowHash, the
    one over queries, the widest of all seeds. None where a row has none.
    """
    drawn = widest(rows, lambda row: row.over_seeds.get(name, {}).get(field))
    return drawn or widest(rows, lambda row: row.leads.get(name, {}).get(field))


def leads_all(field: str, rows: Mapping[Key, Sequence[Row]], key: Key) -> bool:
    """Whether FlowHash leads every rival with the whole interval above zero, over all seeds.

    Rows without intervals, of an older FlowHash, lead nobody.

    Args:
        field: of the row, one of those of ``Row.leads``; nothing leads in others.
        rows: of all methods.
        key: of the rows that may lead.
    """
    ours = rows.get(key, ())
    if key[0] != "flowhash" or not ours:
        return False
    every = [row for group in rows.values() for row in group]
    names = {rival_name(rival, row) for row in ours for rival in rivals(row, every)}
    leads = [lead_over(ours, name, field) for name in names]
    return bool(leads) and all(lead is not None and lead[0] > 0 for lead in leads)


def widest(
    rows: Sequence[Row], ends: Callable[[Row], Sequence[float] | None]
) -> tuple[float, float] | None:
    """The interval that holds those of all rows; None where a row has none."""
    found = [pair for row in rows if (pair := ends(row)) is not None]
    if not found or len(found) < len(rows):
        return None
    return min(low for low, _ in found), max(high for _, high in found)


def rival_name(rival: Row, row: Row) -> str:
    """What a rival of a row is called in ``Row.leads``: its method, with its k if that differs."""
    return rival.method if rival.k in (None, row.k) else f"{rival.method}, k = {rival.k}"


def is_ours(method: str) -> bool:
    """FlowHash, in any of its variants."""
    return method.partition("-")[0] == "flowhash"


def write_rows(path: str | Path, rows: Iterable[Row]) -> None:
    """Write rows as a JSON list of objects, one a line."""
    _write_lines(path, [row.to_json() for row in rows])


def _write_lines(path: str | Path, objects: Iterable[Mapping[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(each, allow_nan=False) for each in objects)
    replace_file(Path(path), f"[\n{lines}\n]\n".encode())


def rows_as_csv(rows: Iterable[Row]) -> str:
    """All plain fields of all rows, one line a row; floats with all digits, None as nothing.

    ``Row.leads`` and ``Row.over_seeds``, tables in themselves, are in the JSON.
    """
    text = io.StringIO()
    tables = ("leads", "over_seeds")
    names = [field.name for field in dataclasses.fields(Row) if field.name not in tables]
    writer = csv.DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(row.to_json() for row in rows)
    return text.getvalue()


def read_rows(path: str | Path) -> list[Row]:
    """Read what ``write_rows`` wrote.

    Raises:
        InputError: it is not such a file.
    """
    try:
        return [Row.from_json(values) for values in json.loads(Path(path).read_text())]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} holds no rows of an evaluation: {error}") from error


@dataclass(frozen=True)
class Buckets:
    """How classes lie in a method's buckets, for a picture.

    Attributes:
        name: of the method, with its k and table.
        counts: items of each class in each bucket [classes, d].
    """

    name: str
    counts: NDArray[np.int64]

    @property
    def loads(self) -> NDArray[np.int64]:
        """Items in each bucket [d]."""
        return np.asarray(self.counts.sum(axis=0))

    @property
    def purity(self) -> NDArray[np.float64]:
        """Share of each bucket's items that have its most frequent class [d]; 0 if empty."""
        return np.asarray(self.counts.max(axis=0) / np.maximum(self.loads, 1))


@dataclass(frozen=True)
class Example:
    """One query, and what each method returned for it, nearest first.

    Attributes:
        label: of the query.
        image: uint8 [height, width, 3], or None for vectors.
        answers: for each method's name, labels and images of what it returned.
    """

    label: int
    image: NDArray[np.uint8] | None
    answers: dict[str, list[tuple[int, NDArray[np.uint8] | None]]]


@dataclass(frozen=True)
class RecallPoint:
    """What a search with one setting finds and scans, on average over the queries.

    Attributes:
        recall: share of the ``RECALL_TOP`` nearest of all items that is found.
        scanned: share of the items that is compared with a query.
        setting: buckets or lists that are opened; the threshold on the worth of buckets, 1e300
            where only each query's best one is opened; HNSW's efSearch.
        opened: buckets or lists that a query opens; None without them.
        asked: the recall that the calibration was asked for; None where nobody asked for one.
    """

    recall: float
    scanned: float
    setting: float
    opened: float | None = None
    asked: float | None = None


@dataclass(frozen=True)
class RecallCurves:
    """Recall against items scanned, of several ways to search one table with the same queries.

    Attributes:
        table: what is searched: "train", "test", …
        k: buckets that an item is in, of FlowHash.
        items: that a query is compared with at most.
        queries: how many the figures are of.
        calibrated: how many others set the thresholds of the recalls that are asked for.
        points: by curve, a key of ``RECALL_CURVES``: rising.
        asked: FlowHash at the recalls that a calibration was asked for, rising.
        words: what is left out, and why.
    """

    table: str
    k: int
    items: int
    queries: int
    calibrated: int
    points: dict[str, tuple[RecallPoint, ...]]
    asked: tuple[RecallPoint, ...] = ()
    words: tuple[str, ...] = ()

    def scanned_at(self, curve: str, recall: float) -> float | None:
        """The share of the items that a curve scans where it comes to a recall.

        Between two points on a line; the least that it can scan where that finds more; None where
        it never finds as much.
        """
        recalls, scanned = np.array([[p.recall, p.scanned] for p in self.points[curve]]).T
        # More effort may find no more, or a little less, with a graph: those points are no use.
        best = np.maximum.accumulate(recalls)
        better = np.append(True, best[1:] > best[:-1])
        if recall > best[-1]:
            return None
        return float(np.interp(recall, recalls[better], scanned[better]))


def write_recall(path: str | Path, curves: Iterable[RecallCurves]) -> None:
    """Write every point as a JSON object, one a line, with its table and its curve."""
    lines = [
        {"table": each.table, "k": each.k, "items": each.items, "queries": each.queries,
         "calibrated": each.calibrated, "curve": name, **dataclasses.asdict(point)}
        for each in curves
        for name, points in {**each.points, "flowhash-asked": each.asked}.items()
        for point in points
    ]  # fmt: skip
    _write_lines(path, lines)


@dataclass
class Outcome:
    """Everything that tables, figures and the report are made of.

    Attributes:
        rows: of all seeds, tables, methods and k.
        draws: of each row, by its ``place``: what each draw of the queries gave.
        buckets: pictures of the first seed's test table, at the smallest k.
        examples: queries of the same.
        recall_curves: recall against items scanned, of each searched table; ``evaluate`` alone
            has them.
        curves: of the first seed's trainings.
        seconds: of each training, by name.
        class_names: one a class.
        kind: what was trained, in a few words.
        words: how the training differs from the paper's.
        evaluation: seconds that the evaluation took.
    """

    rows: list[Row] = field(default_factory=list)
    draws: dict[Place, Draws] = field(default_factory=dict)
    buckets: list[Buckets] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    recall_curves: list[RecallCurves] = field(default_factory=list)
    curves: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    kind: str = "measured"
    words: tuple[str, ...] = ()
    evaluation: float = 0.0


@dataclass(frozen=True)
class Report:
    """Everything the HTML report shows.

    Attributes:
        title: of the page.
        rows: of all tables, methods, k and seeds.
        facts: name and value pairs for the head of the page: data, command, time, machine.
        paper: the paper's own rows of the same experiment, as ``paper_rows`` gives them.
        buckets: pictures of buckets.
        examples: queries and answers.
        curves: lines of each training's ``metrics.jsonl``, by the training's name.
        class_names: one a class.
        notes: paragraphs: how this differs from the paper, and what to be careful about.
        recall_curves: recall against items scanned, of each searched table.
    """

    title: str
    rows: Sequence[Row]
    facts: Sequence[tuple[str, str]] = ()
    paper: Sequence[Row] = ()
    buckets: Sequence[Buckets] = ()
    examples: Sequence[Example] = ()
    curves: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    class_names: Sequence[str] = ()
    notes: Sequence[str] = ()
    recall_curves: Sequence[RecallCurves] = ()
