"""Buckets and ``where=`` as filters of Qdrant."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from qdrant_client import models

from flowhash.engines.engine_arguments import Where
from flowhash.engines.qdrant.points import CODE, PAYLOAD, holds, point_id
from flowhash.errors import InputError

MOST_IDS = 100_000  # of a filter: a request has to stay below Qdrant's 32 MB
PLAIN = re.compile(r"[A-Za-z0-9_-]+")
EXACT = 1 << 53  # whole numbers below it are float64 numbers too


@dataclass(frozen=True)
class Chosen:
    """Which points may be found.

    Attributes:
        conditions: that must hold.
        nothing: that no point can satisfy them.
        size: about how many values they have, which every request repeats.
    """

    conditions: tuple[Any, ...] = ()
    nothing: bool = False
    size: int = 0

    def __bool__(self) -> bool:
        return bool(self.conditions) or self.nothing

    def filter(self, buckets: Iterable[int] | None = None) -> models.Filter | None:
        """The filter that a point passes if it is in one of the buckets, or in any."""
        conditions = list(self.conditions)
        if buckets is not None:
            match = models.MatchAny(any=sorted(buckets))
            conditions.insert(0, models.FieldCondition(key=CODE, match=match))
        return models.Filter(must=conditions) if conditions else None


ALL = Chosen()


def chosen_by(where: Where) -> Chosen:
    """The points that may be found.

    Raises:
        InputError: they are too many ids for one filter, or Qdrant cannot compare with a value.
    """
    if where is None:
        return ALL
    if isinstance(where, dict):
        return _on_payload(where)
    points: list[Any] = list(dict.fromkeys(point_id(item) for item in where))
    if len(points) > MOST_IDS:
        raise InputError(
            f"where allows {len(points)} ids; a filter of Qdrant takes at most {MOST_IDS}. Put "
            "what they have in common into payloads, and give a dict"
        )
    return Chosen((models.HasIdCondition(has_id=points),), not points, len(points))


def _on_payload(where: dict[str, list[Any]]) -> Chosen:
    conditions, nothing, size = [], False, 0
    for key, values in where.items():
        path = _path(key)
        for value in values:
            _check(key, value)
        ways = _ways(path, [value for value in values if holds(value)])
        nothing |= not ways
        size += len(values)
        conditions.append(models.Filter(should=ways))
    return Chosen(tuple(conditions), nothing, size)


def _path(key: str) -> str:
    if not holds(key) or '"' in key:
        raise InputError(
            f"where has the key {key!r:.80}; expected the name of a payload field, without quotes"
        )
    return f"{PAYLOAD}.{key}" if PLAIN.fullmatch(key) else f'{PAYLOAD}."{key}"'


def _check(key: str, value: Any) -> None:
    single = value is None or isinstance(value, (str, bool, int, float))
    if not single or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(
            f"where[{key!r}] has {value!r:.80}; expected a text, a number, true, false or None, or "
            "a list of such"
        )


def _ways(path: str, values: list[Any]) -> list[Any]:
    """Conditions of which one must hold for a field to have one of the values."""
    texts: list[Any] = [value for value in values if isinstance(value, str)]
    truths = [value for value in values if isinstance(value, bool)]
    numbers = [value for value in values if type(value) in (int, float)]
    whole: list[Any] = [value for value in numbers if isinstance(value, int)]
    ways: list[Any] = [
        models.FieldCondition(key=path, match=models.MatchAny(any=some))
        for some in (texts, whole)
        if some
    ]
    ways += [
        models.FieldCondition(key=path, match=models.MatchValue(value=truth)) for truth in truths
    ]
    ways += [  # JSON's 1.0 is 1, which only a range sees
        models.FieldCondition(key=path, range=models.Range(gte=number, lte=number))
        for number in numbers
        if isinstance(number, float) or abs(number) < EXACT
    ]
    if any(value is None for value in values):
        ways.append(models.IsNullCondition(is_null=models.PayloadField(key=path)))
    return ways
