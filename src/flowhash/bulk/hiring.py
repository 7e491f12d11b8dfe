"""Workers of a Ray cluster: how many there may be, and how one is asked for.

A worker takes one CPU, and one CPU of the cluster is left free, because programs whose actors take
every CPU wait for themselves.
"""

from __future__ import annotations

import contextlib
from typing import Any

from flowhash.bulk.job import Worker
from flowhash.errors import InputError


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
