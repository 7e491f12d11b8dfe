"""Who may do what: keys, and the ways by which a web page misuses its visitor's browser."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable

from flowhash.serve.options import ServeOptions
from flowhash.serve.problems import ProblemError, only_reads

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(rb"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
READING = ("GET", "HEAD", "OPTIONS")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
Headers = Iterable[tuple[bytes, bytes]]


class Gate:
    """Decides by a request's headers.

    Args:
        options: address, key, names.
        writable: whether the table can be changed.
    """

    def __init__(self, options: ServeOptions, writable: bool) -> None:
        self._key = None if options.api_key is None else options.api_key.encode()
        self._options = options
        self.see(writable)
        names = {name.lower() for name in options.allowed_hosts}
        if options.loopback:
            names |= {*LOCAL_NAMES, options.host}
        self._names = names  # empty: any name
        self._known: set[bytes] = set()  # Host headers that were found good

    def see(self, writable: bool) -> None:
        """Note whether the table can be changed now; the right to it may come and go."""
        self.writable = self._options.may_write and writable

    def enter(self, method: str, headers: Headers) -> None:
        """Let a request pass or raise.

        Raises:
            ProblemError: 400 for more than one name or page, 403 for a name that is not ours, or
                for another site's page.
        """
        host, origin = None, None
        for name, value in headers:
            if name == b"host":
                if host is not None:
                    raise _twice("Host", host, value)
                host = value
            elif name == b"origin":
                if origin is not None:
                    raise _twice("Origin", origin, value)
                origin = value
        host = host or b""
        if self._names and host not in self._known:
            self._check_host(host)
        if origin is not None and method not in READING:
            _check_origin(origin, host)

    def write(self, headers: Headers) -> None:
        """Let a write pass or raise.

        Raises:
            ProblemError: 403 where nothing can be written, 401 without the right key.
        """
        if not self.writable:
            raise self._refusal()
        if self._key is not None and not hmac.compare_digest(_key_in(headers), self._key):
            raise ProblemError(
                401,
                "this server changes its table only for those who know its key; send it as "
                "X-API-Key, or as Authorization: Bearer",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _refusal(self) -> ProblemError:
        if self._options.read_only or self._options.may_write:
            return only_reads()
        return ProblemError(
            403,
            f"this server listens on {self._options.host} without a key, and so changes nothing; "
            "start it with an API key, or on 127.0.0.1",
            "read_only",
        )

    def _check_host(self, host: bytes) -> None:
        """A page that lets its own name point to this machine is stopped here (DNS rebinding)."""
        found = HOST.fullmatch(host.lower())
        name = "" if found is None else found["name"].decode().strip("[]")
        if name not in self._names:
            raise ProblemError(
                403,
                f"the Host header is {host.decode('latin-1')[:100]!r}; expected one of "
                f"{', '.join(sorted(self._names))}. Start the server with that name in "
                "allowed_hosts if it is yours",
                "unknown_host",
            )
        if len(self._known) < 100:
            self._known.add(host)


def _twice(name: str, first: bytes, second: bytes) -> ProblemError:
    """Two lines where others, such as a proxy, may have looked at the other one."""
    came = " and ".join(repr(value.decode("latin-1")[:100]) for value in (first, second))
    return ProblemError(
        400,
        f"the request names more than one {name}, {came}, in its headers or its target; send one",
        "ambiguous",
    )


def _check_origin(origin: bytes, host: bytes) -> None:
    """Browsers name the page that sends; one of another site must not change anything here."""
    scheme, _, site = origin.lower().partition(b"://")
    default = {b"http": b":80", b"https": b":443"}.get(scheme, b"\0")
    if not site or site.removesuffix(default) != host.lower().removesuffix(default):
        raise ProblemError(
            403,
            f"a page of {origin.decode('latin-1')[:100]} sent this, and this is "
            f"{host.decode('latin-1')[:100]}; only pages of this server may. Programs leave the "
            "Origin header out",
            "foreign_origin",
        )


def _key_in(headers: Headers) -> bytes:
    found = b""
    for name, value in headers:
        if name == b"x-api-key":
            return value
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            found = value[7:].strip()
    return found
