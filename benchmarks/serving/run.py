"""Claim: one process on two cores answers 1,500 single-vector searches a second.

With p99 below 50 ms up to 128 connections; of more it refuses those that would wait too long.

    python -m benchmarks.serving.run [--rows 1000000] [--seconds 10] [--total 100000]

Builds a table of clustered vectors, starts the real server in a process of its own, and drives it
over loopback, on the same cores. Writes docs/results/serving.md. Six minutes, and one to build.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.measurement import RESULTS, machine
from benchmarks.serving.load import Load, drive, percentile
from flowhash.data import Preprocessing
from flowhash.encoder import Encoder
from flowhash.networks import EmbeddingNetwork, build_backbone

DIM, BUCKETS, TOP = 64, 512, 10
QUERIES = 5000  # different ones, asked in turn
CONNECTIONS = (1, 16, 32, 64, 128)
STEADY = 32  # connections of the long run
CROWDS = (128, 256, 512, 1024)  # connections, and a server that lets nobody wait long
WAIT = 0.03  # seconds
START = """
import json, sys
from flowhash.serve import ServeOptions, run
run(sys.argv[1], sys.argv[2], ServeOptions(port=0, read_only=True, **json.loads(sys.argv[3])))
"""
PAGE = """\
# Serving, measured

Written by `python -m benchmarks.serving.run`; do not edit by hand. {rows:,} items, dim {dim},
{buckets} buckets, k = 1, in one server process. Each request is a JSON body with one vector, which
the server encodes (torch) and searches for its {top} nearest, without payloads; {queries:,}
different vectors in turn. The load comes from one thread of Python, over loopback, on the same
{cores} cores as the server, and takes {client:.0%} of a core at the most. A query scans
{scanned:,.0f} items on average. Machine: {machine}; load average when it began, from other work:
{busy:.1f}.

| connections | requests/s | p50 | p99 | worst | errors | a batch holds |
|---:|---:|---:|---:|---:|---:|---:|
{lines}

One query at a time in each search (`max_batch=1`), which is what a server without batching does:

| connections | requests/s | p50 | p99 | batching gives |
|---:|---:|---:|---:|---:|
{alone}

**{total:,} requests** over {steady} connections in one run: {rate:,.0f} requests/s, p50
{p50:.1f} ms, p99 {p99:.1f} ms, worst {worst:.1f} ms, **{errors} errors**. Memory of the process:
{before:,.1f} MiB before, {after:,.1f} MiB after ({most:,.1f} MiB at the most); of that its own,
without the mapped table, {own_before:,.1f} MiB before and {own_after:,.1f} MiB after.

## More than it can do

`--max-wait {wait:g}`: who would wait longer for a turn is refused, and told when to come again.
Patient clients do as they are told; the others ask again at once, and so cost the server as much as
they can. Times are those of answers, and in the last but one column of refusals. Errors are what is
neither 200 nor a refusal.

| connections | clients | answers/s | p50 | p99 | worst | refused | refusals/s | p99 | errors |
|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|
{crowds}

Afterwards {steady} connections get {recovered:,.0f} answers a second, p99 {recovered_p99:.1f} ms,
and {recovered_refused} refusals.

Clients that wait for an answer before they ask again share the server, so that p50 is about
connections / rate. *Worst* is the slowest single request of a run.
What is unanswered when a run ends is in no figure.
"""


def make_encoder(centres: np.ndarray) -> Encoder:
    """Opens the bucket of the nearest centre; ranks by the vectors themselves."""
    hashing = EmbeddingNetwork(build_backbone({"name": "linear", "inputs": DIM}), BUCKETS)
    with torch.no_grad():
        hashing.head.weight.copy_(torch.from_numpy(centres))
        hashing.head.bias.copy_(torch.from_numpy(-0.5 * (centres**2).sum(1)))
    base = EmbeddingNetwork(build_backbone({"name": "linear", "inputs": DIM}), None)
    return Encoder(base, hashing, Preprocessing("vectors"), 1)


def build(folder: Path, rows: int) -> None:
    """A table, its encoder, and the bodies of the requests."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((BUCKETS, DIM), dtype=np.float32) * 2
    points = random.standard_normal((rows + QUERIES, DIM), dtype=np.float32)
    points += centres[random.integers(BUCKETS, size=rows + QUERIES)]
    encoder = make_encoder(centres)
    encoder.save(folder / "encoder")
    made = encoder.encode(points[:rows], batch_size=10_000)
    with encoder.create_table(folder / "table") as table:
        table.add(made.codes, made.embeddings, encoder=made.fingerprint)
    with (folder / "bodies.txt").open("w") as file:
        for vector in points[rows:]:
            numbers = [round(float(value), 6) for value in vector]
            file.write(json.dumps({"vector": numbers, "top": TOP, "payloads": False}) + "\n")


class Server:
    """A server process."""

    def __init__(self, folder: Path, options: dict[str, float]) -> None:
        told = [folder / "table", folder / "encoder", json.dumps(options)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, *told],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise SystemExit(f"the server did not start: {line}")
        self.url = found[0]

    def memory(self) -> tuple[float, float]:
        """MiB in all, and without mapped files."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        found = dict(re.findall(r"(\w+):\s+(\d+) kB", text))
        return int(found["VmRSS"]) / 1024, int(found["RssAnon"]) / 1024

    def figure(self, name: str) -> float:
        """A figure of /metrics."""
        with urllib.request.urlopen(f"{self.url}metrics") as answer:
            text = answer.read().decode()
        found = re.search(rf"^{name} (\S+)$", text, re.M)
        return float(found[1]) if found else 0.0

    def stop(self) -> None:
        """Ask it to stop; it must do so by itself, without an error."""
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait(60) != 0:
            raise SystemExit("the server ended with an error")


@contextlib.contextmanager
def serving(folder: Path, **options: float) -> Iterator[Server]:
    """A server that has warmed up."""
    server = Server(folder, options)
    try:
        drive(server.url, folder / "bodies.txt", 8, 5)
        yield server
    finally:
        server.stop()


def table_of(
    folder: Path, seconds: int, max_batch: int, show: str
) -> dict[int, tuple[Load, float]]:
    """Load and mean batch for each number of connections."""
    found = {}
    with serving(folder, max_batch=max_batch) as server:
        for connections in CONNECTIONS:
            names = [f"flowhash_search_batch_rows_{part}" for part in ("sum", "count")]
            before = [server.figure(name) for name in names]
            load = drive(server.url, folder / "bodies.txt", connections, seconds)
            rows, batches = (
                server.figure(name) - past for name, past in zip(names, before, strict=True)
            )
            found[connections] = (load, rows / batches)
            print(
                f"{show}, {connections:3} connections: {load.rate:7,.0f}/s, p50 {load.p50:.2f} ms, "
                f"p99 {load.p99:.2f} ms, {load.errors} errors, batch {rows / batches:.1f}",
                flush=True,
            )
    return found


def long_run(folder: Path, total: int, rate: float) -> dict[str, float]:
    """At least ``total`` requests, with the memory watched all the time."""
    with serving(folder) as server:
        before, own_before = server.memory()
        seen: list[float] = [before]
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.5):
                seen.append(server.memory()[0])

        watcher = threading.Thread(target=watch)
        watcher.start()
        loads: list[Load] = []
        while sum(load.requests for load in loads) < total:
            missing = total - sum(load.requests for load in loads)
            seconds = max(2, int(1.15 * missing / rate) + 1)
            loads.append(drive(server.url, folder / "bodies.txt", STEADY, seconds))
        time.sleep(1)
        over.set()
        watcher.join()
        after, own_after = server.memory()
        scanned = server.figure("flowhash_scanned_items_total")
        rows = server.figure("flowhash_search_batch_rows_sum")
    requests = sum(load.requests for load in loads)
    return {
        "total": requests, "rate": requests / sum(load.seconds for load in loads),
        "p50": max(load.p50 for load in loads), "p99": max(load.p99 for load in loads),
        "worst": max(load.worst for load in loads), "errors": sum(load.errors for load in loads),
        "before": before, "after": after, "most": max(seen), "own_before": own_before,
        "own_after": own_after, "scanned": scanned / rows,
    }  # fmt: skip


def overload(folder: Path, seconds: int) -> tuple[dict[tuple[int, bool], Load], Load]:
    """Load for numbers of connections and patient clients or not; and after all of them."""
    found = {}
    with serving(folder, max_wait=WAIT) as server:
        for connections in CROWDS:
            for patient in (True, False):
                load = drive(server.url, folder / "bodies.txt", connections, seconds, patient)
                found[connections, patient] = load
                print(
                    f"{connections:4} connections, {'patient' if patient else 'impatient'}: "
                    f"{load.rate:7,.0f}/s, p50 {load.p50:.2f} ms, p99 {load.p99:.2f} ms, "
                    f"{len(load.refusals)} refused, {load.errors} errors",
                    flush=True,
                )
        return found, drive(server.url, folder / "bodies.txt", STEADY, seconds)


def write_page(
    rows: int,
    together: dict[int, tuple[Load, float]],
    alone: dict[int, tuple[Load, float]],
    steady: dict[str, float],
    crowds: dict[tuple[int, bool], Load],
    after: Load,
    busy: float,
) -> None:
    """Write docs/results/serving.md."""
    lines = [
        f"| {count} | {load.rate:,.0f} | {load.p50:.2f} ms | {load.p99:.2f} ms "
        f"| {load.worst:.1f} ms | {load.errors} | {batch:.1f} |"
        for count, (load, batch) in together.items()
    ]
    single = [
        f"| {count} | {load.rate:,.0f} | {load.p50:.2f} ms | {load.p99:.2f} ms "
        f"| **{together[count][0].rate / load.rate:.2f}×** |"
        for count, (load, _) in alone.items()
    ]
    crowded = [
        f"| {count:,} | {'patient' if patient else 'impatient'} | {load.rate:,.0f} "
        f"| {load.p50:.2f} ms | {load.p99:.2f} ms | {load.worst:.1f} ms | {load.refused:.1%} "
        f"| {len(load.refusals) / load.seconds:,.0f} | {percentile(load.refusals, 99):.2f} ms "
        f"| {load.errors} |"
        for (count, patient), load in crowds.items()
    ]
    page = PAGE.format(
        rows=rows, dim=DIM, buckets=BUCKETS, top=TOP, queries=QUERIES,
        cores=os.cpu_count(), machine=machine(), wait=WAIT, crowds="\n".join(crowded),
        recovered=after.rate, recovered_p99=after.p99, recovered_refused=len(after.refusals),
        client=max(load.client for load, _ in together.values()),
        lines="\n".join(lines), alone="\n".join(single), steady=STEADY, busy=busy,
        **steady,
    )  # fmt: skip
    (RESULTS / "serving.md").write_text(page)


def main() -> None:
    """Build, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=10, help="of each run")
    parser.add_argument("--total", type=int, default=100_000, help="requests of the long run")
    parser.add_argument("--keep", type=Path, help="build here, or use what was built here")
    parser.add_argument("--try", action="store_true", dest="trial", help="write no page")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not (folder / "bodies.txt").exists():
            folder.mkdir(exist_ok=True)
            build(folder, options.rows)
        busy = os.getloadavg()[0]
        together = table_of(folder, options.seconds, 256, "batched")
        alone = table_of(folder, options.seconds, 1, "one by one")
        rate = together[STEADY][0].rate
        steady = long_run(folder, options.total, rate)
        crowds, after = overload(folder, options.seconds)
    print(steady)
    if not options.trial:
        write_page(options.rows, together, alone, steady, crowds, after, busy)


if __name__ == "__main__":
    main()
