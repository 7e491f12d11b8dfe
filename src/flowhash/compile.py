"""How FlowHash compiles its kernels, and the instructions that numba has no words for.

A few decorators for all of them, so that the rules of the house hold everywhere: compiled code is
cached on disk, releases the GIL, and keeps to IEEE arithmetic, because exact answers live from
exact comparisons. The one exception, ``filter_kernel``, is for sums whose error is bounded.

The first use of a fresh installation compiles for ten seconds and more, and says so: a line in the
log ``flowhash.compile``, which Python prints on the error stream where nobody has set up logging.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, event
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

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
            "10 to 20 s on a quiet machine; later processes load them"
        )

    def on_end(self, compiling: Any) -> None:
        """Nothing: people see that it goes on."""


def _jit_whole(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a kernel as numba does."""
    return numba.njit(**options)(function)


event.register("numba:compile", Notice())

# Compiling in parts is quicker, but takes what numba does not document. ``empty`` and ``zeros`` are
# for kernels: from a shape and a type of numpy to an array.
PARTS_FROM, PARTS_TO = (0, 60), (0, 68)  # the versions of numba that it was tested with
_jit: Callable[..., Any]
empty: Callable[..., Any]
zeros: Callable[..., Any]
DISABLED = getattr(numba.config, "DISABLE_JIT", False)  # by those who step through a program
if PARTS_FROM <= numba.version_info.short <= PARTS_TO and not DISABLED:
    from flowhash.kernel_parts import empty, jit_in_parts as _jit, zeros
else:
    _jit, empty, zeros = _jit_whole, np.empty, np.zeros


def kernel(function: Function) -> Function:
    """Compile ``function`` with numba: cached, without the GIL, IEEE arithmetic."""
    return _cached(function)


def inner_kernel(function: Function) -> Function:
    """Like :func:`kernel`, for inner loops: the function must not allocate.

    Numba counts references to every array that it passes from one function to another, atomically;
    in a search over a few hundred buckets that took a third of the time. Kernels that allocate
    nothing do not need the count.
    """
    return _uncounted(function)


def filter_kernel(function: Function) -> Function:
    """Like :func:`inner_kernel`, for sums in any order: what follows must bound their error.

    A sum that may be reordered is SIMD code, about eight times as fast. The bound that every caller
    uses, dim · 2^-24 of the sum of magnitudes, holds for any order. Infinities and NaNs keep their
    meaning.
    """
    return _uncounted(function, fastmath={"reassoc", "contract", "nsz"})


def _uncounted(function: Function, **options: Any) -> Function:
    """Compile without the count of references.

    The switch for it is not documented, so that a numba without it compiles the kernel as usual,
    only slower.
    """
    try:
        return _cached(function, _nrt=False, **options)
    except (KeyError, TypeError):
        return _cached(function, **options)


def _cached(function: Function, **options: Any) -> Function:
    """Compile with numba, and take what an older FlowHash has left in the cache for nothing.

    Numba unpickles the list of what it has compiled of a function before it looks whether the
    function is still the same. The types in it may be of modules that have other names by now: an
    upgrade in place would end with ModuleNotFoundError at the first call.
    """
    compiled = _jit(function, cache=True, nogil=True, **options)
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


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether this process or an earlier one has compiled a kernel, so that calls need not wait."""
    kernel: Any = function
    file = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    load = getattr(file, "_load_index", dict)  # as above
    return bool(kernel.overloads) or bool(load())


def get_ready() -> None:
    """Let numba load what it needs to run compiled code, a quarter of a second.

    It would do so at the first call of any kernel; a room whose first call should be quick does it
    while it is imported.
    """
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def _instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Numba's ``intrinsic``, with a type: kernels call it without the typing context."""
    return cast(Callable[..., Any], intrinsic(function))


# A minimum written as ``a if a < b else b`` keeps LLVM from turning a loop over it into SIMD code:
# without a promise that no NaN comes, the order of the comparisons matters. These two make that
# promise for one comparison each (all inputs were checked before), which vectorises the reductions
# of the inner loops about fourfold and leaves every other operation strict.


def _compared(sign: str) -> Callable[[float, float], float]:
    """Of two floats of one type, neither of them NaN, the one that stands before ``sign``."""

    @_instruction
    def _compare(typing_context: Any, first: Any, second: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            flags = ("nnan", "nsz")
            ordered = builder.fcmp_ordered(sign, *arguments, flags=flags)
            return builder.select(ordered, *arguments, flags=flags)

        return first(first, first), generate

    return _compare


smaller = _compared("<")
larger = _compared(">")

# What follows is for the table: float16, floats from their bits, prefetching, addresses. Each is
# one or a few instructions of the processor, written as LLVM code.


@_instruction
def half_to_float(typing_context: Any, bits: Any) -> Any:
    """The float32 with the value of a float16, given as its 16 bits; numba has no float16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return numba.types.float32(numba.types.uint16), generate


@_instruction
def high_to_float(typing_context: Any, high: Any) -> Any:
    """The float32 whose upper 16 bits are given and whose lower 16 bits are zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        return builder.bitcast(
            builder.shl(builder.zext(arguments[0], word), word(16)), ir.FloatType()
        )

    return numba.types.float32(numba.types.uint16), generate


@_instruction
def join_planes(typing_context: Any, high: Any, low: Any) -> Any:
    """The float32 that was split into a rounded upper half and a lower half.

    The upper half was rounded up where the lower one is 2^15 or more; that is taken back.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        high = builder.zext(arguments[0], word)
        low = builder.zext(arguments[1], word)
        floor = builder.sub(high, builder.lshr(low, word(15)))
        return builder.bitcast(builder.or_(builder.shl(floor, word(16)), low), ir.FloatType())

    return numba.types.float32(numba.types.uint16, numba.types.uint16), generate


# Adding 1.5 · 2^52 to a float64 rounds it to a whole number, which its last bits then are. The
# flag keeps a filter kernel from taking the sum apart again.
ROUNDER, STRICT = 1.5 * 2.0**52, ("nnan",)


@_instruction
def whole_part(typing_context: Any, value: Any) -> Any:
    """The whole number that is nearest to a float64 of at most 2^51, neither of them NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rounder = ir.Constant(ir.DoubleType(), ROUNDER)
        shifted = builder.fadd(arguments[0], rounder, flags=STRICT)
        return builder.fsub(shifted, rounder, flags=STRICT)

    return numba.types.float64(numba.types.float64), generate


@_instruction
def two_to(typing_context: Any, power: Any) -> Any:
    """2^power, of a whole number from -1022 to 1023 as a float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        rounder = ir.Constant(ir.DoubleType(), ROUNDER)
        shifted = builder.fadd(arguments[0], rounder, flags=STRICT)
        bits = builder.shl(builder.bitcast(shifted, word), word(52))
        return builder.bitcast(builder.add(bits, word(1023 << 52)), ir.DoubleType())

    return numba.types.float64(numba.types.float64), generate


def _fetch(context: Any, builder: Any, place: Any) -> Any:
    """Call the processor's instruction for it: to be read, and soon."""
    pointer = builder.bitcast(place, ir.IntType(8).as_pointer())
    number = ir.IntType(32)
    function = builder.module.declare_intrinsic(
        "llvm.prefetch",
        [pointer.type],
        ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number]),
    )
    builder.call(function, [pointer, number(0), number(3), number(1)])
    return context.get_dummy_value()


@_instruction
def prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Ask the processor to fetch a place of a matrix soon; the place may lie behind its end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        matrix = make_array(array)(context, builder, arguments[0])
        place = cgutils.get_item_pointer2(
            context,
            builder,
            matrix.data,
            cgutils.unpack_tuple(builder, matrix.shape, 2),
            cgutils.unpack_tuple(builder, matrix.strides, 2),
            array.layout,
            list(arguments[1:]),
        )
        return _fetch(context, builder, place)

    return numba.types.void(array, numba.types.intp, numba.types.intp), generate


@_instruction
def prefetch_item(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask the processor to fetch a place of a one-dimensional array soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.gep(make_array(array)(context, builder, arguments[0]).data, [arguments[1]])
        return _fetch(context, builder, place)

    return numba.types.void(array, numba.types.intp), generate


def pointer_to(kind: Any) -> Callable[[int], Any]:
    """A function for kernels: from the address of an array to a pointer for ``numba.carray``."""

    @_instruction
    def _pointer(typing_context: Any, address: Any) -> Any:
        pointer = numba.types.CPointer(kind)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(numba.types.int64), generate

    return _pointer
