"""Ids: numbers or strings, and how a table finds the row of one.

A string is looked up by a 64-bit hash, its key; a number is its own key. Each segment keeps the
order of its keys, and strings that share a key are told apart by their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowhash.compile import kernel
from flowhash.errors import InputError

INT64, STRING = "int64", "string"
LARGEST_STRING = 65_535  # bytes of a string id


def no_ids(kind: str) -> NDArray[Any]:
    """No ids, of the right kind, so that concatenating parts has something to start from."""
    return np.empty(0, np.int64 if kind == INT64 else object)


class Strings(NamedTuple):
    """Byte strings one after another.

    Attributes:
        content: all bytes [total] uint8.
        offsets: string i is content[offsets[i]:offsets[i + 1]] [n + 1] int64.
    """

    content: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    def at(self, row: int) -> bytes:
        """The bytes of one string."""
        return self.content[self.offsets[row] : self.offsets[row + 1]].tobytes()


NO_STRINGS = Strings(np.empty(0, np.uint8), np.empty(0, np.int64))


def pack_strings(strings: Iterable[bytes]) -> Strings:
    """Put byte strings one after another."""
    parts = list(strings)
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Strings(np.frombuffer(bytearray(b"".join(parts)), np.uint8), offsets)


class Ids(NamedTuple):
    """Ids as a table works with them: a key each, and the strings if they are strings."""

    keys: NDArray[np.int64]
    names: Strings

    def __len__(self) -> int:
        return len(self.keys)

    def value(self, index: int) -> int | str:
        """One id as the user knows it."""
        if len(self.names.offsets):
            return self.names.at(index).decode()
        return int(self.keys[index])


def read_ids(values: Any, kind: str) -> Ids:
    """Ids from what a user gave: a list, a set, an array, one id alone.

    Raises:
        InputError: they are not of the table's kind.
    """
    if isinstance(values, np.ndarray) and values.ndim == 0:
        values = values.item()
    if isinstance(values, (str, bytes, int, np.integer)):
        values = [values]
    elif not isinstance(values, np.ndarray):
        if isinstance(values, Mapping) or not isinstance(values, Iterable):
            raise InputError(f"ids are {values!r:.80}; expected a list of ids, or one id alone")
        values = list(values)
    if kind == STRING:
        return string_ids(values)
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"ids cannot be read as whole numbers: {error}") from error
    if array.size == 0:
        return Ids(np.empty(0, np.int64), NO_STRINGS)
    if array.dtype == object and all(type(value) is int for value in array.flat):
        raise InputError(
            f"ids contain {max(array.flat, key=abs)}; expected numbers of 64 bits, up to "
            f"{np.iinfo(np.int64).max}"
        )
    if array.dtype.kind in "USO":
        raise InputError(
            f"ids contain {values[0]!r}, but this table has whole numbers as ids; give whole "
            'numbers, or create the table with ids="string"'
        )
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InputError(
            f"ids have shape {array.shape} and dtype {array.dtype}; expected a list of integers"
        )
    if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"ids contain {array.max()}; the largest id is {np.iinfo(np.int64).max}")
    return Ids(np.require(array, np.int64, ["C", "W"]), NO_STRINGS)


def string_ids(values: Any) -> Ids:
    """Ids that are strings, with their keys."""
    parts = []
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise InputError(f"ids have shape {values.shape}; expected a list of strings")
    for value in values.tolist() if isinstance(values, np.ndarray) else values:
        if not isinstance(value, str):
            raise InputError(
                f"ids contain {value!r}, but this table has strings as ids; give strings, or "
                'create the table with ids="int64"'
            )
        try:
            parts.append(value.encode())
        except UnicodeEncodeError as error:
            raise InputError(f"the id {value!r} is not valid Unicode: {error.reason}") from error
        if len(parts[-1]) > LARGEST_STRING:
            raise InputError(
                f"the id {value[:40]!r}… has {len(parts[-1])} bytes; expected at most "
                f"{LARGEST_STRING}. Put long texts into the payload"
            )
    names = pack_strings(parts)
    return Ids(string_keys(names.content, names.offsets), names)


@kernel
def string_keys(content: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The key of each string: FNV-1a with 64 bits, then mixed, as a signed number."""
    keys = np.empty(offsets.shape[0] - 1, np.int64)
    for row in range(keys.shape[0]):
        value = np.uint64(0xCBF29CE484222325)
        for position in range(offsets[row], offsets[row + 1]):
            value = (value ^ np.uint64(content[position])) * np.uint64(0x100000001B3)
        value ^= value >> np.uint64(32)
        keys[row] = np.int64(value)
    return keys


@kernel
def same_string(names: Strings, row: int, others: Strings, index: int) -> bool:
    """Whether string ``row`` of one collection is string ``index`` of another."""
    first, second = names.offsets[row], others.offsets[index]
    size = names.offsets[row + 1] - first
    if size != others.offsets[index + 1] - second:
        return False
    for position in range(size):
        if names.content[first + position] != others.content[second + position]:
            return False
    return True


@kernel
def find_rows(
    keys: NDArray[np.int64],
    order: NDArray[np.int32],
    names: Strings,
    wanted: NDArray[np.int64],
    wanted_names: Strings,
    alive: NDArray[np.uint8],
    rows: NDArray[np.int64],
) -> None:
    """The live row of each wanted id into ``rows``, by binary search; -1 where there is none.

    ``order`` has the rows in the order of their ``keys``; names are empty if ids are numbers, and
    ``alive`` if no row is deleted.
    """
    size = order.shape[0]
    for index in range(wanted.shape[0]):
        key = wanted[index]
        low, high = 0, size
        while low < high:
            middle = (low + high) >> 1
            if keys[order[middle]] < key:
                low = middle + 1
            else:
                high = middle
        rows[index] = -1
        while low < size and keys[order[low]] == key:
            row = order[low]
            low += 1
            if alive.shape[0] > 0 and alive[row] == 0:
                continue
            if names.offsets.shape[0] == 0 or same_string(names, row, wanted_names, index):
                rows[index] = row
                break


@kernel
def last_of_each(
    order: NDArray[np.int64], keys: NDArray[np.int64], names: Strings
) -> NDArray[np.uint8]:
    """1 for every id's last occurrence, 0 for those that a later one replaces [n].

    ``order`` has the indices sorted by key, equal keys as they came.
    """
    last = np.ones(keys.shape[0], np.uint8)
    for place in range(order.shape[0]):
        index = order[place]
        later = place + 1
        while later < order.shape[0] and keys[order[later]] == keys[index]:
            if names.offsets.shape[0] == 0 or same_string(names, index, names, order[later]):
                last[index] = 0
                break
            later += 1
    return last
