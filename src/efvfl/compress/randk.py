"""Random-k sparsification: keep k entries at random positions, which are derived from a seed."""

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
from efvfl.compress.topk import kept_count
from efvfl.errors import WireError
from efvfl.util.rng import permutation
from efvfl.wire.packet import FloatArray, Packet, Reader, number


@register("randk", 2)
@dataclass(frozen=True)
class RandK(Compressor):
    """Keep the entries at the first k positions of a permutation keyed by a seed.

    The values are not rescaled by d/k, so the map contracts, as error feedback requires, and is biased.
    Body: k, the 8-byte seed, the values.

    >>> from efvfl.compress import decode
    >>> sorted(decode(RandK(k=2).encode(np.ones(5, dtype=np.float32), key=1)).tolist())
    [0.0, 0.0, 0.0, 1.0, 1.0]
    """

    ratio: Knob = 0.1  # share of the entries to keep: smaller => fewer bytes, more error
    k: int = 0  # number of entries to keep; 0: use the ratio

    def __post_init__(self) -> None:
        """Check the parameters."""
        require_share("randk's ratio", self.ratio)
        require_count("randk's k", self.k)

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return the seed and the values at its positions."""
        flat = checked(block)
        count = kept_count(self.ratio, self.k, "block", block.shape)
        values = flat[permutation(key, flat.size, 0, count)]
        body = number(count) + key.to_bytes(8, "little") + values.tobytes()
        return Packet(self.code, block.dtype, block.shape, body)

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Return the values at the positions of the seed, zeros elsewhere."""
        reader = Reader(packet.body)
        count = reader.number("randk's number of entries")
        if count > packet.entries:
            raise WireError(f"expected at most {packet.entries:,} entries, got {count:,}.")
        key = int.from_bytes(reader.take(8, "randk's seed"), "little")
        values = finite_values(reader.take(count * packet.dtype.itemsize, "randk's values"), packet.dtype)
        reader.end("randk body")
        out: FloatArray = np.zeros(packet.entries, dtype=packet.dtype)
        out[permutation(key, packet.entries, 0, count)] = values
        return out.reshape(packet.shape)

    def alpha(self, shape: Shape) -> float:
        """Return k / d, which holds in expectation over the seed."""
        return kept_count(self.ratio, self.k, "block", shape) / entries(shape) if entries(shape) else 1.0

    def paper_bits(self, shape: Shape) -> int:
        """Return 32 bits per kept value."""
        return 32 * kept_count(self.ratio, self.k, "block", shape)
