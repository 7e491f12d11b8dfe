"""Reading what clients send: JSON, forms, and images, which anybody may have made."""

from __future__ import annotations

import asyncio
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from flowhash.data import DRAFT_FACTOR, IMAGE_FORMATS, fit_image, small_picture
from flowhash.extras import require
from flowhash.serve.errors import RequestError, mistake

IMAGE = "image"  # the field of a form that holds files
FIELDS = 64  # of a form at the most, beside files
DEPTH = 32  # of nested JSON in a payload at the most
BODY_DEPTH = DEPTH + 4  # of a body, which has its payloads in a list of items
PARTS = 100_000  # lists and objects of a body at the most; millions hold up the whole process
KEYS = 32  # of an object at the most, where the names are ours
LARGE = 1 << 16  # bytes; what is larger is read in a thread, while others are answered

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, timeout: float) -> bytes | None:
    """The JSON of a request as it came; None where a form comes, for ``read_form``.

    Raises:
        RequestError: 408 if it does not come, 413 if it is too large, 415 for any other type.
    """
    kind = _content_type(request)
    if kind == "multipart/form-data":
        return None
    if kind != "application/json":
        came = f"Content-Type is {kind[:100]!r}" if kind else "there is no Content-Type"
        raise RequestError(415, f"{came}; expected application/json or multipart/form-data")
    with _Arrival(timeout):
        first = await request.receive()
        pieces = [first.get("body", b"")]
        if first.get("more_body", False):  # most come in one piece
            pieces += [piece async for piece in request.stream()]
    return b"".join(pieces)


def parse_json(body: bytes) -> Any:
    """A body as JSON.

    Raises:
        RequestError: 400 if it is none, 422 if it has too many parts, or is nested too deep.
    """
    parts = body.count(b"[") + body.count(b"{")  # also those in texts, but quick
    if parts > PARTS and _parts(body) > PARTS:
        raise RequestError(
            422, f"the body has more than {PARTS} lists and objects; send less at once", "too_many"
        )
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(
            400,
            f"the body is no JSON: {error}. Numbers are finite (no NaN or Infinity), text is UTF-8",
            "bad_json",
        ) from error
    if parts > BODY_DEPTH and too_deep(value, BODY_DEPTH):
        raise RequestError(
            422, f"the body is nested more than {BODY_DEPTH} deep; make it flatter", "too_deep"
        )
    return value


def _parts(body: bytes) -> int:
    """How many lists and objects a body has, without the brackets in its texts."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # now every quote begins or ends one
    signs = np.frombuffer(plain, np.uint8)
    outside = ~np.logical_xor.accumulate(signs == ord('"'))
    return int(np.count_nonzero(((signs == ord("[")) | (signs == ord("{"))) & outside))


def check_keys(value: dict[str, Any], name: str) -> None:
    """Refuse an object with more names than any of ours has, before each is looked at."""
    if len(value) > KEYS:
        raise RequestError(
            422, f"{name} has {len(value)} names; expected at most {KEYS}, see /openapi.json"
        )


def validate(model: type[Model], value: Any, place: tuple[str | int, ...] = ()) -> Model:
    """``value``, which stands at ``place`` of the body, as a model.

    Raises:
        RequestError: 422 with the first mistake.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise mistake(error, place) from error


def parameters(model: type[Model], request: Request) -> Model:
    """The parameters of a request's path and query; others are ignored.

    Raises:
        RequestError: 422 with the first mistake.
    """
    inside = request.path_params
    try:
        return model.model_validate({**request.query_params, **inside})
    except ValidationError as error:
        where = "path" if error.errors()[0]["loc"][0] in inside else "query"
        raise mistake(error, (where,)) from error


def number_rows(vectors: list[list[float]], size: int | None, name: str) -> NDArray[np.float32]:
    """Lists of checked numbers as float32 [n, size].

    Raises:
        RequestError: 422 for another length.
    """
    expected = len(vectors[0]) if size is None else size
    for place, vector in enumerate(vectors):
        if len(vector) != expected:
            which = name if len(vectors) == 1 else f"{name} {place}"
            raise RequestError(422, f"{which} has {len(vector)} numbers; expected {expected}")
    return np.array(vectors, np.float32)


async def read_form(
    request: Request, timeout: float, most: int, names: tuple[str, ...]
) -> tuple[list[tuple[str | None, bytes]], dict[str, list[str]]]:
    """The images of a form, ``most`` at the most, each with its file's name; texts, by ``names``.

    Raises:
        RequestError: 400 if it is no form, 408 if it does not come, 413 if it is too large, 422 for
            a field that is not known, or if there is no image.
    """
    images: list[tuple[str | None, bytes]] = []
    texts: dict[str, list[str]] = {}
    try:
        with _Arrival(timeout):
            async with request.form(max_files=most, max_fields=FIELDS) as form:
                for name, value in form.multi_items():
                    if not isinstance(value, UploadFile):
                        texts.setdefault(name, []).append(value)
                    elif name == IMAGE:
                        images.append((value.filename, await value.read()))
                    else:
                        raise RequestError(
                            422, f"a file came as {name[:60]!r}; expected it as {IMAGE!r}"
                        )
    except HTTPException as error:
        raise RequestError(400, f"the form cannot be read: {error.detail}", "bad_form") from error
    for name in texts:
        if name not in names:
            raise RequestError(
                422, f"the form has a field {name[:60]!r}; expected {', '.join(names)}"
            )
    if not images:
        raise RequestError(
            422, f"the form has no file {IMAGE!r}; send the image as a file of that name"
        )
    return images, texts


def _content_type(request: Request) -> str:
    """Without parameters; Starlette's Headers cost as much as the rest of this function."""
    for name, value in request.scope["headers"]:
        if name == b"content-type":
            kind: str = value.decode("latin-1").partition(";")[0].strip().lower()
            return kind
    return ""


class _Arrival:
    """Gives a body only so much time. Standard ones cost as much as the rest of a short request."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._late = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._timeout, self._stop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        self._timer.cancel()
        if self._late and kind is asyncio.CancelledError:
            if self._task is not None and hasattr(self._task, "uncancel"):  # from Python 3.11
                self._task.uncancel()
            raise RequestError(
                408,
                f"the body did not come within {self._timeout:g} s; send it again, faster or "
                "smaller",
            ) from error
        if kind is ClientDisconnect:
            raise RequestError(400, "the client left before its body had come") from error

    def _stop(self) -> None:
        self._late = True
        if self._task is not None:
            self._task.cancel()


def too_deep(value: Any, left: int = DEPTH) -> bool:
    """Whether lists and dicts are nested deeper than what every reader of JSON can follow."""
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(left):
        level = [
            entry
            for outer in level
            for entry in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(entry, list | dict)
        ]
    return bool(level)


def decode(
    content: bytes, size: tuple[int, int], max_pixels: int, name: str = "the image"
) -> NDArray[np.uint8]:
    """An image as the encoder takes it [height, width, 3].

    The number of pixels is read from the head of the file before anything is decoded.

    Raises:
        RequestError: 413 for more than ``max_pixels``, 415 for other formats, 422 for damage.
    """
    with _image_in(content, size, max_pixels, name) as image:
        return fit_image(image, size)


def decode_and_keep(
    content: bytes, size: tuple[int, int], max_pixels: int, name: str
) -> tuple[NDArray[np.uint8], str]:
    """What ``decode`` makes, and a small picture to store beside it."""
    with _image_in(content, size, max_pixels, name) as image:
        return fit_image(image, size), small_picture(image)


@contextmanager
def _image_in(content: bytes, size: tuple[int, int], max_pixels: int, name: str) -> Iterator[Any]:
    pillow = require("PIL.Image", "learn")
    try:
        with warnings.catch_warnings():  # a large image is refused with words, not with a warning
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            image = pillow.open(io.BytesIO(content), formats=IMAGE_FORMATS)
        with image:
            width, height = image.size
            if width * height > max_pixels:
                raise RequestError(
                    413,
                    f"{name} has {width} × {height} pixels; expected at most {max_pixels} in all. "
                    "Scale it down: the encoder looks at a small version anyway",
                    "too_many_pixels",
                )
            # Just as files are read, so that an image gives the same numbers wherever it is read.
            side = DRAFT_FACTOR * max(size)
            image.draft("RGB", (side, side))
            image.load()
            yield image
    except RequestError:
        raise
    except pillow.DecompressionBombError as error:
        raise RequestError(
            413, f"{name} is made to fill the memory: {error}", "too_many_pixels"
        ) from error
    except pillow.UnidentifiedImageError as error:
        raise RequestError(
            415, f"{name} is no image of a known format; expected {', '.join(IMAGE_FORMATS)}"
        ) from error
    except Exception as error:  # decoders fail in many ways on what is damaged
        raise RequestError(
            422, f"{name} cannot be decoded ({type(error).__name__}); send it whole, or as PNG"
        ) from error
