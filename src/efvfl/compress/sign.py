"""Scaled sign: one bit per entry, and the mean magnitude."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from efvfl.compress.base import Compressor, Shape, checked, entries, finite_values, register
from efvfl.errors import WireError
from efvfl.wire.packet import FloatArray, Packet, Reader


@register("sign", 4)
@dataclass(frozen=True)
class Sign(Compressor):
    """C(x) = mean|x| * sign(x), with sign(0) = 1. Body: the scale, then one bit per entry; a zero block has no bits.

    >>> from efvfl.compress import decode
    >>> decode(Sign().encode(np.float32([1, -3, 2, 0]))).tolist()
    [1.5, -1.5, 1.5, 1.5]
    """

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return the mean magnitude and the signs."""
        flat = checked(block)
        top = np.abs(flat).max(initial=0)
        # Divided by the largest magnitude first, so that the sum does not overflow.
        scale = flat.dtype.type(top * np.abs(flat / top).mean(dtype=np.float64) if top > 0 else 0)
        bits = np.packbits(flat < 0, bitorder="little").tobytes() if scale > 0 else b""
        return Packet(self.code, block.dtype, block.shape, scale.tobytes() + bits)

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Return the scale with the sign of every entry."""
        reader = Reader(packet.body)
        scale = finite_values(reader.take(packet.dtype.itemsize, "sign's scale"), packet.dtype)[0]
        if scale < 0 or np.signbit(scale):
            raise WireError(f"expected a positive scale or 0, got {scale}.")
        if scale == 0:
            reader.end("sign body")
            return np.zeros(packet.shape, dtype=packet.dtype)
        if packet.entries == 0:
            raise WireError(f"expected scale 0 for an empty block, got {scale}.")
        data = np.frombuffer(reader.take((packet.entries + 7) // 8, "signs"), dtype=np.uint8)
        reader.end("sign body")
        negative = np.unpackbits(data, bitorder="little")
        if negative[packet.entries :].any():
            raise WireError("padding bits after signs are not zero.")
        out: FloatArray = np.where(negative[: packet.entries] == 1, -scale, scale)
        return out.reshape(packet.shape)

    def alpha(self, shape: Shape) -> float:
        """Return 1 / d: the worst case, a block with one nonzero entry. Gaussian blocks have about 0.64."""
        return 1 / max(1, entries(shape))

    def paper_bits(self, shape: Shape) -> int:
        """Return 32 bits for the scale, plus one bit per entry."""
        return 32 + entries(shape)
