"""The one door to numba, so that compiled kernels keep their types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """Compile a loop over arrays to machine code at its first call, and keep the result on disk for the next process.

    The interpreter lock is released while a kernel runs. Division is numpy's: no hidden exceptions.
    """
    compiled = partial(numba.njit, nogil=True, error_model="numpy")
    try:
        return cast(Kernel, compiled(cache=True)(function))
    except RuntimeError:  # neither the package's folder nor a home can be written: a hardened service, say
        return cast(Kernel, compiled()(function))
