"""What a server is told: where it listens, who may write, and its limits."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from flowhash.errors import InputError

MIB = 1 << 20
LIMITS = "Limits"  # the heading of these options in the command's help


def _option(default: Any, text: str, panel: str | None = None, **more: Any) -> Any:
    """A setting with its default, and what the command says about it."""
    return field(default=default, metadata={"help": text, "panel": panel}, **more)


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What the server takes at the most."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "json_schema_serialization_defaults_required": True,
    }

    max_body: int = _option(10 * MIB, "Bytes of a request.", LIMITS)
    max_answer: int = _option(
        16 * MIB, "Bytes of an answer; four times as much may wait for slow readers.", LIMITS
    )
    max_batch: int = _option(256, "Vectors or items of a request.", LIMITS)
    max_top: int = _option(1000, "Hits of a query.", LIMITS)
    max_pixels: int = _option(25_000_000, "Pixels of an image.", LIMITS)
    timeout: float = _option(10.0, "Seconds for an answer.", LIMITS)


@dataclass(frozen=True)
class ServeOptions(RequestLimits):
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
        max_batch: vectors of one search, or items added at once, at the most; where it is below
            64, also how many queries are searched together.
        max_top: hits of one query at the most.
        max_pixels: of an image that is sent.
        max_waiting: requests in work at the most, those whose client still reads the answer among
            them; further ones get 503. Never more than three quarters of the connections.
        max_wait: seconds that a request may expect to wait for its turn, by what is before it and
            how fast the last were done; one that would wait longer gets 503 at once.
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

    host: str = _option("127.0.0.1", "Address to listen on; 0.0.0.0 for other machines.")
    port: int = _option(8000, "Port; 0 takes a free one.")
    api_key: str | None = _option(
        None,
        "Needed for adding and deleting. Better in the environment or a file: other users of this "
        "machine see command lines.",
        repr=False,  # keys do not belong into logs
    )
    read_only: bool = _option(False, "No adding, no deleting.")
    open_browser: bool = _option(False, "Open the search page in a browser.")
    max_waiting: int = _option(1024, "Requests in work; others get 503.", LIMITS)
    max_wait: float = _option(
        1.0, "Seconds to wait for a turn; who would wait longer gets 503.", LIMITS
    )
    max_connections: int = _option(
        2048, "Open connections; a further one closes the one idle for longest.", LIMITS
    )
    send_timeout: float = _option(
        30.0, "Seconds for a client to read an answer, or it is cut off.", LIMITS
    )
    idle_timeout: float = _option(
        30.0, "Seconds for a connection to send a whole request head, or it is closed.", LIMITS
    )
    threads: int | None = _option(None, "Threads of a search.")
    allowed_hosts: tuple[str, ...] = _option(
        (), "Another name of this server, such as a proxy's; may be given again."
    )
    quiet: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.port, int) or not 0 <= self.port < 1 << 16:
            raise InputError(f"port is {self.port!r}; expected a whole number from 0 to 65535")
        for limit in (each for each in fields(self) if each.metadata.get("panel") == LIMITS):
            value = getattr(self, limit.name)
            if isinstance(limit.default, float):
                if not (isinstance(value, int | float) and 0 < value < math.inf):
                    raise InputError(f"{limit.name} is {value!r}; expected seconds, above 0")
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{limit.name} is {value!r}; expected a whole number from 1")
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

    @property
    def limits(self) -> RequestLimits:
        """What clients are told: the limits of their requests."""
        return RequestLimits(**{
            each.name: getattr(self, each.name) for each in fields(RequestLimits)
        })  # fmt: skip

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


# What the command needs of each: its default and its help.
SETTINGS: dict[str, Any] = {each.name: each for each in fields(ServeOptions)}
