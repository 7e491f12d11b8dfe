"""``flowhash bench …``: measure on this machine, each figure beside its peer in the same run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash.cli import options
from flowhash.cli.output import Output
from flowhash.errors import InputError, MissingExtraError
from flowhash.extras import require
from flowhash.progress_bars import tracked
from flowhash.stopwatch import seconds_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from flowhash.table import HashTable

Work = Callable[[], object]

command = typer.Typer(
    name="bench",
    help="Measure FlowHash on this machine, against its peers in the same run.",
    no_args_is_help=True,
    add_completion=False,
)


@command.command(epilog="Example:  flowhash bench solver --classes 64 --buckets 256 --active 2")
def solver(
    classes: Annotated[int, typer.Option(min=1, help="Classes in a batch.")] = 64,
    buckets: Annotated[int, typer.Option(min=1, help="d.")] = 256,
    active: Annotated[int, typer.Option(min=1, help="k.")] = 1,
    penalty: Annotated[float, typer.Option(help="λ.")] = 0.1,
    repeats: Annotated[int, typer.Option(min=1, help="Problems to solve; medians are shown.")] = 9,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Time the exact solver beside OR-Tools' minimum-cost flow, on random costs, one thread."""
    import statistics

    import numpy as np

    from flowhash.codes import assign_codes, ortools_codes

    output = Output(quiet, as_json)
    penalties = np.full(buckets, penalty)
    ours: list[float] = []
    theirs: list[float] = []
    for problem in tracked(range(repeats), "solve", repeats, output.progress):
        means = np.random.default_rng([problem, classes, buckets]).random((classes, buckets))
        if not problem:
            assign_codes(means, active, penalty)  # compile
        ours.append(seconds_of(partial(assign_codes, means, active, penalty)))
        try:
            theirs.append(seconds_of(partial(ortools_codes, means, active, penalties)))
        except MissingExtraError as error:
            if not problem:
                output.say(f"without OR-Tools: {error}")
    facts: dict[str, Any] = {
        "classes": classes, "buckets": buckets, "active": active, "penalty": penalty,
        "milliseconds": 1000 * statistics.median(ours), "ortools_milliseconds": None, "gain": None,
    }  # fmt: skip
    lines = [
        f"{classes} classes × {buckets} buckets, k = {active}, λ = {penalty:g}: "
        f"{facts['milliseconds']:.3f} ms, median of {repeats}"
    ]
    if theirs:
        facts["ortools_milliseconds"] = 1000 * statistics.median(theirs)
        facts["gain"] = statistics.median(np.divide(theirs, ours).tolist())
        lines.append(
            f"OR-Tools: {facts['ortools_milliseconds']:.3f} ms, {facts['gain']:.1f} times as long"
        )
    output.result(facts, *lines)


@command.command(epilog="Example:  flowhash bench search pets.table")
def search(
    table: options.TablePath,
    top: Annotated[int, typer.Option(min=1, help="How many to find.")] = 10,
    queries: Annotated[int, typer.Option(min=1, help="Stored items that are searched for.")] = 2000,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 5,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of both sides; all cores if not given.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of queries.")] = 0,
    config: options.Config = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Time a table beside FAISS on the same items: exhaustive, and inverted lists of equal scan."""
    import numpy as np

    from flowhash.table import HashTable
    from flowhash.threads import available_threads

    output = Output(quiet, as_json)
    threads = threads or available_threads()
    with HashTable.open(table) as opened:
        if len(opened) < 2:
            raise InputError(f"{table} has {len(opened)} items; expected two or more to search")
        codes, embeddings = _content(opened)
        chosen = np.random.default_rng(seed).permutation(len(embeddings))[:queries]
        order, asked = codes[chosen], embeddings[chosen]

        def ours() -> Any:
            return opened.search(order, asked, top, threads=threads)

        works: dict[str, Work] = {"FlowHash, a batch": ours}
        works["FlowHash, one by one"] = lambda: [
            opened.search(order[[row]], asked[[row]], top, threads=threads)
            for row in range(min(200, len(asked)))
        ]
        works |= _peers(opened, codes, embeddings, chosen, top, threads, output)
        hits = ours()
        spent = _medians(works, repeats, output.progress)
        _answer(opened, hits, spent, len(asked), min(200, len(asked)), threads, output)


def _content(table: HashTable) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    import numpy as np

    parts = list(table.batches(1 << 16, payloads=False))
    codes = np.concatenate([part.codes for part in parts])
    return codes, np.concatenate([part.embeddings for part in parts])


def _peers(
    table: HashTable, codes: Any, embeddings: Any, chosen: Any, top: int, threads: int,
    output: Output,
) -> dict[str, Work]:  # fmt: skip
    """FAISS: everything scanned, and the same lists; nothing where it is not installed."""
    import numpy as np

    from flowhash.evaluate import FLAT_PAIRS, add_to_lists, flat_index, list_index

    try:
        faiss = require("faiss", "evaluate")
    except MissingExtraError as error:
        output.say(f"without FAISS: {error}")
        return {}
    faiss.omp_set_num_threads(threads)
    vectors = np.ascontiguousarray(embeddings)
    if table.metric == "cosine":
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    flat = flat_index(vectors, table.metric)
    asked = np.ascontiguousarray(vectors[chosen])
    some = asked[: max(1, FLAT_PAIRS // len(vectors))]
    scale = len(asked) / len(some)
    works: dict[str, Work] = {"FAISS Flat, a batch": _Scaled(lambda: flat.search(some, top), scale)}
    # Nobody asks where the lists' centroids are: which lists to open is given.
    lists = list_index(np.zeros((table.buckets, table.dim), np.float32), table.metric)
    add_to_lists(lists, vectors, codes)
    lists.nprobe = table.active
    opened = np.ascontiguousarray(codes[chosen].astype(np.int64))
    nearness = np.zeros(opened.shape, np.float32)
    # With k > 1 an item is in k lists and may come k times; the copies are not even removed here.
    works["FAISS, same lists, a batch"] = lambda: lists.search_preassigned(
        asked, top * table.active, opened, nearness
    )
    return works


class _Scaled:
    """Work on a part of the queries, whose time stands for all of them."""

    def __init__(self, work: Work, scale: float) -> None:
        self.work, self.scale = work, scale

    def __call__(self) -> object:
        return self.work()


def _medians(works: dict[str, Work], repeats: int, progress: bool) -> dict[str, float]:
    """Median seconds of each, turn by turn, after one turn that warms up."""
    import statistics

    spent: dict[str, list[float]] = {name: [] for name in works}
    for turn in tracked(range(repeats + 1), "search", repeats + 1, progress):
        for name, work in works.items():
            seconds = seconds_of(work) * getattr(work, "scale", 1.0)
            if turn:
                spent[name].append(seconds)
    return {name: statistics.median(values) for name, values in spent.items()}


def _answer(
    table: HashTable, hits: Any, spent: dict[str, float], queries: int, single: int, threads: int,
    output: Output,
) -> None:  # fmt: skip
    batch = spent["FlowHash, a batch"]
    alone = spent["FlowHash, one by one"] / single
    suf = len(table) / float(hits.scanned.mean())
    facts: dict[str, Any] = {
        "items": len(table), "dim": table.dim, "queries": queries, "threads": threads, "suf": suf,
        "microseconds_in_a_batch": 1e6 * batch / queries, "microseconds_alone": 1e6 * alone,
    }  # fmt: skip
    lines = [
        f"{len(table):,} items, dim {table.dim}, {threads} threads; {hits.scanned.mean():,.0f} "
        f"scanned a query, SUF {suf:.1f}",
        f"FlowHash: {1e6 * batch / queries:.1f} µs a query in a batch of {queries}, "
        f"{1e6 * alone:.1f} µs alone",
    ]
    for name in ("FAISS Flat, a batch", "FAISS, same lists, a batch"):
        if name in spent:
            key = "faiss_flat" if "Flat" in name else "faiss_same_lists"
            facts[f"{key}_microseconds"] = 1e6 * spent[name] / queries
            facts[f"{key}_ratio"] = spent[name] / batch
            lines.append(
                f"{name}: {1e6 * spent[name] / queries:.1f} µs a query, "
                f"{spent[name] / batch:.1f} times FlowHash's"
            )
    output.result(facts, *lines)
