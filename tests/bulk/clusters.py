"""A real Ray cluster of three nodes on this machine, and how one of them dies."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Read when Ray starts; a node that is gone is to be noticed soon.
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_health_check_period_ms="500",
    RAY_health_check_timeout_ms="1000",
    RAY_health_check_failure_threshold="3",
    RAY_enable_metrics_collection="0",
)

import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster

from flowhash.bulk import RayRunner
from flowhash.bulk.runners import Done, PartJob

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


class ThreeNodes:
    """One CPU each; the head and two others."""

    def __init__(self) -> None:
        self.cluster = Cluster(initialize_head=True, head_node_args=NODE)
        self.restore()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def restore(self) -> None:
        """Three nodes again, after one was killed."""
        while len(self.cluster.worker_nodes) < 2:
            self.cluster.add_node(**NODE)
        self.cluster.wait_for_nodes()

    def busy(self) -> list[tuple[Any, int]]:
        """Nodes but the head, with the process of a worker that is at a part."""
        return [
            (node, process)
            for node in self.cluster.worker_nodes
            for process in children(node.all_processes["raylet"][0].process.pid)
            if title(process).startswith("ray::Worker.do")
        ]

    def kill_node(self) -> None:
        """Kill everything on a node that is at a part."""
        (node, _) = self._when_busy()
        self.cluster.remove_node(node, allow_graceful=False)

    def kill_worker(self) -> None:
        """Kill a worker that is at a part; its node lives."""
        (_, process) = self._when_busy()
        os.kill(process, signal.SIGKILL)

    def occupy(self) -> list[Any]:
        """Somebody else takes every CPU; who it is. Needs a connection."""
        others = [ray.remote(num_cpus=1)(Other).remote() for _ in range(3)]
        ray.get([other.there.remote() for other in others])
        return others

    def _when_busy(self) -> tuple[Any, int]:
        while not (found := self.busy()):
            time.sleep(0.01)
        time.sleep(0.1)  # in the middle of the part
        return found[0]

    def close(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()


class Other:
    """Takes a CPU."""

    def there(self) -> bool:
        return True


class OneNode:
    """A cluster that is its head, which is lost at once with everything on it."""

    def __init__(self) -> None:
        self.cluster = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 2})
        self.address = str(self.cluster.address)

    def kill(self) -> None:
        for started in self.cluster.head_node.all_processes.values():
            for one in started:
                one.process.kill()

    def close(self) -> None:
        self.cluster.shutdown()


def children(parent: int) -> list[int]:
    """The processes that a process has started."""
    return [
        int(number)
        for task in Path(f"/proc/{parent}/task").iterdir()
        for number in (task / "children").read_text().split()
    ]


def title(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@dataclass(frozen=True)
class Slow:
    """A job whose parts take long enough to be killed in the middle.

    Attributes:
        job: does the work.
        written: whether the part is on disk when its worker dies, so that it is done twice.
    """

    job: PartJob
    written: bool

    def open(self) -> Any:
        return self.job.open()

    def do(self, opened: Any, part: int, threads: int | None) -> int:
        if self.written:
            self.job.do(opened, part, threads)
        time.sleep(0.4)
        return self.job.do(opened, part, threads)


@dataclass(frozen=True)
class Torn:
    """A job whose first worker dies when its part is written, but not yet named.

    Attributes:
        job: does the work.
        flag: made by that worker.
    """

    job: Any
    flag: Path

    def open(self) -> Any:
        return self.job.open()

    def do(self, opened: Any, part: int, threads: int | None) -> int:
        with contextlib.suppress(FileExistsError):
            self.flag.touch(exist_ok=False)

            def die(*_: Any) -> None:
                self.flag.write_text(str(len(list(self.job.out.folder.glob(".parts-*/part-*")))))
                os._exit(1)

            Path.replace = die  # type: ignore[assignment,method-assign]
        rows: int = self.job.do(opened, part, threads)
        return rows


@dataclass(frozen=True)
class Deadly:
    """A job that ends whoever does it."""

    def open(self) -> None:
        pass

    def do(self, opened: None, part: int, threads: int | None) -> int:
        os._exit(1)


@dataclass(frozen=True)
class Idle:
    """A job with nothing to do."""

    def open(self) -> None:
        pass

    def do(self, opened: None, part: int, threads: int | None) -> int:
        return 1


# So that workers need not find this folder.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Unlucky(RayRunner):
    """Loses a node, or a worker, in the middle of every job."""

    def __init__(self, nodes: ThreeNodes, loss: str = "node") -> None:
        super().__init__(nodes.address)
        self.nodes, self.loss, self.losses = nodes, loss, 0

    def run(self, job: PartJob, parts: Any) -> Iterator[Done]:
        kill = {"node": self.nodes.kill_node, "worker": self.nodes.kill_worker}[self.loss]
        killer = threading.Thread(target=kill)
        for count, done in enumerate(super().run(Slow(job, self.loss == "worker"), parts)):
            if count == 1 and len(parts) > 4:
                killer.start()  # beside the work, which goes on meanwhile
            yield done
        if killer.ident is not None:
            killer.join()
            self.losses += 1
