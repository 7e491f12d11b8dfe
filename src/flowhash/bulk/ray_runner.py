"""Parts on the workers of a Ray cluster; those that die are replaced.

The parts are handed out here, and not by Ray. Its ActorPool hands the death of an actor to whoever
asks for its result, forgets which call it was, and makes no other actor. Its ray.data tries a part
again without end, also one for which the memory of a node is too small, and its tasks would end a
worker that has a GPU with each part, so that the next loads the encoder again; neither says whether
work is done or waits for a free CPU, nor that the head is gone before it ends this process.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import flowhash
from flowhash.bulk.runners import Done, PartJob, Worker
from flowhash.engines import hidden
from flowhash.errors import Advice, Argument, InputError, StorageError, reason
from flowhash.extras import require
from flowhash.threads import available_threads

MOST_DEATHS = 5  # of workers at one part
MOST_FAILED_STARTS = 5  # one after the other
PATIENCE = 30.0  # seconds without a worker before it is said
LOCAL, AUTO = "local", "auto"
VARIABLE = "RAY_ADDRESS"
LOOK_SECONDS = 5.0  # between two looks at the head
# Before Ray gives it up: after a minute it ends this process, with no word of what goes on.
GONE_SECONDS = 30.0
ANSWER_SECONDS = 10.0  # for an address to answer
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True, eq=False)
class Call:
    """What a worker was asked for: a part, or, without one, whether it is there."""

    worker: Any
    part: int | None = None
    known: bool = True  # whether it has answered before; if not, it is starting


class RayRunner:
    """Does parts on a Ray cluster; a context manager, which keeps its workers between jobs.

    Args:
        address: "local" for a new cluster on this machine, "auto" for the one that runs here, or
            host:port or ray://host:port.
        workers: how many; one less than the cluster has CPUs by default.
        gpus: that a worker takes.

    Raises:
        InputError: the address does not answer, or the cluster is too small.
        MissingExtraError: Ray is not installed.
    """

    here = False

    def __init__(self, address: str, workers: int | None = None, gpus: float = 0) -> None:
        self.address = address
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        self._ray: Any = require("ray", "ray")
        self._errors: Any = require("ray.exceptions", "ray")
        self._ours = not self._ray.is_initialized()
        if self._ours:
            connect(self._ray, address, workers)
        found = head_of(self._ray, address)
        if address in (LOCAL, AUTO):  # for messages
            self.address = found or address
        self._head = RayHead(found)
        self._asked, self._gpus = workers, gpus
        self._cpus = 0  # of the cluster, as of the last run
        self._under_way: dict[Any, Call] = {}
        self._idle: list[Any] = []
        self._failed_starts = self._runs = 0

    def __enter__(self) -> RayRunner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the workers go, and leave the cluster."""
        for worker in [*self._idle, *(call.worker for call in self._under_way.values())]:
            self._dismiss(worker)
        self._idle.clear()
        self._under_way.clear()
        if self._ours:
            self._ray.shutdown()

    def run(self, job: PartJob, parts: Sequence[int]) -> Iterator[Done]:
        """Do these parts, in any order.

        Raises:
            InputError: the error of a part, as the worker raised it, or parts that end workers.
            StorageError: the cluster is gone.
        """
        waiting = collections.deque(parts)
        deaths: collections.Counter[int] = collections.Counter()
        heard = time.monotonic()
        self._runs += 1
        try:
            size = self._size() if parts else 0
            # Put where workers fetch it, because a job may name very many files.
            shared = self._ray.put(job) if parts else None
            self._ask_idle()  # they may have died between the runs
            while waiting or self._has_parts():
                self._head.look()
                self._hand_out(shared, waiting, size)
                ready = self._some_ready()
                if ready or self._has_parts():
                    heard = time.monotonic()
                elif time.monotonic() - heard > PATIENCE:
                    heard = self._say_waiting()
                for reference in ready:
                    call = self._under_way.pop(reference)
                    rows = self._result(reference, call)
                    if call.part is None:
                        continue
                    if rows is not None:
                        yield Done(call.part, rows)
                    else:
                        self._give_back(call.part, deaths, waiting)
        except (ConnectionError, self._errors.RaySystemError) as error:
            raise StorageError(
                f"the cluster at {self.address} is gone ({line_of(error)}); start it again, the "
                "same command goes on with the parts that are missing"
            ) from error
        finally:
            self._forget_parts()

    def _size(self) -> int:
        """How many workers."""
        while not self._head.look(afresh=True):
            time.sleep(1.0)
        cpus = self._cpus = int(self._ray.cluster_resources().get("CPU", 0))
        if self._asked is None:
            return max(1, cpus - 1)
        most = max(1, 2 * cpus - 1)
        if self._asked > most:
            raise InputError(
                f"is {self._asked}, but the cluster at {self.address} has {cpus} CPUs; expected "
                f"{most} at the most",
                subject="workers",
            )
        return self._asked

    def _hire(self, size: int) -> Any:
        """One of ``size`` workers; it answers when there is room for it.

        A worker takes half a CPU where whole ones would take them all.
        """
        share = 1.0 if size <= self._cpus - 1 else 0.5
        remote = self._ray.remote(
            num_cpus=share, num_gpus=self._gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        return remote(Worker).remote(1)

    def _dismiss(self, worker: Any) -> None:
        """Let a worker go, whatever it does."""
        with contextlib.suppress(Exception):  # it may be gone already, and the cluster with it
            self._ray.kill(worker)

    def _some_ready(self) -> list[Any]:
        """What was answered, after a second at the most."""
        if not self._under_way:
            time.sleep(1.0)
            return []
        ready: list[Any] = self._ray.wait(list(self._under_way), timeout=1.0)[0]
        return ready

    def _hand_out(self, job: Any, waiting: collections.deque[int], size: int) -> None:
        """Give parts to workers that have none; ask for more workers if there are too few."""
        there = len(self._idle) + len(self._under_way)
        for _ in range(there, min(size, len(waiting) + len(self._under_way))):
            # Without a head nobody new comes, and to ask for a worker would wait for it.
            if not self._head.look(afresh=True):
                break
            worker = self._hire(size)
            self._under_way[worker.version.remote()] = Call(worker, known=False)
        while waiting and self._idle:
            worker, part = self._idle.pop(), waiting.popleft()
            self._under_way[worker.do.remote(job, part, self._runs)] = Call(worker, part)

    def _result(self, reference: Any, call: Call) -> int | None:
        """The rows of a part; None if the worker died, or if it has only just started."""
        try:
            value = self._ray.get(reference)
        except self._errors.RayTaskError as error:  # of ours: it would happen again
            cause = getattr(error, "cause", None)
            raise cause if isinstance(cause, Exception) else error from None
        except self._errors.RayError as error:
            self._dismiss(call.worker)
            if not call.known:
                self._note_failed_start(error)
            return None
        self._idle.append(call.worker)
        if call.part is not None:
            return int(value)
        self._failed_starts = 0
        if value != flowhash.__version__:
            raise InputError(
                f"a node of {self.address} has FlowHash {value}, this machine "
                f"{flowhash.__version__}; install the same on all of them"
            )
        return None

    def _give_back(
        self, part: int, deaths: collections.Counter[int], waiting: collections.deque[int]
    ) -> None:
        deaths[part] += 1
        self._ask_idle()
        if deaths[part] >= MOST_DEATHS:
            raise InputError(
                f"part {part} has ended {MOST_DEATHS} workers; the memory of a node may be too "
                "small for it. Cut the work into smaller parts with",
                Argument("rows"),
            )
        waiting.appendleft(part)

    def _ask_idle(self) -> None:
        """See that idle workers live before one gets a part, which is charged with its death."""
        while self._idle:
            worker = self._idle.pop()
            self._under_way[worker.version.remote()] = Call(worker)

    def _note_failed_start(self, error: Exception) -> None:
        self._failed_starts += 1
        if self._failed_starts >= MOST_FAILED_STARTS:
            raise InputError(
                f"workers do not start on {self.address}: {line_of(error)}; install the same "
                "FlowHash, with the extra [ray], on every node"
            ) from error

    def _has_parts(self) -> bool:
        return any(call.part is not None for call in self._under_way.values())

    def _forget_parts(self) -> None:
        """Stop workers that are still at a part which nobody waits for any more."""
        for reference, call in list(self._under_way.items()):
            if call.part is not None:
                self._dismiss(call.worker)
                del self._under_way[reference]

    def _say_waiting(self) -> float:
        if self._head.look(afresh=True):
            kinds = ["CPU", *(["GPU"] if self._gpus else [])]
            has = self._ray.cluster_resources()
            there = " and ".join(f"{has.get(kind, 0):g} {kind}s" for kind in kinds)
            print(
                f"flowhash: waiting for a free {' and '.join(kinds)} of the cluster at "
                f"{self.address}, which has {there} in all; the work goes on when there is one, "
                "Ctrl-C stops",
                file=sys.stderr,
                flush=True,
            )
        return time.monotonic()


START = "start one with `ray start --head`, or, for one on this machine, give"
ON_THIS_MACHINE = Argument("address", f'"{LOCAL}"')


def connect(ray: Any, address: str, workers: int | None) -> None:
    """Join a cluster, or start one for so many workers on this machine; None is its cores."""
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
            knock(told, tried)
    else:
        knock(address, address)
    try:
        ray.init(address=address, **options)
    except Exception as error:  # of many kinds, all of them about the address
        raise _no_cluster(address, tried, error) from error


def _no_cluster(address: str, tried: str, error: Exception) -> InputError:
    said = reason(error).rstrip(".")
    if address == LOCAL:
        return InputError(
            f"a Ray cluster on this machine does not start: {said};", Advice.WITHOUT_RAY
        )
    if address == AUTO and isinstance(error, ConnectionError):  # Ray's words are of other options
        return InputError(
            f"auto finds no Ray cluster on {tried}; give the address of one on another machine, "
            f"such as HOST:6379, or {START}",
            ON_THIS_MACHINE,
            "address",
        )
    return InputError(
        f"{address} gets no answer from a Ray cluster at {tried}: {said}; {START}",
        ON_THIS_MACHINE,
        "address",
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
    """The head of a cluster, which is looked at from time to time."""

    def __init__(self, address: str | None) -> None:
        self._address = address  # None where it is not known, and not looked at
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
        with contextlib.suppress(OSError):
            _reach(self._address)
            self._silent = None
            return True
        if self._silent is None:
            self._silent = now
            print(
                f"flowhash: the head of the cluster at {self._address} does not answer; waiting "
                f"{GONE_SECONDS:.0f} s for it",
                file=sys.stderr,
                flush=True,
            )
        elif now - self._silent > GONE_SECONDS:
            raise ConnectionError(f"its head has not answered for {now - self._silent:.0f} s")
        return False


def knock(address: str, named: str) -> None:
    """See that somebody listens, because Ray itself waits for minutes."""
    try:
        _reach(address)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {named}: {line_of(error)}; {START}", ON_THIS_MACHINE
        ) from error


def _reach(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "@" in host or not port.isdigit():  # Ray knows no users
        words = f"is {hidden(address)!r}; expected local, auto, host:port or ray://host:port"
        if address == os.environ.get(VARIABLE):
            raise InputError(f"{VARIABLE} {words}")
        raise InputError(words, subject="address")
    socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()


def line_of(error: BaseException) -> str:
    """What an error says, in one line: the last, which says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")
