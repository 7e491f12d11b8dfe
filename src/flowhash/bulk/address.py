"""The address of a Ray cluster, and what goes wrong with it in one line."""

from __future__ import annotations

import socket

from flowhash.errors import InputError

ANSWER_SECONDS = 10.0  # for an address to answer


def knock(address: str) -> None:
    """See that somebody listens, because Ray itself waits for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(
            f"--ray is {address!r}; expected local, auto, host:port or ray://host:port"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {address}: {line_of(error)}; start one with `ray start "
            "--head`, or give --ray local for one on this machine"
        ) from error


def line_of(error: BaseException) -> str:
    """What an error says, in one line: the last, which says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")
