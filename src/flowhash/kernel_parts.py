"""``jit_in_parts``: kernels that are translated once, however many others call them.

Numba optimises every kernel by itself and makes machine code of it, with what Python needs to call
it, and does all of it again in each kernel that calls it. Most kernels are never called by Python.
So a kernel is translated once, into a part, which is optimised and becomes machine code only in the
library of what Python calls: a first use compiles in less than half of the time.

All of this is numba's inside, which it may change: ``compile.py`` takes it for versions that it was
tested with, and numba as it is for others.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from copy import copy
from typing import Any, cast

import numba
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.environment import Environment
from numba.core.typed_passes import NativeLowering
from numba.extending import intrinsic
from numba.np.arrayobj import _empty_nd_impl


def jit_in_parts(function: Callable[..., Any], *, cache: bool, nogil: bool, **options: Any) -> Any:
    """Like ``numba.njit``: what Python calls, kept on disk, and a part of what kernels call."""
    part: Any = numba.njit(pipeline_class=_PartCompiler, **options)(function)
    compiler = type("_", (_WholeCompiler,), {"part": part})
    whole: Any = numba.njit(cache=cache, nogil=nogil, pipeline_class=compiler, **options)(function)

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        return part.get_call_template([_plain(kind) for kind in arguments], keywords)

    whole.get_call_template = get_call_template
    whole.get_overload = part.get_overload
    return whole


def _plain(kind: Any) -> Any:
    """The type that a kernel is compiled for where another calls it with ``kind``.

    Numba would compile it for each literal, and for whole numbers of each size.
    """
    kind = numba.types.unliteral(kind)
    return numba.types.int64 if kind in numba.types.signed_domain else kind


class _Part(JITCodeLibrary):
    """The code of a kernel, neither optimised nor machine code."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """The last of numba's passes over a kernel, into a part."""

    _name = "flowhash_part_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = state.flags.no_cpython_wrapper = True
        state.flags.no_cfunc_wrapper = True
        super().run_pass(state)
        # Numba knows a function by what Python calls, and wants some built-in one.
        state["cr"] = lowered = state["cr"]._replace(cfunc=[].append)
        state.targetctx.insert_user_function(lowered.cfunc, lowered.fndesc, [state.library])
        return True


class _PartCompiler(CompilerBase):
    """Numba's compiler, of parts."""

    def define_pipelines(self) -> list[Any]:
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes = [
            (_PartLowering if one is NativeLowering else one, to) for one, to in pipeline.passes
        ]
        parts = PassManager("flowhash parts")
        parts.passes.extend(passes)
        parts.finalize()
        return [parts]


class _WholeCompiler(CompilerBase):
    """Makes machine code of a part, and what Python needs to call it."""

    part: Any

    def compile_extra(self, function: Any) -> Any:
        state = self.state
        collects = gc.isenabled()
        gc.disable()  # it looks in vain, again and again, at what lives until all is compiled
        try:
            self.part.compile(state.args)
            compiled = self.part.overloads[state.args]
            library = state.targetctx.codegen().create_library(function.__qualname__)
            library.enable_object_caching()
            library.add_linking_library(compiled.library)
            # What others that have this part in them do not need: constants for what it returns.
            described = copy(compiled.fndesc)
            described.env_name += "whole"
            environment = Environment.from_fndesc(described)
            target = state.targetctx
            target.create_cpython_wrapper(
                library, described, environment, compiled.call_helper,
                release_gil=state.flags.release_gil,
            )  # fmt: skip
            return compiled._replace(
                entry_point=target.get_executable(library, described, environment),
                library=library, fndesc=described, environment=environment,
                metadata=state.metadata,
            )  # fmt: skip
        finally:
            if collects:
                gc.enable()


def _intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Numba's ``intrinsic``, with a type: kernels call it without the typing context."""
    return cast(Callable[..., Any], intrinsic(function))


# Numba compiles its own ``np.empty`` and ``np.zeros`` once more, in several functions, for every
# type and number of dimensions: a second of a first search.


def _room(filled: bool) -> Callable[..., Any]:
    """A function for kernels, from a shape and a type of numpy to an array; of zeros if filled."""

    @_intrinsic
    def _make(typing_context: Any, shape: Any, kind: Any) -> Any:
        sizes = (shape,) if isinstance(shape, numba.types.Integer) else tuple(shape)
        array = numba.types.Array(kind.dtype, len(sizes), "C")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            given = arguments[:1]
            if shape is not sizes[0]:
                given = cgutils.unpack_tuple(builder, arguments[0])
            lengths = [
                context.cast(builder, length, size, numba.types.intp)
                for length, size in zip(given, sizes, strict=True)
            ]
            made = _empty_nd_impl(context, builder, array, lengths)
            if filled:
                cgutils.memset(builder, made.data, builder.mul(made.itemsize, made.nitems), 0)
            return made._getvalue()

        return array(shape, kind), generate

    return _make


empty = _room(False)
zeros = _room(True)
