"""Top-k, then QSGD on the kept values: two kinds of savings multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from efvfl.compress import positions
from efvfl.compress.base import Compressor, Shape, checked, entries, register, require_count, require_share
from efvfl.compress.qsgd import check_bits, dequantise, level_count, quantise, tau, whole_bits
from efvfl.compress.ramp import Knob
from efvfl.compress.topk import kept, largest
from efvfl.wire.packet import FloatArray, Packet, Reader


@register("topk_qsgd", 6)
@dataclass(frozen=True)
class TopKQSGD(Compressor):
    """Keep the largest entries and quantise them. Body: how many, their places, then QSGD's body for them."""

    whole = frozenset({"bits"})

    ratio: Knob = 0.1  # share of the entries that is kept: smaller => fewer bytes, more error
    bits: Knob = 4  # for each kept value: fewer => fewer bytes, more error
    k: int = 0  # a fixed number instead of a share; 0: use the ratio
    levels: Literal["runs", "text"] = "runs"  # s = 2^b - 1, as in the paper's runs, or 2^b, as in its text

    def __post_init__(self) -> None:
        """Refuse knobs out of range."""
        require_share("topk_qsgd's ratio", self.ratio)
        check_bits(self.bits, self.levels)
        require_count("topk_qsgd's k", self.k)

    @property
    def s(self) -> int:
        """The number of levels."""
        return level_count(whole_bits(self.bits), self.levels)

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Send the kept entries' places and quantised values."""
        flat = checked(block)
        places = largest(flat, kept(self.ratio, self.k, "block", block.shape))
        body = positions.encode(places, flat.size) + quantise(flat[places], self.s, key)
        return Packet(self.code, block.dtype, block.shape, body)

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Put the kept values back among zeros."""
        reader = Reader(packet.body)
        places = positions.read(reader, packet.entries)
        values = dequantise(reader, places.size, packet.dtype)
        reader.end("topk_qsgd body")
        out: FloatArray = np.zeros(packet.entries, dtype=packet.dtype)
        out[places] = values
        return out.reshape(packet.shape)

    def alpha(self, shape: Shape) -> float:
        """(k / d) / tau(k): both errors live on different entries, so they add up."""
        count = kept(self.ratio, self.k, "block", shape)
        return count / entries(shape) / tau(count, self.s) if count else 1.0

    def paper_bits(self, shape: Shape) -> int:
        """32 bits for the norm, a sign and b bits for every kept entry."""
        return 32 + (1 + whole_bits(self.bits)) * kept(self.ratio, self.k, "block", shape)
