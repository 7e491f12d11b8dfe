"""Evaluation: the paper's metrics and tables, baselines, and a report to look at.

The names below load their module when first used: metrics need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowhash.evaluate.comparison.comparison import Comparison, Trial
    from flowhash.evaluate.comparison.methods import (
        Classifier,
        Exhaustive,
        InvertedLists,
        Learned,
        LearnedAlone,
        Method,
        Side,
        Start,
        TopDimensions,
        VectorQuantisation,
    )
    from flowhash.evaluate.evaluate_encoder import evaluate
    from flowhash.evaluate.output.report_page import write_report
    from flowhash.evaluate.paper_numbers import paper_experiment, paper_rows
    from flowhash.evaluate.reproduction.reproduce_paper import reproduce
    from flowhash.evaluate.results import METHODS, Report, Row, read_rows, write_rows
    from flowhash.quality import (
        Exact,
        LabelledTable,
        Measured,
        Queries,
        exact_answers,
        measure,
    )

_ROOMS = {
    "Classifier": "evaluate.methods",
    "Comparison": "evaluate.compare",
    "Exact": "quality",
    "Exhaustive": "evaluate.methods",
    "InvertedLists": "evaluate.methods",
    "LabelledTable": "quality",
    "Learned": "evaluate.methods",
    "LearnedAlone": "evaluate.methods",
    "METHODS": "evaluate.results",
    "Measured": "quality",
    "Method": "evaluate.methods",
    "Queries": "quality",
    "Report": "evaluate.results",
    "Row": "evaluate.results",
    "Side": "evaluate.sides",
    "Start": "evaluate.methods",
    "TopDimensions": "evaluate.methods",
    "Trial": "evaluate.compare",
    "VectorQuantisation": "evaluate.methods",
    "evaluate": "evaluate.own",
    "exact_answers": "quality",
    "measure": "quality",
    "paper_experiment": "evaluate.paper",
    "paper_rows": "evaluate.paper",
    "read_rows": "evaluate.results",
    "reproduce": "evaluate.reproduction",
    "write_report": "evaluate.output.report_page",
    "write_rows": "evaluate.results",
}

__all__ = [
    "METHODS",
    "Classifier",
    "Comparison",
    "Exact",
    "Exhaustive",
    "InvertedLists",
    "LabelledTable",
    "Learned",
    "LearnedAlone",
    "Measured",
    "Method",
    "Queries",
    "Report",
    "Row",
    "Side",
    "Start",
    "TopDimensions",
    "Trial",
    "VectorQuantisation",
    "evaluate",
    "exact_answers",
    "measure",
    "paper_experiment",
    "paper_rows",
    "read_rows",
    "reproduce",
    "write_report",
    "write_rows",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    if name in _ROOMS:
        return getattr(importlib.import_module(f"flowhash.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'flowhash.evaluate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
