"""What to do about an error, in the words of who reads it."""

from __future__ import annotations

import errno
import pickle

import pytest

from flowhash.cli.output import in_words
from flowhash.errors import Advice, Argument, InputError, LockedTableError, StorageError

ERRORS: list[tuple[Exception, str, str]] = [
    (InputError("x is 3; expected 4"), "x is 3; expected 4", "x is 3; expected 4"),
    (
        InputError("{x} has none; give", Argument("ignore_other", "True")),
        "{x} has none; give ignore_other=True",
        "{x} has none; give --ignore-other",
    ),
    (
        InputError("Say where it is:", Argument("folder", "...", "open_data({})")),
        "Say where it is: open_data(folder=...)",
        "Say where it is: --folder FOLDER",
    ),
    (InputError("Leave out", Argument("labels")), "Leave out labels=", "Leave out --labels"),
    (
        InputError("is 3; expected 4 or", Argument("at_least", "5"), "probe"),
        "probe is 3; expected 4 or at_least=5",
        "--probe is 3; expected 4 or --at-least 5",
    ),
    (
        InputError("x does not answer; give", Argument("address", '"local"'), "address"),
        'address x does not answer; give address="local"',
        "--ray x does not answer; give --ray local",
    ),
    (
        StorageError("x was changed; begin anew with", advice=Argument("restart", "True")),
        "x was changed; begin anew with restart=True",
        "x was changed; begin anew with --restart",
    ),
    (
        LockedTableError("x has a writer.", advice=Advice.ONE_WRITER),
        'x has a writer. Close that one, or open this one with mode="r"',
        "x has a writer. Close that one first, or serve with --read-only",
    ),
    (
        StorageError(errno.ENOSPC, "x: no space left"),
        f"[Errno {errno.ENOSPC}] x: no space left",
        "x: no space left",
    ),
]


@pytest.mark.parametrize(("error", "library", "command"), ERRORS)
def test_each_reader_has_its_own_words(error: Exception, library: str, command: str) -> None:
    for one in (error, pickle.loads(pickle.dumps(error))):  # as a worker sends it
        assert type(one) is type(error)
        assert str(one) == library
        assert in_words(one) == command
        assert getattr(one, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize("advice", list(Advice))
def test_the_command_has_words_for_every_advice(advice: Advice) -> None:
    words = in_words(StorageError("x.", advice=advice))
    assert words.startswith("x. ")
    assert "HashTable" not in words
    assert "mode=" not in words
