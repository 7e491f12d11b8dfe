"""``flowhash search``: the stored items nearest to a query, and how little was scanned."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash import engines
from flowhash.cli import options
from flowhash.cli.locations import encoder_folder, load_encoder, place_of, read_queries, shown
from flowhash.cli.output import Output, telling_if_old
from flowhash.errors import InputError
from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.encoder import Encoder
    from flowhash.engines import BrowsedEngine, RemoteEngine
    from flowhash.table import HashTable, Hits

STORED = "id:"

command = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class EncodedQuery:
    """A query, ready for the table: the buckets in its order, its embedding and activations."""

    name: str
    order: Any
    embedding: Any
    activations: Any = None
    active: int | None = None  # buckets to open where nobody says how many; the table's k
    stored: Any = None  # the id of a stored item, which does not find itself


@command.command(epilog="Example:  flowhash search pets.table cat.jpg --top 5")
def search(
    table: options.TablePlace,
    queries: Annotated[
        list[str],
        typer.Argument(
            metavar="QUERY…",
            help="An image, an .npy or .npz file of vectors, or id:ID for an item of the table.",
        ),
    ],
    *,
    encoder: options.OwnEncoder = None,
    top: Annotated[int, typer.Option(min=1, help="How many to show of each query.")] = 10,
    probe: options.Probe = None,
    at_least: Annotated[
        int | None, typer.Option(min=1, help="Open further buckets until so many items are found.")
    ] = None,
    recall: options.Recall = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Of an address: only items with this in their payload, such as label=cat. May be "
            "given again: all keys must hold, with one of the values given for each.",
        ),
    ] = None,
    device: options.Device = "auto",
    output: Output,
) -> None:
    """Find the stored items nearest to a query, and see how little was scanned."""
    from flowhash.table import check_recall

    place = place_of(table)
    wanted = conditions(where or ())
    if wanted is not None and isinstance(place, Path):
        raise InputError(
            f"--where is for addresses: {place} is a folder, and only an engine, such as "
            "PostgreSQL, filters by payloads. `flowhash copy` puts a table into one"
        )
    if encoder is not None:  # also where no query needs it
        encoder_folder(encoder)
    if recall is not None:
        check_recall(probe, wanted)
    with engines.open_any(place) as stored:
        if not len(stored):
            raise InputError(f"{shown(place)} is empty; put items into it with `flowhash index`")
        further = (at_least is not None and recall is None) or (probe or 0) > stored.active
        known = recall is not None, further
        ready = list(_queries(stored, place, encoder, queries, known, device))
        if not ready:
            raise InputError(f"{', '.join(queries)} holds no query; give one or more rows")
        how = {"probe": probe, "at_least": at_least, "where": wanted, "recall": recall}
        with telling_if_old():
            _answer(stored, ready[0], top, how)  # loads what is compiled: not the search's time
            answers = [_answer(stored, query, top, how) for query in ready]
        output.result({"table": shown(place), "items": len(stored), "answers": answers})
        _print(answers, len(stored), output)


def conditions(texts: Sequence[str]) -> dict[str, Any] | None:
    """``KEY=VALUE`` words as a filter: all keys must hold, one of the values of each.

    What JSON reads as a number, true, false or null is that or the same text, since labels of
    ``index`` are texts; in quotes it is text only.

    Raises:
        InputError: one has no ``=``.
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise InputError(f"--where is {text!r}; expected KEY=VALUE, such as label=cat")
        values = found.setdefault(key, [])
        try:
            read = json.loads(value, parse_constant=str)
        except ValueError:
            read = value
        if isinstance(read, str | list | dict):
            values.append(read if isinstance(read, str) else value)
        else:
            values += [read, value]
    return {key: some if len(some) > 1 else some[0] for key, some in found.items()} or None


def _queries(
    table: HashTable | RemoteEngine,
    place: str | Path,
    encoder: Path | None,
    texts: Sequence[str],
    known: tuple[bool, bool],
    device: str,
) -> Iterator[EncodedQuery]:
    """Each query; ``known`` says whether for a recall, and whether to open further buckets."""
    from flowhash.indexing import own_encoder

    found: Any = None
    recall, further = known
    for text in texts:
        if text.startswith(STORED) and not recall:
            yield _stored(table, text.removeprefix(STORED), further)
            continue
        if found is None:
            run = own_encoder(table, place, encoder)
            if run is None:
                raise InputError(
                    f"{shown(place)} does not say which encoder made it; give --encoder, the run "
                    "of `flowhash fit`"
                )
            found = load_encoder(run)
        if text.startswith(STORED):
            query = _stored(table, text.removeprefix(STORED), further)
            yield _routed(found, table, query, device)
            continue
        yield from _encoded(found, table, text, device)


def _stored(table: BrowsedEngine, text: str, further: bool) -> EncodedQuery:
    from flowhash.data import NAME, plain_payload

    item: Any = text
    if table.id_kind == "int64":
        try:
            item = int(text)
        except ValueError:
            raise InputError(
                f"{STORED}{text} is no whole number, but the ids of this table are"
            ) from None
    if further:
        raise InputError(
            f"--probe and --at-least open further buckets, but of a stored item only the "
            f"{table.active} that it is in are known, not an order of all; leave them out, give "
            "--recall, or give the item itself"
        )
    try:
        found = table[item]
    except KeyError:
        raise InputError(f"the table has no item {text}; look at the ids of other hits") from None
    name = plain_payload(found.payload).get(NAME) or text
    return EncodedQuery(f"item {name}", found.code, found.embedding, stored=item)


def _routed(
    encoder: Encoder, table: BrowsedEngine, query: EncodedQuery, device: str
) -> EncodedQuery:
    """A stored item with its activations, by which a recall opens buckets."""
    from flowhash.encoder import check_table

    check_table(encoder, table)
    if not encoder.takes_embeddings:
        raise InputError(
            f"--recall came with {STORED}{query.stored}, of which only the embedding is kept, and "
            f"the encoder takes {encoder.preprocessing.kind}; leave --recall out, or give the item "
            "itself"
        )
    made = encoder.encode_stored(query.embedding[None], device)
    return replace(query, activations=made.activations[0])


def _encoded(
    encoder: Encoder, table: BrowsedEngine, text: str, device: str
) -> Iterator[EncodedQuery]:
    names, items = read_queries(encoder, table, text)
    made = encoder.encode(items, device=device)
    for name, order, activations, embedding in zip(
        names, made.ordered_buckets(None), made.activations, made.embeddings, strict=True
    ):
        yield EncodedQuery(name, order, embedding, activations, encoder.active)


def _answer(
    table: BrowsedEngine, query: EncodedQuery, top: int, how: dict[str, Any]
) -> dict[str, Any]:
    import numpy as np

    from flowhash.table import opened_for_recall

    extra = query.stored is not None  # it finds itself, and is left out
    order, embedding, recall = query.order[None], query.embedding[None], how["recall"]
    options = {name: value for name, value in how.items() if name != "recall"}
    began = time.perf_counter()
    if recall is not None:  # in steps: which buckets are opened is told, too
        order, options["probe"] = opened_for_recall(
            table, query.activations[None], recall, top, **options
        )
    elif extra:  # its own buckets, which may be fewer than k
        options["probe"] = len(query.order)
    elif options["probe"] is None:
        options["probe"] = query.active
    hits = table.search(order, embedding, top + extra, payloads=True, buckets=True, **options)
    seconds = time.perf_counter() - began
    return {
        "query": query.name,
        "recall": recall,
        "opened": order[0, : int(hits.opened[0])].tolist(),
        "scanned": int(hits.scanned[0]),
        "milliseconds": 1000 * seconds,
        "hits": _hits(hits.without(np.array([query.stored], hits.ids.dtype)) if extra else hits),
    }


def _hits(hits: Hits) -> list[dict[str, Any]]:
    """The hits of one query, as scripts get them."""
    from flowhash.data import LABEL, NAME, plain_payload

    assert hits.payloads is not None
    assert hits.buckets is not None
    ids, found = hits.ids[0].tolist(), []
    for place in range(int(hits.counts[0])):
        payload = plain_payload(hits.payloads[0][place])
        found.append({
            "id": ids[place], "distance": float(hits.distances[0, place]),
            "label": payload.pop(LABEL, None), "name": payload.pop(NAME, None),
            "buckets": [bucket for bucket in hits.buckets[0, place].tolist() if bucket >= 0],
            "payload": payload or None,
        })  # fmt: skip
    return found


def _print(answers: list[dict[str, Any]], items: int, output: Output) -> None:
    escape = require("rich.markup", "cli").escape
    for answer in answers:
        table = require("rich.table", "cli").Table(
            title=escape(answer["query"]), title_justify="left"
        )
        for name in ("", "distance", "class", "id", "buckets"):
            table.add_column(name, justify="right" if name in ("", "distance") else "left")
        for rank, hit in enumerate(answer["hits"], 1):
            label = "" if hit["label"] is None else str(hit["label"])
            table.add_row(
                str(rank), f"{hit['distance']:.4f}", escape(label),
                escape(str(hit["id"])), ", ".join(map(str, hit["buckets"])),
            )  # fmt: skip
        output.show(table)
        opened, scanned = answer["opened"], answer["scanned"]
        buckets = ", ".join(map(str, opened[:8])) + (", …" if len(opened) > 8 else "")
        fewer = f", {items / scanned:.1f} times fewer," if 0 < scanned < items else ""
        output.show(
            f"opened bucket{'s' * (len(opened) != 1)} {buckets}: scanned {scanned:,} of {items:,} "
            f"items{fewer} in {answer['milliseconds']:.2f} ms\n"
        )
