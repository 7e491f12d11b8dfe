"""The grid of queries: what was asked, what each method returned, and whether it was right."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowhash.evaluate.report.merged import method_label
from flowhash.evaluate.results import Example
from flowhash.extras import require

SIDE = 64  # pixels of a stored image, at most: it is shown no larger, and there are hundreds


@dataclass(frozen=True)
class Answer:
    """One item that came back; ``source`` is a data URI, or None for vectors."""

    name: str
    source: str | None
    right: bool


@dataclass(frozen=True)
class Query:
    """One query, and the answers of each method."""

    name: str
    source: str | None
    answers: tuple[tuple[str, tuple[Answer, ...]], ...]


def queries(examples: Sequence[Example], class_names: Sequence[str]) -> list[Query]:
    """Everything the grid shows."""
    return [_query(example, class_names) for example in examples]


def _query(example: Example, names: Sequence[str]) -> Query:
    answers = tuple(
        (
            method_label(method),
            tuple(
                Answer(_name(label, names), _source(image), label == example.label)
                for label, image in returned
            ),
        )
        for method, returned in example.answers.items()
    )
    return Query(_name(example.label, names), _source(example.image), answers)


def _name(label: int, names: Sequence[str]) -> str:
    return str(names[label]) if 0 <= label < len(names) else f"class {label}"


def _source(image: NDArray[np.uint8] | None) -> str | None:
    return None if image is None else picture(image)


def picture(image: NDArray[np.uint8]) -> str:
    """A PNG as a data URI; small images keep every pixel, large ones are made smaller."""
    images = require("PIL.Image", "evaluate")
    pixels = np.ascontiguousarray(image)
    if pixels.ndim == 3 and pixels.shape[2] == 1:  # grey: Pillow wants it flat
        pixels = pixels[:, :, 0]
    made = images.fromarray(pixels)
    made.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    made.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
