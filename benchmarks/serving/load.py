"""Load for the serving benchmark: clients on one thread, each of which waits for its answer.

They share the cores with the server, so that little is done for each request: some ten
microseconds, about what tools in C need that run a script for each of theirs. Unlike those it tells
answers from refusals.
"""

from __future__ import annotations

import gc
import heapq
import re
import select
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

HEAD = (
    b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)
LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]+)", re.IGNORECASE)
RETRY = re.compile(rb"\r\nretry-after: ([0-9]+)", re.IGNORECASE)
PIECE = 1 << 18


@dataclass
class Load:
    """What a run came to.

    Attributes:
        seconds: that it took.
        times: milliseconds of each request that was answered.
        refusals: milliseconds of each that got 503 with Retry-After.
        errors: whatever else came.
        client: share of a core that the clients took.
    """

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    errors: int = 0
    client: float = 0.0

    @property
    def requests(self) -> int:
        """That were answered."""
        return len(self.times)

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.requests / self.seconds

    @property
    def refused(self) -> float:
        """Share of all requests."""
        return len(self.refusals) / max(1, self.requests + len(self.refusals))

    @property
    def p50(self) -> float:
        """Milliseconds."""
        return percentile(self.times, 50)

    @property
    def p99(self) -> float:
        """Milliseconds."""
        return percentile(self.times, 99)

    @property
    def worst(self) -> float:
        """Milliseconds."""
        return max(self.times, default=0.0)


def percentile(times: list[float], share: int) -> float:
    """Of all times; 0 where there are none."""
    return sorted(times)[len(times) * share // 100] if times else 0.0


def drive(url: str, bodies: Path, connections: int, seconds: float, patient: bool = True) -> Load:
    """Send the lines of ``bodies`` in turn over so many connections, for so many seconds.

    Args:
        url: of the server.
        bodies: a file, one body of a search a line.
        connections: that are open all the time, each with one request at a time.
        seconds: after which what is not answered does not count.
        patient: a client that was refused waits as long as it was told; others ask at once again.
    """
    lines = bodies.read_bytes().splitlines()
    requests = [HEAD % len(line) + line for line in lines]
    address = urlsplit(url)
    assert address.hostname
    load, received, sent = Load(), dict[int, bytes](), dict[int, float]()
    sockets = {}
    ready = select.epoll()
    for _ in range(connections):
        one = socket.create_connection((address.hostname, address.port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[one.fileno()] = one
        ready.register(one, select.EPOLLIN)
    gc.disable()  # nothing here is a cycle, and a pause would count as the server's
    begin, used = time.perf_counter(), time.thread_time()
    end = begin + seconds
    # Until when, and who: they come one after another, in the first tenth of the time.
    asleep = [
        (begin + seconds / 10 * number / connections, place) for number, place in enumerate(sockets)
    ]
    number = 0
    while (now := time.perf_counter()) < end:
        while asleep and asleep[0][0] <= now:
            _, place = heapq.heappop(asleep)
            sent[place] = time.perf_counter()
            sockets[place].sendall(requests[number % len(requests)])
            number += 1
        wait = min(end, asleep[0][0] if asleep else end) - now
        for place, _ in ready.poll(max(0.0, wait)):
            answer = sockets[place].recv(PIECE)
            if not answer:
                raise SystemExit("the server closed a connection in use")
            if place in received:
                answer = received.pop(place) + answer
            head, _, body = answer.partition(b"\r\n\r\n")
            length = LENGTH.search(head)
            if length is None or len(body) < int(length[1]):
                received[place] = answer
                continue
            now = time.perf_counter()
            taken = (now - sent[place]) * 1e3
            told = RETRY.search(head)
            if head.startswith(b"HTTP/1.1 200 "):
                load.times.append(taken)
            elif told is not None and head.startswith(b"HTTP/1.1 503 "):
                load.refusals.append(taken)
                if patient:
                    heapq.heappush(asleep, (now + int(told[1]), place))
                    continue
            else:
                load.errors += 1
            sent[place] = now
            sockets[place].sendall(requests[number % len(requests)])
            number += 1
    load.seconds = time.perf_counter() - begin
    load.client = (time.thread_time() - used) / load.seconds
    gc.enable()
    ready.close()
    for one in sockets.values():
        one.close()
    return load
