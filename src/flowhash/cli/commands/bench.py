"""``flowhash bench …``: measure on this machine, each figure beside its peer in the same run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash.cli import options
from flowhash.cli.output import Output
from flowhash.errors import InputError, MissingExtraError
from flowhash.evaluate import seconds_of
from flowhash.extras import require
from flowhash.progress_bars import tracked

if TYPE_CHECKING:
    from flowhash.table import HashTable, Hits

Work = tuple[Callable[[], object], int]  # what is timed, and how many queries it answers
BATCH, ALONE = "FlowHash, a batch", "FlowHash, one by one"
FLAT, SAME_LISTS = "FAISS Flat, a batch", "FAISS, same lists, a batch"
PEERS = {FLAT: "faiss_flat", SAME_LISTS: "faiss_same_lists"}  # as scripts know them

command = typer.Typer(
    name="bench",
    help="Measure FlowHash on this machine, against its peers in the same run.",
    no_args_is_help=True,
    add_completion=False,
)


@command.command(epilog="Example:  flowhash bench solver --classes 64 --buckets 256 --active 2")
def solver(
    *,
    classes: Annotated[int, typer.Option(min=1, help="Classes in a batch.")] = 64,
    buckets: Annotated[int, typer.Option(min=1, help="d.")] = 256,
    active: Annotated[int, typer.Option(min=1, help="k.")] = 1,
    penalty: Annotated[float, typer.Option(help="λ.")] = 0.1,
    repeats: Annotated[int, typer.Option(min=1, help="Problems to solve; medians are shown.")] = 9,
    output: Output,
) -> None:
    """Time the exact solver beside OR-Tools' minimum-cost flow, on random costs, one thread."""
    import statistics

    import numpy as np

    from flowhash.codes import assign_codes, ortools_codes

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
    *,
    top: Annotated[int, typer.Option(min=1, help="How many to find.")] = 10,
    queries: Annotated[int, typer.Option(min=1, help="Stored items that are searched for.")] = 2000,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 5,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of both sides; all cores if not given.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of queries.")] = 0,
    output: Output,
) -> None:
    """Time a table beside FAISS on the same items: exhaustive, and inverted lists of equal scan."""
    import numpy as np

    from flowhash.table import HashTable
    from flowhash.threads import available_threads

    threads = threads or available_threads()
    with HashTable.open(table) as opened:
        if len(opened) < 2:
            raise InputError(f"{table} has {len(opened)} items; expected two or more to search")
        parts = list(opened.batches(1 << 16, payloads=False))
        codes = np.concatenate([part.codes for part in parts])
        embeddings = np.concatenate([part.embeddings for part in parts])
        chosen = np.random.default_rng(seed).permutation(len(embeddings))[:queries]
        order, asked = codes[chosen], embeddings[chosen]

        def ours() -> Hits:
            return opened.search(order, asked, top, threads=threads)

        alone = range(min(200, len(asked)))
        works: dict[str, Work] = {BATCH: (ours, len(asked))}
        works[ALONE] = (
            lambda: [
                opened.search(order[[row]], asked[[row]], top, threads=threads) for row in alone
            ],
            len(alone),
        )
        works |= _peers(opened, codes, embeddings, chosen, top, threads, output)
        scanned = float(ours().scanned.mean())
        spent = _medians(works, repeats, output.progress)
        suf = len(opened) / scanned
        facts: dict[str, Any] = {
            "items": len(opened), "dim": opened.dim, "queries": len(asked), "threads": threads,
            "suf": suf, "microseconds_in_a_batch": spent[BATCH], "microseconds_alone": spent[ALONE],
        }  # fmt: skip
        lines = [
            f"{len(opened):,} items, dim {opened.dim}, {threads} threads; {scanned:,.0f} "
            f"scanned a query, SUF {suf:.1f}",
            f"FlowHash: {spent[BATCH]:.1f} µs a query in a batch of {len(asked)}, "
            f"{spent[ALONE]:.1f} µs alone",
        ]
    for name, key in PEERS.items():
        if name in spent:
            facts[f"{key}_microseconds"] = spent[name]
            facts[f"{key}_ratio"] = spent[name] / spent[BATCH]
            lines.append(
                f"{name}: {spent[name]:.1f} µs a query, {spent[name] / spent[BATCH]:.1f} times "
                "FlowHash's"
            )
    output.result(facts, *lines)


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
    # Nobody asks where the lists' centroids are: which lists to open is given.
    lists = list_index(np.zeros((table.buckets, table.dim), np.float32), table.metric)
    add_to_lists(lists, vectors, codes)
    lists.nprobe = table.active
    opened = np.ascontiguousarray(codes[chosen].astype(np.int64))
    nearness = np.zeros(opened.shape, np.float32)
    # With k > 1 an item is in k lists and may come k times; the copies are not even removed here.
    return {
        FLAT: (lambda: flat.search(some, top), len(some)),
        SAME_LISTS: (
            lambda: lists.search_preassigned(asked, top * table.active, opened, nearness),
            len(asked),
        ),
    }


def _medians(works: dict[str, Work], repeats: int, progress: bool) -> dict[str, float]:
    """Median microseconds a query of each, turn by turn, after one turn that warms up."""
    import statistics

    spent: dict[str, list[float]] = {name: [] for name in works}
    for turn in tracked(range(repeats + 1), "search", repeats + 1, progress):
        for name, (work, queries) in works.items():
            seconds = seconds_of(work)
            if turn:
                spent[name].append(1e6 * seconds / queries)
    return {name: statistics.median(values) for name, values in spent.items()}
