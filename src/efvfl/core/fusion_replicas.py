"""The fusion model at parties that recompute it: they repeat the server's updates, and digests are compared.

Nothing travels but the first copy, until a digest differs. That is mended with an exact copy, and after a few of them
the fusion model is sent every step.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from efvfl.core.block import Block
from efvfl.core.channel import Packets, read_bytes, send_bytes, send_exactly, unpack
from efvfl.core.fusion_updates import hear_vector, one, refuse_any, refuse_digest
from efvfl.errors import ProtocolError

DIGEST = 8  # bytes
PER_NUMBER = 5  # numbers of an exact copy for each of the model, at most: optimisers keep up to four tensors
MENDS = 2  # exact copies a replica gets; at the next mismatch it is sent every step


def _digest_in(packets: Packets, name: str) -> bytes:
    """Return the 8 bytes of a digest that is due."""
    return read_bytes(packets, DIGEST, f"the digest of {name}'s fusion model, which is due now,")


class ReplicateTeller:
    """Nothing but the first copy, as long as the parties' digests agree with the server's."""

    def __init__(self, block: Block, names: list[str], every: int) -> None:
        """Compare every so many steps."""
        self.block = block
        self.names = names
        self.every = every
        self.mends = [0] * len(names)

    def tell(self, step: int, digests: list[Packets | None]) -> list[Packets]:
        """Return exact copies where they are needed."""
        if step == 0:
            return [send_exactly(self.block.exact_vector())] * len(self.names)
        own = self.block.digest() if step % self.every == 0 else b""
        expects = [given is not None and self._expects(step, party) for party, given in enumerate(digests)]
        theirs = [_digest_in(d or (), n) if e else b"" for e, d, n in zip(expects, digests, self.names, strict=True)]
        differ = [expected and their != own for expected, their in zip(expects, theirs, strict=True)]
        return [() if digests[p] is None else self._tellone(p, differ[p]) for p in range(len(self.names))]

    def resume(self, party: int) -> Packets:
        """Return an exact copy, unless one is sent every step anyway."""
        if self.mends[party] > MENDS:
            return ()
        return (*send_bytes(self.block.learnt()), *send_exactly(self.block.exact_vector()))

    def _expects(self, step: int, party: int) -> bool:
        return step > 0 and step % self.every == 0 and self.mends[party] <= MENDS

    def check(self, step: int, party: int, digest: Packets) -> None:
        """A digest must be there when it is due, and only then."""
        if self._expects(step, party):
            _digest_in(digest, self.names[party])
        else:
            refuse_digest(party, digest)

    def _tellone(self, party: int, mismatch: bool) -> Packets:
        self.mends[party] += mismatch
        if self.mends[party] > MENDS:
            if mismatch:
                warnings.warn(
                    f"party {self.names[party]!r} computed another fusion model than the server for the third time: it "
                    "is sent every step from now on. Other processors or versions may do that; set fusion = 'send'.",
                    stacklevel=2,
                )
            return send_exactly(self.block.vector())
        return send_exactly(self.block.exact_vector()) if mismatch else ()

    def state_dict(self) -> dict[str, Any]:
        """Return how often each party was mended."""
        return {"mends": list(self.mends)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved counts."""
        self.mends = [int(count) for count in state["mends"]]


class ReplicateHearer:
    """Repeats the server's updates on its own copy, optimiser state and buffers included."""

    def __init__(self, block: Block, every: int) -> None:
        """Hold a copy that learns."""
        self.block = block
        self.every = every
        self.started = False
        self.mends = 0

    @property
    def follows(self) -> bool:
        """Until it went wrong once too often."""
        return self.mends <= MENDS

    def hear(self, step: int, packets: Packets) -> None:
        """Take over an exact copy, if one came."""
        if not packets:
            if not self.started or not self.follows:
                raise ProtocolError(f"the server's reply to step {step} lacks the fusion model.")
            return
        mends = self.mends + (self.started and self.follows)
        if mends > MENDS:
            hear_vector(self.block, packets)
        else:
            shape = (self.block.exact_size(),)
            self.block.load_exact_vector(unpack(one(packets), shape, torch.float64, "the fusion model's exact copy"))
        self.started, self.mends = True, mends

    def resume(self, packets: Packets, steps: range) -> None:
        """Take over an exact copy; it is nobody's mistake, so it does not count as one."""
        if not self.follows:
            refuse_any(packets)
            return
        if len(packets) != 2:
            raise ProtocolError(f"the fusion model came in {len(packets)} packets, 2 are expected.")
        learnt = read_bytes(packets[:1], len(self.block.parameters), "the list of parameters that have learnt")
        most = self.block.size() * PER_NUMBER
        if not packets[1].shape or packets[1].shape[0] > most:
            raise ProtocolError(f"a copy of shape {packets[1].shape} came, at most {most:,} numbers are expected.")
        vector = unpack(packets[1], packets[1].shape[:1], torch.float64, "the fusion model's exact copy")
        self.block.take_over(vector, learnt)
        self.block.end_steps(steps)
        self.started = True

    def digest(self, step: int) -> Packets:
        """Return the digest when it is due."""
        if step == 0 or step % self.every or not self.follows:
            return ()
        return send_bytes(self.block.digest())

    def state_dict(self) -> dict[str, Any]:
        """Return the copy and how it fared."""
        return {"block": self.block.state_dict(), "started": self.started, "mends": self.mends}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved copy."""
        self.block.load_state_dict(state["block"])
        self.started, self.mends = bool(state["started"]), int(state["mends"])
