"""No compression: the numbers as they are. SVFL is this map; it is also how exact copies travel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from efvfl.compress.base import Compressor, Shape, checked, entries, finite_values, register
from efvfl.errors import WireError
from efvfl.wire.packet import Array, FloatArray, Packet


@register("identity", 0)
@dataclass(frozen=True)
class Identity(Compressor):
    """C(x) = x. Body: the values, little-endian."""

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Copy the block."""
        return Packet(self.code, block.dtype, block.shape, checked(block).tobytes())

    @classmethod
    def read(cls, packet: Packet) -> Array:
        """Copy the values back."""
        size = packet.entries * packet.dtype.itemsize
        if len(packet.body) != size:
            raise WireError(f"{len(packet.body):,} bytes came for shape {packet.shape}, {size:,} are expected.")
        if packet.dtype.kind == "u":
            return np.frombuffer(packet.body, dtype=packet.dtype).reshape(packet.shape)
        return finite_values(packet.body, packet.dtype).reshape(packet.shape).copy()

    def alpha(self, shape: Shape) -> float:
        """Nothing is lost."""
        return 1.0

    def paper_bits(self, shape: Shape) -> int:
        """32 bits a value."""
        return 32 * entries(shape)
