"""Inner products of whole numbers: rows of 8 bits with a query of 16, several rows at once.

Numba has no words for the processor's instruction, and LLVM does not find it in a loop over single
numbers: it multiplies in 32 bits, a half to a third as fast. So the loop is written as LLVM code
over vectors, as long as those of the processor that is compiled for. What is not x86 gets plain
vectors, of which LLVM makes what the processor has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from flowhash.compile import inner_kernel

ROWS_TOGETHER = 4  # rows at once: their sums wait for nothing
PADDED = 32  # numbers of the longest vector; a query is padded for the one that is used
# For each length of a vector of 16 bits: what multiplies two and adds the products of neighbours,
# in 32 bits; the longest that the processor can add is taken.
INSTRUCTIONS = {
    32: ("llvm.x86.avx512.pmaddw.d.512", "zmm"),
    16: ("llvm.x86.avx2.pmadd.wd", "ymm"),
    8: ("llvm.x86.sse2.pmadd.wd", "xmm"),
}
PLAIN = 16  # numbers of a vector on other processors

Products = Callable[..., Any]


def lanes_and_instruction(codegen: Any) -> tuple[int, str]:
    """How many numbers a vector has on the processor that ``codegen`` compiles for, and the name.

    Its features can only be asked for by letting it compile: an addition of the longest vector.
    """
    try:
        machine = codegen._tm
        if not machine.triple.startswith(("x86_64", "i686")):
            return PLAIN, ""
        code = llvm.parse_assembly(
            f'target triple = "{machine.triple}"\n'
            "define <32 x i16> @sum(<32 x i16> %a, <32 x i16> %b) {\n"
            "%c = add <32 x i16> %a, %b\nret <32 x i16> %c\n}"
        )
        assembly = machine.emit_assembly(code)
    except (AttributeError, RuntimeError):  # _tm is not documented
        return PLAIN, ""
    for lanes, (name, register) in INSTRUCTIONS.items():
        if re.search(rf"\bv?paddw\s[^\n]*{register}", assembly):
            return lanes, name
    return PLAIN, ""


def _vector(bits: int, lanes: int) -> Any:
    return ir.VectorType(ir.IntType(bits), lanes)


def _sums_of_four(builder: Any, vectors: list[Any]) -> Any:
    """The sum of each of four vectors of 32 bits, as one vector.

    Two by two they are folded into each other, which takes a third of the steps of four sums.
    """
    count = vectors[0].type.count

    def shuffled(one: Any, two: Any, lanes: list[int]) -> Any:
        mask = ir.Constant(_vector(32, len(lanes)), lanes)
        return builder.shuffle_vector(one, two, mask)

    def folded(one: Any, two: Any, first: list[int], second: list[int]) -> Any:
        # The same lanes of every four: processors move those in one step.
        fours = range(0, count, 4)
        halves = [
            shuffled(one, two, [four + lane % 4 + lane // 4 * count for four in fours
                                for lane in lanes])
            for lanes in (first, second)
        ]  # fmt: skip
        return builder.add(*halves)

    one, two = (
        folded(vectors[place], vectors[place + 1], [0, 4, 1, 5], [2, 6, 3, 7]) for place in (0, 2)
    )
    whole = folded(one, two, [0, 1, 4, 5], [2, 3, 6, 7])
    while whole.type.count > ROWS_TOGETHER:
        half = whole.type.count // 2
        parts = (list(range(half)), list(range(half, 2 * half)))
        whole = builder.add(*(shuffled(whole, whole, lanes) for lanes in parts))
    return whole


def products_of(choose: Callable[[Any], tuple[int, str]]) -> tuple[Products, Products]:
    """Two functions for kernels: the length of a vector, and the products of ROWS_TOGETHER rows.

    The second takes rows, which of them, the query as ``lay_out`` lays it out, and where to write
    the products, as float32, one after the other.

    ``choose`` says, of what compiles, how many numbers a vector has and what multiplies them.
    """

    @intrinsic
    def lanes_here(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return context.get_constant(numba.types.intp, choose(context.codegen())[0])

        return numba.types.intp(), generate

    @intrinsic
    def multiply(
        typing_context: Any, rows: Any, places: Any, query: Any, products: Any, start: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes, name = choose(context.codegen())
            matrix = make_array(rows)(context, builder, arguments[0])
            asked = make_array(query)(context, builder, arguments[2]).data
            dim = cgutils.unpack_tuple(builder, matrix.shape, 2)[1]
            number = dim.type
            sums = _vector(32, lanes // 2 if name else lanes)
            starts = [
                builder.gep(matrix.data, [builder.mul(place, dim)])
                for place in cgutils.unpack_tuple(builder, arguments[1], ROWS_TOGETHER)
            ]
            totals = [cgutils.alloca_once_value(builder, ir.Constant(sums, None)) for _ in starts]
            words, bytes_ = _vector(16, lanes), _vector(8, lanes)
            blocks = builder.udiv(builder.add(dim, number(lanes - 1)), number(lanes))
            final = builder.sub(dim, number(lanes))
            with cgutils.for_range(builder, blocks) as loop:
                column = builder.mul(loop.index, number(lanes))
                place = builder.bitcast(builder.gep(asked, [column]), words.as_pointer())
                factors = builder.load(place, align=2)
                inside = builder.icmp_signed("<", column, final)
                column = builder.select(inside, column, final)
                for begin, total in zip(starts, totals, strict=True):
                    place = builder.bitcast(builder.gep(begin, [column]), bytes_.as_pointer())
                    steps = builder.load(place, align=1)
                    if name:
                        pairs = ir.FunctionType(sums, [words, words])
                        function = builder.module.declare_intrinsic(name, fnty=pairs)
                        steps = builder.sext(steps, words)
                        product = builder.call(function, [steps, factors])
                    else:
                        steps = builder.sext(steps, sums)
                        product = builder.mul(steps, builder.sext(factors, sums))
                    builder.store(builder.add(builder.load(total), product), total)
            four = _sums_of_four(builder, [builder.load(total) for total in totals])
            real = ir.VectorType(ir.FloatType(), ROWS_TOGETHER)
            target = builder.gep(make_array(products)(context, builder, arguments[3]).data,
                                 [arguments[4]])  # fmt: skip
            target = builder.bitcast(target, real.as_pointer())
            builder.store(builder.sitofp(four, real), target, align=4)
            return context.get_dummy_value()

        kind = numba.types
        places_type = kind.UniTuple(kind.intp, ROWS_TOGETHER)
        return kind.void(rows, places_type, query, products, kind.intp), generate

    return cast(Products, lanes_here), cast(Products, multiply)


lanes_here, multiply = products_of(lanes_and_instruction)


@inner_kernel
def lay_out(whole: NDArray[np.int16], dim: int, padded: NDArray[np.int16]) -> None:
    """Lay out a query for ``multiply``: as vectors, the last of which ends where rows end.

    Rows are at least as long as a vector. The last vector of one overlaps the one before, and has
    zeros there: nothing is read behind the end of a row, and nothing counts twice.
    """
    lanes = lanes_here()
    full = dim // lanes * lanes
    for column in range(full):
        padded[column] = whole[column]
    if full < dim:
        for column in range(lanes):
            place = dim - lanes + column
            padded[full + column] = whole[place] if place >= full else 0
