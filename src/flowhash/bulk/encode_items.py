"""Items of any kind as codes and embeddings in parquet files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flowhash.argument_checks import whole_number
from flowhash.bulk.parquet_files import matrix, plain, write_columns
from flowhash.bulk.runners import Runner
from flowhash.bulk.work_folder import Place, Work, WorkPlan, even_sizes, identity_of, part_rows
from flowhash.data import NAMED, Collection, open_collection
from flowhash.errors import InputError
from flowhash.extras import require
from flowhash.indexing import check_id_kind, check_items

if TYPE_CHECKING:
    from flowhash.encoder import Encoder

ROWS = 50_000  # items of a part
BATCH = 5000  # items that are in memory at once
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Source:
    """Items as they are opened, on every node in the same way.

    Attributes:
        source: a folder of images, a file, or the name of a data set.
        split: of a data set.
        options: of ``open_collection``, by their names.
    """

    source: str
    split: str = "train"
    options: tuple[tuple[str, Any], ...] = ()

    def open(self, encoder: Encoder, progress: bool = False) -> Collection:
        """The items, brought to the encoder's size."""
        return open_collection(
            self.source,
            size=encoder.preprocessing.size,
            split=self.split,
            progress=progress,
            **dict(self.options),
        )


@dataclass(frozen=True)
class Choices:
    """How items are encoded.

    Attributes:
        ids: "numbers" or "names"; None for names where items are files, else numbers.
        probe: ordered buckets that are kept of each, for queries; None for k.
        pictures: keep a small picture of each image.
        batch: items in memory at once.
        device: "auto", "cpu" or "cuda".
        activations: keep all outputs of the hash network, for queries that ask for a recall.
    """

    ids: str | None = None
    probe: int | None = None
    pictures: bool = True
    batch: int = BATCH
    device: str = "auto"
    activations: bool = False


USUAL = Choices()


@dataclass(frozen=True)
class Encoding:
    """A job: some items as rows of a parquet file."""

    encoder: Path
    source: Source
    count: int  # of all items
    choices: Choices  # in which ids and probe are told
    out: Place
    rows: int  # of a part

    def open(self) -> tuple[Encoder, Collection]:
        """Load the encoder and open the items, once a worker."""
        from flowhash.encoder import Encoder

        encoder = Encoder.load(self.encoder)
        items = self.source.open(encoder)
        if len(items) != self.count:
            raise InputError(
                f"{self.source.source} has {len(items)} items on a worker, but {self.count} where "
                "the command was given; every node must see the same files"
            )
        return encoder, items

    def do(self, opened: tuple[Encoder, Collection], part: int, threads: int | None) -> int:
        """Encode one part, batch by batch."""
        if threads is not None:  # otherwise torch takes all cores in every worker
            require("torch", "learn").set_num_threads(threads)
        encoder, items = opened
        first, last = part * self.rows, min(self.count, (part + 1) * self.rows)
        codes, vectors, buckets, activations = [], [], [], []
        payloads: list[str] = []
        for start in range(first, last, self.choices.batch):
            stop = min(last, start + self.choices.batch)
            taken = items.take(np.arange(start, stop))
            made = encoder.encode(taken, device=self.choices.device)
            codes.append(made.codes)
            vectors.append(made.embeddings)
            buckets.append(made.ordered_buckets(self.choices.probe))
            if self.choices.activations:
                activations.append(made.activations)
            told = items.payloads(start, taken, self.choices.pictures)
            payloads += [json.dumps(payload, separators=(",", ":")) for payload in told]
        columns = {
            "id": plain(
                list(map(str, items.names[first:last]))
                if self.choices.ids == "names"
                else np.arange(first, last, dtype=np.int64)
            ),
            "code": matrix(np.concatenate(codes)),
            "embedding": matrix(np.concatenate(vectors)),
            "buckets": matrix(np.concatenate(buckets)),
            "payload": plain(payloads),
        }
        if activations:
            columns["activations"] = matrix(np.concatenate(activations))
        write_columns(self.out, part, columns, facts_of(encoder))
        return last - first


def facts_of(encoder: Encoder) -> dict[str, Any]:
    """What a file says of the encoder; it is the same in all files."""
    from flowhash.encoder import moves_vectors

    return {
        "kind": "encoded", "version": 1, "encoder": encoder.fingerprint,
        "buckets": encoder.buckets, "active": encoder.active, "dim": encoder.dim,
        **({"moved": True} if moves_vectors(encoder) else {}),
    }  # fmt: skip


def encode(
    encoder: Path,
    source: Source,
    out: Path,
    runner: Runner,
    choices: Choices = USUAL,
    *,
    rows: int | None = None,
    restart: bool = False,
    show: bool = False,
) -> Work:
    """Encode items into parquet files.

    Args:
        encoder: the folder of a saved encoder.
        source: the items.
        out: folder for the files; the same call goes on where it was stopped.
        runner: who does it.
        choices: how.
        rows: items of a file.
        restart: drop what is in ``out`` and begin anew.
        show: whether to show a bar.

    Raises:
        InputError: the encoder does not take the items, or ``out`` holds something else.
    """
    require("torch", "learn")
    require("pyarrow", "parquet")
    from flowhash.encoder import Encoder

    loaded = Encoder.load(encoder)
    items = source.open(loaded, show)
    _check(loaded, choices)
    most = part_rows(rows, ROWS)
    # On the CPU for a cluster, where perhaps only workers have GPUs.
    check_items(loaded, items, source.source, choices.device if runner.here else "cpu")
    chosen = replace(
        choices,
        ids=choices.ids or ("names" if items.files else "numbers"),
        probe=choices.probe or loaded.active,
    )
    plan = WorkPlan(
        "encode",
        {"encoder": loaded.fingerprint, "items": _identity(items, source)},
        {
            "ids": chosen.ids,
            "probe": chosen.probe,
            "pictures": chosen.pictures,
            **({"activations": True} if chosen.activations else {}),
        },
        even_sizes(len(items), most),
    )
    with Work(out, plan, restart=restart) as work:
        job = Encoding(encoder.absolute(), source, len(items), chosen, work.place, most)
        work.carry_out(job, runner, "encode", show)
        work.finish()
    return work


def _check(encoder: Encoder, choices: Choices) -> None:
    """Refuse what cannot be encoded, before there is a folder."""
    check_id_kind(choices.ids)
    if choices.probe is not None and not 1 <= choices.probe <= encoder.buckets:
        raise InputError(
            f"is {choices.probe}; expected 1 to {encoder.buckets}, the number of buckets",
            subject="probe",
        )
    if choices.device.partition(":")[0] not in DEVICES:
        raise InputError(f"is {choices.device!r}; expected {', '.join(DEVICES)}", subject="device")
    whole_number("batch", choices.batch, 1)


def _identity(items: Collection, source: Source) -> list[Any]:
    """What tells items from others: where they are, how many, and their names or their file."""
    digest = hashlib.sha256()
    if items.files:
        for name in items.names:
            digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    file = Path(items.source)
    status = identity_of([file]) if source.source not in NAMED and file.is_file() else []
    options = sorted([name, str(value)] for name, value in source.options)
    return [source.source, source.split, options, len(items), digest.hexdigest(), status]
