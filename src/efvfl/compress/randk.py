"""Random-k sparsification: keep k entries at random places, which a seed tells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from efvfl.compress.base import (
    Compressor,
    Shape,
    checked,
    entries,
    finite_values,
    register,
    require_count,
    require_share,
)
from efvfl.compress.ramp import Knob
from efvfl.compress.topk import kept
from efvfl.errors import WireError
from efvfl.util.rng import permutation
from efvfl.wire.packet import FloatArray, Packet, Reader, number


@register("randk", 2)
@dataclass(frozen=True)
class RandK(Compressor):
    """Keep entries at the first k places of the permutation keyed by a seed. Body: k, the 8-byte seed, the values.

    Values are not rescaled by d/k: the map contracts, as error feedback needs, and is not unbiased.
    """

    ratio: Knob = 0.1  # share of the entries that is kept: smaller => fewer bytes, more error
    k: int = 0  # a fixed number instead of a share; 0: use the ratio

    def __post_init__(self) -> None:
        """Refuse knobs that keep nothing."""
        require_share("randk's ratio", self.ratio)
        require_count("randk's k", self.k)

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Send the seed and the values it picks."""
        flat = checked(block)
        count = kept(self.ratio, self.k, "block", block.shape)
        values = flat[permutation(key, flat.size, 0, count)]
        body = number(count) + key.to_bytes(8, "little") + values.tobytes()
        return Packet(self.code, block.dtype, block.shape, body)

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Put the values back where the seed says."""
        reader = Reader(packet.body)
        count = reader.number("randk's number of entries")
        if count > packet.entries:
            raise WireError(f"{count:,} entries came for a block of {packet.entries:,}.")
        key = int.from_bytes(reader.take(8, "randk's seed"), "little")
        values = finite_values(reader.take(count * packet.dtype.itemsize, "randk's values"), packet.dtype)
        reader.end("randk body")
        out: FloatArray = np.zeros(packet.entries, dtype=packet.dtype)
        out[permutation(key, packet.entries, 0, count)] = values
        return out.reshape(packet.shape)

    def alpha(self, shape: Shape) -> float:
        """K / d, in expectation over the seed."""
        return kept(self.ratio, self.k, "block", shape) / entries(shape) if entries(shape) else 1.0

    def paper_bits(self, shape: Shape) -> int:
        """32 bits a kept value."""
        return 32 * kept(self.ratio, self.k, "block", shape)
