"""Pickles of dictionaries with arrays, as data sets of the Python 2 age come, read safely.

A pickle is a program: it names callables and calls them. Here it can name only the few stand-ins
below, which make arrays of numbers from bytes; any other name is refused. Stand-ins are instances
that refuse to be given a state, so that a pickle cannot change them either.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from flowhash.errors import DamagedFileError, reason

TUPLES = 1000  # in a pickle; an array takes three
PLACES = 1000  # of the unpickler's memory that may be passed over
KINDS = "uifb"  # whole numbers, floats and truth values; never objects


class _Type:
    """In place of an instance of numpy.dtype."""

    __slots__ = ("dtype",)

    def __init__(self, name: Any, *_: Any) -> None:
        if len(_text(name)) > 4:  # "<f8"
            raise pickle.UnpicklingError("an array of another type than numbers")
        dtype = np.dtype(_text(name))
        if dtype.kind not in KINDS or dtype.subdtype is not None:
            raise pickle.UnpicklingError(f"an array of type {dtype}; only numbers are read")
        self.dtype = dtype

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1])
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder("<" if order == "<" else ">")


class _Array:
    """In place of an instance of numpy.ndarray."""

    __slots__ = ("array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, raw = state
        self.array = _plain(raw, kind, shape, "F" if is_fortran else "C")


class _StandIn:
    """In place of a class or function that a pickle may name; calling it calls ``make``."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    def __call__(self, *arguments: Any) -> Any:
        return self.make(*arguments)

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("a state for something that has none")


def _no_array(*_: Any) -> NoReturn:
    raise pickle.UnpicklingError("an array that numpy does not write so")


def _reconstruct(kind: Any, *_: Any) -> _Array:
    if kind is not NDARRAY:
        raise pickle.UnpicklingError("an array of another class than numpy.ndarray")
    return _Array(np.zeros(0))


def _from_buffer(raw: Any, kind: Any, shape: Any, order: Any) -> _Array:
    return _Array(_plain(raw, kind, shape, "F" if _text(order) == "F" else "C"))


NDARRAY = _StandIn(_no_array)
ALLOWED = {("numpy", "ndarray"): NDARRAY, ("numpy", "dtype"): _StandIn(_Type)}
for _core in ("numpy.core", "numpy._core"):
    ALLOWED[_core + ".multiarray", "_reconstruct"] = _StandIn(_reconstruct)
    ALLOWED[_core + ".numeric", "_frombuffer"] = _StandIn(_from_buffer)  # of protocol 5


class _Refused(pickle.UnpicklingError):
    """A pickle named something that is not a stand-in."""


class _Encode:
    """In place of _codecs.encode, by which Python 3 writes bytes for Python 2."""

    __slots__ = ("spare",)

    def __init__(self, spare: int) -> None:
        self.spare = spare  # bytes that may be made yet: one text can be encoded twice

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if not isinstance(text, str) or _text(encoding) != "latin1":
            raise pickle.UnpicklingError("an encoding other than latin1")
        self.spare -= len(text)
        if self.spare < 0:
            raise pickle.UnpicklingError("more bytes than it has itself")
        return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        # Not a method of this one: the memo would hold it, and all bytes, until a collection.
        self.encode = _StandIn(_Encode(len(content)))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self.encode
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def read_pickle(content: bytes, name: str) -> dict[str, Any]:
    """The dictionary in a pickle: its keys as text, its arrays as plain numpy arrays.

    Raises:
        DamagedFileError: the pickle names a class that is not an array's, or cannot be read.
    """
    try:
        _check_program(content)
        loaded = _Unpickler(content).load()
    except _Refused as error:
        raise DamagedFileError(
            f"{name} is a pickle that asks for {reason(error)}; only arrays, numbers, text, lists "
            "and dictionaries are read, because anything else could run code. Get the official file"
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise DamagedFileError(
            f"{name} cannot be read as a pickle of arrays: {type(error).__name__}, "
            f"{reason(error)}; download it again"
        ) from error
    if not isinstance(loaded, dict) or not all(isinstance(key, str | bytes) for key in loaded):
        raise DamagedFileError(
            f"{name} is a pickle of {reason(type(loaded).__name__)}; expected a dictionary whose "
            "keys are texts"
        )
    return {
        _text(key): value.array if isinstance(value, _Array) else value
        for key, value in loaded.items()
    }


def _check_program(content: bytes) -> None:
    """Refuse programs that end the process: the unpickler does as it is told.

    Places of its memory are allocated up to the highest that is named, and a dictionary's key of
    thousands of tuples in each other overflows the stack where it is hashed.
    """
    places = tuples = 0
    for operation, value, _ in pickletools.genops(content):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT"):
            places += 1
            if value is None or value > 2 * places + PLACES:
                raise pickle.UnpicklingError(f"place {value} of its memory")
        elif operation.name in ("MEMOIZE", "DUP"):
            places += 1
        elif operation.name.startswith("TUPLE"):
            tuples += 1
            if tuples > TUPLES:
                raise pickle.UnpicklingError(f"more than {TUPLES} tuples")


def whole_numbers(values: Any) -> NDArray[Any] | None:
    """An array, or a list of numbers, of a pickle; None where it is something else.

    A list is looked at before numpy is: lists in lists, the same ones again and again, would make
    arrays of any size.
    """
    if isinstance(values, list) and all(type(value) is int for value in values):
        try:
            values = np.array(values, np.int64)
        except OverflowError:
            return None
    return values if isinstance(values, np.ndarray) and values.dtype.kind in "iu" else None


def _plain(raw: Any, kind: Any, shape: Any, order: Any) -> NDArray[Any]:
    """An array of numbers from its bytes."""
    if not isinstance(kind, _Type) or not isinstance(raw, (bytes, bytearray, memoryview)):
        raise pickle.UnpicklingError("an array that is not made of bytes")
    return np.frombuffer(raw, kind.dtype).reshape(shape, order=order)


def _text(value: Any) -> str:
    # What is no text is never written as one: it may be huge.
    if not isinstance(value, str | bytes):
        raise pickle.UnpicklingError("something else where a text belongs")
    return value.decode("latin1") if isinstance(value, bytes) else value
