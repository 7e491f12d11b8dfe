"""``TableSettings``: what a table is created with, and the properties that every engine shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowhash.errors import InputError
from flowhash.table.distance_metrics import METRICS
from flowhash.table.ids import INT64, STRING

MOST_BUCKETS = 1 << 30
DTYPES = ("float32", "float16")  # segments/arrays.py says how each is stored


@dataclass(frozen=True)
class TableSettings:
    """What is chosen when a table is created and never changes, but for the encoder.

    Attributes:
        buckets: d.
        dim: numbers in an embedding.
        active: k.
        metric: "euclidean", "cosine" or "inner".
        dtype: "float32" or "float16", how embeddings are stored.
        ids: "int64" or "string".
        encoder: the fingerprint of the encoder that the codes come from, or None.
    """

    buckets: int
    dim: int
    active: int = 1
    metric: str = "euclidean"
    dtype: str = "float32"
    ids: str = INT64
    encoder: str | None = None

    def check(self) -> None:
        """Refuse settings that cannot be."""
        for name, limit in (("buckets", MOST_BUCKETS), ("dim", 1 << 20), ("active", self.buckets)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
                raise InputError(f"{name} is {value!r}; expected a whole number from 1 to {limit}")
        choices = {"metric": METRICS, "dtype": DTYPES, "ids": (INT64, STRING)}
        for name, allowed in choices.items():
            if getattr(self, name) not in tuple(allowed):
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}"
                )
        if self.encoder is not None and not isinstance(self.encoder, str):
            raise InputError(
                f"encoder is {self.encoder!r}; expected its fingerprint, which is a string, or None"
            )


class SettingsProperties:
    """What a table, of whatever engine, says of itself; only the encoder may ever change."""

    def __init__(self, settings: TableSettings) -> None:
        self._settings = settings

    @property
    def buckets(self) -> int:
        """d, the number of buckets."""
        return self._settings.buckets

    @property
    def dim(self) -> int:
        """How many numbers an embedding has."""
        return self._settings.dim

    @property
    def active(self) -> int:
        """k, how many buckets an item is in."""
        return self._settings.active

    @property
    def metric(self) -> str:
        """What is ranked by."""
        return self._settings.metric

    @property
    def dtype(self) -> str:
        """How embeddings are stored."""
        return self._settings.dtype

    @property
    def id_kind(self) -> str:
        """What ids are: "int64" or "string"."""
        return self._settings.ids

    @property
    def encoder(self) -> str | None:
        """The fingerprint of the encoder, if it was given."""
        return self._settings.encoder


def check_encoder(made_with: str | None, encoder: Any, table: str = "the table") -> None:
    """Refuse the fingerprint of another encoder than a table was made with; None is not compared.

    Raises:
        InputError: they differ; the message has both.
    """
    if encoder is None or encoder == made_with:
        return
    if not isinstance(encoder, str):
        raise InputError(
            f"encoder is {encoder!r:.120}; expected its fingerprint, which is a string, or None"
        )
    raise InputError(
        f"{table} was made with encoder {made_with!r}, not {encoder!r}; codes of different "
        "encoders do not fit together. Use the first, or index afresh"
    )


def check_vectors(made_with: str | None, encoder: Any) -> None:
    """:func:`check_encoder` for what is added or asked: a table that names no encoder takes all."""
    check_encoder(made_with, encoder if made_with is not None else None)
