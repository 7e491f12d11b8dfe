"""``where=`` as SQL: on the ids, or on fields of the payload."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from flowhash.engines.engine_arguments import Where
from flowhash.errors import InputError
from flowhash.table import INT64


@dataclass(frozen=True)
class Filter:
    """A condition on rows, and its parameters."""

    condition: sql.Composable
    parameters: tuple[Any, ...]

    def __bool__(self) -> bool:
        return bool(self.parameters)


NO_FILTER = Filter(sql.SQL(""), ())


def filter_of(where: Where, kind: str) -> Filter:
    """The rows that may be found.

    Args:
        where: of the queries.
        kind: of the ids.

    Raises:
        InputError: PostgreSQL cannot compare with a value.
    """
    if where is None:
        return NO_FILTER
    if isinstance(where, dict):
        return _on_payload(where)
    listed, ids = id_list(kind, where)
    return Filter(sql.SQL(" AND id = ANY(%s::{})").format(listed), (ids,))


def id_list(kind: str, ids: list[Any]) -> tuple[sql.SQL, list[Any]]:
    """The server's type of a list of ids, and those that it can have: none with a zero in it."""
    if kind == INT64:
        return sql.SQL("bigint[]"), ids
    return sql.SQL("text[]"), [name for name in ids if "\0" not in name]


def _on_payload(where: dict[str, list[Any]]) -> Filter:
    conditions, parameters = [], []
    for key, values in where.items():
        try:
            texts = [_plain(json.dumps(value, allow_nan=False)) for value in values]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"where[{key!r}] is {values!r:.80}; expected a value that JSON can hold, or a "
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
