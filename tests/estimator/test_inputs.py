"""Every kind of input gives the same as a numpy array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from flowhash.errors import InputError
from flowhash.estimator.input_arrays import SHORTEST, as_rows, shorten_to_one
from tests.estimator.clouds import clouds, quick


def objects(rows: Any) -> Any:
    """An object array [n] with a row in each cell, as numpy makes it of a column of arrays."""
    column = np.empty(len(rows), object)
    column[:] = list(rows)
    return column


KINDS: dict[str, Callable[[Any], Any]] = {
    "list": lambda rows: rows.tolist(),
    "float64": lambda rows: rows.astype(np.float64),
    "columns first": np.asfortranarray,
    "every second": lambda rows: np.repeat(rows, 2, axis=0)[::2],
    "read only": lambda rows: np.frombuffer(rows.tobytes(), rows.dtype).reshape(rows.shape),
    "tensor": torch.tensor,
    "tensor with gradient": lambda rows: torch.tensor(rows, requires_grad=True),
    "list of arrays": list,
    "list of tensors": lambda rows: [torch.tensor(row, requires_grad=True) for row in rows],
    "array of arrays": lambda rows: objects(rows),
    "array of lists, one column": lambda rows: objects(rows.tolist())[:, None],
}


@pytest.mark.parametrize("kind", KINDS)
def test_equals_numpy(kind: str) -> None:
    rows, labels = clouds()
    rows = rows.astype(np.float32)
    known = quick().fit(rows, labels)
    hasher = quick().fit(KINDS[kind](rows), labels.tolist())
    assert hasher.encoder_.fingerprint == known.encoder_.fingerprint
    for one, other in zip(
        hasher.kneighbors(KINDS[kind](rows)), known.kneighbors(rows), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert (hasher.transform(KINDS[kind](rows)) != known.transform(rows)).nnz == 0
    assert hasher.score(KINDS[kind](rows), torch.tensor(labels)) == known.score(rows, labels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32])
def test_tensors_of_other_types(dtype: torch.dtype) -> None:
    rows, labels = clouds()
    tensor = torch.tensor(10 * rows).to(dtype)
    known = quick().fit(tensor.double().numpy(), labels)
    hasher = quick().fit(tensor, torch.tensor(labels))
    assert hasher.encoder_.fingerprint == known.encoder_.fingerprint


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    rows, labels = clouds(features=3)
    frame = pandas.DataFrame(rows, columns=["a", "b", "c"])
    hasher = quick().fit(frame, pandas.Series(labels.astype(str)))
    assert hasher.feature_names_in_.tolist() == ["a", "b", "c"]
    assert hasher.n_features_in_ == 3
    known = quick().fit(rows, labels.astype(str))
    np.testing.assert_array_equal(hasher.kneighbors(frame)[1], known.kneighbors(rows)[1])
    with pytest.raises(ValueError, match="feature names should match"):
        hasher.kneighbors(frame[["c", "b", "a"]])
    with pytest.raises(ValueError, match="sparse"):
        quick().set_output(transform="pandas").fit(frame, labels).transform(frame)


def test_polars() -> None:
    polars = pytest.importorskip("polars")
    rows, labels = clouds(features=3)
    frame = polars.DataFrame(rows, schema=["a", "b", "c"])
    hasher = quick().fit(frame, polars.Series(labels))
    assert hasher.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(
        hasher.kneighbors(frame)[1], quick().fit(rows, labels).kneighbors(rows)[1]
    )


@pytest.mark.parametrize(
    "kind",
    ["Series", "lists", "frame", "Arrow in pandas", "polars", "polars Array", "polars frame",
     "Arrow", "Arrow chunks", "Arrow table"],
)  # fmt: skip
def test_a_column_of_arrays(kind: str) -> None:
    pandas, polars, arrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    rows, labels = clouds()
    rows = rows.astype(np.float32)
    lists = rows.tolist()
    column = {
        "Series": lambda: pandas.Series(list(rows), index=np.arange(len(rows))[::-1]),
        "lists": lambda: pandas.Series(lists),
        "frame": lambda: pandas.DataFrame({"embedding": list(rows)}),
        "Arrow in pandas": lambda: pandas.Series(
            lists, dtype=pandas.ArrowDtype(arrow.list_(arrow.float32()))
        ),
        "polars": lambda: polars.Series(lists),
        "polars Array": lambda: polars.Series(rows),
        "polars frame": lambda: polars.DataFrame({"embedding": lists}),
        "Arrow": lambda: arrow.array(lists),
        "Arrow chunks": lambda: arrow.chunked_array([lists[:50], lists[50:]]),
        "Arrow table": lambda: arrow.table({"embedding": lists}),
    }[kind]()
    hasher = quick().fit(column, labels)
    assert hasher.n_features_in_ == 6
    assert not hasattr(hasher, "feature_names_in_")
    known = quick().fit(rows, labels)
    assert hasher.encoder_.fingerprint == known.encoder_.fingerprint
    np.testing.assert_array_equal(hasher.kneighbors(column)[1], known.kneighbors(rows)[1])


@settings(max_examples=50)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=2, max_size=8),
    kind=st.sampled_from([list, tuple, objects]),
    cell=st.sampled_from([list, np.asarray, torch.tensor]),
)
def test_rows_of_different_lengths_are_named(lengths: list[int], kind: Any, cell: Any) -> None:
    rows = kind([cell([1.5] * length) for length in lengths])
    if len(set(lengths)) == 1:
        np.testing.assert_array_equal(as_rows(rows), np.full((len(lengths), lengths[0]), 1.5))
        return
    odd = next(place for place, length in enumerate(lengths) if length != lengths[0])
    said = rf"row {odd} of X has shape \({lengths[odd]},\), and row 0 has shape \({lengths[0]},\)"
    with pytest.raises(InputError, match=said):
        as_rows(rows)


@pytest.mark.parametrize("nothing", [None, float("nan"), "text"])
@pytest.mark.parametrize("place", [0, 2])
def test_rows_that_are_missing_are_named(nothing: Any, place: int) -> None:
    rows: list[Any] = [[1.0, 2.0]] * 4
    rows[place] = nothing
    for column in (rows, objects(rows)):
        with pytest.raises(InputError, match=f"row {place} of X is {nothing!r}, and row"):
            as_rows(column)
    with pytest.raises(InputError, match="row 1 of X cannot be read as numbers"):
        as_rows([[1.0], [{}]])


def test_a_column_of_arrays_among_others_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    rows, labels = clouds()
    frame = pandas.DataFrame({"id": labels, "embedding": list(rows)})
    with pytest.raises(InputError, match=r'such as X\["embedding"\]'):
        quick().fit(frame, labels)


def test_another_number_of_features_is_refused() -> None:
    rows, labels = clouds()
    hasher = quick().fit(rows, labels)
    for method in (hasher.transform, hasher.kneighbors, hasher.add):
        with pytest.raises(ValueError, match="X has 5 features, but FlowHasher is expecting 6"):
            method(rows[:, :5])


def test_what_is_no_number_is_found(recwarn: pytest.WarningsRecorder) -> None:
    rows, labels = clouds()
    rows[[3, 7], [4, 1]] = np.nan
    said = (
        r"X has NaN in row 3, column 4, counted from 0 \(2 such rows of 120\); expected .*, or fill"
    )
    for values in (rows, rows.tolist(), list(rows), objects(rows), rows.astype(object)):
        with pytest.raises(InputError, match=said):
            quick().fit(values, labels)
    with pytest.raises(
        InputError, match=r"X has -1e[+]300 in row 3, column 4, .*1 such row of 120"
    ):
        quick().fit(np.where(np.isnan(rows), [[0], [-1e300]] * 60, 1) * (np.arange(6) == 4), labels)
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match=r"row 3, column 4 \(e\), counted"):
        quick().fit(pandas.DataFrame(rows, columns=list("abcdef")), labels)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("queries", "said"),
    [
        (np.zeros((300, 4)), "queries has 4 columns, and X has 6; expected as many. Make queries"),
        (np.full((300, 6), np.nan), "queries has NaN in row 0, column 0"),
        (np.zeros(6), "queries cannot be used: Expected 2D array, got 1D array"),
        ([[1.0] * 6, [1.0] * 5], r"row 1 of queries has shape \(5,\)"),
        ([["a"] * 6] * 300, "queries cannot be used: .*'a'"),
    ],
)
def test_queries_are_named_where_they_cannot_be_used(queries: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        quick().fit(clouds()[0], queries=queries)
    assert "\n" not in str(error.value)


def test_arrays_that_are_ready_are_looked_at_all_the_same() -> None:
    rows, labels = clouds()
    rows = np.ascontiguousarray(rows, np.float32)
    hasher = quick().fit(rows, labels)
    for number in (np.nan, np.inf):
        wrong = rows[:3].copy()
        wrong[1, 2] = number
        with pytest.raises(InputError, match=r"X has (NaN|inf) in row 1, column 2, counted from 0"):
            hasher.kneighbors(wrong)
    for shape in (rows[0], rows[:0], rows[None]):
        with pytest.raises(ValueError, match=r"Found|Expected 2D"):
            hasher.kneighbors(shape)
    pandas = pytest.importorskip("pandas")
    named = quick().fit(pandas.DataFrame(rows, columns=list("abcdef")), labels)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        named.kneighbors(rows[:3])


def test_rows_of_length_one_are_those_of_numpy() -> None:
    for rows in (
        np.random.default_rng(0).normal(0, 50, (40, 300)).astype(np.float32),
        np.array([[3e38, 3e38], [1e-38, 0], [0, 0], [1, -1]], np.float32),
    ):
        wide = rows.astype(np.float64)
        lengths = np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), SHORTEST)
        made = np.empty_like(rows)
        shorten_to_one(rows, made)
        np.testing.assert_allclose(made, (wide / lengths).astype(np.float32), 1e-6)
