"""How the fusion model x0 reaches the parties when labels are shared: sent, compressed, or recomputed by everyone.

A party's gradient at step t uses x0 as it was *before* the server's own update of step t. Each way has a server's half,
which tells, and a party's half, which hears.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import torch

from efvfl.batches import ALL
from efvfl.block import Block
from efvfl.channel import Channel, Packets, read_bytes, send_bytes, send_exactly, unpack
from efvfl.errors import ProtocolError
from efvfl.packet import Packet

DIGEST = 8  # bytes
MENDS = 2  # exact copies a replica gets; at the next mismatch it is sent every step


class Teller(Protocol):
    """The server's half."""

    def check(self, step: int, party: int, digest: Packets) -> None:
        """Refuse block 0 of a report that does not belong there."""

    def tell(self, step: int, digests: list[Packets | None]) -> list[Packets]:
        """Return block 0 for every party, empty where nothing is said.

        `digests` is block 0 of their reports, None for a party that is away.
        """

    def resume(self, party: int) -> Packets:
        """Return block 0 for a party (from 0) that was away, empty where it needs nothing before the next step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""


class Hearer(Protocol):
    """A party's half, around its copy of the fusion model."""

    block: Block

    def hear(self, step: int, packets: Packets) -> None:
        """Bring the copy to x0 of this step."""

    @property
    def follows(self) -> bool:
        """Whether the party must repeat the server's update on its copy."""

    def resume(self, packets: Packets, steps: range) -> None:
        """Bring the copy to where it would be if these steps had not been missed, or refuse what came."""

    def digest(self, step: int) -> Packets:
        """Return block 0 of the report on this step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""


def _one(packets: Packets) -> Packet:
    if len(packets) != 1:
        raise ProtocolError(f"the fusion model came in {len(packets)} packets, 1 is expected.")
    return packets[0]


def refuse_digest(party: int, packets: Packets) -> None:
    """Refuse block 0 in the report of a party (from 0) where no digest is due."""
    if packets:
        raise ProtocolError(f"party {party + 1} sent block 0 with its report, but no digest of a fusion model is due.")


def _refuse_any(packets: Packets) -> None:
    if packets:
        raise ProtocolError("the fusion model came with SYNC, but the next step brings it.")


def _digest_in(packets: Packets, name: str) -> bytes:
    """Return the 8 bytes of a digest that is due."""
    return read_bytes(packets, DIGEST, f"the digest of {name}'s fusion model, which is due now,")


def _hear_vector(block: Block, packets: Packets) -> None:
    block.load_vector(unpack(_one(packets), (block.size(),), block.dtype, "the fusion model"))


class SendTeller:
    """x0 itself, to everyone, every step."""

    def __init__(self, block: Block, parties: int) -> None:
        """Tell of the server's fusion model."""
        self.block = block
        self.parties = parties

    def check(self, step: int, party: int, digest: Packets) -> None:
        """No digest is ever due."""
        refuse_digest(party, digest)

    def tell(self, step: int, digests: list[Packets | None]) -> list[Packets]:
        """Return the same packet for all."""
        return [send_exactly(self.block.vector())] * self.parties

    def resume(self, party: int) -> Packets:
        """The next step overwrites the copy."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """There is nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to load."""


class SendHearer:
    """Takes x0 as it comes."""

    follows = False

    def __init__(self, block: Block) -> None:
        """Write to this copy."""
        self.block = block

    def hear(self, step: int, packets: Packets) -> None:
        """Overwrite the copy."""
        _hear_vector(self.block, packets)

    def resume(self, packets: Packets, steps: range) -> None:
        """The next step overwrites the copy."""
        _refuse_any(packets)

    def digest(self, step: int) -> Packets:
        """Nothing to compare."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Every step overwrites the copy: there is nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to load."""


class CompressTeller:
    """The compressed change of x0 against its memory G0, the paper's block 0."""

    def __init__(self, block: Block, parties: int, channel: Channel) -> None:
        """Tell of the server's fusion model through this channel."""
        self.block = block
        self.parties = parties
        self.channel = channel

    def check(self, step: int, party: int, digest: Packets) -> None:
        """No digest is ever due."""
        refuse_digest(party, digest)

    def tell(self, step: int, digests: list[Packets | None]) -> list[Packets]:
        """Return the same packet for all. The server itself goes on with its exact x0."""
        packets, _ = self.channel.send(ALL, self.block.vector(), step)
        return [packets] * self.parties

    def resume(self, party: int) -> Packets:
        """Return G0 itself."""
        return send_exactly(self.channel.held(ALL))

    def state_dict(self) -> dict[str, Any]:
        """Return the memory."""
        return self.channel.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved memory."""
        self.channel.load_state_dict(state)


class CompressHearer:
    """Works with G0 instead of x0."""

    follows = False

    def __init__(self, block: Block, channel: Channel) -> None:
        """Write to this copy what the channel gives."""
        self.block = block
        self.channel = channel

    def hear(self, step: int, packets: Packets) -> None:
        """Advance G0 and use it."""
        decoded = self.channel.decode(ALL, packets, self.block.size())
        self.block.load_vector(self.channel.hear(ALL, packets, decoded))

    def resume(self, packets: Packets, steps: range) -> None:
        """Take over G0; the next step brings the copy to it."""
        self.channel.restore(ALL, unpack(_one(packets), (self.block.size(),), self.block.dtype, "the fusion model"))

    def digest(self, step: int) -> Packets:
        """Nothing to compare: both memories absorb the same packets."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return the memory."""
        return self.channel.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved memory."""
        self.channel.load_state_dict(state)


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
        return [() if digests[p] is None else self._tell_one(p, differ[p]) for p in range(len(self.names))]

    def resume(self, party: int) -> Packets:
        """Return an exact copy, unless one is sent every step anyway."""
        return send_exactly(self.block.exact_vector()) if self.mends[party] <= MENDS else ()

    def _expects(self, step: int, party: int) -> bool:
        return step > 0 and step % self.every == 0 and self.mends[party] <= MENDS

    def check(self, step: int, party: int, digest: Packets) -> None:
        """A digest must be there when it is due, and only then."""
        if self._expects(step, party):
            _digest_in(digest, self.names[party])
        else:
            refuse_digest(party, digest)

    def _tell_one(self, party: int, mismatch: bool) -> Packets:
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
            _hear_vector(self.block, packets)
        else:
            shape = (self.block.exact_size(),)
            self.block.load_exact_vector(unpack(_one(packets), shape, torch.float64, "the fusion model's exact copy"))
        self.started, self.mends = True, mends

    def resume(self, packets: Packets, steps: range) -> None:
        """Take over an exact copy; it is nobody's mistake, so it does not count as one."""
        if not self.follows:
            _refuse_any(packets)
            return
        packet = _one(packets)
        if packet.shape != (self.block.exact_size(),):
            self.block.fill_optimizer()  # the server has learnt, and this copy never has
        shape = (self.block.exact_size(),)
        self.block.load_exact_vector(unpack(packet, shape, torch.float64, "the fusion model's exact copy"))
        for step in steps:
            self.block.end_step(step)
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
