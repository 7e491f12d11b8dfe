"""The paper's objectives: ĝ over classes, g over items, and the bound M between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from flowhash.argument_checks import finite, matrix
from flowhash.codes.code_arguments import active_count, code_matrix, penalties, summable
from flowhash.errors import InputError


def class_means(
    embeddings: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """The mean embedding of each class, c_i of Eq. 4.

    Args:
        embeddings: the hash network's outputs for the items of a mini-batch [n, d].
        labels: their classes [n]; numbers or strings.

    Returns:
        The means [n_c, d] float64 and the class labels [n_c], both in sorted label order: the row
        of an item's class is ``np.searchsorted(classes, labels)``.

    Example:
        >>> means, classes = class_means([[1.0, 3.0], [3.0, 5.0], [0.0, 1.0]], ["b", "b", "a"])
        >>> means.tolist(), classes.tolist()
        ([[0.0, 1.0], [2.0, 4.0]], ['a', 'b'])
    """
    items, classes, numbers = _labelled(embeddings, labels)
    return _means(items, numbers, len(classes)), classes


def objective(codes: ArrayLike, class_means: ArrayLike, penalty: ArrayLike) -> float:
    """ĝ(z), what codes of classes cost: Σ_i -c_i · z_i + Σ_i Σ_{j≠i} z_i · P z_j (Eq. 5).

    Args:
        codes: the active buckets of each class [n, k].
        class_means: c [n, d].
        penalty: λ >= 0, one number or one per bucket [d].

    Example:
        >>> objective([[0], [0]], [[0.5, 0.0], [0.5, 0.25]], penalty=1.0)
        1.0
    """
    means = matrix(class_means, "class_means", "buckets", (np.float64,))
    finite(means, "class_means")
    rows, size = means.shape
    code = code_matrix(codes, rows, size)
    load = np.bincount(code.ravel(), minlength=size).astype(np.float64)
    unary = -np.take_along_axis(means, code, axis=1).sum()
    pairwise = (penalties(penalty, size) * load * (load - 1.0)).sum()
    return float(unary + pairwise)


def item_objective(
    codes: ArrayLike, embeddings: ArrayLike, labels: ArrayLike, penalty: ArrayLike
) -> float:
    """g(h), the original objective over items (Eq. 3), which is NP-hard to minimise.

    Σ_i -f(x_i) · h_i + Σ_i Σ_{j: y_j≠y_i} h_i · P h_j: items of one class share buckets freely,
    items of two classes pay for it.

    Args:
        codes: the active buckets of each item [n, k].
        embeddings: f(x), the hash network's outputs [n, d].
        labels: y, the items' classes [n].
        penalty: λ >= 0 of a pair of *items*, one number or one per bucket [d].

    For classes of m items each, the code ``z`` of its class given to every item ``h`` costs
    ``item_objective(h, …, λ) == m * objective(z, means, m * λ)``, and for the best codes
    ``m * min objective(·, means, m * λ) + upper_bound_gap(…) >= min item_objective(·, …, λ)``. With
    classes of different sizes each function is still what its formula says, but this does not hold.
    """
    items, classes, numbers = _labelled(embeddings, labels)
    count = len(classes)
    size = items.shape[1]
    code = code_matrix(codes, len(items), size)
    unary = -np.take_along_axis(items, code, axis=1).sum()
    # Pairs of different classes in a bucket: all pairs less those within each class.
    cells = numbers[:, None] * size + code
    by_class = np.bincount(cells.ravel(), minlength=count * size).reshape(count, size)
    load = by_class.sum(axis=0).astype(np.float64)
    pairs = load**2 - (by_class.astype(np.float64) ** 2).sum(axis=0)
    return float(unary + (penalties(penalty, size) * pairs).sum())


def upper_bound_gap(embeddings: ArrayLike, labels: ArrayLike, active: int) -> float:
    """M(θ) of Eq. 4: what the bound adds to the class-mean problem.

    Σ over items of the k largest entries of c_{y_i} - f(x_i), summed. It is never negative. With
    two items a class, m · min ĝ is above min g by at most M; with more items it can be by more.

    The paper expects M to shrink while the network draws the items of a class together. Where its
    method was run on CIFAR-100 with triplet, M grew and M over abs(g) shrank
    (docs/results/paper-claims.md).

    Args:
        embeddings: f(x), the hash network's outputs [n, d].
        labels: y, the items' classes [n].
        active: k.

    Example:
        >>> upper_bound_gap([[1.0, 3.0], [3.0, 5.0]], ["a", "a"], active=1)
        0.0
    """
    items, classes, numbers = _labelled(embeddings, labels)
    count = active_count(active, items.shape[1])
    deviations = _means(items, numbers, len(classes))[numbers] - items
    largest = np.partition(deviations, -count, axis=1)[:, -count:]
    return float(largest.sum())


def _labelled(
    embeddings: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.intp]]:
    """Checked embeddings [n, d] float64, the classes [n_c], each item's place among them [n]."""
    items = matrix(embeddings, "embeddings", "buckets", (np.float64,))
    summable(items, "embeddings")
    names = np.asarray(labels)
    if names.shape != (len(items),):
        raise InputError(
            f"labels has shape {names.shape}; expected ({len(items)},), one label an item"
        )
    if len(items) == 0:
        raise InputError("there are no items; expected at least one")
    try:
        classes, numbers = np.unique(names, return_inverse=True)
    except TypeError as error:
        raise InputError(
            f"labels cannot be told apart ({error}); give numbers or strings only, no None"
        ) from error
    if names.dtype.kind == "f" and np.isnan(names).any():
        raise InputError("labels contain NaN; drop the items without a label")
    return items, classes, numbers


def _means(items: NDArray[Any], numbers: NDArray[np.intp], count: int) -> NDArray[np.float64]:
    # Adds row after row, as np.add.at does, in a tenth of its time.
    places = csr_array(
        (np.ones(len(items)), numbers, np.arange(len(items) + 1)), shape=(len(items), count)
    )
    return np.asarray(places.T @ items / np.bincount(numbers, minlength=count)[:, None])
