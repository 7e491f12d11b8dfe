"""Load for the serving benchmark: wrk, or a small asyncio client where wrk is missing."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

SCRIPT = """\
local bodies = {}
for line in io.lines("%s") do bodies[#bodies + 1] = line end
local number = 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  number = number %% #bodies + 1
  return wrk.format(nil, "/search", nil, bodies[number])
end
done = function(summary, latency, requests)
  local faults = summary.errors
  local all = faults.connect + faults.read + faults.write + faults.timeout + faults.status
  io.write(string.format(
    '\\n{"requests": %%d, "seconds": %%f, "errors": %%d, "p50": %%f, "p99": %%f, "worst": %%f}\\n',
    summary.requests, summary.duration / 1e6, all,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3))
end
"""


@dataclass(frozen=True)
class Load:
    """What a run came to; times in milliseconds."""

    requests: int
    seconds: float
    errors: int
    p50: float
    p99: float
    worst: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds


def generator() -> str:
    """What drives the server."""
    return "wrk, one thread" if shutil.which("wrk") else "a Python asyncio client (wrk is missing)"


def drive(url: str, bodies: Path, connections: int, seconds: int) -> Load:
    """Send the lines of ``bodies`` in turn over so many connections, for so many seconds."""
    if shutil.which("wrk") is None:
        return asyncio.run(
            _drive_slowly(url, bodies.read_bytes().split(b"\n"), connections, seconds)
        )
    script = bodies.with_suffix(".lua")
    script.write_text(SCRIPT % bodies)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s", "-s"]
    done = subprocess.run(
        [*command, str(script), url], capture_output=True, text=True, timeout=seconds + 60,
        check=True,
    )  # fmt: skip
    return Load(**json.loads(done.stdout.strip().splitlines()[-1]))


async def _drive_slowly(url: str, bodies: list[bytes], connections: int, seconds: int) -> Load:
    times: list[float] = []
    errors = 0
    address = urlsplit(url)
    end = time.perf_counter() + seconds

    async def one(number: int) -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        while time.perf_counter() < end:
            body = bodies[number % len(bodies)]
            number += connections
            start = time.perf_counter()
            writer.write(
                b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            errors += not head.startswith(b"http/1.1 200")
            times.append((time.perf_counter() - start) * 1e3)
        writer.close()

    begin = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(connections)))
    ordered = sorted(times)
    count = len(ordered)
    return Load(
        count, time.perf_counter() - begin, errors, ordered[count // 2],
        ordered[count * 99 // 100], ordered[-1],
    )  # fmt: skip
