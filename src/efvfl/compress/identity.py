"""No compression. SVFL uses this map, and so do exact copies in the other methods."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from efvfl.compress.base import Compressor, Shape, checked, entries, finite_values, register
from efvfl.errors import WireError
from efvfl.wire.packet import Array, FloatArray, Packet


@register("identity", 0)
@dataclass(frozen=True)
class Identity(Compressor):
    """C(x) = x. Body: the values, little-endian.

    >>> from efvfl.compress import decode
    >>> packet = Identity().encode(np.float32([1, 2, 3]))
    >>> decode(packet).tolist(), len(packet.body)
    ([1.0, 2.0, 3.0], 12)
    """

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return the block as it is."""
        flat = checked(block)
        return Packet(self.code, block.dtype, block.shape, flat.tobytes(), flat.reshape(block.shape).copy())

    @classmethod
    def read(cls, packet: Packet) -> Array:
        """Return the values as a block."""
        size = packet.entries * packet.dtype.itemsize
        if len(packet.body) != size:
            raise WireError(f"expected {size:,} bytes for shape {packet.shape}, got {len(packet.body):,}.")
        if packet.dtype.kind == "u":
            return np.frombuffer(packet.body, dtype=packet.dtype).reshape(packet.shape)
        return finite_values(packet.body, packet.dtype).reshape(packet.shape).copy()

    def alpha(self, shape: Shape) -> float:
        """Return 1: the map is exact."""
        return 1.0

    def paper_bits(self, shape: Shape) -> int:
        """Return 32 bits per value."""
        return 32 * entries(shape)
