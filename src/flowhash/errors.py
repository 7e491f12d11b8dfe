"""What FlowHash raises. Every message says what came, what was expected and what to do.

What to do may be called otherwise by who asked: a caller of the library gives ``download=True``, a
user of the command ``--download``. Such an error carries it beside its words, at whose end it
stands, and what it is about, with which they begin; a surface with names of its own says the words
between its own names.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """An argument to give, or to leave out.

    Attributes:
        name: as the library has it.
        value: as Python writes it; ``...`` stands for the caller's own, empty for none.
        call: in which it is given, with ``{}`` in its place.
    """

    name: str
    value: str = ""
    call: str = "{}"

    def __str__(self) -> str:
        return self.call.format(f"{self.name}={self.value}")


class Advice(enum.Enum):
    """What to do where it is another thing for each surface; the value is for Python."""

    CREATE = "Use HashTable.create to make one"
    NEW_FOLDER = "give a new or empty folder, or use HashTable.open for a table that is there"
    ONE_WRITER = 'Close that one, or open this one with mode="r"'
    ENCODE_FIRST = "encode other items first, with flowhash.bulk.encode"
    WITHOUT_RAY = "use LocalRunner to work in this process"

    def __str__(self) -> str:
        return self.value


class InputError(ValueError):
    """An argument cannot be used as it is.

    Args:
        words: of the message.
        remedy: what mends it; the message ends with it.
        subject: the name of the argument that it is about; the message begins with it.
    """

    def __init__(
        self, words: str, remedy: Argument | Advice | None = None, subject: str | None = None
    ) -> None:
        super().__init__(" ".join(str(part) for part in (subject, words, remedy) if part))
        self.words, self.remedy, self.subject = words, remedy, subject


class MissingExtraError(ImportError):
    """An optional part of FlowHash is used, but the packages it needs are not installed."""


class SolverError(RuntimeError):
    """A solver of another library did not deliver a solution."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message says why and names the last good checkpoint."""


class StorageError(OSError):
    """A stored table cannot be read or written; the message names the file.

    Args:
        *facts: the words of the message; or the system's number of the error, and the words.
        advice: what to do; the message ends with it.
    """

    def __init__(self, *facts: object, advice: Argument | Advice | None = None) -> None:
        *number, words = facts
        super().__init__(*number, words if advice is None else f"{words} {advice}")
        # Without the number that the system gives to it.
        self.words, self.remedy = str(words), advice


class DamagedFileError(StorageError):
    """A stored file is not what was written: cut short, changed, or missing.

    Attributes:
        block: the number of the block whose checksum it does not match; None for other damage.
    """

    block: int | None = None


class LockedTableError(StorageError):
    """Another process, or another object of this one, is writing to the table."""


class OldCalibrationWarning(UserWarning):
    """So many items came or went since recall was calibrated that it may not be reached."""


class ChangedNotesError(StorageError):
    """A note of a table is not what the caller knows of it: somebody else has changed it."""


class ForbiddenError(StorageError):
    """The server that keeps a table does not let this user do that to it."""


def reason(error: object) -> str:
    """What another library's error says, or what stands in a file, fit for a message of ours.

    It is one line of at most 300 characters, and what is not printable is left out: a file that
    was made on purpose chooses the words of the errors that it causes.
    """
    words = " ".join(str(error)[:3000].split())
    return "".join(letter for letter in words if letter.isprintable())[:300] or type(error).__name__
