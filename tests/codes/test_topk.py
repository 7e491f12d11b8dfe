"""Top-k codes and bucket orderings against numpy's stable sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from flowhash.codes import ordered_buckets, topk_codes

VALUES = {
    "real": st.floats(-1e6, 1e6, width=32),
    "tied": st.integers(-1, 1).map(float),
    "zeros": st.sampled_from([0.0, -0.0]),
    "extreme": st.sampled_from([3e38, -3e38, 1e-45, 0.0, 1.0]),
}


@st.composite
def activations(draw: Any) -> Any:
    rows, size = draw(st.integers(0, 5)), draw(st.integers(1, 80))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    values = VALUES[draw(st.sampled_from(sorted(VALUES)))]
    return draw(arrays(np.float64, (rows, size), elements=values)).astype(dtype)


def stable_order(values: Any) -> Any:
    return np.argsort(-values.astype(np.float64), axis=1, kind="stable")


@settings(max_examples=300)
@given(activations(), st.data())
def test_equals_a_stable_sort(values: Any, data: Any) -> None:
    count = data.draw(st.integers(1, values.shape[1]))
    expected = stable_order(values)[:, :count]
    codes = topk_codes(values, count)
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(codes, np.sort(expected, axis=1))
    np.testing.assert_array_equal(ordered_buckets(values, count), expected)
    np.testing.assert_array_equal(ordered_buckets(values), stable_order(values))


@pytest.mark.parametrize("threads", [1, 2, 3, None])
def test_threads_change_nothing(threads: int | None) -> None:
    values = np.random.default_rng(0).normal(size=(5003, 96)).astype(np.float32)
    np.testing.assert_array_equal(
        topk_codes(values, 4, threads=threads), np.sort(stable_order(values)[:, :4], axis=1)
    )
    np.testing.assert_array_equal(
        ordered_buckets(values, 50, threads=threads), stable_order(values)[:, :50]
    )


def test_views_and_other_types() -> None:
    values = np.random.default_rng(1).normal(size=(40, 60))
    expected = topk_codes(np.ascontiguousarray(values[::2, ::3]), 3)
    np.testing.assert_array_equal(topk_codes(values[::2, ::3], 3), expected)
    whole = np.random.default_rng(2).integers(0, 5, size=(9, 30))
    np.testing.assert_array_equal(topk_codes(whole, 3), topk_codes(whole.astype(float), 3))
    half = values.astype(np.float16)
    np.testing.assert_array_equal(topk_codes(half, 3), topk_codes(half.astype(np.float32), 3))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [2, 40])
def test_names_the_place_that_is_not_finite(bad: float, dtype: Any, count: int) -> None:
    values = np.zeros((4000, 50), dtype)
    values[3001, 7] = bad
    for function in (topk_codes, ordered_buckets):
        with pytest.raises(ValueError, match=r"activations\[3001, 7\] is .*finite"):
            function(values, count)


def test_bad_arguments_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="1 <= active <= 3"):
        topk_codes(np.zeros((2, 3)), 4)
    with pytest.raises(ValueError, match="first is 0; expected a whole number from 1 to 3"):
        ordered_buckets(np.zeros((2, 3)), 0)
    with pytest.raises(ValueError, match="two dimensions"):
        topk_codes(np.zeros(3), 1)
    with pytest.raises(ValueError, match="real numbers"):
        topk_codes([["a"]], 1)
    with pytest.raises(ValueError, match="threads is 0"):
        topk_codes(np.zeros((2, 3)), 1, threads=0)
    with pytest.raises(ValueError, match=r"threads is 1\.5"):
        topk_codes(np.zeros((2, 3)), 1, threads=1.5)  # type: ignore[arg-type]
