"""``where=`` as SQL: on the ids, or on fields of the payload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from flowhash.engines.engine_arguments import allowed_ids
from flowhash.errors import InputError
from flowhash.table import INT64, HashTable


@dataclass(frozen=True)
class Filter:
    """A condition on rows, and its parameters."""

    condition: sql.Composable
    parameters: tuple[Any, ...]

    def __bool__(self) -> bool:
        return bool(self.parameters)


NO_FILTER = Filter(sql.SQL(""), ())


def read_filter(empty: HashTable, where: Any) -> Filter:
    """The filter that ``where`` describes.

    Args:
        empty: a table of the same settings, which checks ids.
        where: None, ids, a mask, or a dict of payload fields and the values they may have.

    Raises:
        InputError: it is none of these.
    """
    if where is None:
        return NO_FILTER
    if isinstance(where, Mapping):
        return _on_payload(where)
    ids = allowed_ids(empty, where)
    kind = "bigint[]" if empty.id_kind == INT64 else "text[]"
    if empty.id_kind != INT64:
        ids = [name for name in ids if "\0" not in name]
    return Filter(sql.SQL(f" AND id = ANY(%s::{kind})"), (ids,))


def _on_payload(where: Mapping[Any, Any]) -> Filter:
    conditions, parameters = [], []
    for key, wanted in where.items():
        if not isinstance(key, str):
            raise InputError(f"where has the key {key!r}; expected the name of a payload field")
        values = list(wanted) if isinstance(wanted, (list, tuple, set, frozenset)) else [wanted]
        try:
            texts = [_plain(json.dumps(value, allow_nan=False)) for value in values]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"where[{key!r}] is {wanted!r:.80}; expected a value that JSON can hold, or a list "
                "of such"
            ) from error
        conditions.append(
            sql.SQL(
                r" AND (replace(replace(payload::text, '\\', '\\-'), '\u', '\\u')::json"
                " -> %s::text)::jsonb = ANY(%s::jsonb[])"
            )
        )
        parameters += [json.loads(_plain(json.dumps(key))), texts]
    if not conditions:
        raise InputError("where is an empty dict; name a payload field, or leave it out")
    return Filter(sql.Composed(conditions), tuple(parameters))


def _plain(text: str) -> str:
    r"""JSON without the escapes that PostgreSQL refuses to look at, such as ``\u0000``.

    Both sides are compared after the same exchange: a backslash, ``\\``, gets a mark, so that what
    stands for an escape, ``\\u``, is no other text's.
    """
    return text.replace("\\\\", "\\\\-").replace("\\u", "\\\\u")
