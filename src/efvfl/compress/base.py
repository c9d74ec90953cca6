"""The interface of compressors, and their registry.

A compressor is defined by its bytes: C(x) *is* `decode(encode(x))`. A packet names its codec, so the receiver needs no
configuration. To add a compressor, write a file like `sign.py`: a frozen dataclass whose fields are its parameters,
with `encode`, `read`, `alpha` and `paper_bits`, decorated with `@register`. List variants of it in
tests/contracts/test_compressors.py, and the contract tests there cover it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from efvfl.compress.ramp import Ramp
from efvfl.errors import CompressionError, ConfigError, WireError, describe, nearest
from efvfl.util.jit import kernel
from efvfl.wire.packet import Array, FloatArray, Packet

Shape = tuple[int, ...]

# The largest block that is decoded by default: a few bytes may rightly mean as many zeros. Every receiver in this
# library knows the shape and requires it (`core.channel.unpack`), so this is for callers in Python that do not.
MAX_ENTRIES = 1 << 20


@dataclass(frozen=True)
class Compressor(ABC):
    """A contractive map (the paper's Definition 1) together with its wire codec.

    >>> from efvfl import TopK
    >>> from efvfl.compress import decode
    >>> decode(TopK(ratio=0.5).encode(np.float32([1, -3, 2, 0]))).tolist()
    [0.0, -3.0, 2.0, 0.0]
    """

    name: ClassVar[str]  # in files and on the command line
    code: ClassVar[int]  # on the wire
    whole: ClassVar[frozenset[str]] = frozenset()  # parameters that are whole numbers: a ramp of them is rounded

    @abstractmethod
    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return the compressed block. All randomness comes from `key`; deterministic maps ignore it."""

    @classmethod
    @abstractmethod
    def read(cls, packet: Packet) -> Array:
        """Return the decoded block of a packet of this codec, or raise `WireError`.

        Called by `decode`, which has checked that the shape is no larger than the receiver expects.
        """

    @abstractmethod
    def alpha(self, shape: Shape) -> float:
        """Return the guaranteed alpha in E|C(x) - x|^2 <= (1 - alpha) |x|^2 for every x of this shape."""

    @abstractmethod
    def paper_bits(self, shape: Shape) -> int:
        """Return the paper's count of bits for a block of this shape: 32 per value, no indices, no headers."""

    def at(self, step: int) -> Self:
        """Return this compressor with every ramp replaced by its value at a step."""
        if not self._ramps:
            return self
        values = {name: ramp.at(step) for name, ramp in self._ramps.items()}
        return replace(self, **{name: round(v) if name in self.whole else v for name, v in values.items()})

    @cached_property
    def _ramps(self) -> dict[str, Ramp]:
        """The parameters that change over steps; looked for once, because every step asks."""
        return {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Ramp)}


REGISTRY: dict[str, type[Compressor]] = {}
_BY_CODE: dict[int, type[Compressor]] = {}

Registered = TypeVar("Registered", bound=type[Compressor])


def register(name: str, code: int) -> Callable[[Registered], Registered]:
    """Return a class decorator that registers a compressor by name (files, command line) and by code (wire).

    Registering a class of the same module and name again replaces the old one, because a notebook cell may run twice.
    """

    def add(cls: Registered) -> Registered:
        old = REGISTRY.get(name)
        again = old is not None and old is _BY_CODE.get(code) and _qualified_name(old) == _qualified_name(cls)
        if not again and (name in REGISTRY or code in _BY_CODE or not 0 <= code < 256):
            raise ConfigError(
                f"compressor {name!r} with code {code}: expected a name and a code from 0 to 255 that are not in use."
            )
        cls.name, cls.code = name, code
        REGISTRY[name] = _BY_CODE[code] = cls
        return cls

    return add


def _qualified_name(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def lookup(name: str) -> type[Compressor]:
    """Return the compressor class of this name."""
    if name not in REGISTRY:
        raise ConfigError(f"there is no compressor {name!r}. {nearest(name, REGISTRY)}")
    return REGISTRY[name]


def decode(packet: Packet, limit: int = MAX_ENTRIES) -> Array:
    """Return the block of a packet, or refuse one with more than `limit` entries before anything is allocated.

    The array is shared by all callers that decode this packet: do not modify it.
    """
    if packet.decoded is not None:
        return packet.decoded
    if packet.codec not in _BY_CODE:
        raise WireError(f"expected one of the registered codecs {sorted(_BY_CODE)}, got {packet.codec}.")
    if packet.entries > limit:
        raise WireError(
            f"expected a block of at most {limit:,} entries, got {packet.entries:,}: pass a limit if that is right."
        )
    if packet.dtype.kind != "f" and _BY_CODE[packet.codec].name != "identity":
        raise WireError(f"expected a block of float32 or float64 for this codec, got {packet.dtype}.")
    block = _BY_CODE[packet.codec].read(packet)
    object.__setattr__(packet, "decoded", block)  # a cache: the value of the packet does not change
    return block


@kernel
def _finite32(bits: NDArray[np.uint32]) -> bool:
    worst = np.uint32(0)
    for i in range(bits.size):
        worst = max(worst, bits[i] & np.uint32(0x7FFFFFFF))
    return bool(worst < np.uint32(0x7F800000))


def finite(block: FloatArray) -> bool:
    """Return whether every entry is finite, in one pass over the bits."""
    if block.dtype == np.float32 and block.flags.c_contiguous:
        return bool(_finite32(block.reshape(-1).view(np.uint32)))
    return bool(np.isfinite(block).all())


def checked(block: FloatArray) -> FloatArray:
    """Return the block, contiguous and flat, or raise `CompressionError`."""
    if block.dtype not in (np.float32, np.float64):
        raise CompressionError(f"expected a block of float32 or float64, got {block.dtype}.")
    flat = np.ascontiguousarray(block).reshape(-1)
    if not finite(flat):
        bad = int(np.flatnonzero(~np.isfinite(flat))[0])
        raise CompressionError(
            f"entry {bad:,} of a block of shape {block.shape} is {flat[bad]}: only finite numbers can be sent. "
            "Training has probably diverged: lower the learning rate."
        )
    return flat


def finite_values(data: bytes, dtype: np.dtype[np.generic]) -> FloatArray:
    """Return the numbers in `data` without a copy, or raise `WireError`."""
    values: FloatArray = np.frombuffer(data, dtype=dtype)
    if not finite(values):
        raise WireError("a value in a packet is not finite.")
    return values


def largest_float(dtype: np.dtype[np.generic]) -> float:
    """Return the largest finite number of a block's dtype."""
    return float(np.finfo(np.float64 if dtype.itemsize == 8 else np.float32).max)


def entries(shape: Shape) -> int:
    """Return the number of entries of a block."""
    return prod(shape)


def as_table(shape: Shape) -> tuple[int, int]:
    """Return how many rows and columns a block has: the first dimension is rows; a vector is one column."""
    rows = shape[0] if len(shape) > 1 else entries(shape)
    return rows, entries(shape) // rows if rows else 0


def require_count(name: str, value: object) -> None:
    """Raise an error if a parameter is not a whole number of at least 0."""
    if not isinstance(value, int) or value < 0:
        raise ConfigError(f"{name}: expected a whole number of at least 0, got {describe(value)}.")


def require_share(name: str, value: object) -> None:
    """Raise an error if a parameter, or either end of its ramp, is outside (0, 1]."""
    for share in (value.start, value.stop) if isinstance(value, Ramp) else (value,):
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise ConfigError(f"{name}: expected a number above 0 and at most 1, got {describe(share)}.")
