"""Compiled kernels: the only module that imports numba, so that kernels keep their types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """Compile a loop over arrays to machine code at its first call, and cache the result on disk.

    The interpreter lock is released while a kernel runs. Division follows numpy: no exceptions.
    """
    compiled = partial(numba.njit, nogil=True, error_model="numpy")
    try:
        return cast(Kernel, compiled(cache=True)(function))
    except RuntimeError:  # no writable cache directory, for example in a hardened service
        return cast(Kernel, compiled()(function))


def _sum_of_products(context: Any, left: Any, right: Any, more: Any) -> Any:
    """Generate Σ left[i] · right[i] + more as (low, high)."""
    types: Any = numba.types
    pair = types.UniTuple(types.uint64, 2)

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, wide = ir.IntType(64), ir.IntType(128)
        total = builder.zext(arguments[2], wide)
        for place in range(len(left)):
            factors = (builder.zext(builder.extract_value(of, place), wide) for of in arguments[:2])
            total = builder.add(total, builder.mul(*factors))
        high = builder.lshr(total, ir.Constant(wide, 64))
        return target.make_tuple(builder, pair, (builder.trunc(total, word), builder.trunc(high, word)))

    return pair(left, right, more), generate


# For kernels alone: the low and the high word of a sum of products, because numpy has no 128 bits.
sum_of_products: Callable[[tuple[np.uint64, ...], tuple[np.uint64, ...], np.uint64], tuple[np.uint64, np.uint64]]
sum_of_products = cast(Any, intrinsic)(_sum_of_products)
