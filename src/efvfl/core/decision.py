"""What the server decides by the loss of validation rows, as it tells the parties: DECIDE."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Self

from efvfl.core.block import Block
from efvfl.core.channel import Packets, read_bytes, send_bytes
from efvfl.core.kept_model import KeptModel
from efvfl.errors import ProtocolError

_LAYOUT = struct.Struct("<Bd")  # what to do, and the rate
_KEEP, _USE = 1, 2


@dataclass(frozen=True)
class Decision:
    """What every participant does between two steps."""

    keep: bool = False  # the model as it is now, for it is the best so far
    use: bool = False  # the model that was kept, for training has ended
    rate: float = 0.0  # the learning rate from now on; 0: it stays as it is

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self.keep or self.use or self.rate > 0

    def packets(self) -> Packets:
        """Return it as it is sent."""
        return send_bytes(_LAYOUT.pack(_KEEP * self.keep | _USE * self.use, self.rate))

    @classmethod
    def read(cls, packets: Packets) -> Self:
        """Return what was sent, or refuse it."""
        flags, rate = _LAYOUT.unpack(read_bytes(packets, _LAYOUT.size, "a decision"))
        if flags > _KEEP | _USE or not 0 <= rate < math.inf:
            raise ProtocolError(f"a decision: expected flags from 0 to 3 and a rate, got {flags} and {rate:g}.")
        return cls(bool(flags & _KEEP), bool(flags & _USE), rate)

    def carry_out(self, block: Block, kept: KeptModel) -> None:
        """Do as was decided."""
        if self.keep:
            kept.keep()
        if self.use:
            kept.use()
        if self.rate:
            block.set_rate(self.rate)
