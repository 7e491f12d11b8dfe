"""Evaluation: the paper's metrics and tables, baselines, and a report to look at.

The names below load their module when first used: metrics need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.evaluate.comparison.comparison import Comparison as Comparison, Trial as Trial
    from flowhash.evaluate.comparison.methods import (
        Classifier as Classifier,
        Exhaustive as Exhaustive,
        InvertedLists as InvertedLists,
        Learned as Learned,
        LearnedAlone as LearnedAlone,
        Method as Method,
        Side as Side,
        Start as Start,
        TopDimensions as TopDimensions,
        VectorQuantisation as VectorQuantisation,
    )
    from flowhash.evaluate.evaluate_encoder import evaluate as evaluate
    from flowhash.evaluate.output.report_page import write_report as write_report
    from flowhash.evaluate.paper_numbers import (
        paper_experiment as paper_experiment,
        paper_rows as paper_rows,
    )
    from flowhash.evaluate.reproduction.reproduce_paper import reproduce as reproduce
    from flowhash.evaluate.results import (
        METHODS as METHODS,
        Report as Report,
        Row as Row,
        read_rows as read_rows,
        write_rows as write_rows,
    )
    from flowhash.quality import (
        Exact as Exact,
        LabelledTable as LabelledTable,
        Measured as Measured,
        Queries as Queries,
        exact_answers as exact_answers,
        measure as measure,
    )

if TYPE_CHECKING:  # for other rooms and the benchmarks
    from flowhash.evaluate.comparison.faiss_index import (
        FLAT_PAIRS as FLAT_PAIRS,
        add_to_lists as add_to_lists,
        flat_index as flat_index,
        list_index as list_index,
    )
    from flowhash.evaluate.comparison.methods import fit_classifier as fit_classifier
    from flowhash.evaluate.comparison.stopwatch import (
        median_seconds as median_seconds,
        seconds_of as seconds_of,
    )
    from flowhash.evaluate.output.paper_figures import (
        measure_solver as measure_solver,
        solver_figure as solver_figure,
    )
    from flowhash.evaluate.output.result_grid import (
        between as between,
        signed as signed,
        terminal_grid as terminal_grid,
    )
    from flowhash.evaluate.output.write_results import (
        machine as machine,
        write_evaluation as write_evaluation,
        write_reproduction as write_reproduction,
    )
    from flowhash.evaluate.reproduction.encoding_cache import Encodings as Encodings
    from flowhash.evaluate.reproduction.experiment_plan import make_plan as make_plan
    from flowhash.evaluate.reproduction.trained_networks import Trainings as Trainings
    from flowhash.evaluate.results import (
        group_seeds as group_seeds,
        lead_over as lead_over,
        leads_all as leads_all,
    )

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
