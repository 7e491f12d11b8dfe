"""A table refuses what another encoder made, and names both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowhash.errors import InputError
from flowhash.table import HashTable

BOTH = r"made with encoder 'one', not 'two'; .* index afresh"


def made(encoder: str | None, path: Path | None = None) -> HashTable:
    table = HashTable.create(path, buckets=3, dim=1, encoder=encoder)
    table.add([[0], [1]], [[0.0], [1.0]], encoder=encoder)
    return table


def test_what_another_encoder_made_is_not_added() -> None:
    table = made("one")
    with pytest.raises(InputError, match="the table was " + BOTH):
        table.add([[0]], [[0.0]], encoder="two")
    assert len(table) == 2
    table.add([[0]], [[0.0]], encoder="one")
    assert len(table) == 3


def test_queries_of_another_encoder_are_refused() -> None:
    table = made("one")
    with pytest.raises(InputError, match="the table was " + BOTH):
        table.search([[0]], [[0.0]], encoder="two")
    assert table.search([[0]], [[0.0]], top=1, encoder="one").ids.tolist() == [[0]]


def test_without_a_fingerprint_vectors_are_taken_on_trust() -> None:
    table = made("one")
    table.add([[0]], [[0.0]])
    assert table.search([[1]], [[0.0]], top=1).ids.tolist() == [[1]]


def test_a_table_that_names_no_encoder_takes_all() -> None:
    table = made(None)
    table.add([[0]], [[0.0]], encoder="two")
    assert table.search([[1]], [[0.0]], top=1, encoder="three").ids.tolist() == [[1]]


def test_a_stored_table_refuses_too(tmp_path: Path) -> None:
    made("one", tmp_path).close()
    with pytest.raises(InputError, match=f"^{tmp_path} was {BOTH}"):
        HashTable.open(tmp_path, encoder="two")
    with HashTable.open(tmp_path, "r+", encoder="one") as table:
        with pytest.raises(InputError, match=BOTH):
            table.add([[0]], [[0.0]], encoder="two")
        with pytest.raises(InputError, match=BOTH):
            table.search([[0]], [[0.0]], encoder="two")
        assert len(table) == 2


@pytest.mark.parametrize("wrong", [3, b"one", object()])
def test_a_fingerprint_is_a_string(wrong: Any) -> None:
    table = made("one")
    with pytest.raises(InputError, match=r"encoder is .*; expected its fingerprint"):
        table.add([[0]], [[0.0]], encoder=wrong)
    with pytest.raises(InputError, match=r"encoder is .*; expected its fingerprint"):
        table.search([[0]], [[0.0]], encoder=wrong)
