"""Compiled kernels: the only module that imports numba, so that kernels keep their types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import numba

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
