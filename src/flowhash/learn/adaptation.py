"""Adaptation of an encoder's buckets to items that are in a table, without labels."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import finite, matrix, numbers, whole_number
from flowhash.encoder import Encoder
from flowhash.errors import InputError
from flowhash.learn.bucket_centres import BucketCentres, fit_centres
from flowhash.networks import BaseEmbeddings, EmbeddingNetwork, PlainVectors
from flowhash.table import METRICS, draw_sample

PER_BUCKET = 256  # embeddings that centres are fitted to, for each bucket, at the most
LEAST_PER_BUCKET = 8
SAMPLE_BYTES = 1 << 28  # of embeddings that centres are fitted to, unless that is fewer than these


def adapt_encoder(
    encoder: Encoder,
    embeddings: ArrayLike,
    codes: ArrayLike | None = None,
    *,
    metric: str = "euclidean",
    seed: int = 0,
    show: bool = False,
) -> Encoder:
    """An encoder whose buckets are fitted to these items, without labels.

    It ranks as before: its embeddings are the same. Its hash network is one linear layer on the
    embedding, whose outputs are largest for the buckets with the nearest centres; the centres start
    at the items of each trained bucket. So the codes of items in a table come from what the table
    stores (:meth:`~flowhash.Encoder.encode_stored`), and the base network runs once a query.

    Args:
        encoder: what was trained; it stays as it is.
        embeddings: of the items, as it makes them and as a table stores them [n, dim]. Of many a
            sample is looked at, 256 a bucket; fewer, but 8, where these are more than 256 MB.
        codes: the buckets of each item [n, k], such as those it has in the table. None makes them
            of the embeddings, where the hash network takes those.
        metric: of the table. For "cosine" and "inner" the centres are directions.
        seed: of the sample, and of where empty buckets begin.
        show: a bar with the time left, on the error stream.

    Raises:
        InputError: embeddings or codes do not fit the encoder, or codes are needed.

    Example:
        >>> from flowhash.learn import adapt_encoder  # doctest: +SKIP
        >>> made = encoder.encode(new_items)  # doctest: +SKIP
        >>> adapted = adapt_encoder(encoder, made.embeddings, made.codes)  # doctest: +SKIP
    """
    whole_number("seed", seed, 0)
    if metric not in METRICS:
        raise InputError(f"metric is {metric!r}; expected {', '.join(map(repr, METRICS))}")
    rows = matrix(embeddings, "embeddings", "numbers", (np.float32,))
    if not len(rows) or rows.shape[1] != encoder.dim:
        raise InputError(
            f"embeddings have shape {rows.shape}; expected one row or more of {encoder.dim} "
            "numbers, as this encoder makes them"
        )
    finite(rows, "embeddings")
    given = None if codes is None else _codes(codes, len(rows), encoder.buckets)
    size = sample_size(encoder.buckets, encoder.dim)
    if len(rows) > size:
        chosen = draw_sample(len(rows), size, seed)
        rows, given = rows[chosen], None if given is None else given[chosen]
    if given is None:
        given = encoder.encode_stored(rows).codes
    directions = metric != "euclidean"
    if directions:
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        rows = (rows / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    centres = fit_centres(rows, given, encoder.buckets, seed, show)
    return _with_centres(encoder, centres, directions)


def sample_size(buckets: int, dim: int) -> int:
    """How many embeddings the centres are fitted to, at the most."""
    fitting = max(SAMPLE_BYTES // (4 * dim), LEAST_PER_BUCKET * buckets)
    return min(PER_BUCKET * buckets, fitting)


def _codes(codes: ArrayLike, count: int, buckets: int) -> NDArray[np.int32]:
    found = numbers(codes, "codes")
    if found.ndim != 2 or len(found) != count or not found.shape[1] or found.dtype.kind not in "iu":
        raise InputError(
            f"codes have shape {found.shape} and dtype {found.dtype}; expected whole numbers "
            f"[{count}, k], a row for each embedding"
        )
    if found.min() < 0 or found.max() >= buckets:
        raise InputError(
            f"codes go from {found.min()} to {found.max()}; expected buckets of this encoder, 0 "
            f"to {buckets - 1}"
        )
    return found.astype(np.int32)


def _with_centres(encoder: Encoder, centres: BucketCentres, directions: bool) -> Encoder:
    """The encoder with a hash network that finds the nearest centres."""
    base = encoder.base or encoder.hash  # without a base, the hash network makes the embeddings
    # Vectors that rank as they are take no step in between, and older versions read the encoder.
    takes = PlainVectors if base.passes_through else BaseEmbeddings
    weights, biases = centres.layer(directions)
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # leaves the caller's seeds alone
        network = EmbeddingNetwork(takes(encoder.dim), encoder.buckets)
        for name, values in (("weight", weights), ("bias", biases)):
            network.head.get_parameter(name).copy_(torch.from_numpy(values))
    return Encoder(base, network, encoder.preprocessing, encoder.active, encoder.class_names)
