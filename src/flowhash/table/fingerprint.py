"""Codes and embeddings of different encoders do not fit together: who made what is compared."""

from __future__ import annotations

from typing import Any

from flowhash.errors import InputError


def check_encoder(made_with: str | None, encoder: Any, table: str = "the table") -> None:
    """Refuse the fingerprint of another encoder than a table was made with; None is not compared.

    Args:
        made_with: the table's fingerprint.
        encoder: the fingerprint that came.
        table: what the message calls the table.

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
