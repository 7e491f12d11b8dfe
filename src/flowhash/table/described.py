"""The settings of a table, as properties."""

from __future__ import annotations

from flowhash.table.manifest import Settings


class Described:
    """What a table, of whatever engine, says of itself; it never changes.

    Args:
        settings: of the table.
    """

    def __init__(self, settings: Settings) -> None:
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
