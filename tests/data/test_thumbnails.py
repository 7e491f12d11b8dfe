"""Small pictures in payloads: what goes in comes out, and nothing else does."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

from flowhash.data.item_payloads import picture_of, plain_payload, thumbnail
from flowhash.errors import InputError


def decoded(url: str) -> tuple[str, np.ndarray]:
    found = picture_of({"picture": url})
    assert found is not None
    media, content = found
    image = Image.open(io.BytesIO(content))
    assert image.get_format_mimetype() == media
    return media, np.asarray(image.convert("RGB"))


@given(height=st.integers(1, 300), width=st.integers(1, 300), seed=st.integers(0, 99))
def test_a_thumbnail_keeps_shape_and_fits(height: int, width: int, seed: int) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    media, found = decoded(thumbnail(image))
    if max(height, width) <= 32:  # without loss
        assert media == "image/png"
        np.testing.assert_array_equal(found, image)
    else:
        assert media == "image/jpeg"
        assert max(found.shape[:2]) == min(96, max(height, width))
        scale = min(1.0, 96 / max(height, width))
        assert abs(found.shape[0] - height * scale) <= 1
        assert abs(found.shape[1] - width * scale) <= 1


def test_a_large_picture_is_the_same_to_the_eye() -> None:
    rows, columns = np.mgrid[:200, :100]
    image = np.stack([rows, 2 * columns, rows // 2 + columns], 2).astype(np.uint8)
    _, found = decoded(thumbnail(image))
    small = np.asarray(Image.fromarray(image).resize((48, 96), Image.Resampling.BOX))
    assert np.abs(found.astype(int) - small.astype(int)).mean() < 4


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {},
        {"picture": None},
        {"picture": 7},
        {"picture": "cat.png"},
        {"picture": "data:image/png,abc"},
        {"picture": "data:text/html;base64,PGI+"},
        {"picture": "data:image/svg+xml;base64,PGI+"},
        {"picture": "data:image/png;base64,not base64"},
        {"picture": "data:image/png;base64,é"},
        {"picture": "data:image/png;base64,PHNjcmlwdD4="},
    ],
)
def test_what_is_no_picture_is_none(payload: dict[str, object] | None) -> None:
    assert picture_of(payload) is None


def test_plain_leaves_the_picture_out_only() -> None:
    assert plain_payload({"label": "cat", "picture": "x", "own": 1}) == {"label": "cat", "own": 1}
    assert plain_payload(None) == {}


@pytest.mark.parametrize(
    "image", [np.zeros((4, 4, 3)), np.zeros((4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)]
)
def test_no_image_is_refused(image: np.ndarray) -> None:
    with pytest.raises(InputError, match="expected uint8"):
        thumbnail(image)
