"""The arguments of ``add`` and ``search``, checked, in the form that the table works with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowhash.argument_checks import numbers, plain_integer, whole_number
from flowhash.errors import ChangedNotesError, InputError
from flowhash.table.ids import INT64, NO_STRINGS, Ids, Strings, pack_strings, read_ids
from flowhash.table.segments.arrays import LAYOUTS
from flowhash.table.segments.segment import LiveSegment, TableState
from flowhash.table.segments.segment_draft import first_wrong_code
from flowhash.table.storage.manifest import LARGEST_SEGMENT
from flowhash.table.table_settings import TableSettings
from flowhash.top_values import sort_rows

LARGEST_PAYLOAD = 1 << 20  # bytes of JSON
DEEPEST_PAYLOAD = 100  # levels of dicts and lists; JSON readers give up at some depth
LONGEST_NAME = 1000  # characters of a note's name
LARGEST_NOTE = 1 << 16  # bytes of its JSON
LARGEST_NOTES = 1 << 24  # of all notes of a table, which every change writes anew
LARGEST_ID = np.iinfo(np.int64).max
LARGEST_ANSWER = 1 << 30  # places for hits, padding too
WHERE = "It is a list or set of ids, or a boolean mask; payloads are not searched"


@dataclass(frozen=True, eq=False)
class NewRows:
    """Checked arguments of ``add``.

    Attributes:
        codes: ascending in each row, -1 behind its last bucket [n, k] int32.
        embeddings: as they will be stored [n, dim] float32 or float16.
        ids: None if the table is to count.
        payloads: JSON texts; without offsets if there are none.
        assigned: whether the table counted the ids itself.
    """

    codes: NDArray[np.int32]
    embeddings: NDArray[Any]
    ids: Ids | None
    payloads: Strings
    assigned: bool = False

    def user_ids(self) -> NDArray[Any]:
        """The ids as the user knows them."""
        assert self.ids is not None
        if not len(self.ids.names.offsets):
            return self.ids.keys
        return np.array([self.ids.value(index) for index in range(len(self.ids))], object)


def read_items(
    settings: TableSettings,
    codes: ArrayLike,
    embeddings: ArrayLike,
    ids: Any,
    payloads: Sequence[dict[str, Any] | None] | None,
) -> NewRows:
    """Check the arguments of ``add``; embeddings are checked while they are copied."""
    vectors = _read_vectors(settings, embeddings, "embeddings")
    count = len(vectors)
    if count >= LARGEST_SEGMENT:
        raise InputError(f"{count} items at once; expected fewer than {LARGEST_SEGMENT}. Add parts")
    vectors = LAYOUTS[settings.dtype].rounded(vectors)  # infinities are refused when copied
    buckets = read_codes(settings, codes, count)
    known = None
    if ids is not None:
        known = read_ids(ids, settings.ids)
        if len(known) != count:
            raise InputError(f"ids has {len(known)} ids for {count} embeddings; expected one each")
    elif settings.ids != INT64:
        raise InputError("this table has strings as ids, which it cannot make up; give ids")
    return NewRows(buckets, vectors, known, _read_payloads(payloads, count))


def with_ids(items: NewRows, next_id: int) -> NewRows:
    """The items with ids that count on from ``next_id``, unless they have ids."""
    if items.ids is not None:
        return items
    count = len(items.codes)
    if next_id + count - 1 > LARGEST_ID:
        raise InputError(
            f"ids count on from the largest one, {next_id - 1}, and no number is left; give ids"
        )
    keys = np.arange(next_id, next_id + count, dtype=np.int64)
    return NewRows(items.codes, items.embeddings, Ids(keys, NO_STRINGS), items.payloads, True)


def _read_vectors(settings: TableSettings, values: ArrayLike, name: str) -> NDArray[np.float32]:
    if (  # what single queries should be, without the detours
        type(values) is np.ndarray
        and values.dtype == np.float32
        and values.ndim == 2
        and values.shape[1] == settings.dim
        and values.flags.carray
    ):
        return values
    array = numbers(values, name)
    if array.ndim != 2 or array.shape[1] != settings.dim:
        raise InputError(
            f"{name} has shape {array.shape}; expected [n, {settings.dim}], the table's dim. For a "
            "single one use values[None, :]"
        )
    with np.errstate(over="ignore"):  # what is too large becomes infinite and is refused
        return np.require(array, np.float32, ["C", "W"])


def read_codes(settings: TableSettings, values: ArrayLike, count: int) -> NDArray[np.int32]:
    """Check the codes of so many items; a copy, ascending in each row, then -1 [count, k].

    Of fewer columns than k, all items are in fewer buckets.
    """
    array = numbers(values, "codes")
    if array.size == 0 and count == 0:
        return np.empty((0, settings.active), np.int32)
    shaped = array.ndim == 2 and len(array) == count and 1 <= array.shape[1] <= settings.active
    if array.dtype.kind not in "iu" or not shaped:
        raise InputError(
            f"codes has shape {array.shape} and dtype {array.dtype}; expected whole numbers "
            f"[{count}, {settings.active}], the {settings.active} active buckets of each item"
        )
    # What does not fit, and what is not -1, must not become it.
    if array.dtype.itemsize > 4 or array.dtype == np.uint32:
        array = array.clip(-2 if array.dtype.kind == "i" else 0, settings.buckets)
    codes = np.full((count, settings.active), -1, np.int32)  # a copy: it is sorted
    codes[:, : array.shape[1]] = array
    row = first_wrong_code(codes, settings.buckets)
    if row != -1:
        many = f"1 to {settings.active}" if settings.active > 1 else "1"
        raise InputError(
            f"codes[{row}] is {np.asarray(values)[row].tolist()}; expected {many} different "
            f"buckets from 0 to {settings.buckets - 1}"
            f"{', and -1 behind the last of fewer' if settings.active > 1 else ''}"
        )
    if settings.active > 1:
        missing = codes < 0
        codes[missing] = settings.buckets  # which sorts behind all others
        sort_rows(codes)
        codes[codes == settings.buckets] = -1
    return codes


def _read_payloads(payloads: Sequence[dict[str, Any] | None] | None, count: int) -> Strings:
    if payloads is None:
        return NO_STRINGS
    if isinstance(payloads, (str, bytes, Mapping)) or not isinstance(payloads, Sequence):
        raise InputError(f"payloads is {payloads!r:.80}; expected a list with a dict or None each")
    if len(payloads) != count:
        raise InputError(f"payloads has {len(payloads)} entries for {count} items; give one each")
    if all(payload is None for payload in payloads):
        return NO_STRINGS
    return pack_strings(_payload_text(index, payload) for index, payload in enumerate(payloads))


def _payload_text(index: int, payload: dict[str, Any] | None) -> bytes:
    if payload is None:
        return b""
    if not isinstance(payload, dict) or not all(isinstance(key, str) for key in payload):
        raise InputError(
            f"payloads[{index}] is {payload!r:.80}; expected a dict with strings as keys, or None"
        )
    advice = "Keep large things elsewhere and their address here"
    return _json_text(f"payloads[{index}]", payload, LARGEST_PAYLOAD, advice).encode()


def _json_text(name: str, value: Any, largest: int, advice: str) -> str:
    """What JSON can hold, in ASCII, unless it is too large or nested too deeply."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name} cannot be written as JSON: {error}") from error
    if len(text) > largest:
        raise InputError(
            f"{name} has {len(text)} bytes of JSON; expected at most {largest}. {advice}"
        )
    if text.count("{") + text.count("[") > DEEPEST_PAYLOAD and _depth(value) > DEEPEST_PAYLOAD:
        raise InputError(
            f"{name} is nested {_depth(value)} levels deep; expected at most {DEEPEST_PAYLOAD}. "
            "Flatten it, or keep it as one string"
        )
    return text


def _depth(value: Any) -> int:
    """How many dicts and lists lie in each other; what is given was written as JSON already."""
    depth = -1
    level: list[Any] = [[value]]
    while level:
        depth += 1
        contents = [outer.values() if isinstance(outer, dict) else outer for outer in level]
        level = [
            inner for some in contents for inner in some if isinstance(inner, (dict, list, tuple))
        ]
    return depth


def changed_notes(
    before: Mapping[str, Any],
    given: Mapping[str, Any] | None,
    expected: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """All notes of a table after a change; None if it changes none of them.

    Args:
        before: all that there are.
        given: those to change; one whose value is None is removed.
        expected: what the caller knows of some; None is for one that is not there.

    Raises:
        InputError: a note is too large, or is not what JSON can hold.
        ChangedNotesError: one is not what was expected.
    """
    for name, value in (expected or {}).items():
        if before.get(name) != value:
            raise ChangedNotesError(
                f"the note {name!r} was changed by somebody else; read the notes again"
            )
    # As they will be read, and nobody else's to change.
    read = {name: json.loads(_note_text(name, value)) for name, value in (given or {}).items()}
    notes = {name: value for name, value in {**before, **read}.items() if value is not None}
    if not read or json.dumps(notes) == json.dumps(before):
        return None
    if (size := len(json.dumps(notes))) > LARGEST_NOTES:
        raise InputError(
            f"the notes have {size} bytes of JSON together; expected at most {LARGEST_NOTES}. "
            "Remove some: give them None"
        )
    return notes


def _note_text(name: Any, value: Any) -> str:
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise InputError(
            f"the name of a note is {name!r:.80}; expected a string of at most {LONGEST_NAME} "
            "characters"
        )
    advice = "Keep large things in files of their own"
    return _json_text(f"the note {name!r}", value, LARGEST_NOTE, advice)


def read_queries(
    settings: TableSettings, ordered_buckets: ArrayLike, queries: ArrayLike
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Check the arrays of a search; what is in them is checked by the kernels."""
    asked = _read_vectors(settings, queries, "queries")
    if (
        type(ordered_buckets) is np.ndarray
        and ordered_buckets.dtype == np.int32
        and ordered_buckets.ndim == 2
        and len(ordered_buckets) == len(asked)
        and ordered_buckets.flags.carray
    ):
        return ordered_buckets, asked
    order = numbers(ordered_buckets, "ordered_buckets")
    if len(asked) == 0 and order.size == 0:
        return np.empty((0, settings.buckets), np.int32), asked
    if order.dtype.kind not in "iu" or order.ndim != 2 or len(order) != len(asked):
        raise InputError(
            f"ordered_buckets has shape {order.shape} and dtype {order.dtype}; expected whole "
            f"numbers [{len(asked)}, m], the buckets of each query in the order to open them"
        )
    if order.dtype.itemsize > 4 or order.dtype == np.uint32:  # what would wrap round stays wrong
        limits = np.iinfo(np.int32)
        order = order.clip(limits.min if order.dtype.kind == "i" else 0, limits.max)
    return np.require(order, np.int32, ["C", "W"]), asked


def read_probe(probe: Any, active: int, count: int) -> int | NDArray[np.int32]:
    """How many buckets are opened: one number, k by default, or one for each of the queries."""
    if probe is None:
        return active
    if not isinstance(probe, (np.ndarray, list, tuple)) or np.ndim(probe) == 0:
        found: int = plain_integer(probe)
        return found
    given = numbers(probe, "probe")
    if given.dtype.kind not in "iu" or given.shape != (count,) or (given < 1).any():
        raise InputError(
            f"probe has shape {given.shape} and dtype {given.dtype}; expected one whole number, or "
            f"{count} of them, one for each query, each 1 or more"
        )
    return given.clip(1, np.iinfo(np.int32).max).astype(np.int32)


def check_probe(probe: int, buckets: int) -> None:
    """Refuse to open more buckets than there are."""
    if probe > buckets:
        raise InputError(
            f"is {probe}, and the table has {buckets} bucket{'s' * (buckets > 1)}; expected "
            f"{buckets} at the most, which opens all of it",
            subject="probe",
        )


def check_search(
    buckets: int,
    order: NDArray[np.int32],
    top: int,
    probe: int | NDArray[np.int32],
    at_least: int | None,
    threads: int | None,
) -> None:
    """Check the numbers of a search in a table of so many buckets."""
    if not isinstance(probe, int) and isinstance(probe, np.ndarray):
        probe = int(probe.max(initial=1))
    if not type(top) is type(probe) is int or top < 1 or probe < 1:
        for name, value in (("top", top), ("probe", probe)):
            whole_number(name, value, 1)
    check_probe(probe, buckets)
    if probe > order.shape[1]:
        raise InputError(
            f"probe is {probe}, but ordered_buckets names only {order.shape[1]} buckets a query; "
            "give more of them, as flowhash.ordered_buckets(activations, first=probe) does"
        )
    if len(order) * top > LARGEST_ANSWER:
        raise InputError(
            f"top is {top} for {len(order)} queries, an answer with {len(order) * top} places; "
            f"expected at most {LARGEST_ANSWER}. Ask for fewer, or in parts"
        )
    if at_least is not None:
        whole_number("at_least", at_least, 1)
    if threads is not None:
        whole_number("threads", threads, 1)


def allowed_rows(
    settings: TableSettings, state: TableState, where: Any, kinds: str = WHERE
) -> list[NDArray[np.uint8]]:
    """For each part 1 where a live row has an id that ``where`` allows.

    ``kinds`` says what it may be, for whoever gave something else.
    """
    mask = _as_mask(where)
    if mask is not None:
        if settings.ids != INT64 or mask.ndim != 1:
            raise InputError(
                "where is a mask; that needs one dimension, and whole numbers as ids, which are "
                "places in it. Give a list of ids instead"
            )
        return [_allow_mask(part, mask) for part in state.parts]
    try:
        ids = read_ids(where, settings.ids)
    except InputError as error:
        raise InputError(f"where cannot be used: {error}. {kinds}") from error
    parts, rows = state.locate(ids)
    allowed = [np.zeros(part.segment.rows, np.uint8) for part in state.parts]
    for number, array in enumerate(allowed):
        array[rows[parts == number]] = 1
    return allowed


def _as_mask(where: Any) -> NDArray[np.bool_] | None:
    """``where`` as a mask, if it is one."""
    if not isinstance(where, (np.ndarray, list, tuple, bool, np.bool_)):
        return None
    try:
        mask = np.asarray(where)
    except ValueError:  # ragged lists: no mask, and no ids
        return None
    return mask if mask.dtype == bool else None


def _allow_mask(part: LiveSegment, mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    part.segment.ensure("ids")
    keys = part.segment.arrays.ids
    allowed = np.zeros(len(keys), np.uint8)
    inside = (keys >= 0) & (keys < len(mask))
    allowed[inside] = mask[keys[inside]]
    return allowed & part.alive if len(part.alive) else allowed
