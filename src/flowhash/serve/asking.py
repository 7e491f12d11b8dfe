"""What a search asks for: how much came is looked at before what it is."""

from __future__ import annotations

from typing import Any

from flowhash.serve.errors import SHORT, ProblemError
from flowhash.serve.request_body import check_keys, checked
from flowhash.serve.schemas.requests import SEARCHES, Asked
from flowhash.serve.service import Service


def read_search(service: Service, value: Any) -> Asked:
    """What is asked, by the one field that says by what.

    A million values are not checked to be refused.

    Raises:
        ProblemError: 422 for none of them, more than one, too many, or wrong types.
    """
    if not isinstance(value, dict):
        raise ProblemError(
            422, f'the body is {_kind(value)}; expected an object, such as {{"id": 17}}'
        )
    given = [name for name in SEARCHES if name in value]
    if len(given) != 1:
        came = " and ".join(given) or "none of them"
        raise ProblemError(
            422,
            f"the body has {came}; expected exactly one of vector, vectors, id, and embedding "
            "(with buckets)",
        )
    check_keys(value, "the body")
    if isinstance(value.get("vectors"), list):
        check_batch(service, len(value["vectors"]), "vectors")
    if isinstance(value.get("buckets"), list):
        _check_count(service, len(value["buckets"]))
    if "id" in value:
        _check_id(service, value["id"])
    return checked(SEARCHES[given[0]], value)


def _check_id(service: Service, item: Any) -> None:
    if type(item) not in (int, str):  # one of the wrong kind is just not there
        words = "whole numbers" if service.table.id_kind == "int64" else "strings"
        raise ProblemError(422, f"id is {SHORT.repr(item):.60}; this table has {words} as ids")


def _check_count(service: Service, count: int) -> None:
    most = service.table.buckets
    if count > most:
        raise ProblemError(422, f"{count} buckets came; the table has {most}. Name each once")


def check_batch(service: Service, count: int, name: str) -> None:
    """Refuse more than ``max_batch``.

    Raises:
        ProblemError: 422.
    """
    most = service.options.max_batch
    if count > most:
        raise ProblemError(
            422, f"{count} {name} at once; expected at most {most}. Send parts", "too_many"
        )


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
