"""What users hand over, as arrays: numpy, torch tensors, data frames, lists."""

from __future__ import annotations

import reprlib
from collections.abc import Set
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from flowhash.compile import kernel
from flowhash.encoder import as_numpy
from flowhash.errors import InputError, reason

TEXT = "USTO"  # kinds of numpy types; scikit-learn lets objects be labels if they are strings
MISSING = ("NAType", "NaTType")  # pandas' words for nothing, which need not be installed
SHORTEST = 1e-12  # rows that are shorter have no direction


def read_items(
    estimator: Any, values: Any, *, reset: bool, unit: bool, name: str = "X"
) -> NDArray[np.float32]:
    """Items as float32 [n, features], checked against what the estimator was fitted on.

    Args:
        estimator: gets ``n_features_in_`` and, for data frames, ``feature_names_in_``.
        values: an array, a torch tensor, a data frame, a list of lists, or a column with an array
            or list in each row.
        reset: whether this is what it is fitted on.
        unit: whether rows are brought to length one.
        name: what the argument is called.

    Raises:
        ValueError: NaN or infinity (or more than float32 holds), another number of features, rows
            of different lengths.
        TypeError: a sparse matrix.
    """
    options = {"dtype": np.float32, "order": "C", "ensure_min_samples": 2 if reset else 1}
    try:
        # What is too large becomes infinite and is refused.
        with np.errstate(over="ignore", invalid="ignore"):
            checked: NDArray[np.float32] = (
                values
                if _is_ready(estimator, values, reset)
                else _validate(estimator, as_rows(as_numpy(values), name), reset=reset, **options)
            )
    except InputError:
        raise
    except ValueError as error:
        raise _in_our_words(error, estimator, values, name) from error
    if unit:
        # Writable, because numba would compile the kernel once more for read-only arrays.
        given, checked = np.require(checked, requirements=["C", "W"]), np.empty_like(checked)
        shorten_to_one(given, checked)
    return checked


def _in_our_words(error: ValueError, estimator: Any, values: Any, name: str) -> ValueError:
    """What scikit-learn says of values, where it does not say which, or calls them X."""
    words = str(error)
    if "setting an array element with a sequence" in words:
        return InputError(
            f"{name} has several columns, and an array or list in a cell; expected numbers, or one "
            "column of arrays. Give the column that has the embeddings, such as "
            f'{name}["embedding"]'
        )
    rows = _as_matrix(values, name)
    if rows is not None and ("contains NaN" in words or "contains infinity" in words):
        return _first_gap(rows, getattr(values, "columns", ()), name) or error
    if name == "X":
        return error
    wanted = estimator.n_features_in_
    if rows is not None and rows.shape[1] != wanted:
        return InputError(
            f"{name} has {rows.shape[1]} columns, and X has {wanted}; expected as many. Make "
            f"{name} by the model that made X"
        )
    return InputError(f"{name} cannot be used: {reason(words)}")


def _as_matrix(values: Any, name: str) -> NDArray[Any] | None:
    """Values that were refused, as a matrix; None where they are none."""
    try:
        rows = np.asarray(as_rows(as_numpy(values), name))
    except (TypeError, ValueError):
        return None
    return rows if rows.ndim == 2 else None


def _first_gap(rows: NDArray[Any], columns: Any, name: str) -> InputError | None:
    """Where the first value is that float32 does not hold; None where they are no numbers."""
    try:
        with np.errstate(over="ignore"):
            held = np.isfinite(rows.astype(np.float32, copy=False))
    except (TypeError, ValueError):
        return None
    wrong = np.flatnonzero(~held.all(axis=1))
    if not len(wrong):
        return None
    row, column = int(wrong[0]), int(np.argmin(held[wrong[0]]))
    value = float(rows[row, column])
    came = "NaN" if np.isnan(value) else f"{value:g}"
    label = f" ({reason(columns[column]):.40})" if len(columns) == rows.shape[1] else ""
    count = "1 such row" if len(wrong) == 1 else f"{len(wrong):,} such rows"
    return InputError(
        f"{name} has {came} in row {row}, column {column}{label}, counted from 0 ({count} of "
        f"{len(rows):,}); expected finite numbers of float32. Leave such rows out, or fill the gaps"
    )


@kernel
def shorten_to_one(rows: NDArray[np.float32], made: NDArray[np.float32]) -> None:
    """Write rows at length one, measured in float64; one that is all but zero stays so."""
    for row in range(rows.shape[0]):
        square = 0.0
        for column in range(rows.shape[1]):
            square += np.float64(rows[row, column]) ** 2
        length = max(np.sqrt(square), SHORTEST)
        for column in range(rows.shape[1]):
            made[row, column] = rows[row, column] / length


def _is_ready(estimator: Any, values: Any, reset: bool) -> bool:
    """Whether scikit-learn would let them pass as they are: its look at a single query is long."""
    return (
        type(values) is np.ndarray
        and not reset
        and values.dtype == np.float32
        and values.flags.c_contiguous
        and values.ndim == 2
        and len(values) > 0
        and values.shape[1] == estimator.n_features_in_
        and not hasattr(estimator, "feature_names_in_")
        and bool(np.isfinite(values).all())
    )


def as_rows(values: Any, name: str = "X") -> Any:
    """Rows [n, features] of a column with an array or list in each; anything else as it is.

    So embeddings lie in data frames: a Series, a frame with that column only, an object array, a
    column of Arrow; also lists of arrays or tensors.

    Raises:
        InputError: they are not equally long; the message names the first that differs.
    """
    column = _cells(values)
    sample = next((place for place, cell in enumerate(column) if _is_row(cell)), None)
    if sample is None:
        return values
    rows = [_row(cell, place, name) for place, cell in enumerate(column)]
    wanted = rows[sample].shape
    for place, row in enumerate(rows):
        if row.shape != wanted:
            came = f"has shape {row.shape}" if row.ndim else f"is {reprlib.repr(column[place])}"
            raise InputError(
                f"row {place} of {name} {came}, and row {sample} has shape {wanted}; expected "
                "rows of one length. Leave such rows out, or embed them anew"
            )
    return np.stack(rows)


def _cells(values: Any) -> Any:
    """The cells of a list or of a column that is no column of numbers; none of a matrix."""
    if isinstance(values, list | tuple):
        return values
    shape: tuple[int, ...] = getattr(values, "shape", (0,))  # columns of Arrow have none
    if not hasattr(values, "__array__") or (len(shape) == 2 and shape[1] != 1):
        return ()
    column = np.asarray(values)
    if column.ndim > len(shape):  # polars' arrays of one length
        return column
    return column.reshape(-1) if column.dtype == object and column.size == len(column) else ()


def _is_row(cell: Any) -> bool:
    return isinstance(cell, list | tuple) or getattr(cell, "ndim", 0) > 0


def _row(cell: Any, place: int, name: str) -> NDArray[Any]:
    try:
        row: NDArray[Any] = np.asarray(as_numpy(cell))
        return row.astype(np.float64) if row.dtype == object and row.ndim else row
    except (TypeError, ValueError) as error:
        raise InputError(
            f"row {place} of {name} cannot be read as numbers: {error}; expected an array of "
            "numbers"
        ) from error


def read_labels(estimator: Any, labels: Any, count: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Labels of ``count`` items, of any type that sorts; None and NaN stand for those not known.

    Returns:
        The labels that are known [m], and which items they belong to [count].

    Raises:
        ValueError: there are none, not one each, or they are measurements, not classes.
    """
    if labels is None:
        raise InputError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None; give "
            "the labels of these items. Only fit does without"
        )
    labels = as_numpy(labels)
    _refuse_several(labels)
    if isinstance(labels, list | tuple) and any(_is_missing(label) for label in labels):
        labels = np.array(labels, object)  # numpy would write "nan" among strings
    found: NDArray[Any] = column_or_1d(labels, warn=True)
    check_consistent_length(np.empty(count), found)
    known = np.ones(count, np.bool_)
    if found.dtype == object:
        known = np.array([not _is_missing(label) for label in found], np.bool_)
    elif found.dtype.kind == "f":
        known = ~np.isnan(found)
    if not known.all():
        found = found[known]
        plain = np.array(found.tolist())
        found = plain if plain.dtype.kind in "biuf" else found  # numbers, now without None
    if len(found):
        check_classification_targets(found)
    return found, known


def _refuse_several(labels: Any) -> None:
    """Refuse several labels an item: a matrix with a column a label, or lists or sets of labels."""
    columns = getattr(labels, "shape", ())[1:]
    came = f"y has shape {labels.shape}" if columns not in ((), (1,)) else None
    for place, cell in enumerate(_cells(labels)):
        if isinstance(cell, Set) or (_is_row(cell) and len(cell) != 1):
            came = f"y[{place}] is {reprlib.repr(cell)}"
            break
    if came is not None:
        raise InputError(
            f"{came}: several labels an item; expected one. Of a one-hot matrix give "
            "y.argmax(axis=1); of label sets give each its own class, such as "
            "[' '.join(sorted(labels)) for labels in y], or the label that matters most; or learn "
            "from pairs of items that are alike, with flowhash.learn"
        )


def _is_missing(label: Any) -> bool:
    """Whether a label is None, NaN or pandas' NA."""
    if isinstance(label, float | np.floating):
        return bool(label != label)
    return label is None or type(label).__name__ in MISSING


def read_classes(estimator: Any, labels: Any, count: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes, sorted, and the number of each item's class [n], -1 where it is not known.

    Raises:
        ValueError: as :func:`read_labels`, or there is one class only, or none.
    """
    found, known = read_labels(estimator, labels, count)
    classes, places = np.unique(found, return_inverse=True)
    if len(classes) < 2:
        came = f"one class only, {classes[0]}" if len(classes) else "no label that is known"
        raise InputError(
            f"y has {came}; expected two classes or more, which the buckets tell apart"
        )
    numbers = np.full(count, -1, np.int64)
    numbers[known] = places.ravel()
    return classes, numbers


def check_kind(labels: NDArray[Any], classes: NDArray[Any]) -> None:
    """Refuse text where numbers were learned, and numbers where text was: none would be found."""
    given, learned = (
        "text" if some.dtype.kind in TEXT else "numbers" for some in (labels, classes)
    )
    if given != learned:
        raise InputError(
            f"the labels are {given} ({labels.dtype}), and fit saw {learned} "
            f"({classes.dtype}); give them in the same form"
        )


def _validate(estimator: Any, values: Any, **options: Any) -> Any:
    try:
        from sklearn.utils.validation import validate_data
    except ImportError:  # before scikit-learn 1.6 it was a method
        return estimator._validate_data(values, **options)
    return validate_data(estimator, values, **options)
