"""What a compressor is, and the registry of all of them.

A compressor's map is defined by its bytes: C(x) *is* `decode(encode(x))`. A packet names its codec, so the receiver
needs no configuration. To add one, write a file like `sign.py`: a frozen dataclass whose fields are its knobs, with
`encode`, `read`, `alpha` and `paper_bits`, under `@register`; give it variants in tests/test_compressors.py, and the
contract there runs over it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import prod
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from efvfl.compress.ramp import Ramp
from efvfl.errors import CompressionError, ConfigError, WireError, nearest
from efvfl.util.jit import kernel
from efvfl.wire.packet import Array, FloatArray, Packet

Shape = tuple[int, ...]

# A block nobody announced may have this many entries; a receiver that knows the shape passes its own limit.
MAX_ENTRIES = 1 << 26


@dataclass(frozen=True)
class Compressor(ABC):
    """A contractive map (Definition 1) together with its wire codec."""

    name: ClassVar[str]  # in files and on the command line
    code: ClassVar[int]  # on the wire
    whole: ClassVar[frozenset[str]] = frozenset()  # knobs that are whole numbers: a ramp of them is rounded

    @abstractmethod
    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Compress a block of finite numbers. The key decides every random choice; deterministic maps ignore it."""

    @classmethod
    @abstractmethod
    def read(cls, packet: Packet) -> Array:
        """Decode the body of a packet of this codec, or raise `WireError`."""

    @abstractmethod
    def alpha(self, shape: Shape) -> float:
        """Return the guaranteed contraction: E|C(x) - x|^2 <= (1 - alpha) |x|^2 for every x of this shape."""

    @abstractmethod
    def paper_bits(self, shape: Shape) -> int:
        """Return the paper's count of bits for such a block: 32 a value, no indices, no headers."""

    def at(self, step: int) -> Self:
        """Return this compressor with the knobs it has at a step."""
        ramps = {f.name: value.at(step) for f in fields(self) if isinstance(value := getattr(self, f.name), Ramp)}
        rounded = {name: round(value) if name in self.whole else value for name, value in ramps.items()}
        return replace(self, **rounded) if ramps else self


REGISTRY: dict[str, type[Compressor]] = {}
_BY_CODE: dict[int, type[Compressor]] = {}

Registered = TypeVar("Registered", bound=type[Compressor])


def register(name: str, code: int) -> Callable[[Registered], Registered]:
    """Make a compressor known by name (files, command line) and by code (wire).

    The same class again, by its module and name, takes the place of the old one: a notebook's cell may run twice.
    """

    def add(cls: Registered) -> Registered:
        old = REGISTRY.get(name)
        again = old is not None and old is _BY_CODE.get(code) and _whole_name(old) == _whole_name(cls)
        if not again and (name in REGISTRY or code in _BY_CODE or not 0 <= code < 256):
            raise ConfigError(f"compressor {name!r} with code {code}: name or code is taken, or not below 256.")
        cls.name, cls.code = name, code
        REGISTRY[name] = _BY_CODE[code] = cls
        return cls

    return add


def _whole_name(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def lookup(name: str) -> type[Compressor]:
    """Return the compressor class of that name."""
    if name not in REGISTRY:
        raise ConfigError(f"there is no compressor {name!r}. {nearest(name, REGISTRY)}")
    return REGISTRY[name]


def decode(packet: Packet, limit: int = MAX_ENTRIES) -> Array:
    """Return the block of a packet. The result is shared by all who decode this packet: read it, never write to it."""
    if packet.decoded is not None:
        return packet.decoded
    if packet.codec not in _BY_CODE:
        raise WireError(f"codec {packet.codec} came, but only {sorted(_BY_CODE)} are registered here.")
    if packet.entries > limit:
        raise WireError(f"a block of {packet.entries:,} entries came, at most {limit:,} are expected.")
    if packet.dtype.kind != "f" and _BY_CODE[packet.codec].name != "identity":
        raise WireError(f"a block of dtype {packet.dtype} came, but this codec carries float32 and float64.")
    block = _BY_CODE[packet.codec].read(packet)
    object.__setattr__(packet, "decoded", block)  # a memo, not a change: the packet still means the same
    return block


@kernel
def _finite32(bits: NDArray[np.uint32]) -> bool:
    worst = np.uint32(0)
    for i in range(bits.size):
        worst = max(worst, bits[i] & np.uint32(0x7FFFFFFF))
    return bool(worst < np.uint32(0x7F800000))


def finite(block: FloatArray) -> bool:
    """Whether every entry is a number, in one pass over the bits."""
    if block.dtype == np.float32 and block.flags.c_contiguous:
        return bool(_finite32(block.reshape(-1).view(np.uint32)))
    return bool(np.isfinite(block).all())


def checked(block: FloatArray) -> FloatArray:
    """Return the block, contiguous and flat, or refuse it."""
    if block.dtype not in (np.float32, np.float64):
        raise CompressionError(f"a block of dtype {block.dtype} came, float32 or float64 is expected.")
    flat = np.ascontiguousarray(block).reshape(-1)
    if not finite(flat):
        bad = int(np.flatnonzero(~np.isfinite(flat))[0])
        raise CompressionError(
            f"entry {bad:,} of a block of shape {block.shape} is {flat[bad]}: only finite numbers can be sent. "
            "Training has probably diverged: lower the learning rate."
        )
    return flat


def finite_values(data: bytes, dtype: np.dtype[np.generic]) -> FloatArray:
    """Return the numbers in `data` as they lie there, or refuse them."""
    values: FloatArray = np.frombuffer(data, dtype=dtype)
    if not finite(values):
        raise WireError("a value in a packet is not finite.")
    return values


def largest_float(dtype: np.dtype[np.generic]) -> float:
    """Return the largest finite number of a block's dtype."""
    return float(np.finfo(np.float64 if dtype.itemsize == 8 else np.float32).max)


def entries(shape: Shape) -> int:
    """Number of entries of a block."""
    return prod(shape)


def require_count(name: str, value: object) -> None:
    """Refuse a knob that is not a whole number from 0."""
    if not isinstance(value, int) or value < 0:
        raise ConfigError(f"{name} must be a whole number, 0 or above, but {value!r} came.")


def require_share(name: str, value: object) -> None:
    """Refuse a knob outside (0, 1], at any end of its ramp."""
    for share in (value.start, value.stop) if isinstance(value, Ramp) else (value,):
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise ConfigError(f"{name} must be above 0 and at most 1, but {share!r} came.")
