"""What FlowHash raises. Every message says what came, what was expected and what to do."""

from __future__ import annotations


class InputError(ValueError):
    """An argument cannot be used as it is."""


class MissingExtraError(ImportError):
    """An optional part of FlowHash is used, but the packages it needs are not installed."""


class SolverError(RuntimeError):
    """A solver of another library did not deliver a solution."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message says why and names the last good checkpoint."""


class StorageError(OSError):
    """A stored table cannot be read or written; the message names the file."""


class DamagedFileError(StorageError):
    """A stored file is not what was written: cut short, changed, or missing.

    Attributes:
        block: the number of the block whose checksum it does not match; None for other damage.
    """

    block: int | None = None


class LockedTableError(StorageError):
    """Another process, or another object of this one, is writing to the table."""


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
