"""Top-k, then QSGD on the kept values: the savings multiply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from efvfl.compress import positions
from efvfl.compress.base import Compressor, Shape, checked, entries, register, require_count, require_share
from efvfl.compress.qsgd import check_bits, dequantise, level_count, quantise, tau, whole_bits
from efvfl.compress.ramp import Knob
from efvfl.compress.topk import kept_count, largest
from efvfl.wire.packet import FloatArray, Packet, Reader


@register("topk_qsgd", 6)
@dataclass(frozen=True)
class TopKQSGD(Compressor):
    """Keep the entries of largest magnitude and quantise them.

    Body: their number, their positions, then QSGD's body for their values.

    >>> from efvfl.compress import decode
    >>> decode(TopKQSGD(k=2, bits=8).encode(np.float32([1, -3, 2, 0]), key=1)).round(1).tolist()
    [0.0, -3.0, 2.0, 0.0]
    """

    whole = frozenset({"bits"})

    ratio: Knob = 0.1  # share of the entries to keep: smaller => fewer bytes, more error
    bits: Knob = 4  # per kept value: fewer => fewer bytes, more error
    k: int = 0  # number of entries to keep; 0: use the ratio
    levels: Literal["runs", "text"] = "runs"  # s = 2^b - 1, as in the paper's runs, or 2^b, as in its text

    def __post_init__(self) -> None:
        """Check the parameters."""
        require_share("topk_qsgd's ratio", self.ratio)
        check_bits(self.bits, self.levels)
        require_count("topk_qsgd's k", self.k)

    @property
    def s(self) -> int:
        """The number of levels."""
        return level_count(whole_bits(self.bits), self.levels)

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return the positions and quantised values of the kept entries."""
        flat = checked(block)
        places = largest(flat, kept_count(self.ratio, self.k, "block", block.shape))
        body = positions.encode(places, flat.size) + quantise(flat[places], self.s, key)
        return Packet(self.code, block.dtype, block.shape, body)

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Return the kept values at their positions, zeros elsewhere."""
        reader = Reader(packet.body)
        places = positions.read(reader, packet.entries)
        values = dequantise(reader, places.size, packet.dtype)
        reader.end("topk_qsgd body")
        out: FloatArray = np.zeros(packet.entries, dtype=packet.dtype)
        out[places] = values
        return out.reshape(packet.shape)

    def alpha(self, shape: Shape) -> float:
        """Return (k / d) / tau(k): the two errors affect different entries, so they add up."""
        count = kept_count(self.ratio, self.k, "block", shape)
        return count / entries(shape) / tau(count, self.s) if count else 1.0

    def paper_bits(self, shape: Shape) -> int:
        """Return 32 bits for the norm, plus a sign and b bits per kept entry."""
        return 32 + (1 + whole_bits(self.bits)) * kept_count(self.ratio, self.k, "block", shape)
