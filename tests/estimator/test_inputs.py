"""Every kind of input gives the same as a numpy array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.estimator.clouds import clouds, quick

KINDS: dict[str, Callable[[Any], Any]] = {
    "list": lambda rows: rows.tolist(),
    "float64": lambda rows: rows.astype(np.float64),
    "columns first": np.asfortranarray,
    "every second": lambda rows: np.repeat(rows, 2, axis=0)[::2],
    "read only": lambda rows: np.frombuffer(rows.tobytes(), rows.dtype).reshape(rows.shape),
    "tensor": torch.tensor,
    "tensor with gradient": lambda rows: torch.tensor(rows, requires_grad=True),
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


def test_another_number_of_features_is_refused() -> None:
    rows, labels = clouds()
    hasher = quick().fit(rows, labels)
    for method in (hasher.transform, hasher.kneighbors, hasher.add):
        with pytest.raises(ValueError, match="X has 5 features, but FlowHasher is expecting 6"):
            method(rows[:, :5])
