"""What numba has no words for: float16, floats from their bits, prefetching, addresses.

Each is one or a few instructions of the processor, written as LLVM code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array


def _half_to_float(typing_context: Any, bits: Any) -> Any:
    """The float32 with the value of a float16, given as its 16 bits; numba has no float16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return numba.types.float32(numba.types.uint16), generate


half_to_float = cast(Callable[[int], float], intrinsic(_half_to_float))


def _high_to_float(typing_context: Any, high: Any) -> Any:
    """The float32 whose upper 16 bits are given and whose lower 16 bits are zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        return builder.bitcast(
            builder.shl(builder.zext(arguments[0], word), word(16)), ir.FloatType()
        )

    return numba.types.float32(numba.types.uint16), generate


def _join_planes(typing_context: Any, high: Any, low: Any) -> Any:
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


high_to_float = cast(Callable[[int], float], intrinsic(_high_to_float))
join_planes = cast(Callable[[int, int], float], intrinsic(_join_planes))


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


def _prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
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


def _prefetch_item(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask the processor to fetch a place of a one-dimensional array soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.gep(make_array(array)(context, builder, arguments[0]).data, [arguments[1]])
        return _fetch(context, builder, place)

    return numba.types.void(array, numba.types.intp), generate


prefetch = cast(Callable[[Any, int, int], None], intrinsic(_prefetch))
prefetch_item = cast(Callable[[Any, int], None], intrinsic(_prefetch_item))


def pointer_to(kind: Any) -> Callable[[int], Any]:
    """A function for kernels: from the address of an array to a pointer for ``numba.carray``."""

    def _pointer(typing_context: Any, address: Any) -> Any:
        pointer = numba.types.CPointer(kind)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(numba.types.int64), generate

    return cast(Callable[[int], Any], intrinsic(_pointer))
