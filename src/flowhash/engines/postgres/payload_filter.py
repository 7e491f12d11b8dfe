"""``where=`` as SQL: on the ids, or on fields of the payload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from flowhash.engines.engine_arguments import allowed_ids, allowed_values
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
    kind, ids = id_list(empty.id_kind, allowed_ids(empty, where))
    return Filter(sql.SQL(" AND id = ANY(%s::{})").format(kind), (ids,))


def id_list(kind: str, ids: list[Any]) -> tuple[sql.SQL, list[Any]]:
    """The server's type of a list of ids, and those that it can have: none with a zero in it."""
    if kind == INT64:
        return sql.SQL("bigint[]"), ids
    return sql.SQL("text[]"), [name for name in ids if "\0" not in name]


def _on_payload(where: Mapping[Any, Any]) -> Filter:
    conditions, parameters = [], []
    for key, values in allowed_values(where).items():
        try:
            texts = [_plain(json.dumps(value, allow_nan=False)) for value in values]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"where[{key!r}] is {where[key]!r:.80}; expected a value that JSON can hold, or a "
                "list of such"
            ) from error
        conditions.append(
            sql.SQL(
                r" AND (replace(replace(payload::text, '\\', '\\-'), '\u', '\\u')::json"
                " -> %s::text)::jsonb = ANY(%s::jsonb[])"
            )
        )
        parameters += [json.loads(_plain(json.dumps(key))), texts]
    return Filter(sql.Composed(conditions), tuple(parameters))


def _plain(text: str) -> str:
    r"""JSON without the escapes that PostgreSQL refuses to look at, such as ``\u0000``.

    Both sides are compared after the same exchange: a backslash, ``\\``, gets a mark, so that what
    stands for an escape, ``\\u``, is no other text's.
    """
    return text.replace("\\\\", "\\\\-").replace("\\u", "\\\\u")
