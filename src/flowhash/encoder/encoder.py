"""``Encoder``: base network, hash network and preprocessing as one; saved in one folder."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from flowhash.argument_checks import finite, matrix
from flowhash.codes import ordered_buckets, topk_codes
from flowhash.data import Preprocessing
from flowhash.encoder.encoder_files import (
    RECORD,
    described,
    fingerprint_of,
    read_encoder,
    rebuild_networks,
    write_encoder,
)
from flowhash.encoder.item_batches import count_of, in_batches
from flowhash.encoder.linear_map import LinearMap
from flowhash.engines import Engine, RemoteEngine, create_engine, is_address
from flowhash.errors import DamagedFileError, InputError, reason
from flowhash.model_files import described_by
from flowhash.networks import (
    BACKBONES,
    BaseEmbeddings,
    EmbeddingNetwork,
    device_of,
    run_networks,
)
from flowhash.progress_bars import shown
from flowhash.table import HashTable, Hits, check_vectors

BATCH = 500  # items that go through the networks at once
ROWS = 8_192  # embeddings that go through the hash network at once
ON_CPU = ("auto", "cpu")  # devices with which a few vectors stay on the CPU
# What to do instead where a metric does not suit vectors that the encoder has moved.
MOVED = {
    "cosine": "bring items and queries to length one and choose euclidean, which orders alike",
    "inner": 'choose euclidean, or learn with FlowHasher(metric="inner")',
}


@dataclass(frozen=True, eq=False)
class Encoded:
    """Items as an encoder sees them.

    Attributes:
        embeddings: for ranking [n, dim] float32.
        activations: one a bucket [n, d] float32.
        active: k.
        fingerprint: of the encoder; tables compare it with theirs.
    """

    embeddings: NDArray[np.float32]
    activations: NDArray[np.float32]
    active: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def codes(self) -> NDArray[np.int32]:
        """The k active buckets of each item [n, k] (Eq. 1)."""
        return topk_codes(self.activations, self.active)

    def ordered_buckets(self, first: int | None = None) -> NDArray[np.int32]:
        """The buckets in the order in which a query opens them [n, first]; all by default."""
        return ordered_buckets(self.activations, first)


class Joined(nn.Module):
    """The two networks of an encoder as one; a backbone that they share runs once.

    The networks are copied to the CPU and are not trained on: an encoder never changes under its
    fingerprint. Without a base, the hash network's outputs are the embeddings.

    Attributes:
        shared: whether both have one backbone.
        chained: whether the hash network takes the embeddings, and no items.

    Raises:
        InputError: a network takes embeddings that no network makes.
    """

    def __init__(self, base: EmbeddingNetwork | None, hash: EmbeddingNetwork) -> None:
        super().__init__()
        self.chained = isinstance(hash.backbone, BaseEmbeddings)
        _check_chain(base, hash)
        self.hash = copy.deepcopy(hash)
        self.base = None
        self.shared = False
        if base is not None:
            self.shared = _same(base.backbone, hash.backbone)
            # What the memo knows is not copied: the base gets the hash network's copy.
            memo = {id(base.backbone): self.hash.backbone} if self.shared else {}
            self.base = copy.deepcopy(base, memo)
        self.cpu().eval().requires_grad_(False)

    def on(self, device: torch.device) -> Joined:
        """Itself, on the device; moving what is there already takes longer than a single vector."""
        some = next(self.parameters(), None)
        return self if some is not None and some.device == device else self.to(device)

    def both(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings [n, dim] and activations [n, d]."""
        if self.base is None:
            made = self.hash(items)
            return made, made
        if self.chained:
            embeddings = self.base(items)
            return embeddings, self.hash(embeddings)
        if not self.shared:
            return self.base(items), self.hash(items)
        features = self.hash.backbone(items)
        return self.base.finish(features), self.hash.finish(features)

    def forward(self, items: Tensor) -> Tensor:
        """Embeddings and activations side by side [n, dim + d]; once where they are the same."""
        embeddings, activations = self.both(items)
        return activations if self.base is None else torch.cat((embeddings, activations), 1)


def _check_chain(base: EmbeddingNetwork | None, hash: EmbeddingNetwork) -> None:
    """Refuse a network that takes embeddings where none are made, or of another length."""
    if base is not None and isinstance(base.backbone, BaseEmbeddings):
        raise InputError("the base network takes embeddings; expected one that takes items")
    if not isinstance(hash.backbone, BaseEmbeddings):
        return
    made = None if base is None else base.outputs
    if made != hash.backbone.takes:
        raise InputError(
            f"the hash network takes embeddings of {hash.backbone.takes} numbers, but "
            f"{'there is no base network' if made is None else f'the base makes {made}'}; give "
            "the base network whose embeddings it takes"
        )


def _same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two backbones compute the same: a frozen one was copied, not trained.

    Of a user's own module the description does not say what it computes, so that only the very
    same one counts.
    """
    if one is other:
        return True
    specs: list[Any] = [one.spec, other.spec]
    if specs[0].get("name") not in BACKBONES or json.dumps(specs[0]) != json.dumps(specs[1]):
        return False
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(
        torch.equal(left[name].cpu(), right[name].cpu()) for name in left
    )


class Encoder:
    """Makes embeddings and activations of items.

    The networks are copied, so that nobody trains them further under the fingerprint. Where base
    and hash network have one backbone, with equal weights, it runs once an item.

    Args:
        base: makes the embeddings to rank by; None ranks with the hash network's outputs, so that
            an item takes one forward pass.
        hash: makes the activations, d outputs.
        preprocessing: what both take.
        active: k.
        class_names: of the classes it was trained on.

    Raises:
        InputError: ``active`` does not fit the hash network.
    """

    def __init__(
        self,
        base: EmbeddingNetwork | None,
        hash: EmbeddingNetwork,
        preprocessing: Preprocessing,
        active: int,
        class_names: Sequence[str] = (),
    ) -> None:
        if not 1 <= active <= hash.outputs:
            raise InputError(
                f"active is {active}; expected 1 to {hash.outputs}, the number of buckets"
            )
        self.networks = Joined(base, hash)
        self.preprocessing = preprocessing
        self.active = active
        self.class_names = tuple(class_names)
        self.fingerprint = fingerprint_of(*described(self))

    def __repr__(self) -> str:
        return (
            f"Encoder({self.dim} numbers to rank by, {self.active} of {self.buckets} buckets, "
            f"{len(self.class_names)} classes, {self.fingerprint})"
        )

    @property
    def base(self) -> EmbeddingNetwork | None:
        """The network that makes embeddings, or None where the hash network does."""
        return self.networks.base

    @property
    def hash(self) -> EmbeddingNetwork:
        """The network that makes activations."""
        return self.networks.hash

    @property
    def buckets(self) -> int:
        """d, how many buckets there are."""
        return self.hash.outputs

    @property
    def dim(self) -> int:
        """How many numbers an embedding has."""
        return (self.base or self.hash).outputs

    @cached_property
    def keeps_vectors(self) -> bool:
        """Whether it ranks by the vectors as the preprocessing leaves them."""
        return self.base is not None and self.base.passes_through

    @cached_property
    def linear(self) -> LinearMap | None:
        """What does the same for a few vectors without torch, where the networks are linear."""
        return LinearMap.of(self.base, self.hash, self.preprocessing)

    def encode_few(self, items: Any) -> Encoded | None:
        """:meth:`encode` on the CPU for a few rows of float32 and linear networks; None for others.

        Embeddings that are the vectors are the same to the last bit; of sums the last bits may be
        others, as they may by torch in batches of another size.
        """
        if self.linear is None or (made := self.linear.encode(items)) is None:
            return None
        return Encoded(*made, self.active, self.fingerprint)

    @property
    def input_dim(self) -> int | None:
        """How many numbers a vector to encode has; None for images, or where nothing says so."""
        if self.preprocessing.kind == "images":
            return None
        known = [*self.preprocessing.mean.shape, *self.preprocessing.std.shape]
        first = self.base if self.networks.chained and self.base else self.hash
        known.append(first.spec["backbone"].get("inputs"))
        return next((size for size in known if size is not None), None)

    def encode(
        self, items: Any, batch_size: int = BATCH, device: str = "auto", progress: bool = False
    ) -> Encoded:
        """Embeddings and activations of items.

        Args:
            items: images uint8 [n, height, width, 3] or vectors [n, numbers], as arrays, torch
                tensors (images also [n, 3, height, width]) or items of ``flowhash.data``; a list
                of image files or PIL images; or anything that yields single items or batches of
                them, with or without labels: a generator, a torch DataLoader. What is yielded is
                used and let go, batch by batch.
            batch_size: how many go through the networks at once.
            device: "auto", "cpu" or "cuda".
            progress: show a bar with rate and time left, if the error stream is a terminal.

        Raises:
            InputError: items of another kind or shape than the encoder was trained on.
            StorageError: an image file cannot be read; the message names it.
        """
        if device in ON_CPU and type(batch_size) is int and batch_size > 0:
            few = self.encode_few(items)
            if few is not None:
                return few
        parts = list(self.stream(items, batch_size, device, progress))
        if len(parts) == 1:
            return parts[0]
        nothing = Encoded(
            np.zeros((0, self.dim), np.float32), np.zeros((0, self.buckets), np.float32),
            self.active, self.fingerprint,
        )  # fmt: skip
        embeddings = [part.embeddings for part in (nothing, *parts)]
        activations = [part.activations for part in (nothing, *parts)]
        return Encoded(
            np.concatenate(embeddings), np.concatenate(activations), self.active, self.fingerprint
        )

    def stream(
        self, items: Any, batch_size: int = BATCH, device: str = "auto", progress: bool = False
    ) -> Iterator[Encoded]:
        """:meth:`encode`, one batch after the other: for more items than memory holds."""
        size = self.preprocessing.size
        batches, total = in_batches(items, batch_size, size, self.input_dim)
        chosen = device_of(device)
        self.networks.on(chosen)
        ready = (self.preprocessing(batch) for batch in batches)
        return shown(self._encoded(ready, chosen), "encode", total, progress)

    def _encoded(
        self, ready: Iterator[NDArray[np.float32]], device: torch.device
    ) -> Iterator[Encoded]:
        try:
            for ((embeddings, activations),) in run_networks(
                [self.networks], ready, device, "both"
            ):
                # A network may give what it was given, which is somebody else's: that is copied.
                # Activations, which may take much more memory, are nearly always new.
                copied, made = np.array(embeddings), np.ascontiguousarray(activations)
                if self.base is None:
                    made = copied
                elif self.hash.passes_through:
                    made = np.array(activations)
                yield Encoded(copied, made, self.active, self.fingerprint)
        except torch.OutOfMemoryError as error:
            raise InputError(
                f"{device} has no memory for a batch of this size; make batch_size smaller"
            ) from error

    @property
    def takes_embeddings(self) -> bool:
        """Whether :meth:`encode_stored` works: codes can be made of embeddings alone."""
        return self.base is None or self.networks.chained or self.base.passes_through

    def encode_stored(self, embeddings: ArrayLike, device: str = "auto") -> Encoded:
        """Items of which only the embeddings are left, as a table stores them.

        The activations are those of :meth:`encode`, made by the same network. That takes a hash
        network which works on embeddings: after ``flowhash.learn.adapt_encoder``, where the base
        gives vectors as they are, or where there is no base.

        Args:
            embeddings: [n, dim]; computed with as float32.
            device: "auto", "cpu" or "cuda".

        Raises:
            InputError: the hash network takes something else; embeddings are of another shape, or
                not finite.
        """
        rows: NDArray[np.float32] = matrix(embeddings, "embeddings", "numbers", (np.float32,))
        if rows.shape[1] != self.dim:
            raise InputError(
                f"embeddings have shape {rows.shape}; expected [n, {self.dim}], as this encoder "
                "makes them"
            )
        finite(rows, "embeddings")
        if self.base is None:  # the hash network's outputs are the embeddings
            return Encoded(rows, rows, self.active, self.fingerprint)
        if self.takes_embeddings and device in ON_CPU and self.linear is not None:
            found = self.linear.activations_of(rows)
            if found is not None:
                return Encoded(rows, found, self.active, self.fingerprint)
        if not self.takes_embeddings:
            raise InputError(
                f"the hash network takes {self.preprocessing.kind}, not embeddings, so that no "
                "codes can be made of embeddings alone; encode the items, or adapt the encoder "
                "first, with flowhash.learn.adapt_encoder"
            )
        chosen = device_of(device)
        network = self.networks.on(chosen).hash
        made = [np.zeros((0, self.buckets), np.float32)]
        blocks = (rows[start : start + ROWS] for start in range(0, len(rows), ROWS))
        made += [part for (part,) in run_networks([network], blocks, chosen)]
        return Encoded(rows, np.concatenate(made), self.active, self.fingerprint)

    @overload
    def create_table(self, path: Path | None = None, **options: Any) -> HashTable: ...

    @overload
    def create_table(self, path: str, **options: Any) -> HashTable | RemoteEngine: ...

    def create_table(
        self, path: str | Path | None = None, **options: Any
    ) -> HashTable | RemoteEngine:
        """An empty table for what this encoder makes; it refuses what another one makes.

        Args:
            path: a new or empty folder to keep it in, or the address of an engine; None keeps it
                in memory.
            **options: ``metric``, ``dtype`` and ``ids`` of :meth:`HashTable.create`. The metric is
                Euclidean by default, as in training; of embeddings of length one, cosine gives the
                same order. And ``active``, in how many buckets an item may be, where that is more
                than the encoder's own k: items can be given further ones.
        """
        metric = options.get("metric", "euclidean")
        if metric in MOVED and moves_vectors(self):
            raise InputError(
                f"metric is {metric!r}, but the encoder subtracts a mean from the vectors and "
                "ranks by what is left, whose angles and products are other ones; "
                f"{MOVED[metric]}"
            )
        sizes: dict[str, Any] = {
            "buckets": self.buckets,
            "dim": self.dim,
            "active": max(self.active, options.pop("active", self.active)),
            "encoder": self.fingerprint,
        }
        if isinstance(path, str) and is_address(path):
            return create_engine(path, **sizes, **options)
        return HashTable.create(path, **sizes, **options)

    def add(
        self,
        table: Engine,
        items: Any,
        ids: Any = None,
        payloads: Sequence[dict[str, Any] | None] | None = None,
        batch_size: int = BATCH,
        device: str = "auto",
        progress: bool = False,
    ) -> NDArray[Any]:
        """Encode items and add them to a table, batch by batch.

        Each batch is in the table, and on disk, before the next is encoded: when something is
        raised, what came before stays added.

        Args:
            table: of :meth:`create_table`, or any engine's that has the same sizes.
            items: as for :meth:`encode`.
            ids: one an item, an array or list; None lets the table count.
            payloads: one an item, or None.
            batch_size: how many are encoded and added at once.
            device: "auto", "cpu" or "cuda".
            progress: show a bar with rate and time left.

        Returns:
            The ids [n].

        Raises:
            InputError: the table is of another encoder; items, ids or payloads do not fit.
        """
        parts = self.stream(items, batch_size, device, progress)
        check_table(self, table)
        given = {"ids": ids, "payloads": payloads}
        given = {name: values for name, values in given.items() if values is not None}
        for name, values in given.items():
            if not (hasattr(values, "__len__") and hasattr(values, "__getitem__")):
                raise InputError(
                    f"{name} is a {type(values).__name__}; expected an array or a list"
                )
        _check_lengths(given, count_of(items), "nothing was added")
        added: list[NDArray[Any]] = []
        count = 0
        for part in parts:
            rows = slice(count, count + len(part))
            some = {name: values[rows] for name, values in given.items()}
            added.append(table.add(part.codes, part.embeddings, **some, encoder=part.fingerprint))
            count += len(part)
        _check_lengths(given, count, "the items were added")
        return np.concatenate(added) if added else np.zeros(0, np.int64)

    def search(
        self,
        table: Engine,
        items: Any,
        top: int = 16,
        *,
        batch_size: int = BATCH,
        device: str = "auto",
        progress: bool = False,
        **options: Any,
    ) -> Hits:
        """Encode queries and search a table for the items nearest to them.

        Args:
            table: of this encoder.
            items: the queries, as for :meth:`encode`.
            top: how many to return of each.
            batch_size: how many are encoded at once.
            device: "auto", "cpu" or "cuda".
            progress: show a bar with rate and time left.
            **options: ``probe``, ``at_least``, ``where``, ``threads`` and ``payloads`` of
                :meth:`HashTable.search`.

        Raises:
            InputError: the table is of another encoder; items or options do not fit.
        """
        check_table(self, table)
        queries = self.encode(items, batch_size, device, progress)
        return search_encoded(table, queries, top, **options)

    def export_onnx(self, path: str | Path, first: int | None = None) -> None:
        """Write the encoder as one ONNX model; see ``onnx_export.export_onnx``."""
        from flowhash.encoder.onnx_export import export_onnx

        export_onnx(self, path, first)

    def save(self, folder: str | Path) -> None:
        """Write the encoder to a folder, in place of one that is there.

        Killed at any moment, it leaves the old encoder or the new one.
        """
        write_encoder(Path(folder), self)

    @classmethod
    def load(
        cls, folder: str | Path, backbone: nn.Module | None = None, hub: bool | None = None
    ) -> Encoder:
        """Read an encoder that ``save`` wrote.

        Nothing is fetched from the network: the folder holds all that a network is built of.

        Args:
            folder: where it is.
            backbone: for networks of your own, a module of the same class; weights are put in.
            hub: whether a hub of models may be asked for what the folder does not say of a network
                of transformers or timm; None asks the environment, ``FLOWHASH_HUB=1``.

        Raises:
            InputError: there is no encoder, it is of a newer FlowHash, or it needs ``backbone`` or
                ``hub``.
            DamagedFileError: a file is damaged; the message names it.
        """
        path = Path(folder) / RECORD
        allowed = os.environ.get("FLOWHASH_HUB") == "1" if hub is None else hub
        record, tensors = read_encoder(Path(folder))
        with described_by(path, "encoder"):
            base, hashing = rebuild_networks(record, tensors, backbone, allowed)
            arrays = {name: tensors[f"preprocessing.{name}"].numpy() for name in ("mean", "std")}
            preprocessing = Preprocessing.from_json(record["preprocessing"], arrays)
            encoder = cls(base, hashing, preprocessing, record["active"], record["class_names"])
        if encoder.fingerprint != record["fingerprint"]:
            raise DamagedFileError(
                f"{path} names the fingerprint {reason(record['fingerprint']):.40}, but the "
                f"encoder it describes has {encoder.fingerprint}; restore the folder from a copy"
            )
        return encoder


def moves_vectors(encoder: Encoder) -> bool:
    """Whether it ranks by the vectors themselves, but moved, or scaled by more than one number."""
    taken = encoder.preprocessing
    scaled = taken.std.size > 1 and bool(np.ptp(taken.std))
    as_they_are = encoder.base is not None and encoder.base.passes_through
    return as_they_are and (bool(np.any(taken.mean)) or scaled)


def check_table(encoder: Encoder, table: Engine) -> None:
    """Refuse a table of another encoder, or one of other sizes, before anything is encoded.

    A table of more buckets would take the codes, but some of its buckets would stay empty for ever.
    """
    check_vectors(table.encoder, encoder.fingerprint)
    for name in ("buckets", "dim", "active"):
        has, makes = getattr(table, name), getattr(encoder, name)
        room = name == "active" and has > makes  # for second buckets
        if has != makes and not room:
            raise InputError(
                f"the table has {name}={has}, but this encoder makes {name}={makes}; use a table "
                "of encoder.create_table()"
            )


def _check_lengths(given: dict[str, Any], count: int | None, state: str) -> None:
    for name, values in given.items():
        if count is not None and len(values) != count:
            raise InputError(
                f"{name} has {len(values)} entries for {count} items; expected one each; {state}"
            )


def search_encoded(table: Engine, queries: Encoded, top: int, **options: Any) -> Hits:
    """Search with as many ordered buckets as the options may open."""
    if options.get("recall") is not None:  # which decides by how sure the network is
        return table.search(
            queries.activations, queries.embeddings, top, encoder=queries.fingerprint, **options
        )
    if options.get("probe") is None:  # a table may have room for more buckets an item than these
        options["probe"] = queries.active
    first: int | None = None
    if options.get("at_least") is None:
        wanted = options.get("probe") or queries.active
        # What is no number of buckets goes to the table as it is, which says so.
        first = min(wanted, table.buckets) if isinstance(wanted, int) and wanted > 0 else None
    return table.search(
        queries.ordered_buckets(first),
        queries.embeddings,
        top,
        encoder=queries.fingerprint,
        **options,
    )
