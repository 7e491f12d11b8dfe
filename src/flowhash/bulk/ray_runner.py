"""Parts on the workers of a Ray cluster; those that die are replaced.

Ray's own ActorPool hands the death of an actor to whoever asks for its result, forgets which call
it was, and makes no other; ray.data retries, but holds the rows, and lets no worker write a part of
its own and name it when it is whole. So the parts are handed out here.
"""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import flowhash
from flowhash.bulk.ray_connection import AUTO, LOCAL, RayHead, connect, head_of, line_of
from flowhash.bulk.runners import Done, PartJob, Worker
from flowhash.errors import InputError, StorageError
from flowhash.extras import require

MOST_DEATHS = 5  # of workers at one part
MOST_FAILED_STARTS = 5  # one after the other
PATIENCE = 30.0  # seconds without a worker before it is said
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True, eq=False)
class Call:
    """What a worker was asked for: a part, or, without one, whether it is there.

    Attributes:
        worker: who was asked.
        part: which part.
        known: whether it has answered before; if not, it is starting.
    """

    worker: Any
    part: int | None = None
    known: bool = True


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
        self._hiring = Hiring(self._ray, self.address, workers, gpus)
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
            self._hiring.dismiss(worker)
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
                        self._give_back(call, deaths, waiting)
        except (ConnectionError, self._errors.RaySystemError) as error:
            raise StorageError(
                f"the cluster at {self.address} is gone ({line_of(error)}); start it again, the "
                "same command goes on with the parts that are missing"
            ) from error
        finally:
            self._forget_parts()

    def _size(self) -> int:
        while not self._head.look(afresh=True):
            time.sleep(1.0)
        return self._hiring.size()

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
            worker = self._hiring.hire(size)
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
            self._hiring.dismiss(call.worker)
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
        self, call: Call, deaths: collections.Counter[int], waiting: collections.deque[int]
    ) -> None:
        assert call.part is not None
        part = call.part
        deaths[part] += 1
        self._ask_idle()
        if deaths[part] >= MOST_DEATHS:
            raise InputError(
                f"part {part} has ended {MOST_DEATHS} workers; the memory of a node may be too "
                "small for it. Cut the work into smaller parts with --rows"
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
                self._hiring.dismiss(call.worker)
                del self._under_way[reference]

    def _say_waiting(self) -> float:
        if self._head.look(afresh=True):
            print(
                f"flowhash: waiting for {self._hiring.wanted()}; the work goes on when there is "
                "one, Ctrl-C stops",
                file=sys.stderr,
                flush=True,
            )
        return time.monotonic()


class Hiring:
    """Asks a cluster for workers, and lets them go.

    Args:
        ray: the module, connected.
        address: of the cluster, for messages.
        asked: how many workers; one less than the cluster has CPUs by default.
        gpus: that a worker takes.
    """

    def __init__(self, ray: Any, address: str, asked: int | None, gpus: float) -> None:
        self._ray, self._address, self._asked, self._gpus = ray, address, asked, gpus
        self._cpus = 0  # as of the last size

    def size(self) -> int:
        """How many workers; a worker takes half a CPU where whole ones would take them all.

        Raises:
            InputError: the cluster is too small for what was asked.
        """
        cpus = self._cpus = int(self._ray.cluster_resources().get("CPU", 0))
        if self._asked is None:
            return max(1, cpus - 1)
        most = max(1, 2 * cpus - 1)
        if self._asked > most:
            raise InputError(
                f"--workers is {self._asked}, but the cluster at {self._address} has {cpus} CPUs; "
                f"expected {most} at the most"
            )
        return self._asked

    def hire(self, size: int) -> Any:
        """One of ``size`` workers; it answers when there is room for it."""
        share = 1.0 if size <= self._cpus - 1 else 0.5
        remote = self._ray.remote(
            num_cpus=share, num_gpus=self._gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        return remote(Worker).remote(1)

    def dismiss(self, worker: Any) -> None:
        """Let a worker go, whatever it does."""
        with contextlib.suppress(Exception):  # it may be gone already, and the cluster with it
            self._ray.kill(worker)

    def wanted(self) -> str:
        """What a worker waits for, and what the cluster has of it, in words."""
        kinds = ["CPU", *(["GPU"] if self._gpus else [])]
        has = self._ray.cluster_resources()
        there = " and ".join(f"{has.get(kind, 0):g} {kind}s" for kind in kinds)
        return (
            f"a free {' and '.join(kinds)} of the cluster at {self._address}, which has {there} in "
            "all"
        )
