"""What goes wrong with a request, as JSON: what came, what was expected, what to do."""

from __future__ import annotations

import logging
import math
import reprlib
import uuid
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from flowhash.errors import Argument, InputError, StorageError
from flowhash.serve.schemas.responses import Failure, Fault, json_response

LOG = logging.getLogger("flowhash.serve")

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    500: "internal",
    503: "unavailable",
    504: "timeout",
}
COMMANDS = {"tops": "flowhash calibrate --top"}  # for what Python gives as an argument
REFUSALS = ("wait", "requests", "connections", "memory")  # what there may be too much of
MEMBERS = ("constrained-int", "constrained-str", "int", "str")  # pydantic's names in a union
STARTS = ("Input ", "Value error, ", "List ", "String ", "Dictionary ")


class _Short(reprlib.Repr):
    """The beginning of a value: all of a large one would take long, and be cut off anyway."""

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        return "{…}" if x else "{}"


SHORT = _Short()
SHORT.maxlevel, SHORT.maxstring, SHORT.maxother = 3, 60, 60


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        message: what came, what was expected, what to do.
        code: a word for programs; by default the status's.
        headers: of the answer.
        refusal: where there is too much to do, of what; see ``REFUSALS``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        refusal: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code or CODES.get(status, "error")
        self.headers = dict(headers or {})
        self.refusal = refusal

    def response(self) -> Response:
        """The answer."""
        made = json_response(Failure(Fault(self.code, self.message)), self.status)
        made.headers.update(self.headers)
        return made


def new_number() -> str:
    """What a fault is logged under, for the client to name it by."""
    return uuid.uuid4().hex[:12]


def only_reads() -> RequestError:
    """A change of a table that this server cannot change."""
    return RequestError(
        403, "this server only reads its table; send changes to the one that writes it", "read_only"
    )


def busy(message: str, refusal: str, wait: float = 0.0) -> RequestError:
    """More than the server can do now; ``wait`` are the seconds after which it can do more."""
    seconds = max(1, math.ceil(wait))
    return RequestError(503, message, "busy", {"Retry-After": str(seconds)}, refusal)


def error_of(error: BaseException, scope: Scope) -> RequestError:
    """Any exception as an answer; what is our fault is logged, and not told to the client."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HTTPException):
        return _routing_error(error, scope)
    if isinstance(error, InputError):
        return refused(error)
    number = new_number()
    if isinstance(error, StorageError):  # it says what is wrong; where we met it does not matter
        LOG.error("request failed, number %s: %s", number, error)
        return RequestError(
            503,
            "the table could not be read or written; try again in a moment. The server's log has "
            f"the reason under {number}",
            "storage",
        )
    LOG.error("request failed, number %s", number, exc_info=error)
    return RequestError(
        500, f"the server failed on this request; its log has the reason under {number}. Report it"
    )


def refused(error: InputError) -> RequestError:
    """What the table refuses, with a command instead of an argument that no request has."""
    message = str(error)
    if isinstance(error.remedy, Argument) and error.remedy.name in COMMANDS:
        value = error.remedy.value.strip("(),")
        message = f"{error.words} `{COMMANDS[error.remedy.name]} {value}`"
    return RequestError(422, message)


def _routing_error(error: HTTPException, scope: Scope) -> RequestError:
    """What the framework says, such as 404 for a path that is not there, in our form."""
    path = scope["path"][:200]
    if error.status_code == 404:
        return RequestError(404, f"there is nothing at {path!r}; see /openapi.json")
    if error.status_code == 405:
        # The framework names the methods of its first route only.
        routes = [route for route in scope["app"].routes if route.path_regex.match(scope["path"])]
        allowed = sorted({method for route in routes for method in route.methods})
        message = f"{scope['method'][:20]} is not possible at {path!r}; see /openapi.json"
        return RequestError(405, message, headers={"Allow": ", ".join(allowed)})
    return RequestError(error.status_code, str(error.detail), headers=error.headers)


def mistake(error: ValidationError, outer: tuple[str | int, ...]) -> RequestError:
    """What pydantic found wrong at ``outer``, the first of it in words."""
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    inner = [part for depth, part in enumerate(first["loc"]) if not depth or part not in MEMBERS]
    place = ".".join(str(part)[:100] for part in (*outer, *inner)) or "the body"
    more = f" ({len(errors) - 1} more mistakes)" if len(errors) > 1 else ""
    if first["type"] == "missing":
        return RequestError(422, f"{place} is missing{more}; see /openapi.json")
    if first["type"] == "extra_forbidden":
        return RequestError(422, f"{place} is not known{more}; leave it out, or see /openapi.json")
    expected = str(first["msg"]).replace(" after validation", "")
    for start in STARTS:
        expected = expected.removeprefix(start)
    expected = expected[:1].lower() + expected[1:]
    return RequestError(
        422, f"{place} is {SHORT.repr(first.get('input')):.60}; it {expected}{more}"
    )
