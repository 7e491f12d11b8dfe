"""The address of a Ray cluster, and what goes wrong with it in one line."""

from __future__ import annotations

import socket

from flowhash.engines import hidden
from flowhash.errors import InputError

ANSWER_SECONDS = 10.0  # for an address to answer
MOST_WORDS = 300  # letters of an error that are shown


def knock(address: str, named: str, option: str = "--ray") -> None:
    """See that somebody listens, because Ray itself waits for minutes.

    Args:
        address: host:port or ray://host:port.
        named: the same in words, for the message.
        option: what it was given by.

    Raises:
        InputError: it is no such address, or nobody does.
    """
    host, port = _parts(address, option)
    try:
        socket.create_connection((host, port), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {named}: {line_of(error)}; start one with `ray start "
            "--head`, or give --ray local for one on this machine"
        ) from error


def listens(address: str) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(_parts(address), ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _parts(address: str, option: str = "--ray") -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "@" in host or not port.isdigit():  # Ray knows no users
        raise InputError(
            f"{option} is {hidden(address)!r}; expected local, auto, host:port or ray://host:port"
        )
    return host.strip("[]"), int(port)


def line_of(error: BaseException) -> str:
    """What an error says, in one line: the last, which says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")


def said_by(error: BaseException) -> str:
    """All that an error says, in one line: of versions that differ, each is on its own."""
    words = " ".join(str(error).split()) or type(error).__name__
    return (words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]}…").rstrip(".")
