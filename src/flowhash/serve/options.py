"""What a server is told: where it listens, who may write, and its limits."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, fields

from flowhash.errors import InputError

MIB = 1 << 20
MAX_ANSWER = 16 * MIB
COUNTS = (
    "max_body",
    "max_answer",
    "max_batch",
    "max_top",
    "max_pixels",
    "max_waiting",
    "max_connections",
)
SECONDS = ("timeout", "send_timeout", "idle_timeout")


@dataclass(frozen=True)
class ServeOptions:
    """Settings of a server.

    Attributes:
        host: the address to listen on; the default is reached from this machine only.
        port: 0 picks a free one.
        api_key: needed for writes if given.
        read_only: open the table to search only; what another process writes is seen after about
            a second.
        open_browser: show the page when ready.
        max_body: bytes of a request at the most.
        max_answer: bytes of an answer at the most. Four times as much may wait for clients that
            read slowly; further large answers get 503 then.
        max_batch: vectors of one search, or items added at once, at the most; also how many queries
            are searched together.
        max_top: hits of one query at the most.
        max_pixels: of an image that is sent.
        max_waiting: requests in work at the most, those whose client still reads the answer among
            them; further ones get 503. Never more than three quarters of the connections.
        max_connections: that are open at the most; a further one closes the one that is idle for
            the longest time. Also never more than the system's limit of open files leaves room for.
        timeout: seconds that a request may take to arrive, and then to be answered.
        send_timeout: seconds that a client may take to read an answer, before it is cut off.
        idle_timeout: seconds that a connection may be open without a whole request head.
        threads: that a search may use; None chooses.
        allowed_hosts: further names that a browser may call this server by, such as that of a
            reverse proxy. On a loopback address other names are refused.
        quiet: print nothing when ready.

    Raises:
        InputError: a setting that cannot be.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    read_only: bool = False
    open_browser: bool = False
    max_body: int = 10 * MIB
    max_answer: int = MAX_ANSWER
    max_batch: int = 256
    max_top: int = 1000
    max_pixels: int = 25_000_000
    max_waiting: int = 1024
    max_connections: int = 2048
    timeout: float = 10.0
    send_timeout: float = 30.0
    idle_timeout: float = 30.0
    threads: int | None = None
    allowed_hosts: tuple[str, ...] = ()
    quiet: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.port, int) or not 0 <= self.port < 1 << 16:
            raise InputError(f"port is {self.port!r}; expected a whole number from 0 to 65535")
        for name in COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {value!r}; expected a whole number from 1")
        for name in SECONDS:
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise InputError(f"{name} is {value!r}; expected seconds, above 0")
        if self.threads is not None and (not isinstance(self.threads, int) or self.threads < 1):
            raise InputError(
                f"threads is {self.threads!r}; expected a whole number from 1, or None"
            )
        key = self.api_key
        if key is not None and not (
            key and key.isascii() and key.isprintable() and key == key.strip()
        ):
            raise InputError(
                "api_key is empty, or has characters that a header cannot hold; expected printable "
                "ASCII without blanks around it. Make one: python -c 'import secrets; "
                "print(secrets.token_urlsafe(32))'"
            )
        if isinstance(self.allowed_hosts, str):
            raise InputError(
                f"allowed_hosts is {self.allowed_hosts!r}; expected a tuple of host names"
            )

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.api_key is not None:
            values["api_key"] = "***"  # keys do not belong into logs
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        return f"ServeOptions({shown})"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def may_write(self) -> bool:
        """Whether anybody may write: with a key, or from this machine alone."""
        return not self.read_only and (self.api_key is not None or self.loopback)
