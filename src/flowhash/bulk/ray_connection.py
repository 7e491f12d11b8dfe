"""The connection to a Ray cluster, and its address."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

from flowhash.engines import hidden
from flowhash.errors import InputError
from flowhash.threads import available_threads

LOCAL, AUTO = "local", "auto"
VARIABLE = "RAY_ADDRESS"
LOOK_SECONDS = 5.0  # between two looks at the head
# Before Ray gives it up: after a minute it ends this process, with no word of what goes on.
GONE_SECONDS = 30.0


def connect(ray: Any, address: str, workers: int | None) -> None:
    """Join a cluster, or start one on this machine.

    Args:
        ray: the module.
        address: "local", "auto", host:port or ray://host:port.
        workers: that a cluster on this machine is for; None for its cores.

    Raises:
        InputError: there is none; the message says where it was looked for, and what to do.
    """
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    tried = address
    if address == LOCAL:
        # One more than there are workers, which is the one that stays free.
        options["num_cpus"] = (workers or available_threads()) + 1
        options["include_dashboard"] = False
        tried = "this machine"
    elif address == AUTO:
        told = os.environ.get(VARIABLE, "")
        tried = f"{told}, which {VARIABLE} names" if told else "this machine"
        if ":" in told:
            knock(told, tried, VARIABLE)
    else:
        knock(address, address)
    try:
        ray.init(address=address, **options)
    except Exception as error:  # of many kinds, all of them about the address
        raise InputError(_no_cluster(address, tried, error)) from error


def _no_cluster(address: str, tried: str, error: Exception) -> str:
    if address == LOCAL:
        return (
            f"a Ray cluster on this machine does not start: {said_by(error)}; leave --ray out to "
            "work in this process"
        )
    start = "start one with `ray start --head`, or give --ray local for one on this machine"
    if address == AUTO and isinstance(error, ConnectionError):  # Ray's words are of other options
        return (
            f"--ray auto finds no Ray cluster on {tried}; {start}. Give the address of one on "
            "another machine as --ray HOST:6379"
        )
    return (
        f"--ray {address} gets no answer from a Ray cluster at {tried}: {said_by(error)}; {start}"
    )


def head_of(ray: Any, address: str) -> str | None:
    """Where the head of the joined cluster answers this machine; None where that is not known."""
    named = os.environ.get(VARIABLE, "") if address == AUTO else address
    if named.startswith("ray://"):  # Ray's own server, which is all that this machine may see
        return named
    if ray.util.client.ray.is_connected():  # the address that it has is one inside the cluster
        return None
    return getattr(ray.get_runtime_context(), "gcs_address", None)


class RayHead:
    """The head of a cluster, which is looked at from time to time.

    Args:
        address: host:port or ray://host:port; None where it is not known, and not looked at.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._looked = time.monotonic()
        self._silent: float | None = None  # since when

    def look(self, afresh: bool = False) -> bool:
        """Whether it answers, or did a moment ago.

        Args:
            afresh: now, and not a moment ago: before what waits for the head without end.

        Raises:
            ConnectionError: it has not answered for long.
        """
        now = time.monotonic()
        known = now - self._looked < LOOK_SECONDS
        if self._address is None or (known and (not afresh or self._silent is not None)):
            return self._silent is None
        self._looked = now
        if listens(self._address):
            self._silent = None
        elif self._silent is None:
            self._silent = now
            print(
                f"flowhash: the head of the cluster at {self._address} does not answer; waiting "
                f"{GONE_SECONDS:.0f} s for it",
                file=sys.stderr,
                flush=True,
            )
        elif now - self._silent > GONE_SECONDS:
            raise ConnectionError(f"its head has not answered for {now - self._silent:.0f} s")
        return self._silent is None


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
