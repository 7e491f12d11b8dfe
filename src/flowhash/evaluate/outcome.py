"""What an evaluation came to, before it is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flowhash.evaluate.comparison.comparison import Draws
from flowhash.evaluate.results import Buckets, Example, Row


@dataclass
class Outcome:
    """Everything that tables, figures and the report are made of.

    Attributes:
        rows: of all seeds, tables, methods and k.
        draws: of each row, by method, table, k and seed: what each draw of the queries gave.
        buckets: pictures of the first seed's test table, at the smallest k.
        examples: queries of the same.
        curves: of the first seed's trainings.
        seconds: of each training, by name.
        class_names: one a class.
        kind: what was trained, in a few words.
        words: how the training differs from the paper's.
        evaluation: seconds that the evaluation took.
    """

    rows: list[Row] = field(default_factory=list)
    draws: dict[tuple[str, str, int | None, int], Draws] = field(default_factory=dict)
    buckets: list[Buckets] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    curves: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    kind: str = "measured"
    words: tuple[str, ...] = ()
    evaluation: float = 0.0
