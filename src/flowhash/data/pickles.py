"""Pickles of dictionaries with arrays, as data sets of the Python 2 age come, read safely.

A pickle is a program: it names callables and calls them. Here it can name only the few stand-ins
below, which make arrays of numbers from bytes; any other name is refused. Stand-ins are instances
that refuse to be given a state, so that a pickle cannot change them either.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import DamagedFileError

KINDS = "uifb"  # whole numbers, floats and truth values; never objects


class _StandIn:
    """Something that a pickle may name."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("a state for something that has none")


class _ArrayType(_StandIn):
    """In place of numpy.ndarray."""

    __slots__ = ()


class _Type:
    """In place of an instance of numpy.dtype."""

    __slots__ = ("dtype",)

    def __init__(self, name: Any) -> None:
        dtype = np.dtype(_text(name))
        if dtype.kind not in KINDS or dtype.subdtype is not None:
            raise pickle.UnpicklingError(f"an array of type {dtype}; only numbers are read")
        self.dtype = dtype

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1])
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder("<" if order == "<" else ">")


class _TypeMaker(_StandIn):
    """In place of numpy.dtype."""

    __slots__ = ()

    def __call__(self, name: Any, *_: Any) -> _Type:
        return _Type(name)


class _Array:
    """In place of an instance of numpy.ndarray."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: NDArray[Any] = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, raw = state
        self.array = _plain(raw, kind, shape, "F" if is_fortran else "C")


class _Reconstruct(_StandIn):
    """In place of numpy.core.multiarray._reconstruct."""

    __slots__ = ()

    def __call__(self, kind: Any, *_: Any) -> _Array:
        if not isinstance(kind, _ArrayType):
            raise pickle.UnpicklingError("an array of another class than numpy.ndarray")
        return _Array()


class _FromBuffer(_StandIn):
    """In place of numpy.core.numeric._frombuffer, which protocol 5 uses."""

    __slots__ = ()

    def __call__(self, raw: Any, kind: Any, shape: Any, order: Any) -> _Array:
        made = _Array()
        made.array = _plain(raw, kind, shape, "F" if _text(order) == "F" else "C")
        return made


class _Encode(_StandIn):
    """In place of _codecs.encode, by which Python 3 writes bytes for Python 2."""

    __slots__ = ()

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if not isinstance(text, str) or _text(encoding) != "latin1":
            raise pickle.UnpicklingError("an encoding other than latin1")
        return text.encode("latin1")


ALLOWED: dict[tuple[str, str], _StandIn] = {
    ("numpy", "ndarray"): _ArrayType(),
    ("numpy", "dtype"): _TypeMaker(),
    ("_codecs", "encode"): _Encode(),
}
for _core in ("numpy.core", "numpy._core"):
    ALLOWED[_core + ".multiarray", "_reconstruct"] = _Reconstruct()
    ALLOWED[_core + ".numeric", "_frombuffer"] = _FromBuffer()


class _Refused(pickle.UnpicklingError):
    """A pickle named something that is not a stand-in."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def read_pickle(content: bytes, name: str) -> dict[str, Any]:
    """The dictionary in a pickle: its keys as text, its arrays as plain numpy arrays.

    Args:
        content: the pickle.
        name: the file's name, for messages.

    Raises:
        DamagedFileError: the pickle names a class that is not an array's, or cannot be read.
    """
    try:
        loaded = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except _Refused as error:
        raise DamagedFileError(
            f"{name} is a pickle that asks for {error}; only arrays, numbers, text, lists and "
            "dictionaries are read, because anything else could run code. Get the official file"
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise DamagedFileError(
            f"{name} cannot be read as a pickle of arrays: {error!r}; download it again"
        ) from error
    if not isinstance(loaded, dict):
        raise DamagedFileError(
            f"{name} is a pickle of {type(loaded).__name__}; expected a dictionary"
        )
    return {
        _text(key): value.array if isinstance(value, _Array) else value
        for key, value in loaded.items()
    }


def _plain(raw: Any, kind: Any, shape: Any, order: Any) -> NDArray[Any]:
    """An array of numbers from its bytes."""
    if isinstance(raw, str):
        raw = raw.encode("latin1")
    if not isinstance(kind, _Type) or not isinstance(raw, (bytes, bytearray, memoryview)):
        raise pickle.UnpicklingError("an array that is not made of bytes")
    return np.frombuffer(raw, kind.dtype).reshape(shape, order=order)


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
