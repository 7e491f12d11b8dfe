"""How FlowHash compiles its kernels.

A few decorators for all of them, so that the rules of the house hold everywhere: compiled code is
cached on disk, releases the GIL, and keeps to IEEE arithmetic, because exact answers live from
exact comparisons. The one exception, ``filter_kernel``, is for sums whose error is bounded.

The first use of a fresh installation compiles for most of a minute, and says so: a line in the log
``flowhash.compile``, which Python prints on the error stream where nobody has set up logging.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import event
from numba.core.registry import cpu_target
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])
LOG = logging.getLogger(__name__)
QUIET = "FLOWHASH_QUIET"  # an environment variable; if set, nothing is said


class Notice(event.Listener):
    """Says, once a process, that kernels are being compiled.

    Numba tells its listeners only when it compiles: not at calls, not when it finds compiled code
    on disk.
    """

    said = False

    def on_start(self, compiling: Any) -> None:
        """A kernel, of anybody, was not in the cache: say so if it is one of ours."""
        module = str(compiling.data["dispatcher"].py_func.__module__)
        if self.said or os.environ.get(QUIET) or module.partition(".")[0] != "flowhash":
            return
        self.said = True
        # A warning, because lower levels are shown only to those who ask for them.
        LOG.warning(
            "FlowHash compiles some of its kernels, each once, at its first use: all of them take "
            "40 to 60 s on a quiet machine; later processes load them"
        )

    def on_end(self, compiling: Any) -> None:
        """Nothing: people see that it goes on."""


event.register("numba:compile", Notice())  # type: ignore[no-untyped-call]


def kernel(function: Function) -> Function:
    """Compile ``function`` with numba: cached, without the GIL, IEEE arithmetic."""
    return _cached(function)


def inner_kernel(function: Function) -> Function:
    """Like :func:`kernel`, for inner loops: the function must not allocate.

    Numba counts references to every array that it passes from one function to another, atomically;
    in a search over a few hundred buckets that took a third of the time. Kernels that allocate
    nothing do not need the count. The switch for it is not documented, so that a numba without it
    compiles the kernel as usual, only slower.
    """
    options: dict[str, Any] = {"_nrt": False}
    try:
        return _cached(function, **options)
    except (KeyError, TypeError):
        return kernel(function)


def filter_kernel(function: Function) -> Function:
    """Like :func:`inner_kernel`, for sums in any order: what follows must bound their error.

    A sum that may be reordered is SIMD code, about eight times as fast. The bound that every caller
    uses, dim · 2^-24 of the sum of magnitudes, holds for any order. Infinities and NaNs keep their
    meaning.
    """
    options: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "_nrt": False}
    try:
        return _cached(function, **options)
    except (KeyError, TypeError):
        del options["_nrt"]
        return _cached(function, **options)


def _cached(function: Function, **options: Any) -> Function:
    """Compile with numba, and take what an older FlowHash has left in the cache for nothing.

    Numba unpickles the list of what it has compiled of a function before it looks whether the
    function is still the same. The types in it may be of modules that have other names by now: an
    upgrade in place would end with ModuleNotFoundError at the first call.
    """
    compiled = numba.njit(cache=True, nogil=True, **options)(function)
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    load = getattr(file, "_load_index", None)  # not documented: without it all is as numba has it
    if load is not None:

        def load_index() -> Any:
            try:
                return load()
            except (ImportError, AttributeError):
                return {}

        file._load_index = load_index  # type: ignore[union-attr]
    return cast(Function, compiled)


def get_ready() -> None:
    """Let numba load what it needs to run compiled code, a quarter of a second.

    It would do so at the first call of any kernel; a room whose first call should be quick does it
    while it is imported.
    """
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


# A minimum written as ``a if a < b else b`` keeps LLVM from turning a loop over it into SIMD code:
# without a promise that no NaN comes, the order of the comparisons matters. These two make that
# promise for one comparison each (all inputs were checked before), which vectorises the reductions
# of the inner loops about fourfold and leaves every other operation strict.


def _choose(builder: Any, sign: str, arguments: Any) -> Any:
    first, second = arguments
    flags = ("nnan", "nsz")
    ordered = builder.fcmp_ordered(sign, first, second, flags=flags)
    return builder.select(ordered, first, second, flags=flags)


def _smaller(typing_context: Any, first: Any, second: Any) -> Any:
    """The smaller of two floats of one type, neither of them NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _choose(builder, "<", arguments)

    return first(first, first), generate


def _larger(typing_context: Any, first: Any, second: Any) -> Any:
    """The larger of two floats of one type, neither of them NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _choose(builder, ">", arguments)

    return first(first, first), generate


smaller = cast(Callable[[float, float], float], intrinsic(_smaller))
larger = cast(Callable[[float, float], float], intrinsic(_larger))
