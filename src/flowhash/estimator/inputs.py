"""What users hand over, as arrays: numpy, torch tensors, data frames, lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from flowhash.errors import InputError

TEXT = "USTO"  # kinds of numpy types; scikit-learn lets objects be labels if they are strings
SHORTEST = 1e-12  # rows that are shorter have no direction


def read_items(estimator: Any, values: Any, *, reset: bool, unit: bool) -> NDArray[np.float32]:
    """Items as float32 [n, features], checked against what the estimator was fitted on.

    Args:
        estimator: gets ``n_features_in_`` and, for data frames, ``feature_names_in_``.
        values: an array, a torch tensor, a data frame or a list of lists.
        reset: whether this is what it is fitted on.
        unit: whether rows are brought to length one.

    Raises:
        ValueError: NaN or infinity (or more than float32 holds), another number of features.
        TypeError: a sparse matrix.
    """
    options = {"dtype": np.float32, "order": "C", "ensure_min_samples": 2 if reset else 1}
    with np.errstate(over="ignore"):  # what is too large becomes infinite and is refused
        checked: NDArray[np.float32] = _validate(
            estimator, as_numpy(values), reset=reset, **options
        )
    if unit:
        lengths = np.linalg.norm(checked.astype(np.float64), axis=1, keepdims=True)
        checked = (checked / np.maximum(lengths, SHORTEST)).astype(np.float32)
    return checked


def read_labels(estimator: Any, labels: Any, count: int) -> NDArray[Any]:
    """Labels of ``count`` items, one each [n], of any type that sorts.

    Raises:
        ValueError: there are none, not one each, or they are measurements, not classes.
    """
    if labels is None:
        raise InputError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None; the "
            "buckets are learned from labels. Without labels use sklearn's NearestNeighbors, or "
            "flowhash.learn with pairs"
        )
    found: NDArray[Any] = column_or_1d(as_numpy(labels), warn=True)
    check_consistent_length(np.empty(count), found)
    check_classification_targets(found)
    return found


def read_classes(estimator: Any, labels: Any, count: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes, sorted, and the number of each item's class [n].

    Raises:
        ValueError: as :func:`read_labels`, or there is one class only.
    """
    found = read_labels(estimator, labels, count)
    classes, numbers = np.unique(found, return_inverse=True)
    if len(classes) < 2:
        raise InputError(
            f"y has one class only, {classes[0]}; expected two classes or more, which the "
            "buckets tell apart"
        )
    return classes, numbers.astype(np.int64).ravel()


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


def as_numpy(values: Any) -> Any:
    """A torch tensor as an array; anything else as it is, for scikit-learn to read."""
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16, which numpy does not know
        return tensor.float().numpy()


def _validate(estimator: Any, values: Any, **options: Any) -> Any:
    try:
        from sklearn.utils.validation import validate_data
    except ImportError:  # before scikit-learn 1.6 it was a method
        return estimator._validate_data(values, **options)
    return validate_data(estimator, values, **options)
